// SPDX-License-Identifier: MIT
// generate SEED COUNT KIND: a program of COUNT random expressions, as a reader of the formulas may write them, each against dense matrices.
// What Eigen takes for matrices must compile for Kronecker products and give the same.
//
// KIND: real, complex, or mixed (complex matrices and real factors).
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <string>
#include <vector>

#include "support/random.hpp"

namespace {

using string = std::string;

// An expression, and calls of `dense` (operands.hpp) that have its value.
struct text {
    string written, dense;
};
text stored(const string& matrix) { return {matrix, "D::of(" + matrix + ")"}; }
text times(const text& a, const text& b) {
    return {"(" + a.written + " * " + b.written + ")", "D::times(" + a.dense + ", " + b.dense + ")"};
}
text plus(const text& a, const string& sign, const text& b) {
    return {"(" + a.written + " " + sign + " " + b.written + ")",
            "D::plus(" + a.dense + ", " + (sign == "+" ? b.dense : "D::scaled(-1, " + b.dense + ")") + ")"};
}
text scaled(const string& number, const text& a) {
    return {"(" + number + " * " + a.written + ")", "D::scaled(Scalar(" + number + "), " + a.dense + ")"};
}
text divided(const text& a, const string& number) {
    return {"(" + a.written + " / " + number + ")", "D::scaled(Scalar(1) / Scalar(" + number + "), " + a.dense + ")"};
}
text negated(const text& a) { return {"(-" + a.written + ")", "D::scaled(-1, " + a.dense + ")"}; }
text transposed(const text& a) { return {a.written + ".transpose()", "D::transposed(" + a.dense + ")"}; }
text conjugated(const text& a) { return {a.written + ".conjugate()", "D::conjugated(" + a.dense + ")"}; }
text adjoint(const text& a) { return {a.written + ".adjoint()", "D::conjugated(D::transposed(" + a.dense + "))"}; }
text each_times(const text& a, const text& b) {
    return {a.written + ".cwiseProduct(" + b.written + ")", "D::each_times(" + a.dense + ", " + b.dense + ")"};
}
text identity(const string& order) { return {"otimes::identity(" + order + ")", "D::identity(" + order + ")"}; }
text diagonal(const string& vector) { return {vector + ".asDiagonal()", "D::diagonal(D::of(" + vector + "))"}; }
text permutation(const string& matrix) { return {matrix, "D::permutation(" + matrix + ")"}; }
text kron_of(const text& a, const text& b) {
    return {"kron(" + a.written + ", " + b.written + ")", "D::kron(" + a.dense + ", " + b.dense + ")"};
}

class generator {
public:
    generator(std::uint64_t seed, bool complex) : random_(seed), complex_(complex) {}

    // The body of a function: an assignment or a reduction, and its check. @param name of the string that the check shows
    string statement(const string& name) {
        const string rows = one_of({"n", "m", "n", "m", "k", "one"}), cols = one_of({"n", "m", "k", "p", "one"});
        const string square = one_of({"n", "m"});
        const check_text check = [&name](const string& got, const string& want) {
            return "check<Scalar>(" + name + ", " + got + ", " + want + ");";
        };
        const auto number = [&check](const string& got, const string& want) {
            return check("matrix::Constant(1, 1, Scalar(" + got + "))", want);
        };
        const auto dot = [](const text& a, const text& b) { return "D::dot(" + a.dense + ", " + b.dense + ")"; };
        const text a = product(rows, cols, pick(1, 3)), b = matrix(rows, cols), o = op(square, square, 2);
        const text v = stored("e.v[" + square + "]");
        switch (pick(0, 13)) {
            case 0: return number("otimes::squared_norm(" + a.written + ")", dot(a, a));
            case 1: return number("otimes::dot(" + b.written + ", " + a.written + ")", dot(b, a));
            case 2: return number("(" + o.written + ").trace()", "D::trace(" + o.dense + ")");
            case 3: return check("(" + o.written + ").diagonal()", "D::diagonal_of(" + o.dense + ")");
            case 4: return check("(" + o.written + ").toDenseMatrix()", o.dense);
            case 5: return number(v.written + ".dot(" + times(o, v).written + ")", dot(v, times(o, v)));
            default: return assignment(rows, cols, a, check);
        }
    }

private:
    using check_text = std::function<string(const string& got, const string& want)>;

