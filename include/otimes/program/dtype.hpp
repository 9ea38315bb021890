// SPDX-License-Identifier: MIT
/// @file dtype.hpp
/// The scalar type of an operand as a value, so that programs and plans need no template parameter.
#pragma once

#include <complex>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace otimes {

/// Element type of an operand. `other` is any scalar that only the reference executor of the translation unit that
/// built the expression knows (rational numbers, intervals, modular integers, ...).
enum class dtype : std::uint8_t { f16, bf16, f32, f64, c64, c128, other };

/// Text form of a dtype ("f32", "c128", ...).
constexpr std::string_view to_string(dtype type) noexcept {
    switch (type) {
        case dtype::f16: return "f16";
        case dtype::bf16: return "bf16";
        case dtype::f32: return "f32";
        case dtype::f64: return "f64";
        case dtype::c64: return "c64";
        case dtype::c128: return "c128";
        case dtype::other: return "other";
    }
    return "?";
}

/// Bytes of one element; 0 for `other`, whose size the tensor states itself.
constexpr std::int32_t element_bytes(dtype type) noexcept {
    switch (type) {
        case dtype::f16:
        case dtype::bf16: return 2;
        case dtype::f32: return 4;
        case dtype::f64:
        case dtype::c64: return 8;
        case dtype::c128: return 16;
        case dtype::other: return 0;
    }
    return 0;
}

/// The type in which elements of a type are computed.
constexpr dtype accumulator_of(dtype storage) noexcept {
    return storage == dtype::f16 || storage == dtype::bf16 ? dtype::f32 : storage;
}

/// True for types that are computed in a wider one.
constexpr bool is_widened(dtype type) noexcept { return accumulator_of(type) != type; }

/// True for the complex types.
constexpr bool is_complex(dtype type) noexcept { return type == dtype::c64 || type == dtype::c128; }
/// The type of real and imaginary parts; a type that is not complex itself.
constexpr dtype real_type_of(dtype type) noexcept {
    return type == dtype::c64 ? dtype::f32 : type == dtype::c128 ? dtype::f64 : type;
}

/// Real multiply-adds that one multiply-add of this type costs (complex: 4).
constexpr std::int64_t multiply_add_weight(dtype type) noexcept { return is_complex(type) ? 4 : 1; }

/// The dtype of a C++ scalar; `other` for a scalar that has no name here.
template <class Scalar>
constexpr dtype dtype_of() noexcept {
    if constexpr (std::is_same_v<Scalar, float>) {
        return dtype::f32;
    } else if constexpr (std::is_same_v<Scalar, double>) {
        return dtype::f64;
    } else if constexpr (std::is_same_v<Scalar, std::complex<float>>) {
        return dtype::c64;
    } else if constexpr (std::is_same_v<Scalar, std::complex<double>>) {
        return dtype::c128;
    } else {
        return dtype::other;
    }
}

/// Where the elements of an operand live.
enum class memory_space : std::uint8_t { host, device };

/// Text form of a memory space.
constexpr std::string_view to_string(memory_space space) noexcept {
    return space == memory_space::host ? "host" : "device";
}

}  // namespace otimes
