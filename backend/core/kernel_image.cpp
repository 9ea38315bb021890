// SPDX-License-Identifier: MIT
#include "kernel_image.hpp"

#include <array>
#include <cstddef>

#include "sha256.hpp"

namespace otimes::backend {

namespace {

constexpr std::string_view magic = "otimes kernel 1\n";
constexpr std::size_t checksum_bytes = 32;

void append_length(std::string& text, std::uint64_t length) {
    for (int i = 0; i < 8; ++i) {
        text += static_cast<char>(length >> (8 * i) & 0xff);
    }
}

}  // namespace

std::string serialize(const kernel_entry& entry) {
    std::string text(magic);
    append_length(text, entry.key.size());
    append_length(text, entry.image.function.size());
    append_length(text, entry.image.code.size());
    text += entry.key;
    text += entry.image.function;
    text += entry.image.code;
    const std::array<std::uint8_t, checksum_bytes> checksum = sha256(text);
    text.append(reinterpret_cast<const char*>(checksum.data()), checksum.size());
    return text;
}

std::optional<kernel_entry> deserialize(std::string_view bytes) {
    constexpr std::size_t head = magic.size() + 24;
    if (bytes.size() < head + checksum_bytes || bytes.substr(0, magic.size()) != magic) {
        return std::nullopt;
    }
    const std::string_view content = bytes.substr(0, bytes.size() - checksum_bytes);
    std::uint64_t lengths[3] = {};
    std::uint64_t left = content.size() - head;
    for (std::size_t part = 0; part < 3; ++part) {
        for (std::size_t i = 0; i < 8; ++i) {
            lengths[part] |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[magic.size() + 8 * part + i]))
                             << (8 * i);
        }
        if (lengths[part] > left) {
            return std::nullopt;
        }
        left -= lengths[part];
    }
    if (left != 0) {
        return std::nullopt;
    }
    const std::array<std::uint8_t, checksum_bytes> checksum = sha256(content);
    if (bytes.substr(content.size()) !=
        std::string_view(reinterpret_cast<const char*>(checksum.data()), checksum.size())) {
        return std::nullopt;
    }
    kernel_entry entry;
    entry.key = content.substr(head, lengths[0]);
    entry.image.function = content.substr(head + lengths[0], lengths[1]);
    entry.image.code = content.substr(head + lengths[0] + lengths[1]);
    return entry;
}

}  // namespace otimes::backend