    std::int64_t pick(std::int64_t low, std::int64_t high) { return random_.integer(low, high); }
    string one_of(std::initializer_list<const char*> values) {
        return values.begin()[pick(0, static_cast<std::int64_t>(values.size()) - 1)];
    }
    string number() {
        return complex_ ? one_of({"2", "0.5", "-1.5", "Scalar(3)", "2.0f", "Scalar(0, 1)"})
                        : one_of({"2", "0.5", "-1.5", "Scalar(3)", "2.0f"});
    }
    static string at(const string& name, const string& rows, const string& cols) {
        return "e." + name + "[" + rows + "][" + cols + "]";
    }
    static bool of_a_kron(const string& extent) { return extent == "n" || extent == "m"; }

    string assignment(const string& rows, const string& cols, const text& a, const check_text& check) {
        const string shape = "size[" + rows + "], size[" + cols + "]";
        const string type = rows != "one" && cols == "one"   ? "column"
                            : rows == "one" && cols != "one" ? "row"
                                                             : one_of({"matrix", "matrix", "by_rows"});
        const string empty = type + " Y(" + type + "::Constant(" + shape + ", unset)); ";
        const string ones = type + " Y(" + type + "::Ones(" + shape + ")); ";
        const text one = {"", "D::ones(" + shape + ")"};
        const string block = "Y.block(1, 2, " + shape + ")";
        const bool permuted = a.written.find("e.P[") != string::npos;  // Eigen itself adds none in place
        switch (pick(0, permuted ? 4 : 8)) {
            case 0: return type + " Y = " + a.written + "; " + check("Y", a.dense);
            case 1: return type + " Y(" + a.written + "); " + check("Y", a.dense);
            case 2: return empty + "Y = " + a.written + "; " + check("Y", a.dense);
            case 3: return empty + "Y.noalias() = " + a.written + "; " + check("Y", a.dense);
            case 4:
                return "matrix Y = matrix::Constant(20, 20, unset); " + block + " = " + a.written + "; " +
                       check(block, a.dense);
            case 5: return ones + "Y += " + a.written + "; " + check("Y", plus(one, "+", a).dense);
            case 6: return ones + "Y -= " + a.written + "; " + check("Y", plus(one, "-", a).dense);
            case 7: return ones + "Y.noalias() += " + a.written + "; " + check("Y", plus(one, "+", a).dense);
            default: return ones + "Y.noalias() -= " + a.written + "; " + check("Y", plus(one, "-", a).dense);
        }
    }

    // A matrix of Eigen, or an expression of its own.
    text matrix(const string& rows, const string& cols) {
        const text x = stored(at("X", rows, cols)), z = stored(at("Z", rows, cols));
        const string q = at("Q", rows, cols), shape = "size[" + rows + "], size[" + cols + "]";
        if (cols == "one" && rows != "one") return stored("e.v[" + rows + "]");
        if (rows == "one" && cols != "one") return stored("e.u[" + cols + "]");
        switch (pick(0, rows == cols ? 15 : 9)) {
            case 0: return stored(at("R", rows, cols));
            case 1: return stored(q + ".block(1, 2, " + shape + ")");
            case 2:
                return stored("Eigen::Map<const matrix, 0, Eigen::OuterStride<>>(" + q + ".data(), " + shape +
                              ", Eigen::OuterStride<>(20))");
            case 3: return stored("Eigen::Ref<const matrix>(" + x.written + ")");
            case 4: return plus(x, "+", z);
            case 5: return each_times(x, z);
            case 6: return transposed(stored(at("X", cols, rows)));
            case 7: return scaled("2", x);
            case 8: return conjugated(x);
            case 10: return times(x, z);
            case 11: return times(triangle(x), z);
            case 12: return times(x, self_adjoint(z));
            case 13: return times(stored(at("W", rows, cols)), x);
            case 14: return rows == "p" || rows == "one" ? x : times(permutation("e.P[" + rows + "]"), x);
            default: return x;
        }
    }
    static text triangle(const text& a) {
        return {a.written + ".template triangularView<Eigen::Lower>()", "D::lower(" + a.dense + ")"};
    }
    static text self_adjoint(const text& a) {
        return {a.written + ".template selfadjointView<Eigen::Upper>()", "D::self_adjoint_from_upper(" + a.dense + ")"};
    }

