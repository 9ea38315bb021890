// SPDX-License-Identifier: MIT
/// @file gpu_choice.hpp
/// A choice that was measured or is forced: the slabs, the passes and the tiles of a chain on a GPU, as a value and as the text of a tuning table.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <otimes/plan/gpu_group.hpp>
#include <otimes/plan/gpu_tiles.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/cold.hpp>

namespace otimes::planning {

/// A measured or forced choice: how many sweeps each pass does and with which tile (none: the generic kernel), and the slabs.
struct gpu_choice {
    struct part {
        std::int32_t sweeps = 0;
        gpu_tile tile;
        bool any_tile = false;  ///< the planner chooses the tile
        friend bool operator==(const part&, const part&) = default;
    };
    std::int64_t slab_extent = 0;  ///< 0: no slabs
    std::vector<part> parts;
    bool only_tiles = false;  ///< no pass goes without a tile where one has room; in no text
    friend bool operator==(const gpu_choice&, const gpu_choice&) = default;
};

/// "gpu slab 8 | 3 r1 t128 b4 g1 s0 : 3m 2m 1m | 2 run32 ...": what tuning_entry::choice holds for a GPU.
OTIMES_ON_DEMAND OTIMES_COLD inline std::string choice_text(const gpu_choice& choice) {
    std::string text = "gpu slab " + std::to_string(choice.slab_extent);
    for (const gpu_choice::part& part : choice.parts) {
        text += " | " + std::to_string(part.sweeps) + " " +
                (part.tile.trips.empty() ? "generic" : text_of_tile(part.tile, part.tile.run > 1));
    }
    return text;
}

/// Reads choice_text back; nothing for any other text, so that a foreign table is ignored.
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<gpu_choice> read_gpu_choice(std::string_view text) {
    gpu_choice choice;
    const auto word = [&text](std::string_view expected) {
        if (text.substr(0, expected.size()) != expected) {
            return false;
        }
        text.remove_prefix(expected.size());
        return true;
    };
    const auto number = [&text](auto& to) {
        std::int64_t value = 0;
        std::size_t digits = 0;
        while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9' && digits < 15) {
            value = 10 * value + (text[digits++] - '0');
        }
        text.remove_prefix(digits);
        to = static_cast<std::remove_reference_t<decltype(to)>>(value);
        return digits > 0;
    };
    if (!word("gpu slab ") || !number(choice.slab_extent)) {
        return std::nullopt;
    }
    while (!text.empty()) {
        gpu_choice::part part;
        if (!word(" | ") || !number(part.sweeps) || !word(" ") || part.sweeps < 1) {
            return std::nullopt;
        }
        const std::size_t end = (std::min)(text.find(" | "), text.size());
        if (text.substr(0, end) != "generic") {
            const std::optional<gpu_tile> tile = read_tile(text.substr(0, end));
            if (!tile) {
                return std::nullopt;
            }
            part.tile = *tile;
        }
        text.remove_prefix(end);
        choice.parts.push_back(part);
    }
    return choice;
}

/// The choice that a plan of one chain made, to be forced again by plan_on_gpu; nothing for other plans.
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<gpu_choice> choice_of(const plan& p) {
    gpu_choice choice;
    choice.slab_extent = p.slab_count > 1 ? p.slab_extent : 0;
    for (const pass& one : p.passes) {
        if (one.kernel == pass_kernel::step || one.sweeps.empty()) {
            return std::nullopt;
        }
        choice.parts.push_back({static_cast<std::int32_t>(one.sweeps.size()), one.tile});
    }
    return choice;
}

}  // namespace otimes::planning
