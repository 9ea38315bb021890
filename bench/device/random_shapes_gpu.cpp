// SPDX-License-Identifier: MIT
// Random products on a GPU beside their bound: finds shapes that the case table does not have and the planner does badly.
//
//   random_shapes_gpu [SEED [COUNT]]                  CSV: order of X and Y, type, factors, rows, milliseconds, the bound's, their ratio, error, plan
//   random_shapes_gpu SEED COUNT kernels PART PARTS   only has the kernels of every PARTS-th product compiled, for the next run to find them
//   random_shapes_gpu product ORDER TYPE FACTORS ROWS [PLAN]
//                                                     the row of one product: rows|columns, f32|f64, e.g. 8x3>5; PLAN: passes as the last column
//                                                     has them, of which those without a tile are the planner's
//   random_shapes_gpu list FILE [PART PARTS]          the rows of many: a line of FILE is ORDER,TYPE,FACTORS,ROWS[,PLAN]; with PARTS only the kernels of
//                                                     every PARTS-th line are compiled
//
// Operands in device memory, of at most 120 MB; medians of 5, one operand set. bound: the time of the bytes of X and Y at the pace of a large copy in
// the same run, least flops / 102 (float) or 66 (double) TFLOP/s, or 3 microseconds, whichever is most. error: of three rows of Y, all poisoned
// before, against their definition in double (Frobenius).
#include <Eigen/Dense>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/otimes.hpp>
#include <otimes/plan/gpu_passes.hpp>

#include "../arguments.hpp"
#include "../random_shapes.hpp"
#include "milliseconds.hpp"

namespace {

using Eigen::Index;
using otimes::DeviceMatrix;
using otimes::bench::shape;
using otimes::bench::shapes;

using otimes::bench::milliseconds_of;

double median_of(const std::function<void()>& work, int count) {
    milliseconds_of(work, 2);
    std::vector<double> times;
    for (int repeat = 0; repeat < 5; ++repeat) {
        times.push_back(milliseconds_of(work, count));
    }
    std::sort(times.begin(), times.end());
    return times[2];
}

/// Bytes a millisecond, read and written.
double copy_rate() {
    const Eigen::MatrixXf zeros = Eigen::MatrixXf::Zero(1 << 14, 1 << 13);
    const DeviceMatrix<float> from(zeros);
    DeviceMatrix<float> to(from.rows(), from.cols());
    const double bytes = 2.0 * 4.0 * static_cast<double>(from.rows()) * static_cast<double>(from.cols());
    return bytes / median_of([&] { to = from; }, 4);
}

std::string text_of(const otimes::plan& made) {
    std::string text;
    for (const otimes::pass& one : made.passes) {
        const bool outer = one.kernel == otimes::pass_kernel::gpu_outer;
        text += text.empty() ? "" : " | ";
        text += one.tile.trips.empty() ? std::string(otimes::to_string(one.kernel)).substr(4)
                                       : (outer ? "O " : "T ") + otimes::planning::text_of_tile(one.tile, outer);
    }
    return text;
}

/// x * kron(factors), one factor at a time, last one first.
Eigen::VectorXd row_of_product(Eigen::VectorXd x, const std::vector<Eigen::MatrixXd>& factors) {
    Index inner = 1;
    for (std::size_t k = factors.size(); k-- > 0; inner *= factors[k].cols()) {
        const Eigen::MatrixXd& f = factors[k];
        const Index outer = x.size() / (f.rows() * inner);
        Eigen::VectorXd y(outer * f.cols() * inner);
        for (Index o = 0; o < outer; ++o) {
            Eigen::Map<Eigen::MatrixXd>(y.data() + o * f.cols() * inner, inner, f.cols()).noalias() =
                Eigen::Map<const Eigen::MatrixXd>(x.data() + o * f.rows() * inner, inner, f.rows()) * f;
        }
        x = y;
    }
    return x;
}

/// The plan with the tiles of text_of's text.
otimes::plan with_tiles(const otimes::plan& made, const std::string& text) {
    otimes::planning::gpu_choice choice;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find(" | ", at), text.size());
        const std::string one = text.substr(at, end - at);
        otimes::planning::gpu_choice::part part;
        part.sweeps = 1;
        if (const auto tile = one.size() > 2 ? otimes::planning::read_tile(one.substr(2)) : std::nullopt) {
            part.tile = *tile;
            part.sweeps = 0;
            for (const otimes::gpu_trip& trip : tile->trips) {
                part.sweeps += trip.count;
            }
        }
        choice.parts.push_back(part);
        at = end + 3;
    }
    return otimes::planning::plan_on_gpu(made.source, otimes::gpu().target().gpus.front(), made.wishes, 0, &choice);
}

