// SPDX-License-Identifier: MIT
/// @file reductions.hpp
/// Numbers from a product without the product: `dot(x, K * y)`, `squared_norm(X * K)`, `column_squared_norms(X * K)`,
/// `quadratic_trace(X, K)` = tr(X^H K X). The product is evaluated block by block and each block is reduced while it is in
/// cache, so that nothing of its size is ever stored.
///
/// Blocks are ranges of the index that no kron touches (rows of X in X * K, columns of X in K * X) or, for a single row or
/// column, ranges of the rows (columns) of the factor that is applied first, the first one where they are square:
///
///     x^H kron(A, B) y = sum_i x_i^H kron(A.row(i), B) y            x_i: the i-th of rows(A) pieces of x
///
/// Workspace: size(Y) / (rows of the first factor), but at least two rows or columns of Y where it has four or more. Flops: those of
/// the product, and two per entry. Sums are accumulated block by block, or row by row, in the same order on
/// every run. A single row or column is evaluated whole where there is one factor alone, or no factor is dense.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/blocks.hpp>
#include <otimes/adapt/eigen/index.hpp>
#include <otimes/adapt/eigen/lazy.hpp>
#include <otimes/expr/lower_structured.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

/// x^H kron(A, B) y for single columns (or rows) x and y: with t_p = B y_p for the p-th piece of y, the sum over p and q of
/// A(q, p) x_q^H t_p. One intermediate of size(Y) / rows(A). False where the operands do not allow it; `sum` is then unchanged.
template <class Scalar>
bool dot_by_pieces(const matrix_view& x, const product_node<Scalar>& node, Scalar& sum) {
    const bool left = node.has_left;
    const factor_list& factors = left ? node.left : node.right;
    if (node.has_left == node.has_right || factors.size() < 2 || !factors[0].is_dense() ||
        (left ? x.cols : x.rows) != 1 || x.rows * x.cols == 0) {
        return false;
    }
    if ((left ? x.row_stride : x.col_stride) != 1) {
        return false;
    }
    product_node<Scalar> rest = node;
    factor_list others;
    for (std::size_t k = 1; k < factors.size(); ++k) {
        others.push_back(factors[k]);
    }
    (left ? rest.left : rest.right) = others;
    const detail::side contracted = left ? detail::side::cols : detail::side::rows;
    const detail::side produced = left ? detail::side::rows : detail::side::cols;
    const std::int64_t length = detail::extent_product(others, contracted);
    const Eigen::Index out = index_of(detail::extent_product(others, produced));
    const matrix_view first = factors[0].view();
    const std::int64_t count = left ? first.cols : first.rows;
    const auto images = static_cast<Eigen::Index>(left ? first.rows : first.cols);
    if (count > images) {  // B would be applied more often than to what A leaves
        return false;
    }
    const auto bytes =
        static_cast<std::int64_t>(node.x.real_elements() ? sizeof(detail::real_of<Scalar>) : sizeof(Scalar));
    using vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
    const Eigen::Map<const dense_matrix<Scalar>> pieces(static_cast<const Scalar*>(x.data), out, images);
    vector t(out);
    vector g(images);
    if (count == 0) {
        return true;
    }
    rest.x = part_of(node.x, !left, 0, length, bytes);
    movable_program<Scalar> program([&](lowering<Scalar>& low) {
        low.add_product(rest, {t.data(), left ? out : 1, left ? 1 : out, 1, 1}, false, Scalar(1));
    });
    const matrix_view x_view = node.x.view();
    const std::int64_t step = length * (left ? x_view.row_stride : x_view.col_stride) * bytes;
    const auto* piece = static_cast<const char*>(rest.x.view().data);
    for (std::int64_t p = 0; p < count; ++p) {
        program.run();
        program.move(tensor_role::input, piece, step);
        piece += step;
        g.noalias() = pieces.adjoint() * t;
        for (Eigen::Index q = 0; q < images; ++q) {
            sum += kron_node<Scalar>::element(factors[0], first, left ? q : p, left ? p : q) * g(q);
        }
    }
    return true;
}