    // kron(A, B) in one of its spellings, and what else is made of small matrices.
    text kron(const string& rows, const string& cols) {
        const text a = stored(at("A", rows, cols)), b = stored(at("B", rows, cols));
        const text ta = stored(at("A", cols, rows)), tb = stored(at("B", cols, rows));
        const string order_a = "first[" + rows + "]", order_b = "second[" + rows + "]";
        const auto named = [](const string& name, const text& k) { return text{name, k.dense}; };
        switch (pick(0, rows == cols ? 15 : 11)) {
            case 0: return kron_of(transposed(ta), b);
            case 1: return kron_of(a, adjoint(tb));
            case 2: return kron_of({a.written + ".sparseView().eval()", a.dense}, b);
            case 3: return kron_of(plus(a, "+", a), conjugated(b));
            case 4: return kron_of(a, {"kron(" + b.written + ") * 2", scaled("2", b).dense});
            case 5: return transposed(named(at("K", cols, rows), kron_of(ta, tb)));
            case 6: return adjoint(named(at("K", cols, rows), kron_of(ta, tb)));
            case 7: {
                const text k = kron_of(a, b);
                const string lists = "e.chosen[" + rows + "], e.chosen[" + cols + "]";
                return {k.written + "(" + lists + ")", "D::selected(" + k.dense + ", " + lists + ")"};
            }
            case 8: {
                const text f = stored("e.F[" + rows + "][first[" + cols + "]]"),
                           g = stored("e.F[" + rows + "][second[" + cols + "]]");
                return {"otimes::face_split(" + f.written + ", " + g.written + ")",
                        "D::face_split(" + f.dense + ", " + g.dense + ")"};
            }
            case 12: return kron_of(identity(order_a), b);
            case 13: return kron_of(triangle(a), self_adjoint(b));
            case 14: return kron_of(diagonal("e.d[" + rows + "].head(" + order_a + ")"), b);
            case 15:
                return {"otimes::kron_sum(" + a.written + ", " + b.written + ")",
                        plus(kron_of(a, identity(order_b)), "+", kron_of(identity(order_a), b)).dense};
            default: return named(at("K", rows, cols), kron_of(a, b));
        }
    }

    // What multiplies a matrix and is none: sums and products of krons, of matrices with structure, of identities.
    text op(const string& rows, const string& cols, std::int64_t depth) {
        if (depth == 0 || pick(0, 3) == 0) return kron(rows, cols);
        const string middle = one_of({"n", "m"}), sign = one_of({"+", "-"});
        const auto inner = [&](const string& r, const string& c) { return op(r, c, depth - 1); };
        const text a = inner(rows, cols);
        switch (pick(0, rows == cols ? 14 : 8)) {
            case 0: return plus(a, sign, inner(rows, cols));
            case 1: return scaled(number(), a);
            case 2: return divided(a, number());
            case 3: return negated(a);
            case 4: return transposed(inner(cols, rows));
            case 5: return conjugated(a);
            case 6: return times(inner(rows, middle), inner(middle, cols));
            case 7: return plus(a, sign, stored(at("W", rows, cols)));
            case 8: return times(stored(at("W", rows, middle)), inner(middle, cols));
            case 9:
                return plus(a, sign, scaled(number(), {"otimes::identity()", identity("size[" + rows + "]").dense}));
            case 10: return plus(a, sign, diagonal("e.d[" + rows + "]"));
            case 11: return times(diagonal("e.d[" + rows + "]"), a);
            case 12: return times(a, diagonal("e.d[" + cols + "]"));
            case 13: return times(a, permutation("e.P[" + cols + "]"));
            default: return times(permutation("e.P[" + rows + "]"), a);
        }
    }

