// SPDX-License-Identifier: MIT
// docs/errors.md has a row for every throw of the headers, of the type that is thrown.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <utility>

namespace {

// How often each (header, error type) occurs.
using tally = std::map<std::pair<std::string, std::string>, int>;

std::string contents_of(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

// Throw expressions of a header, comments and rethrows left out.
void count_throws(const std::string& header, const std::string& text, tally& counts) {
    std::istringstream lines(text);
    const std::regex thrown(R"(\bthrow\s+(?:otimes::)?(\w+)\s*\()");
    for (std::string line; std::getline(lines, line);) {
        line = line.substr(0, line.find("//"));
        for (std::sregex_iterator at(line.begin(), line.end(), thrown), end; at != end; ++at) {
            ++counts[{header, (*at)[1]}];
        }
    }
}

void count_rows(const std::string& text, tally& counts) {
    std::istringstream lines(text);
    const std::regex row(R"(^\| ([\w/]+\.hpp) \| (\w+) \| [^|]+ \| [^|]+ \| [^|]+ \|$)");
    for (std::string line; std::getline(lines, line);) {
        std::smatch match;
        if (std::regex_match(line, match, row)) {
            ++counts[{match[1], match[2]}];
        }
    }
}

}  // namespace

TEST_CASE("docs/errors.md has one row for each throw") {
    const std::filesystem::path root = OTIMES_SOURCE_DIR;
    const std::filesystem::path headers = root / "include" / "otimes";
    tally thrown;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(headers)) {
        if (entry.path().extension() == ".hpp") {
            count_throws(std::filesystem::relative(entry.path(), headers).generic_string(), contents_of(entry.path()),
                         thrown);
        }
    }
    tally rows;
    count_rows(contents_of(root / "docs" / "errors.md"), rows);
    CHECK(thrown.size() > 10);
    for (const auto& entry : thrown) {
        CAPTURE(entry.first.first);
        CAPTURE(entry.first.second);
        CHECK(rows[entry.first] == entry.second);
    }
    for (const auto& entry : rows) {
        CAPTURE(entry.first.first);
        CAPTURE(entry.first.second);
        CHECK(thrown[entry.first] == entry.second);
    }
}

TEST_CASE("the count of throws sees what it must and nothing else") {
    tally counts;
    count_throws("a.hpp",
                 "throw shape_error(x);\n// throw shape_error(y);\n  throw;\nif (b) { throw otimes::alias_error(\n",
                 counts);
    CHECK(counts.size() == 2);
    CHECK(counts[{"a.hpp", "shape_error"}] == 1);
    CHECK(counts[{"a.hpp", "alias_error"}] == 1);
    tally rows;
    count_rows("| a/b.hpp | shape_error | x | y | z |\n| a.hpp | shape_error | x | y |\n| file | type | a | b | c |\n",
               rows);
    CHECK(rows.size() == 1);
    CHECK(rows[{"a/b.hpp", "shape_error"}] == 1);
}