/// The same for any number of rows (columns) that lie one after another in x and in X: row by row, each reduced in cache and
/// never stored. False where the operands, or the size of a row, do not allow it.
template <class Scalar>
bool dot_by_rows(const matrix_view& x, const product_node<Scalar>& node, Scalar& sum) {
    const std::int64_t size = x.rows * x.cols;
    const factor_list& factors = node.has_left ? node.left : node.right;
    std::vector<detail::mode_parts> modes;
    double others = 1;
    for (const leaf& f : factors) {
        if (!f.is_dense() && !f.is_identity()) {
            return false;
        }
        modes.push_back(detail::parts_along(f, node.has_left, static_cast<std::int32_t>(modes.size())));
        others *= f.is_identity() ? static_cast<double>(f.rows()) : 1.0;
    }
    if (node.has_left == node.has_right || size == 0) {
        return false;
    }
    double written = 0;
    double elements = others;
    for (const leaf& f : factors) {
        elements *= f.is_identity() ? 1.0 : static_cast<double>(node.has_left ? f.cols() : f.rows());
    }
    for (const leaf& f : factors) {  // in the order of the formula
        if (!f.is_identity()) {
            const auto produced = static_cast<double>(node.has_left ? f.rows() : f.cols());
            written += elements * produced;
            elements = elements / static_cast<double>(node.has_left ? f.cols() : f.rows()) * produced;
        }
    }
    if (!(written <= 1.001 * detail::cheapest_interleaving(modes, others).cost)) {
        return false;
    }
    Scalar conjugate_sum(0);
    movable_program<Scalar> program([&](lowering<Scalar>& low) {
        low.add_product(node, x, false, Scalar(1));  // described as an output, never written
    });
    otimes::program& p = program.steps();
    if (p.steps.empty() || p.at(p.steps.back().out).type != dtype_of<Scalar>()) {
        return false;
    }
    const std::int32_t y = p.steps.back().out;
    tensor other = p.at(y);
    const std::int32_t first = other.first_mode;
    other.role = tensor_role::input;
    p.tensors[static_cast<std::size_t>(y)].role = tensor_role::temporary;
    p.tensors[static_cast<std::size_t>(y)].binding = -1;
    const std::int32_t v = p.add_tensor(other);
    for (std::int32_t k = 0; k < other.mode_count || k < p.at(y).mode_count; ++k) {
        const mode m = p.modes[static_cast<std::size_t>(first + k)];
        p.add_mode(m.extent, m.stride);
    }
    tensor scalar = other;
    scalar.role = tensor_role::output;
    scalar.binding = static_cast<std::int32_t>(program.operands().pointers.size());
    program.operands().pointers.push_back(&conjugate_sum);
    const std::int32_t result = p.add_tensor(scalar);
    step reduce;
    reduce.kind = step_kind::reduce;
    reduce.variant = step_variant::dot;
    reduce.in = y;
    reduce.factor = v;
    reduce.out = result;
    p.steps.push_back(reduce);
    const std::int64_t pieces = factors.empty() ? 1 : node.has_left ? factors[0].rows() : factors[0].cols();
    const std::int64_t row = (node.has_left ? x.rows : x.cols);
    const std::int64_t two_rows = size >= 4 * row ? 2 * row : 0;
    if (!program.run_by_rows((std::max)(size / (std::max)(pieces, std::int64_t{1}), two_rows))) {
        return false;
    }
    sum = detail::conjugate_of(conjugate_sum);
    return true;
}

/// Who takes the blocks, without its type: what follows is compiled once for each scalar.
struct block_consumer {
    const void* who;
    void (*take)(const void* who, const matrix_view& block, std::int64_t row, std::int64_t col);
};

/// Elements of a block that is no longer worth a run of its own.
inline constexpr std::int64_t short_block = 256;
/// Bytes that blocks of one vector may take where size(Y) / P1 is less: each block reads all of X.
inline constexpr std::int64_t least_block_bytes = 32768;

/// Along which factor to cut the product of a single vector: the dense one that the order of least multiplications has first, the factors
/// being applied one after the other, so that no piece repeats what another has done. factors.size() where none is dense.
inline std::size_t factor_to_cut(const factor_list& factors, bool from_left) {
    std::size_t first = factors.size();
    double most = 0;
    for (std::size_t k = 0; k < factors.size(); ++k) {
        const auto rows = static_cast<double>(factors[k].rows());
        const auto cols = static_cast<double>(factors[k].cols());
        // Of two neighbours the one with the larger 1 / images - 1 / preimages goes first.
        const double gain = from_left ? 1 / rows - 1 / cols : 1 / cols - 1 / rows;
        if (factors[k].is_dense() && (first == factors.size() || gain > most)) {
            first = k;
            most = gain;
        }
    }
    return first;
}

