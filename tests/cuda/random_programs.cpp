// SPDX-License-Identifier: MIT
// Random programs on a device against plain loops over the dense product: sums, transposes, strides, offsets, forms of assignment, reductions.
// Elements are small integers, so that every order of summation and every split of a number is exact. A few shapes a run, since each
// compiles kernels of its own, and many programs of each. OTIMES_TEST_SEED (else 1) draws others, for OTIMES_TEST_SECONDS (else 40).
#include <doctest/doctest.h>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

#include <algorithm>
#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device_support.hpp"

using otimes::device_map;
using otimes::device_product;
using otimes::DeviceMatrix;
using namespace device_test;

namespace {

std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
    const char* const text = std::getenv(name);
    return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

template <class Scalar>
class random_program {
public:
    using host = matrix<Scalar, 0>;
    using extents = std::vector<std::pair<std::int64_t, std::int64_t>>;

    // @param shape decides the factors' extents, `variant` everything else.
    random_program(std::uint64_t shape, std::uint64_t variant) : random_(shape) {
        const std::int64_t extents_to_choose[] = {2, 3, 4, 5, 7, 8, 8, 12, 16, 16, 21, 24, 32, 37, 64, 100, 129};
        const auto pick = [&] { return extents_to_choose[random_.integer(0, std::ssize(extents_to_choose) - 1)]; };
        const std::int64_t count = random_.integer(1, 4);
        const bool alike = one_of(3), square = !one_of(3);
        std::int64_t p = pick(), q = p, all = 1;
        for (std::int64_t i = 0; i < count; ++i) {
            if (i > 0 && !alike) p = q = pick();
            if (!square && one_of(2)) q = pick();
            if (i > 0 && all * std::max(p, q) > 1024) break;
            all *= std::max(p, q);
            factors_.push_back({p, q});
        }
        square_ = std::ranges::all_of(factors_, [](const auto& f) { return f.first == f.second; });
        random_ = support::random_stream(shape * 1000003 + variant);
    }

    void run() {
        const bool left = one_of(2);
        const std::int64_t sizes[] = {1, 2, 3, 5, 17, 64};
        const std::int64_t others = sizes[random_.integer(0, 5)];
        std::int64_t inputs = 1;
        for (const auto& [p, q] : factors_) inputs *= left ? q : p;
        text_ += left ? "K * X, " : "X * K, ";
        const auto [x, x_value] = operand(left ? inputs : others, left ? others : inputs);
        const std::int64_t terms = one_of(2) ? 1 : random_.integer(2, 4);
        otimes::device_sum<Scalar> sum(term(x, left));
        host want = term_value(x_value, left);
        for (std::int64_t i = 1; i < terms; ++i) {
            const bool minus = one_of(3), matrix_alone = square_ && one_of(4);
            text_ += minus ? " - " : " + ";
            const otimes::device_sum<Scalar> more =
                matrix_alone ? otimes::device_sum<Scalar>(2 * x) : otimes::device_sum<Scalar>(term(x, left));
            sum.append(more, minus ? -1 : 1);
            want += (minus ? Scalar(-1) : Scalar(1)) *
                    (matrix_alone ? host(Scalar(2) * x_value) : term_value(x_value, left));
        }
        if (one_of(5)) {
            text_ += ", transposed";
            sum = sum.transpose();
            want = host(want.transpose());
        }
        CAPTURE(text_);
        if (one_of(4)) {
            reduce(sum, want);
        } else {
            assign(sum, want);
        }
    }

private:
    bool one_of(std::int64_t n) { return random_.integer(1, n) == 1; }
    Scalar value() {
        if constexpr (support::is_complex<Scalar>) {
            using real = support::real_t<Scalar>;
            return {static_cast<real>(random_.integer(-1, 1)), static_cast<real>(random_.integer(-1, 1))};
        } else {
            return static_cast<Scalar>(random_.integer(-2, 2));
        }
    }
    host values(std::int64_t rows, std::int64_t cols) {
        host m(rows, cols);
        for (Eigen::Index i = 0; i < m.size(); ++i) m.data()[i] = value();
        return m;
    }

