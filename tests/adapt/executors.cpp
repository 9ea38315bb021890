// SPDX-License-Identifier: MIT
// Which executor evaluates an expression: the one that is named, the scope's, the process's, else cpu.
#include <doctest/doctest.h>

#include <string>
#include <thread>

#include "adapt/helpers.hpp"

using namespace adapt;
using otimes::kron;

namespace {

const matrix_d A = random(2, 3, 1);
const matrix_d X = random(4, 2, 2);
const auto want = times(X, A);

// Counts the plans that it is asked for.
class planning_executor final : public otimes::executor {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "planning"; }
    [[nodiscard]] const otimes::machine& target() const noexcept override { return otimes::cpu().target(); }
    [[nodiscard]] otimes::placement where() const noexcept override { return otimes::placement::cpu; }
    [[nodiscard]] otimes::plan plan_for(const otimes::program& p) const override {
        ++plans_;
        return otimes::cpu().plan_for(p);
    }
    void run(const otimes::plan& p, const otimes::bindings& b, otimes::workspace_view workspace) const override {
        otimes::cpu().run(p, b, workspace);
    }
    [[nodiscard]] int plans() const { return plans_; }

private:
    mutable int plans_ = 0;
};

// Claims to be a GPU, and must never be asked.
class elsewhere final : public otimes::executor {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "elsewhere"; }
    [[nodiscard]] const otimes::machine& target() const noexcept override { return otimes::cpu().target(); }
    [[nodiscard]] otimes::placement where() const noexcept override { return otimes::placement::gpu; }
    [[nodiscard]] otimes::plan plan_for(const otimes::program& p) const override { return otimes::cpu().plan_for(p); }
    void run(const otimes::plan&, const otimes::bindings&, otimes::workspace_view) const override { FAIL("was asked"); }
};

// Chooses between places, as make_executor() does, and must never be asked for scalars of no executor.
class choosing final : public otimes::executor {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "choosing"; }
    [[nodiscard]] const otimes::machine& target() const noexcept override { return otimes::cpu().target(); }
    [[nodiscard]] otimes::placement where() const noexcept override { return otimes::placement::automatic; }
    [[nodiscard]] otimes::plan plan_for(const otimes::program& p) const override { return otimes::cpu().plan_for(p); }
    void run(const otimes::plan&, const otimes::bindings&, otimes::workspace_view) const override { FAIL("was asked"); }
};

}  // namespace

TEST_CASE("on(executor, Y)") {
    const counting_executor executor;
    auto Y = poisoned(4, 3);
    otimes::on(executor, Y) = X * kron(A);
    CHECK(executor.runs() == 1);
    CHECK(support::close(Y, want, 2));
    otimes::on(executor, Y) += X * kron(A);
    otimes::on(executor, Y) -= 3 * X * kron(A);
    CHECK(executor.runs() == 3);
    CHECK(support::close(Y, scaled(-1.0, want), 4));
    auto big = poisoned(9, 9);
    otimes::on(executor, big.block(1, 2, 4, 3)) = X * kron(A);
    otimes::on(executor, big.block(5, 2, 4, 3)) = Y + X * kron(A);
    CHECK(executor.runs() == 5);
    CHECK(support::close(matrix_d(big.block(1, 2, 4, 3)), want, 2));
    CHECK(support::close(matrix_d(big.block(5, 2, 4, 3)), matrix_d::Zero(4, 3).eval() + matrix_d(Y + X * kron(A)), 1));
    CHECK(executor.runs() == 5);
    Y = X * kron(A);  // the name held for one assignment
    CHECK(executor.runs() == 5);
    Eigen::ArrayXXd array;
    otimes::on(executor, array) = X * kron(A);
    Eigen::ArrayXXd columns = Eigen::ArrayXXd::Constant(4, 5, 7.0);
    otimes::on(executor, columns.leftCols(3)) = X * kron(A);
    CHECK(executor.runs() == 7);
    CHECK(support::close(matrix_d(array.matrix()), want, 2));
    CHECK(support::close(matrix_d(columns.leftCols(3).matrix()), want, 2));
    CHECK((columns.rightCols(2) == 7.0).all());
    for (const otimes::executor* e : {&otimes::cpu(), &otimes::reference()}) {
        Y.setConstant(7);
        otimes::on(*e, Y) = X * kron(A);
        CHECK(support::close(Y, want, 2));
    }
}