/// Calls `use` with blocks that together are the product of a single vector: those of ranges of the images of factor `cut`, as many as `most`
/// elements hold, but one at least. `block_view(rows, cols)`: memory for one.
template <class Scalar, class BlockView>
void for_each_piece(const product_node<Scalar>& node, std::size_t cut, std::int64_t most, const BlockView& block_view,
                    const block_consumer& use) {
    const bool left = node.has_left;
    const factor_list& factors = left ? node.left : node.right;
    const auto images = [left](const leaf& f) { return left ? f.rows() : f.cols(); };
    const leaf& whole = factors[cut];
    std::int64_t runs = 1;  // of consecutive elements of the product, one for each image of the factors before
    for (std::size_t k = 0; k < cut; ++k) {
        runs *= images(factors[k]);
    }
    const std::int64_t count = images(whole);
    const std::int64_t length = node.rows() * node.cols() / count;  // of a block of one image
    const std::int64_t step = std::clamp<std::int64_t>(most / length, 1, count);
    for (std::int64_t begin = 0; begin < count; begin += step) {
        const std::int64_t width = (std::min)(step, count - begin);
        product_node<Scalar> part = node;
        (left ? part.left : part.right)[cut] = part_of(whole, !left, begin, width, element_bytes_of<Scalar>(whole));
        const matrix_view block = block_view(part.rows(), part.cols());
        movable_program<Scalar>([&](lowering<Scalar>& low) { low.add_product(part, block, false, Scalar(1)); }).run();
        for (std::int64_t k = 0; k < runs; ++k) {
            const std::int64_t run = width * (length / runs);
            const std::int64_t at = (k * count + begin) * (length / runs);
            use.take(use.who, part_of(block, !left, k * run, run, static_cast<std::int64_t>(sizeof(Scalar))),
                     left ? at : 0, left ? 0 : at);
        }
    }
}

