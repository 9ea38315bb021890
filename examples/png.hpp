// SPDX-License-Identifier: MIT
//
// A picture in memory and the least that writes it as a PNG file; shared by the examples.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace png {

using color = std::array<std::uint8_t, 3>;

/// An image of width x height pixels.
struct image {
    std::ptrdiff_t width = 0;
    std::ptrdiff_t height = 0;
    std::vector<color> pixels;  // row by row

    image(std::ptrdiff_t w, std::ptrdiff_t h, color fill)
        : width(w), height(h), pixels(static_cast<std::size_t>(w * h), fill) {}
    color& at(std::ptrdiff_t x, std::ptrdiff_t y) { return pixels[y * width + x]; }
};

/// A PNG file in the simplest form that the format allows: its data are "compressed" in stored blocks (RFC 1950, 1951).
class writer {
public:
    explicit writer(const image& picture) {
        bytes_ = "\x89PNG\r\n\x1a\n";
        std::string header;
        append_number(header, static_cast<std::uint32_t>(picture.width));
        append_number(header, static_cast<std::uint32_t>(picture.height));
        header += std::string("\x08\x02\x00\x00\x00", 5);  // 8 bits a channel, RGB, not interlaced
        append_chunk("IHDR", header);
        append_chunk("IDAT", stored(scanlines(picture)));
        append_chunk("IEND", "");
    }
    [[nodiscard]] const std::string& bytes() const { return bytes_; }

private:
    static void append_number(std::string& to, std::uint32_t value) {  // big-endian
        for (int shift = 24; shift >= 0; shift -= 8) {
            to += static_cast<char>(value >> shift & 255u);
        }
    }
    static std::string scanlines(const image& picture) {
        std::string data;
        for (std::ptrdiff_t y = 0; y < picture.height; ++y) {
            data += '\0';  // no filter
            for (std::ptrdiff_t x = 0; x < picture.width; ++x) {
                for (const std::uint8_t channel : picture.pixels[y * picture.width + x]) {
                    data += static_cast<char>(channel);
                }
            }
        }
        return data;
    }
    static std::string stored(const std::string& data) {
        constexpr std::size_t longest = 65535;
        std::string result = "\x78\x01";
        for (std::size_t at = 0; at < data.size(); at += longest) {
            const std::string_view block = std::string_view(data).substr(at, longest);
            const auto size = static_cast<std::uint32_t>(block.size());
            result += static_cast<char>(at + block.size() == data.size());  // is it the last one
            for (const std::uint32_t word : {size, ~size}) {                // little-endian
                result += static_cast<char>(word & 255u);
                result += static_cast<char>(word >> 8 & 255u);
            }
            result += block;
        }
        append_number(result, adler32(data));
        return result;
    }
    void append_chunk(const std::string& name, const std::string& data) {
        append_number(bytes_, static_cast<std::uint32_t>(data.size()));
        bytes_ += name + data;
        append_number(bytes_, crc32(name + data));
    }
    static std::uint32_t adler32(const std::string& data) {
        std::uint32_t a = 1;
        std::uint32_t b = 0;
        for (const char c : data) {
            a = (a + static_cast<std::uint8_t>(c)) % 65521u;
            b = (b + a) % 65521u;
        }
        return b << 16 | a;
    }
    static std::uint32_t crc32(const std::string& data) {
        std::uint32_t crc = 0xffffffffu;
        for (const char c : data) {
            crc ^= static_cast<std::uint8_t>(c);
            for (int bit = 0; bit < 8; ++bit) {
                crc = crc >> 1 ^ (crc & 1u ? 0xedb88320u : 0u);
            }
        }
        return ~crc;
    }

    std::string bytes_;
};

/// Writes `picture` to a file. @throws std::runtime_error when it cannot be written
inline void write(const std::string& path, const image& picture) {
    const std::string bytes = writer(picture).bytes();
    std::ofstream file(path, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) {
        throw std::runtime_error("cannot write " + path);
    }
}

}  // namespace png
