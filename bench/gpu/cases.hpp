// SPDX-License-Identifier: MIT
// The problem sizes of the literature that the GPU kernels are measured on (the ids of the case table).
#pragma once
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace otimes::bench {

struct kron_case {
    std::string id;
    std::int64_t rows_f32, rows_f64;
    std::vector<int> p, q;
};

inline kron_case power_case(std::string id, std::int64_t rows, int p, int n) {
    return {id, rows, rows, std::vector<int>(n, p), std::vector<int>(n, p)};
}

inline std::vector<kron_case> kron_cases() {
    std::vector<kron_case> all = {power_case("fig9_8^5", 1024, 8, 5),
                                  power_case("fig9_8^6", 1024, 8, 6),
                                  power_case("fig9_16^4", 1024, 16, 4),
                                  power_case("fig9_16^5", 1024, 16, 5),
                                  power_case("fig9_32^3", 1024, 32, 3),
                                  power_case("fig9_32^4", 1024, 32, 4),
                                  power_case("fig9_64^2", 1024, 64, 2),
                                  power_case("fig9_64^3", 1024, 64, 3),
                                  power_case("fig9_128^2", 1024, 128, 2),
                                  power_case("fig9_128^3", 320, 128, 3),
                                  power_case("tab3_8^8", 16, 8, 8),
                                  power_case("tab3_16^6", 16, 16, 6),
                                  power_case("tab3_32^5", 16, 32, 5),
                                  power_case("tab3_64^4", 16, 64, 4),
                                  power_case("tab4_01", 20, 2, 7),
                                  power_case("tab4_02", 20, 2, 9),
                                  power_case("tab4_03", 50, 2, 9),
                                  power_case("tab4_04", 20, 2, 10),
                                  power_case("tab4_05", 1, 2, 11),
                                  {"tab4_06", 10, 10, {52, 65}, {50, 20}},
                                  {"tab4_07", 50, 50, {32, 64}, {8, 128}},
                                  {"tab4_08", 10, 10, {52, 50}, {65, 20}},
                                  power_case("tab4_09", 4, 2, 9),
                                  power_case("tab4_10", 8, 2, 9),
                                  power_case("tab4_11", 16, 2, 9),
                                  power_case("tab4_12", 20, 2, 9),
                                  power_case("tab4_13", 4, 8, 3),
                                  power_case("tab4_14", 8, 8, 3),
                                  power_case("tab4_15", 16, 8, 3),
                                  power_case("tab4_16", 20, 8, 3),
                                  power_case("tab4_17", 1024, 3, 7),
                                  power_case("tab4_18", 1024, 4, 7),
                                  power_case("tab4_19", 1024, 6, 7),
                                  {"tab4_20", 1, 1, {5, 5, 5, 2}, {5, 5, 5, 2}},
                                  {"tab4_21", 1, 1, {5, 5, 2, 25}, {5, 5, 2, 25}},
                                  power_case("tab4_22", 1526, 4, 6),
                                  power_case("tab4_23", 156, 8, 3),
                                  power_case("tab4_24", 2967, 4, 7),
                                  power_case("tab4_28", 16, 64, 3),
                                  power_case("tab4_27", 16, 32, 6),
                                  power_case("fig11_64^4_g1", 16, 64, 4),
                                  power_case("fig11_128^4_g1", 4, 128, 4)};
    for (int n = 1; n <= 16; ++n)
        for (int d = 2; d <= 3; ++d) {
            kron_case c = power_case("jhurani" + std::to_string(d) + "_" + std::to_string(n), 100000, n, d);
            c.rows_f64 = 50000;
            all.push_back(c);
        }
    return all;
}

// The fig9 rows with X and Y column-major: the rows are the innermost mode, which a plan leaves alone.
inline std::vector<kron_case> column_cases() {
    std::vector<kron_case> all;
    for (kron_case c : kron_cases()) {
        if (c.id.rfind("fig9_", 0) != 0) continue;
        c.id = "columns_" + c.id.substr(5);
        c.p.push_back(int(c.rows_f32));
        c.q.push_back(int(c.rows_f32));
        c.rows_f32 = c.rows_f64 = 1;
        all.push_back(c);
    }
    return all;
}

// "9x9x9,8224", "29>14x37,60": a product that no table has, of factors and rows.
inline kron_case case_of(const std::string& id) {
    kron_case c{id, 0, 0, {}, {}};
    std::istringstream text(id);
    for (char then = 'x'; then == 'x';) {
        int p = 0, q = 0;
        if (!(text >> p >> then)) throw std::invalid_argument("unknown case " + id);
        q = p;
        if (then == '>' && !(text >> q >> then)) throw std::invalid_argument("unknown case " + id);
        c.p.push_back(p);
        c.q.push_back(q);
        if (then == ',' && !(text >> c.rows_f32)) throw std::invalid_argument("unknown case " + id);
    }
    if (c.rows_f32 < 1 || !text.eof()) throw std::invalid_argument("unknown case " + id);
    c.rows_f64 = c.rows_f32;
    return c;
}

}  // namespace otimes::bench
