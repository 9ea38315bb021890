// SPDX-License-Identifier: MIT
// otimes::tune on the CPU: what it reports, that what follows is evaluated by the choice, in other threads too, and its texts.
#include <doctest/doctest.h>

#include <complex>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <otimes/tune.hpp>

#include "adapt/helpers.hpp"
#include "support/thrown.hpp"

using namespace adapt;
using otimes::kron;
using support::text_of;

namespace {

const otimes::tuning_options quick{.most_candidates = 5, .repetitions = 1};

// A text that asks for `choice` in the place of Y = expression and of nothing else.
template <class Expression>
std::string text_for(const Expression& expression, const std::string& choice) {
    const std::string none = otimes::tuned_choices();
    return none.substr(0, none.find('\n') + 1) +
           std::to_string(otimes::hash_value(otimes::make_plan(expression).source)) + " 0.001 " + choice + "\n";
}

struct forget {
    forget() { otimes::forget_tuned_choices(); }
    ~forget() { otimes::forget_tuned_choices(); }
    forget(const forget&) = delete;
};

}  // namespace

TEST_CASE("tune compares results of any magnitude") {
    const forget afterwards;
    const Eigen::MatrixXf A = random(8, 8, 1).cast<float>();
    const Eigen::MatrixXf B = random(8, 8, 2).cast<float>();
    for (const float scale : {1e27f, 1e-27f}) {  // whose squares no float holds
        const Eigen::MatrixXf X = scale * random(64, 64, 3).cast<float>();
        const otimes::tuning_report report = otimes::tune(X * kron(A, B), {}, quick);
        REQUIRE(report.candidates.size() > 1);
        CHECK(report.candidates.front().valid);
        CHECK(report.candidates.front().difference < 1e-5);
    }
}

TEST_CASE("tune measures right plans and writes no matrix of the caller") {
    const forget afterwards;
    const matrix_d A = random(5, 7, 1);
    const matrix_d B = random(6, 3, 2);
    const matrix_d X = random(23, 30, 3);
    const matrix_d kept = X;
    const otimes::tuning_report report = otimes::tune(X * kron(A, B), {}, quick);
    REQUIRE(report.candidates.size() > 1);
    CHECK(report.candidates.size() <= 5);
    CHECK(report.candidates.front().choice == "the planner's");
    for (const otimes::tuned_candidate& c : report.candidates) {
        CHECK(c.valid);
        CHECK(c.difference >= 0);
        CHECK(c.difference < 1e-14);
        CHECK(c.seconds > 0);
    }
    CHECK(report.candidates[report.best].seconds <= report.candidates.front().seconds);
    CHECK((X == kept));
    matrix_d Y;
    // [tune]
    otimes::tune(X * kron(A, B));                      // once: measures the planner's best few plans
    Y = X * kron(A, B);                                // evaluated by the one that won, in every thread
    const std::string text = otimes::tuned_choices();  // for a file; use_tuned_choices(text) in a later process
    // [/tune]
    CHECK(support::close(Y, times(X, dense_kron(A, B)), 30));
    CHECK(text.starts_with("otimes tuned choices 1: "));
}

TEST_CASE("evaluation follows a choice, in every thread, until it is forgotten") {
    const forget afterwards;
    // 2 (x) 2 (x) 2 is multiplied out to 8 or not, which rounds differently: so the bits tell which plan ran.
    const matrix_d A = random(2, 2, 11);
    const matrix_d B = random(2, 2, 12);
    const matrix_d C = random(2, 2, 13);
    const matrix_d X = random(40, 8, 14);
    const auto evaluate = [&] { return matrix_d(X * kron(A, B, C)); };
    const auto equal = [](const matrix_d& a, const matrix_d& b) { return a == b; };
    const matrix_d before = evaluate();
    const std::string apart = "threads 1 multiply_out 0 slab_extent -1 most_lanes 1024 partition 0";
    const std::string out = "threads 1 multiply_out 1 slab_extent -1 most_lanes 1024 partition 0";
    CHECK(otimes::use_tuned_choices(text_for(X * kron(A, B, C), apart)) == 1);
    const matrix_d by_two = evaluate();
    CHECK(otimes::use_tuned_choices(text_for(X * kron(A, B, C), out)) == 1);
    const matrix_d by_one = evaluate();
    REQUIRE_FALSE(equal(by_two, by_one));
    CHECK(equal(before, by_one));
    CHECK(support::close(by_two, times(X, dense_kron(A, B, C)), 8));
    CHECK(otimes::use_tuned_choices(text_for(X * kron(A, B, C), apart)) == 1);
    matrix_d elsewhere;
    std::thread([&] { elsewhere = evaluate(); }).join();
    CHECK(equal(elsewhere, by_two));
    CHECK(equal(evaluate(), by_two));
    const std::string page = otimes::explain(X * kron(A, B, C));
    CHECK(page.find("chosen by measurement: 1.00 ms when it was tuned") != std::string::npos);
    CHECK(otimes::explain(X * kron(A, B, C), {.deterministic = true}).find("by measurement") == std::string::npos);
    otimes::forget_tuned_choices();
    CHECK(equal(evaluate(), before));
    CHECK(otimes::explain(X * kron(A, B, C)).find("by measurement") == std::string::npos);
}