    // A matrix with an operator somewhere in it.
    text product(const string& rows, const string& cols, std::int64_t depth) {
        const string middle = one_of({"n", "m"}), sign = one_of({"+", "-"});
        const auto inner = [&](const string& r, const string& c) { return product(r, c, depth - 1); };
        if (depth == 0 || pick(0, 2) == 0) {
            const auto x = [&](const string& r, const string& c) {
                return depth > 0 && pick(0, 2) == 0 ? inner(r, c) : matrix(r, c);
            };
            const std::int64_t deep = depth < 2 ? depth : 2;
            if (of_a_kron(rows) && (!of_a_kron(cols) || pick(0, 1) == 0)) {
                return times(op(rows, middle, deep), x(middle, cols));
            }
            if (of_a_kron(cols)) return times(x(rows, middle), op(middle, cols, deep));
            return times(times(matrix(rows, middle), op(middle, middle, deep)), x(middle, cols));
        }
        const text a = inner(rows, cols);
        const bool permutes = rows == "n" || rows == "m" || rows == "k";
        switch (pick(0, 10)) {
            case 0: return plus(a, sign, matrix(rows, cols));
            case 1: return plus(matrix(rows, cols), sign, a);
            case 2: return plus(a, sign, inner(rows, cols));
            case 3: return a.written.starts_with("(e.P[") ? a : scaled(number(), a);  // Eigen 5 has no such multiple
            case 4: return adjoint(inner(cols, rows));
            case 5: return conjugated(a);
            case 6: return each_times(a, matrix(rows, cols));
            case 7: return rows == "one" ? negated(a) : times(diagonal("e.d[" + rows + "]"), a);
            case 8: return permutes ? times(permutation("e.P[" + rows + "]"), a) : divided(a, number());
            case 9: return times(stored(at("W", rows, middle)), inner(middle, cols));
            default: return times(inner(rows, middle), stored(at("W", middle, cols)));
        }
    }

    support::random_stream random_;
    bool complex_;
};

}  // namespace

int main(int count_of_arguments, char** arguments) {
    if (count_of_arguments != 4) {
        std::cerr << "usage: generate SEED COUNT real|complex|mixed\n";
        return 2;
    }
    const std::uint64_t seed = std::strtoull(arguments[1], nullptr, 10);
    const int count = std::atoi(arguments[2]);
    const string kind = arguments[3];
    const string scalar = kind == "real" ? "double" : "std::complex<double>";
    std::cout << "#include \"random_expressions/operands.hpp\"\n"
              << "using namespace random_expressions;\nusing otimes::kron;\n"
              << "using Scalar = " << scalar << ";\n"
              << "using operands_type = operands<Scalar, " << (kind == "mixed" ? "double" : scalar) << ">;\n"
              << "using D = dense<Scalar>;\n"
              << "using matrix = operands_type::matrix;\nusing by_rows = operands_type::by_rows;\n"
              << "using column = operands_type::column;\nusing row = operands_type::row;\n"
              << "constexpr double unset = std::numeric_limits<double>::quiet_NaN();\n";
    generator expressions(seed, kind != "real");
    string calls;
    for (int i = 0; i < count; ++i) {
        const string name = "name_" + std::to_string(i), function = "expression_" + std::to_string(i);
        const string body = expressions.statement(name);
        std::cout << "const char* const " << name << " = R\"(" << body << ")\";\n"
                  << "void " << function << "([[maybe_unused]] operands_type& e) {\n    " << body << "\n}\n";
        calls += "    run(" + name + ", " + function + ", e);\n";
    }
    std::cout << "int main() {\n    operands_type e;\n"
              << calls << "    std::cout << \"" << count
              << " expressions, \" << wrong << \" wrong\\n\";\n    return wrong != 0;\n}\n";
    return 0;
}