template <class Scalar, int Order>
void measure(const shape& s, double rate, bool kernels_only, const std::string& tiles = {}) {
    constexpr bool rows = Order == Eigen::RowMajor;
    using host = Eigen::Matrix<Scalar, -1, -1, rows ? Eigen::RowMajor : Eigen::ColMajor>;
    std::vector<DeviceMatrix<Scalar, Order>> factors;
    std::vector<Eigen::MatrixXd> exact;
    for (std::size_t i = 0; i < s.p.size(); ++i) {
        const host f = host::Random(s.p[i], s.q[i]) * Scalar(std::sqrt(3.0 / static_cast<double>(s.p[i])));
        factors.emplace_back(f);
        exact.push_back(f.template cast<double>());
    }
    const auto K = otimes::kron(factors);
    const Index in = shape::product(s.p);
    const Index out = shape::product(s.q);
    const Eigen::Matrix<Scalar, -1, 1> some = Eigen::Matrix<Scalar, -1, 1>::Random(1 << 16);
    host X(s.rows, in);
    for (Index i = 0; i < X.size(); ++i) {
        X.data()[i] = some[(i * 7 + i / 65536 * 13) & 65535];
    }
    const DeviceMatrix<Scalar, Order> dX(X);
    const host poison = host::Constant(s.rows, out, std::numeric_limits<Scalar>::quiet_NaN());
    DeviceMatrix<Scalar, Order> dY(poison);
    const otimes::plan usual = otimes::make_plan<Order>(dX * K);
    const otimes::plan made = tiles.empty() ? usual : with_tiles(usual, tiles);
    made.run(dY, dX * K);
    otimes::gpu().synchronize();
    if (kernels_only) {
        return;
    }
    const host Y = dY.to_host();
    double difference = 0;
    double size = 0;
    for (const Index row : {Index{0}, s.rows / 2, s.rows - 1}) {
        const Eigen::VectorXd want = row_of_product(X.row(row).transpose().template cast<double>(), exact);
        difference += (Y.row(row).transpose().template cast<double>() - want).squaredNorm();
        size += want.squaredNorm();
    }
    const double error = std::sqrt(difference / size);
    const double bytes = static_cast<double>(s.rows) * static_cast<double>(in + out) * sizeof(Scalar);
    double flops = 0;
    std::vector<std::pair<double, std::size_t>> order;  // the cheapest: what shrinks most, first
    for (std::size_t i = 0; i < s.p.size(); ++i) {
        order.emplace_back(1.0 / static_cast<double>(s.p[i]) - 1.0 / static_cast<double>(s.q[i]), i);
    }
    std::sort(order.begin(), order.end());
    double elements = static_cast<double>(s.rows) * static_cast<double>(in);
    for (const auto& [key, i] : order) {
        flops += 2.0 * elements * static_cast<double>(s.q[i]);
        elements *= static_cast<double>(s.q[i]) / static_cast<double>(s.p[i]);
    }
    const double bound = std::max({bytes / rate, flops / (sizeof(Scalar) == 4 ? 102e9 : 66e9), 0.003});
    const int count = std::clamp(static_cast<int>(2.0 / bound), 2, 20);
    const double ms = median_of([&] { made.run(dY, dX * K); }, count);
    std::printf("%s,%s,%s,%lld,%.5f,%.5f,%.2f,%.1e,\"%s\"\n", rows ? "rows" : "columns",
                sizeof(Scalar) == 4 ? "f32" : "f64", s.name().c_str(), static_cast<long long>(s.rows), ms, bound,
                ms / bound, error, text_of(made).c_str());
    std::fflush(stdout);
}

