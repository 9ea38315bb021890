// SPDX-License-Identifier: MIT
#include "fused_group.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace otimes::backend {

std::string kernel_of(const gpu_group& g) {
    return g.sum              ? "fused_sum"
           : !g.moves.empty() ? "fused_terms"
           : g.telling        ? "fused_telling"
           : g.scattered      ? "fused_scattered"
           : g.arriving       ? "fused_arriving"
           : g.outer          ? "fused_outer"
                              : "fused_trailing";
}

std::string moves_expression(const gpu_group& g) {
    std::string text = "otimes::kernels::moves<";
    for (const planning::gpu_move& m : g.moves) {
        text += (&m == &g.moves.front() ? "" : ",") + std::string("otimes::kernels::move<");
        for (const std::int32_t value : {m.from, m.to, m.level, m.factor, m.sum}) {
            text += std::to_string(value) + ",";
        }
        text += std::to_string(m.term) + ">";
    }
    return text + ">";
}

std::string type_expression(const gpu_group& g) {
    const auto list = [](const std::vector<std::int32_t>& values) {
        std::string text = "otimes::kernels::extents<";
        for (std::size_t i = 0; i < values.size(); ++i) {
            text += (i == 0 ? "" : ",") + std::to_string(values[i]);
        }
        return text + ">";
    };
    const gpu_tile& tile = g.tile;
    std::string text = "otimes::kernels::mode_group<";
    text += g.type == dtype::f32    ? "float"
            : g.type == dtype::f64  ? "double"
            : g.type == dtype::c64  ? "otimes::kernels::complex<float>"
            : g.type == dtype::f16  ? "otimes::kernels::half"
            : g.type == dtype::bf16 ? "otimes::kernels::bfloat16"
                                    : "otimes::kernels::complex<double>";
    for (const std::int32_t value :
         {tile.rows, tile.run, tile.threads, tile.blocks, tile.segments, tile.slots, tile.cluster, tile.slices}) {
        text += "," + std::to_string(value);
    }
    text += "," + list(g.p) + "," + list(g.q) + ",otimes::kernels::trips<";
    for (std::size_t i = 0; i < tile.trips.size(); ++i) {
        const gpu_trip& t = tile.trips[i];
        text += (i == 0 ? "otimes::kernels::trip<" : ",otimes::kernels::trip<") + std::to_string(t.first) + "," +
                std::to_string(t.count) + "," +
                (t.warpgroup ? "2"
                 : t.matrix  ? "1"
                             : "0") +
                "," + std::to_string(t.split) + ">";
    }
    text += ">";
    const auto flag = [](bool value) { return value ? ",true" : ",false"; };
    if (g.unaligned) {
        text += ",1,false,false,1,0,false" + std::string(flag(g.single)) + ",true";
    } else if (g.single) {
        text += "," + std::to_string(g.terms) + flag(g.addend) + flag(g.kept) + "," + std::to_string(g.inputs) + "," +
                std::to_string(static_cast<int>(g.ending)) + flag(g.scattered) + ",true";
    } else if (g.scattered) {
        text += ",1,false,false,1,0,true";
    } else if (g.ending != gpu_ending::stored) {
        text += ",1,false,false,1," + std::to_string(static_cast<int>(g.ending));
    } else if (g.inputs > 1) {
        text += ",1,false,false," + std::to_string(g.inputs);
    } else if (g.terms > 1 || g.addend) {
        text += "," + std::to_string(g.terms) +
                (g.kept     ? (g.addend ? ",true,true" : ",false,true")
                 : g.addend ? ",true"
                            : "");
    }
    return text + ">";
}

}  // namespace otimes::backend