TEST_CASE("choices as text: what is kept comes back, other machines' and other texts do not") {
    const forget afterwards;
    const matrix_d A = random(4, 4, 21);
    const matrix_d X = random(30, 64, 22);
    const std::string text =
        text_for(X * kron(A, A, A), "threads 1 multiply_out 0 slab_extent 0 most_lanes 64 partition 3");
    CHECK(otimes::use_tuned_choices(text) == 1);
    CHECK(otimes::tuned_choices() == text);
    const std::string all = otimes::tuned_choices();
    otimes::forget_tuned_choices();
    CHECK(otimes::tuned_choices() == all.substr(0, all.find('\n') + 1));
    CHECK(otimes::use_tuned_choices(all) == 1);
    CHECK(otimes::tuned_choices() == all);
    std::string foreign = all;
    foreign.replace(foreign.find("threads"), 7, "strands");  // of a machine of another description
    CHECK(otimes::use_tuned_choices(foreign) == 0);
    CHECK(
        text_of<otimes::unsupported_error>([] { otimes::use_tuned_choices("something else\n"); }) ==
        "otimes::use_tuned_choices: the text does not begin as tuned_choices() writes it, with \"otimes tuned choices "
        "1\".");
    CHECK(text_of<otimes::unsupported_error>([&] { otimes::use_tuned_choices(all + "12 x\n"); }) ==
          "otimes::use_tuned_choices: line 3 is not one that tuned_choices() writes: 12 x");
    const std::string choice = "threads 1 multiply_out 1 slab_extent 7 most_lanes 3 partition 2";
    const std::vector<std::string> no_choices{
        "-5 1e-3 " + choice,
        "12 1e-3 " + choice + " x",
        "12 1e-3 threads 1 multiply_out 7 slab_extent 7 most_lanes 3 partition 2",
        "12 inf " + choice,
        "12 2e9 " + choice,
        " -1 0.5 " + choice,
        "\t12 0.5 " + choice,
        "+12 0.5 " + choice,
        "12 1e-3 " + choice + "\r",
        std::string(),
    };
    for (const std::string& line : no_choices) {
        CHECK_THROWS_AS(otimes::use_tuned_choices(all + line + "\n"), otimes::unsupported_error);
    }
    CHECK(otimes::tuned_choices() == all);
    // slabs that are longer than what there is are none
    const matrix_d before = X * kron(A, A, A);
    CHECK(otimes::use_tuned_choices(text_for(X * kron(A, A, A),
                                             "threads 2147483647 multiply_out 0 slab_extent 9223372036854775807 "
                                             "most_lanes 9223372036854775807 partition 1")) == 1);
    CHECK(otimes::make_plan(X * kron(A, A, A)).slab_count == 1);
    CHECK(matrix_d(X * kron(A, A, A)).isApprox(before));
}

TEST_CASE("tune for a destination, a row vector, complex operands and Y += ..") {
    const forget afterwards;
    const matrix_d A = random(6, 4, 31);
    const matrix_d B = random(5, 5, 32);
    const matrix_d X = random(17, 30, 33);
    matrix_d big = poisoned(20, 40);
    CHECK(otimes::tune(big.block(1, 2, 17, 20), X * kron(A, B), {}, quick).candidates.front().valid);
    CHECK(!(big(0, 0) == big(0, 0)));  // still NaN: nothing was written
    const Eigen::VectorXd v = random(20, 1, 34);
    CHECK(otimes::tune(kron(A, B) * v, {}, quick).candidates.front().valid);
    const Eigen::MatrixXcd Z = X.cast<std::complex<double>>() * std::complex<double>(0.5, 2.0);
    CHECK(otimes::tune(0.5 * Z * kron(A, B), {}, quick).candidates.front().valid);
    matrix_d Y = matrix_d::Ones(17, 20);
    Y += 2.0 * X * kron(A, B);
    CHECK(support::close(matrix_d(Y - matrix_d::Ones(17, 20)), scaled(2.0, times(X, dense_kron(A, B))), 40));
}

TEST_CASE("where the planner's own wins, a choice of before is forgotten") {
    const forget afterwards;
    const matrix_d A = random(2, 2, 51);
    const matrix_d X = random(40, 8, 52);
    const std::string slow = "threads 1 multiply_out 0 slab_extent 1 most_lanes 1 partition 1";
    CHECK(otimes::use_tuned_choices(text_for(X * kron(A, A, A), slow)) == 1);
    CHECK(otimes::tune(X * kron(A, A, A), {}, {.most_candidates = 1}).best == 0);
    CHECK(otimes::tuned_choices().find(slow) == std::string::npos);
}

TEST_CASE("tune refuses what it cannot measure") {
    const forget afterwards;
    const matrix_d A = random(3, 3, 41);
    matrix_d X = random(4, 9, 42);
    const Eigen::VectorXd d = random(9, 1, 43);
    CHECK(text_of<otimes::unsupported_error>([&] { otimes::tune(X * kron(A, A), {.threads = 50'000}, quick); }) ==
          "otimes: options::threads is 50000. Ask for 1 to 4096, or for 0, which takes what OpenMP would use.");
    CHECK(text_of<otimes::unsupported_error>([&] { otimes::tune(X * kron(d.asDiagonal()), {}, quick); }) ==
          "otimes::tune: nothing in this expression is a chain of products by dense factors; only those have plans to "
          "choose from.");
    CHECK_THROWS_AS(otimes::tune(X * kron(A, A), {.workspace_limit_bytes = 1}, quick), otimes::budget_error);
    CHECK_THROWS_AS(otimes::tune(X * kron(A, A), {.placement = otimes::placement::gpu}, quick),
                    otimes::unsupported_error);
    const otimes::scoped_executor scope(otimes::reference());
    X(1, 2) = std::numeric_limits<double>::quiet_NaN();
    CHECK(text_of<otimes::unsupported_error>([&] { otimes::tune(X * kron(A, A), {}, quick); }) ==
          "otimes::tune: no candidate agrees with the reference on these operands (do they hold values that are not "
          "finite?). Nothing was kept.");
}