/// Calls `use` with blocks that together are the product, each without gaps. False, without a call, where it has to be evaluated
/// whole.
template <class Scalar>
bool for_each_block(const product_node<Scalar>& node, const block_consumer& use) {
    const auto bytes_of = [](const leaf& m) {
        return static_cast<std::int64_t>(m.real_elements() ? sizeof(detail::real_of<Scalar>) : sizeof(Scalar));
    };
    const std::int64_t rows = node.rows();
    const std::int64_t cols = node.cols();
    if (rows == 0 || cols == 0) {  // also of a first factor without rows, of which there is no piece
        return true;
    }
    std::vector<Scalar> memory;
    const matrix_view x_view = node.x.view();
    const bool by_rows = x_view.row_stride > x_view.col_stride;  // blocks are stored as X is
    const auto block_view = [&](std::int64_t block_rows, std::int64_t block_cols) {
        memory.resize((std::max)(memory.size(), static_cast<std::size_t>(block_rows * block_cols)));
        return matrix_view{memory.data(), block_rows, block_cols, by_rows ? block_cols : 1, by_rows ? 1 : block_rows};
    };
    const bool cuts_columns = !node.has_right && node.has_left;  // K * X: its columns are free
    const factor_list& factors = node.has_right ? node.right : node.left;
    const std::int64_t free_count = cuts_columns ? cols : rows;
    const bool both = node.has_left && node.has_right;
    const std::int64_t pieces =
        factors.empty() ? 1 : std::max<std::int64_t>(1, cuts_columns ? factors[0].rows() : factors[0].cols());
    if (!both && free_count > 1) {
        // At most size(Y) / P1, and no more than stays in cache until it is
        // reduced.
        const std::int64_t fibre = (cuts_columns ? x_view.rows + rows : x_view.cols + cols);
        const std::int64_t most = std::max<std::int64_t>(1, free_count / pieces);
        const std::int64_t count =
            (std::max)((free_count + most - 1) / most,
                       (free_count + indices_in_cache(free_count, 2 * fibre * bytes_of(node.x)) - 1) /
                           indices_in_cache(free_count, 2 * fibre * bytes_of(node.x)));
        const std::int64_t step = (std::max)(std::int64_t{1}, (std::min)(most, (free_count + count - 1) / count));
        const std::int64_t whole = free_count / step;
        const auto run = [&](std::int64_t begin, std::int64_t width, std::int64_t times) {
            product_node<Scalar> part = node;
            part.x = part_of(node.x, cuts_columns, begin, width, bytes_of(node.x));
            const matrix_view block = cuts_columns ? block_view(rows, width) : block_view(width, cols);
            movable_program<Scalar> program(
                [&](lowering<Scalar>& low) { low.add_product(part, block, false, Scalar(1)); });
            const std::int64_t bytes =
                width * (cuts_columns ? x_view.col_stride : x_view.row_stride) * bytes_of(node.x);
            const auto* at = static_cast<const char*>(part.x.view().data);
            for (std::int64_t k = 0; k < times; ++k) {
                program.run();
                program.move(tensor_role::input, at, bytes);
                at += bytes;
                use.take(use.who, block, cuts_columns ? 0 : begin + k * width, cuts_columns ? begin + k * width : 0);
            }
        };
        run(0, step, whole);
        if (whole * step < free_count) {
            run(whole * step, free_count - whole * step, 1);
        }
        return true;
    }
    if (!both && factors.size() > 1 && (factors[0].is_identity() || factors[0].kind() == factor_kind::diagonal)) {
        // kron(D, B) is a block for each element of D: one of them at a time, of short ones some
        const std::int64_t in = (cuts_columns ? x_view.rows : x_view.cols) / pieces;
        const std::int64_t out = (cuts_columns ? rows : cols) / pieces;
        const std::int64_t step = std::clamp<std::int64_t>(short_block / out, 1, pieces);
        const leaf diagonal = factors[0];
        const matrix_view elements = diagonal.is_identity() ? matrix_view{} : diagonal.view();
        const auto run = [&](std::int64_t begin, std::int64_t width, std::int64_t times) {
            product_node<Scalar> part = node;
            (cuts_columns ? part.left : part.right)[0] = leaf::identity(width);
            part.x = part_of(node.x, !cuts_columns, begin * in, width * in, bytes_of(node.x));
            const matrix_view block = cuts_columns ? block_view(width * out, 1) : block_view(1, width * out);
            movable_program<Scalar> program(
                [&](lowering<Scalar>& low) { low.add_product(part, block, false, Scalar(1)); });
            const std::int64_t bytes =
                width * in * (cuts_columns ? x_view.row_stride : x_view.col_stride) * bytes_of(node.x);
            const auto* at = static_cast<const char*>(part.x.view().data);
            for (std::int64_t first = begin; first < begin + times * width; first += width) {
                program.run();
                program.move(tensor_role::input, at, bytes);
                at += bytes;
                for (std::int64_t i = 0; i < width * out && !diagonal.is_identity(); ++i) {
                    Scalar& y = memory[static_cast<std::size_t>(i)];
                    y = kron_node<Scalar>::element(diagonal, elements, first + i / out, first + i / out) * y;
                }
                use.take(use.who, block, cuts_columns ? first * out : 0, cuts_columns ? 0 : first * out);
            }
        };
        run(0, step, pieces / step);
        if (pieces % step != 0) {
            run(pieces / step * step, pieces % step, 1);
        }
        return true;
    }
    const std::size_t cut = both || factors.size() < 2 ? factors.size() : factor_to_cut(factors, cuts_columns);
    if (cut == factors.size()) {
        return false;
    }
    const auto short_enough = least_block_bytes / static_cast<std::int64_t>(sizeof(Scalar));
    for_each_piece(node, cut, (std::max)(rows * cols / pieces, short_enough), block_view, use);
    return true;
}

/// Calls use(block, first row, first column) for blocks that together are the product, as views.
template <class Scalar, int Rows, int Cols, bool RowMajor, class Use>
void for_each_view(const lazy<product<Scalar, Rows, Cols, RowMajor>>& y, const Use& use) {
    const auto take = [](const void* who, const matrix_view& block, std::int64_t row, std::int64_t col) {
        (*static_cast<const Use*>(who))(block, static_cast<Eigen::Index>(row), static_cast<Eigen::Index>(col));
    };
    y.node().check();  // an operand may have been resized since the product was written
    if (!for_each_block(y.node().node, block_consumer{&use, take})) {
        const dense_matrix<Scalar> whole = y;
        use(matrix_view{whole.data(), y.rows(), y.cols(), 1, y.rows()}, 0, 0);
    }
}