    // A block of device memory, poisoned outside of a matrix that lies in it from `offset` on.
    struct placed {
        std::shared_ptr<DeviceMatrix<Scalar>> block;
        host elements;  // of the block
        std::int64_t offset, stride;
        bool by_rows;
        Eigen::Index at(std::int64_t i, std::int64_t j) const {
            return offset + (by_rows ? i * stride + j : j * stride + i);
        }
    };
    placed place(const host& m) {
        placed to;
        to.by_rows = one_of(2);
        to.offset = one_of(2) ? 0 : random_.integer(1, 15);
        to.stride = (to.by_rows ? m.cols() : m.rows()) + (one_of(2) ? 0 : random_.integer(1, 9));
        to.elements = host::Constant(to.offset + to.stride * (to.by_rows ? m.rows() : m.cols()) + 16, 1, nan<Scalar>());
        for (Eigen::Index i = 0; i < m.rows(); ++i)
            for (Eigen::Index j = 0; j < m.cols(); ++j) to.elements(to.at(i, j)) = m(i, j);
        to.block = std::make_shared<DeviceMatrix<Scalar>>(to.elements);
        kept_.push_back(to.block);
        text_ += (to.by_rows ? "rows+" : "cols+") + std::to_string(to.offset) + "/" + std::to_string(to.stride);
        return to;
    }
    std::pair<device_product<Scalar>, host> operand(std::int64_t rows, std::int64_t cols) {
        const std::int64_t way = random_.integer(0, 3);  // as it is, transposed, conjugate, adjoint
        const bool transposed = way % 2 == 1;
        const host m = values(transposed ? cols : rows, transposed ? rows : cols);
        const placed at = place(m);
        Scalar* const data = at.block->data() + at.offset;
        const device_product<Scalar> x = at.by_rows
                                             ? device_map<Scalar, 1>(data, m.rows(), m.cols(), at.stride).expression()
                                             : device_map<Scalar, 0>(data, m.rows(), m.cols(), at.stride).expression();
        text_ += way == 0 ? " " : way == 1 ? "^T " : way == 2 ? "^* " : "^H ";
        switch (way) {
            case 1: return {x.transpose(), host(m.transpose())};
            case 2: return {x.conjugate(), host(m.conjugate())};
            case 3: return {x.adjoint(), host(m.adjoint())};
            default: return {x, m};
        }
    }
    // The factors of a term; those of an earlier one at some places.
    device_product<Scalar> term(const device_product<Scalar>& x, bool left) {
        otimes::device_kron<Scalar> k;
        std::vector<host> dense;
        text_ += "(";
        for (std::size_t i = 0; i < factors_.size(); ++i) {
            const auto [p, q] = factors_[i];
            if (p == q && one_of(6)) {
                k.append(otimes::identity(p));
                dense.push_back(host::Identity(p, p));
                text_ += "I ";
            } else if (known_.contains(i) && one_of(3)) {
                k.append(known_.at(i).first);
                dense.push_back(known_.at(i).second);
                text_ += "= ";
            } else if (one_of(8)) {
                dense.push_back(values(p, q));
                k.append(host(dense.back()));
                text_ += "host ";
            } else {
                auto [f, m] = operand(p, q);
                k.append(f);
                dense.push_back(m);
                known_.insert_or_assign(i, std::pair{f, m});
            }
        }
        const double amounts[] = {1, 2, -1, -3};
        alpha_ = static_cast<Scalar>(static_cast<support::real_t<Scalar>>(amounts[random_.integer(0, 3)]));
        dense_ = dense_kron(dense);
        text_ += ")";
        return left ? alpha_ * (k * x) : alpha_ * (x * k);
    }
    host term_value(const host& x, bool left) const {
        return left ? host(alpha_ * (dense_ * x)) : host(alpha_ * (x * dense_));
    }

