// SPDX-License-Identifier: MIT
// The words behind a benchmark's name. What its usage does not name ends the program with the usage and code 2, before anything is timed.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace otimes::bench {

class arguments {
public:
    // `usage`: the program's name and its words; at most `most` of them.
    arguments(int argc, char** argv, const char* usage, int most) : count_(argc), words_(argv), usage_(usage) {
        if (argc > most + 1 ||
            (argc > 1 && (words_[1] == std::string_view("--help") || words_[1] == std::string_view("-h")))) {
            refuse();
        }
    }
    [[noreturn]] void refuse() const {
        std::fprintf(stderr, "usage: %s\n", usage_);
        std::exit(2);
    }
    [[nodiscard]] const char* text(int position, const char* otherwise = "") const {
        return position < count_ ? words_[position] : otherwise;
    }
    // A whole number of `least` or more.
    [[nodiscard]] std::int64_t number(int position, std::int64_t otherwise, std::int64_t least = 1) const {
        return position < count_ ? whole(words_[position], least) : otherwise;
    }
    [[nodiscard]] std::int64_t whole(const char* word, std::int64_t least) const {
        char* end = nullptr;
        const long long value = std::strtoll(word, &end, 10);
        if (end == word || *end != '\0' || value < least) {
            refuse();
        }
        return value;
    }
    // A number above 0.
    [[nodiscard]] double amount(int position, double otherwise) const {
        if (position >= count_) {
            return otherwise;
        }
        char* end = nullptr;
        const double value = std::strtod(words_[position], &end);
        if (end == words_[position] || *end != '\0' || !(value > 0 && value < 1e15)) {
            refuse();
        }
        return value;
    }
    // The file of that name, emptied; standard output where there is no such word, or "-".
    [[nodiscard]] std::FILE* output(int position) const {
        if (position >= count_ || words_[position] == std::string_view("-")) {
            return stdout;
        }
        std::FILE* const file = std::fopen(words_[position], "w");
        if (file == nullptr) {
            std::perror(words_[position]);
            std::exit(1);
        }
        return file;
    }

private:
    int count_;
    char** words_;
    const char* usage_;
};

}  // namespace otimes::bench