void measure_way(Index way, const shape& s, double rate, bool kernels_only, const std::string& tiles = {}) {
    switch (way) {
        case 0: measure<float, Eigen::RowMajor>(s, rate, kernels_only, tiles); break;
        case 1: measure<double, Eigen::RowMajor>(s, rate, kernels_only, tiles); break;
        case 2: measure<float, Eigen::ColMajor>(s, rate, kernels_only, tiles); break;
        default: measure<double, Eigen::ColMajor>(s, rate, kernels_only, tiles); break;
    }
}

int way_of(std::string_view order, std::string_view type) {
    return (order != "rows" && order != "columns") || (type != "f32" && type != "f64")
               ? -1
               : (order == "columns" ? 2 : 0) + (type == "f64" ? 1 : 0);
}

void measure_list(const std::string& file, Index part, Index parts, bool kernels_only) {
    std::ifstream lines(file);
    if (!lines) {
        throw std::runtime_error("random_shapes_gpu: cannot read " + file);
    }
    const double rate = kernels_only ? 1 : copy_rate();
    std::string line;
    for (Index i = 0; std::getline(lines, line); ++i) {
        std::vector<std::string> words(1);
        for (const char c : line) {
            if (c == ',' && words.size() < 5) {
                words.emplace_back();
            } else {
                words.back() += c;
            }
        }
        words.resize(5);
        const int way = way_of(words[0], words[1]);
        if (way < 0) {
            throw std::runtime_error("random_shapes_gpu: no product: " + line);
        }
        if (i % parts == part) {
            measure_way(way, shape::named(words[2], std::stoll(words[3])), rate, kernels_only, words[4]);
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    const otimes::bench::arguments words(argc, argv,
                                         "random_shapes_gpu [SEED [COUNT]]\n"
                                         "       random_shapes_gpu SEED COUNT kernels PART PARTS\n"
                                         "       random_shapes_gpu product rows|columns f32|f64 FACTORS ROWS [PLAN]\n"
                                         "       random_shapes_gpu list FILE [PART PARTS]",
                                         6);
    if (argc >= 6 && std::string_view(argv[1]) == "product") {
        const std::string_view order = argv[2];
        const std::string_view type = argv[3];
        if (way_of(order, type) < 0) {
            words.refuse();
        }
        try {
            measure_way(way_of(order, type), shape::named(argv[4], words.number(5, 1)), copy_rate(), false,
                        argc > 6 ? argv[6] : "");
        } catch (const std::exception& e) {
            std::fprintf(stderr, "%s\n", e.what());
            return 1;
        }
        return 0;
    }
    if ((argc == 3 || argc == 5) && std::string_view(argv[1]) == "list") {
        try {
            measure_list(argv[2], words.number(3, 0, 0), words.number(4, 1), argc == 5);
        } catch (const std::exception& e) {
            std::fprintf(stderr, "%s\n", e.what());
            return 1;
        }
        return 0;
    }
    otimes::bench::sizes of;
    of.room = 400000;
    of.elements = {3000000, 8000000, 12000000};
    shapes random(static_cast<unsigned>(words.number(1, 1, 0)), of);
    const int count = static_cast<int>(words.number(2, 140));
    const bool kernels_only = argc == 6 && std::string_view(argv[3]) == "kernels";
    if (argc > 3 && !kernels_only) {
        words.refuse();
    }
    const int part = kernels_only ? static_cast<int>(words.number(4, 0, 0)) : 0;
    const int parts = kernels_only ? static_cast<int>(words.number(5, 1)) : 1;
    try {
        const double rate = kernels_only ? 1 : copy_rate();
        if (!kernels_only) {
            std::printf("order,dtype,factors,rows,ms,bound_ms,x_bound,relerr,plan\n");
        }
        for (int i = 0; i < count; ++i) {
            const shape s = random.draw(i % 7);
            const Index way = random.pick(0, 3);
            if (i % parts != part) {
                continue;
            }
            measure_way(way, s, rate, kernels_only);
        }
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
    return 0;
}