/// The same with Eigen maps of either order.
template <class Scalar, int Rows, int Cols, bool RowMajor, class Use>
void for_each_block(const lazy<product<Scalar, Rows, Cols, RowMajor>>& y, const Use& use) {
    for_each_view(y, [&use](const matrix_view& block, Eigen::Index row, Eigen::Index col) {
        const auto map = [&block](auto order) {
            return Eigen::Map<const decltype(order)>(static_cast<const Scalar*>(block.data),
                                                     static_cast<Eigen::Index>(block.rows),
                                                     static_cast<Eigen::Index>(block.cols));
        };
        if (block.row_stride > block.col_stride) {
            use(map(Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>()), row, col);
        } else {
            use(map(dense_matrix<Scalar>()), row, col);
        }
    });
}

/// sum of conj(x) * y over equal shapes, run by run of consecutive elements where both have them. One text for all operands that lie in
/// memory, whatever Eigen calls them: each type of an Eigen expression costs the compiler milliseconds.
template <class First, class Second>
detail::common_scalar<First, Second> dot_of_views(const matrix_view& x, const matrix_view& y) {
    using result = detail::common_scalar<First, Second>;
    const bool by_rows = y.rows == 1 || (y.cols != 1 && y.col_stride == 1);
    const std::int64_t runs = by_rows ? y.rows : y.cols;
    const std::int64_t length = by_rows ? y.cols : y.rows;
    const std::int64_t x_run = by_rows ? x.row_stride : x.col_stride;
    const std::int64_t y_run = by_rows ? y.row_stride : y.col_stride;
    const std::int64_t x_next = by_rows ? x.col_stride : x.row_stride;
    const std::int64_t y_next = by_rows ? y.col_stride : y.row_stride;
    result sum(0);
    for (std::int64_t run = 0; run < runs; ++run) {
        const First* const a = static_cast<const First*>(x.data) + run * x_run;
        const Second* const b = static_cast<const Second*>(y.data) + run * y_run;
        if constexpr (std::is_same_v<First, Second>) {
            if (x_next == 1 && y_next == 1) {
                using values = Eigen::Map<const Eigen::Matrix<First, Eigen::Dynamic, 1>>;
                sum += values(a, static_cast<Eigen::Index>(length)).dot(values(b, static_cast<Eigen::Index>(length)));
                continue;
            }
        }
        for (std::int64_t i = 0; i < length; ++i) {
            sum += result(detail::conjugate_of(a[i * x_next])) * result(b[i * y_next]);
        }
    }
    return sum;
}

/// sum of conj(x) * block, vector by vector where both lie in the same order.
template <class Result, class Part, class Block>
Result dot_of_block(const Part& x, const Block& block) {
    Result sum(0);
    if constexpr (std::is_same_v<typename Part::Scalar, Result> && std::is_same_v<typename Block::Scalar, Result>) {
        if (Part::IsRowMajor && Block::IsRowMajor) {
            for (Eigen::Index i = 0; i < block.rows(); ++i) {
                sum += x.row(i).dot(block.row(i));
            }
            return sum;
        }
        if (!Part::IsRowMajor && !Block::IsRowMajor) {
            for (Eigen::Index j = 0; j < block.cols(); ++j) {
                sum += x.col(j).dot(block.col(j));
            }
            return sum;
        }
    }
    return x.conjugate().template cast<Result>().cwiseProduct(block.template cast<Result>()).sum();
}

template <class First, class Second>
constexpr bool require_dot_scalars() {
    static_assert(
        detail::scalars_mix<scalar_of<First>, scalar_of<Second>>,
        "otimes: dot(x, y): x and y have different scalar types. Only a real type and its own complex type mix; "
        "convert one of them with .cast<Scalar>().");
    return true;
}
template <class First, class Second>
void require_equal_shapes(const First& x, const Second& y) {
    if (x.rows() != y.rows() || x.cols() != y.cols()) {
        throw shape_error("otimes: dot(x, y): x is " + detail::shape_text(x.rows(), x.cols()) + ", y is " +
                          detail::shape_text(y.rows(), y.cols()) + ". They must have equal shapes.");
    }
}

template <class Type>
concept product_expression = lazy_node<Type> && is_product_node<typename bare<Type>::node_type>;

}  // namespace eigen