TEST_CASE("a loop over more expressions than a thread keeps plans them once, but for a few that share a place") {
    const planning_executor executor;
    const otimes::scoped_executor scope(executor);
    constexpr int expressions = 100;
    const matrix_d many = random(expressions, 2, 3);
    for (int round = 0; round < 3; ++round) {
        for (Index rows = 1; rows <= expressions; ++rows) {
            const matrix_d Y = many.topRows(rows) * kron(A);
            CHECK(Y.rows() == rows);
        }
    }
    CHECK(executor.plans() <=
          expressions + 20);  // two places of five expressions, in two rounds; about 40 with one place each
}

TEST_CASE("the default executor of the process and of a scope") {
    const counting_executor process;
    const counting_executor outer;
    const counting_executor inner;
    matrix_d Y;
    otimes::set_default_executor(process);
    Y = X * kron(A);
    {
        const otimes::scoped_executor first(outer);
        Y = X * kron(A);
        Y = X * kron(A);
        {
            const otimes::scoped_executor second(inner);
            Y = X * kron(A);
            std::thread([&] { const matrix_d Z = X * kron(A); }).join();  // a scope is its thread's
        }
        Y = X * kron(A);
        CHECK(&otimes::current_executor() == &outer);
    }
    Y = X * kron(A);
    otimes::set_default_executor(nullptr);
    Y = X * kron(A);
    CHECK(process.runs() == 3);
    CHECK(outer.runs() == 3);
    CHECK(inner.runs() == 1);
    CHECK(&otimes::current_executor() == &otimes::cpu());
    CHECK(support::close(Y, want, 2));
}

TEST_CASE("a scope ends when its evaluation throws") {
    const counting_executor executor;
    matrix_d Y(1, 1);
    CHECK_THROWS_AS(otimes::on(executor, Y) += X * kron(A), otimes::shape_error);
    CHECK(otimes::default_executor() == nullptr);
    CHECK(executor.runs() == 0);
}

TEST_CASE("executors that cannot do it say so") {
    const elsewhere gpu;
    const otimes::plan p = otimes::make_plan(X * kron(A));
    matrix_d Y = random(4, 3, 3);
    {
        // A plan for the CPU runs on the CPU whatever the default is.
        const otimes::scoped_executor scope(gpu);
        p.run(Y, X * kron(A));
        CHECK(support::close(Y, want, 2));
    }
    otimes::plan foreign = p;
    foreign.where = otimes::placement::gpu;
    const matrix_d before = Y;
    std::string text;
    try {
        foreign.run(Y, X * kron(A));
    } catch (const otimes::unsupported_error& e) {
        text = e.what();
    }
    CHECK(text ==
          "otimes: plan::run: the plan is not for the CPU and no executor of its kind is the default; see "
          "otimes::set_default_executor.");
    matrix<long double> L = X.cast<long double>();
    text.clear();
    try {
        const otimes::scoped_executor scope(gpu);
        L = L * kron(A.cast<long double>());
    } catch (const otimes::unsupported_error& e) {
        text = e.what();
    }
    CHECK(text ==
          "otimes: executor 'elsewhere' does not know this scalar type; only the CPU's reference path does. Evaluate "
          "with otimes::on(otimes::cpu(), Y) = expression.");
    CHECK(L.cols() == 2);
    CHECK(support::exactly_equal(Y, before));
    {
        // One that chooses between places leaves such scalars to the CPU's reference path, as its plans would.
        const choosing any;
        const otimes::scoped_executor scope(any);
        L = L * kron(A.cast<long double>());
        CHECK(support::close(matrix_d(L.cast<double>()), want, 2));
        const Eigen::MatrixXi whole = Eigen::MatrixXi::Constant(2, 2, 3) * kron(Eigen::MatrixXi::Identity(2, 2));
        CHECK(whole == Eigen::MatrixXi::Constant(2, 2, 3));
    }
}
