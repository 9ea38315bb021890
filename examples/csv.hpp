// SPDX-License-Identifier: MIT
//
// A table of numbers from a CSV file; shared by the examples.
#pragma once

#include <cstddef>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace csv {

/// The number that `cell` holds, "nan" among them. @throws std::invalid_argument, std::out_of_range it holds none, or more than one
inline double number(const std::string& cell) {
    std::size_t length = 0;
    const double value = std::stod(cell, &length);
    if (cell.find_first_not_of(" \r", length) != std::string::npos) {
        throw std::invalid_argument(cell);
    }
    return value;
}

/// The cells of a file, row by row, without its first line, the column names. @throws std::runtime_error that it cannot be opened, has fewer than
/// `least` rows, or which line does not hold `columns` numbers
inline std::vector<double> read(const std::string& path, std::size_t columns, std::size_t least) {
    std::ifstream file(path);
    if (!file) {
        throw std::runtime_error("cannot open " + path);
    }
    std::string line;
    std::getline(file, line);
    std::vector<double> values;
    for (std::size_t count = 2; std::getline(file, line); ++count) {
        if (line.empty() || line == "\r") {
            continue;
        }
        const std::size_t before = values.size();
        std::istringstream cells(line);
        try {
            for (std::string cell; std::getline(cells, cell, ',');) {
                values.push_back(number(cell));
            }
        } catch (const std::logic_error&) {
            values.resize(before);
        }
        if (values.size() != before + columns) {
            throw std::runtime_error(path + ": line " + std::to_string(count) + " does not hold " +
                                     std::to_string(columns) + " numbers: " + line);
        }
    }
    if (values.size() < least * columns) {
        throw std::runtime_error(path + " has " + std::to_string(values.size() / columns) + " rows, but at least " +
                                 std::to_string(least) + " are needed");
    }
    return values;
}

}  // namespace csv