/// sum of conj(x(i, j)) * y(i, j), as Eigen's x.dot(y) for vectors, without y; an x that is a product itself is evaluated once.
/// @throws shape_error when the shapes differ
template <class Matrix, class Product>
requires(eigen::dense<Matrix>&& eigen::product_expression<Product>)
    [[nodiscard]] auto dot(const Matrix& x, const Product& y) {
    static_assert(eigen::require_dot_scalars<Matrix, Product>());
    using scalar = detail::common_scalar<eigen::scalar_of<Matrix>, eigen::scalar_of<Product>>;
    if constexpr (eigen::lazy_node<Matrix> || eigen::is_evaluated_first<Matrix>) {
        const typename Matrix::PlainObject value(x);
        return scalar(dot(value, y));
    }
    y.node().check();
    eigen::require_equal_shapes(x, y);
    scalar sum(0);
    if constexpr (eigen::has_direct_access<Matrix>) {
        using first = typename Matrix::Scalar;
        using second = typename Product::Scalar;
        const matrix_view at = eigen::view_of(x);
        if constexpr (std::is_same_v<first, second>) {
            if (eigen::dot_by_rows(at, y.node().node, sum) || eigen::dot_by_pieces(at, y.node().node, sum)) {
                return sum;
            }
        }
        eigen::for_each_view(y, [&](const matrix_view& block, Eigen::Index row, Eigen::Index col) {
            const first* const corner = static_cast<const first*>(at.data) + row * at.row_stride + col * at.col_stride;
            const matrix_view part{corner, block.rows, block.cols, at.row_stride, at.col_stride};
            sum += eigen::dot_of_views<first, second>(part, block);
        });
    } else {
        eigen::for_each_block(y, [&](const auto& block, Eigen::Index row, Eigen::Index col) {
            sum += eigen::dot_of_block<scalar>(x.block(row, col, block.rows(), block.cols()), block);
        });
    }
    return sum;
}

/// The same where the first is the product, `dot(K * x, y)`, `dot(S * x, y)`.
template <class Product, class Matrix>
requires(eigen::dense<Matrix> && !eigen::lazy_node<Matrix> && eigen::lazy_node<Product>)
    [[nodiscard]] auto dot(const Product& x, const Matrix& y) {
    return detail::conjugate_of(dot(y, x));
}
/// The same for a sum or a product of operators, `dot(x, S * y)`: S * y is evaluated once.
template <class Matrix, class Other>
requires(eigen::dense<Matrix>&& eigen::lazy_node<Other> && !eigen::product_expression<Other>)
    [[nodiscard]] auto dot(const Matrix& x, const Other& y) {
    static_assert(eigen::require_dot_scalars<Matrix, Other>());
    using scalar = detail::common_scalar<typename Matrix::Scalar, typename Other::Scalar>;
    eigen::require_equal_shapes(x, y);
    const typename Other::PlainObject value(y);
    if constexpr (eigen::has_direct_access<Matrix> && !eigen::lazy_node<Matrix>) {
        return eigen::dot_of_views<typename Matrix::Scalar, typename Other::Scalar>(eigen::view_of(x),
                                                                                    eigen::view_of(value));
    } else {
        return eigen::dot_of_block<scalar>(x, value);
    }
}
/// The same of two plain matrices, so that an algorithm may call it with either. @throws shape_error
template <class First, class Second>
requires(eigen::dense<First>&& eigen::dense<Second> && !eigen::lazy_node<First> && !eigen::lazy_node<Second>)
    [[nodiscard]] auto dot(const First& x, const Second& y) {
    static_assert(eigen::require_dot_scalars<First, Second>());
    eigen::require_equal_shapes(x, y);
    using scalar = detail::common_scalar<typename First::Scalar, typename Second::Scalar>;
    return scalar(x.conjugate().template cast<scalar>().cwiseProduct(y.template cast<scalar>()).sum());
}

/// The sum of |y(i, j)|^2, without y.
template <class Product>
requires eigen::product_expression<Product>
[[nodiscard]] auto squared_norm(const Product& y) {
    detail::real_of<typename Product::Scalar> sum(0);
    eigen::for_each_block(y, [&](const auto& block, Eigen::Index, Eigen::Index) { sum += block.squaredNorm(); });
    return sum;
}