    void reduce(const otimes::device_sum<Scalar>& sum, const host& want) {
        const auto [z, z_value] = operand(want.rows(), want.cols());
        const Scalar got = sum.terms().size() == 1 ? otimes::dot(z, sum.terms().front()) : otimes::dot(z, sum);
        using wide = typename wider<Scalar>::type;
        const matrix<wide, 0> y = want.template cast<wide>(), w = z_value.template cast<wide>();
        const wide expected = (w.conjugate().array() * y.array()).sum();
        const double size = 1 + w.norm() * y.norm();
        const double limit = sizeof(support::real_t<Scalar>) == 4 ? 1e-5 : 1e-13;
        CHECK(std::abs(wide(got) - expected) <= limit * size);
        if (sum.terms().size() == 1) {
            const auto norm = static_cast<double>(otimes::squared_norm(sum.terms().front()));
            const double right = y.squaredNorm();
            CHECK(std::abs(norm - right) <= limit * (1 + right));
        }
    }

    void assign(const otimes::device_sum<Scalar>& sum, const host& want) {
        const std::int64_t form = random_.integer(0, 4);  // = += -= and without aliasing = +=
        text_ += ", form " + std::to_string(form) + " ";
        const bool overwrites = form == 0 || form == 3;
        const host before = overwrites ? host(host::Constant(want.rows(), want.cols(), nan<Scalar>()))
                                       : values(want.rows(), want.cols());
        const placed to = place(before);
        const auto write = [&](const auto& y) {
            switch (form) {
                case 0: y = sum; break;
                case 1: y += sum; break;
                case 2: y -= sum; break;
                case 3: y.noalias() = sum; break;
                default: y.noalias() += sum;
            }
        };
        Scalar* const data = to.block->data() + to.offset;
        if (to.by_rows)
            write(device_map<Scalar, 1>(data, want.rows(), want.cols(), to.stride));
        else
            write(device_map<Scalar, 0>(data, want.rows(), want.cols(), to.stride));
        const host block = to.block->to_host();
        host outside = block;
        std::int64_t wrong = 0;
        for (Eigen::Index i = 0; i < want.rows(); ++i) {
            for (Eigen::Index j = 0; j < want.cols(); ++j) {
                const Scalar expected = overwrites  ? want(i, j)
                                        : form == 2 ? Scalar(before(i, j) - want(i, j))
                                                    : Scalar(before(i, j) + want(i, j));
                wrong += block(to.at(i, j)) == expected ? 0 : 1;
                outside(to.at(i, j)) = nan<Scalar>();
            }
        }
        CAPTURE(text_);
        CHECK(wrong == 0);
        CHECK((outside.array() != outside.array()).all());  // gaps stay poisoned
    }

    support::random_stream random_;
    extents factors_;
    bool square_ = true;
    std::string text_;
    std::vector<std::shared_ptr<DeviceMatrix<Scalar>>> kept_;
    std::map<std::size_t, std::pair<device_product<Scalar>, host>> known_;  // by its place
    host dense_;                                                            // the last term's kron and scalar
    Scalar alpha_ = Scalar(1);
};

}  // namespace

TEST_CASE("random programs agree with plain loops" * needs_gpu()) {
    constexpr std::uint64_t variants = 24;
    const std::uint64_t first = number_from("OTIMES_TEST_SEED", 1) * 1000;
    const auto seconds = static_cast<double>(number_from("OTIMES_TEST_SECONDS", 40));
    const auto begin = std::chrono::steady_clock::now();
    const auto passed = [begin] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    std::uint64_t shape = first;
    for (; passed() < seconds && shape < first + 1000; ++shape) {
        CAPTURE(shape);
        for (std::uint64_t variant = 0; variant < variants && passed() < seconds; ++variant) {
            CAPTURE(variant);
            switch (shape % 4) {
                case 0: random_program<double>(shape, variant).run(); break;
                case 1: random_program<float>(shape, variant).run(); break;
                case 2: random_program<std::complex<double>>(shape, variant).run(); break;
                default: random_program<std::complex<float>>(shape, variant).run();
            }
        }
    }
    MESSAGE("random programs of shapes " << first << " to " << shape - 1);
    CHECK(shape > first);
}