/// The same of anything else: a sum, which is evaluated once; a matrix; a Kronecker product itself.
template <class Other>
requires(!eigen::product_expression<Other> && (eigen::dense<Other> || eigen::is_kron<Other>))
    [[nodiscard]] auto squared_norm(const Other& y) {
    if constexpr (eigen::lazy_node<Other>) {
        return typename Other::PlainObject(y).squaredNorm();
    } else {
        return y.squaredNorm();
    }
}

/// The squared norm of each column of y, without y: a vector of cols(y).
template <class Product>
requires eigen::product_expression<Product>
[[nodiscard]] auto column_squared_norms(const Product& y) {
    using real = detail::real_of<typename Product::Scalar>;
    Eigen::Matrix<real, Eigen::Dynamic, 1> sums = Eigen::Matrix<real, Eigen::Dynamic, 1>::Zero(y.cols());
    eigen::for_each_block(y, [&](const auto& block, Eigen::Index, Eigen::Index col) {
        sums.segment(col, block.cols()) += block.colwise().squaredNorm().transpose();
    });
    return sums;
}

/// The same of a sum or of a product with a sum of operators, which is evaluated once.
template <class Other>
requires(eigen::lazy_node<Other> && !eigen::product_expression<Other>)
    [[nodiscard]] auto column_squared_norms(const Other& y) {
    using real = detail::real_of<typename Other::Scalar>;
    const typename Other::PlainObject value(y);
    return Eigen::Matrix<real, Eigen::Dynamic, 1>(value.colwise().squaredNorm().transpose());
}

/// tr(X^H K X), without K * X for a kron; for a sum or a product of operators that is evaluated once.
template <class Matrix, class Operator>
requires(eigen::dense<Matrix> && !eigen::dense<Operator> && requires(const Matrix& x, const Operator& k) {
    requires eigen::lazy_node<decltype(k * x)>;
}) [[nodiscard]] auto quadratic_trace(const Matrix& x, const Operator& k) {
    return dot(x, k * x);
}

namespace eigen {

/// What Eigen's `x.dot(y)` becomes where one of them is a product
/// (internal.hpp).
template <class First, class Second>
auto dot_with_product(const First& x, const Second& y) {
    using scalar = detail::common_scalar<typename First::Scalar, typename Second::Scalar>;
    if (x.size() != y.size()) {  // Eigen asks in debug builds alone
        require_equal_shapes(x, y);
    }
    if constexpr (product_expression<Second> && !lazy_node<First> && std::is_same_v<scalar, typename Second::Scalar>) {
        if (x.rows() == y.rows()) {
            return otimes::dot(x, y);
        }
        return otimes::dot(x.transpose(), y);
    } else if constexpr (product_expression<First> && !lazy_node<Second> &&
                         std::is_same_v<scalar, typename First::Scalar>) {
        if (y.rows() == x.rows()) {
            return detail::conjugate_of(otimes::dot(y, x));
        }
        return detail::conjugate_of(otimes::dot(y.transpose(), x));
    } else {
        const typename First::PlainObject a(x);
        const typename Second::PlainObject b(y);
        return scalar(a.dot(b));
    }
}

/// The diagonal of `y * z` for a product y: block by block, y is not stored.
template <class Product, class Matrix>
auto diagonal_of_product(const Product& y, const Matrix& z) {
    using scalar = detail::common_scalar<typename Product::Scalar, typename Matrix::Scalar>;
    const Eigen::Index n = (std::min)(y.rows(), z.cols());
    require_inner_extent(y, z);  // which may have been resized since the product was written
    if constexpr (!product_expression<Product>) {
        const typename Product::PlainObject value(y);
        return Eigen::Matrix<scalar, Eigen::Dynamic, 1>((value * z).diagonal());
    } else {
        Eigen::Matrix<scalar, Eigen::Dynamic, 1> result = Eigen::Matrix<scalar, Eigen::Dynamic, 1>::Zero(n);
        for_each_block(y, [&](const auto& block, Eigen::Index row, Eigen::Index col) {
            for (Eigen::Index i = row; i < (std::min)(n, row + block.rows()); ++i) {
                result(i) += block.row(i - row)
                                 .template cast<scalar>()
                                 .cwiseProduct(z.col(i).segment(col, block.cols()).transpose().template cast<scalar>())
                                 .sum();
            }
        });
        return result;
    }
}

}  // namespace eigen

}  // namespace OTIMES_TARGET
}  // namespace otimes
