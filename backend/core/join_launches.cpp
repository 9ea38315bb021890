// SPDX-License-Identifier: MIT
#include "join_launches.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <otimes/plan/gpu_sum_tiles.hpp>
#include <otimes/plan/gpu_tiles.hpp>
#include <otimes/plan/shared_terms.hpp>

namespace otimes::backend {

namespace {

/// One product by fused_trailing or fused_outer, or the sum of several with factors of their own.
bool is_plain(const launch& l) {
    const gpu_group& g = l.fused.group;
    return l.kind == launch_kind::fused && !g.sum && g.moves.empty() && g.inputs == 1;
}
bool has_unit(const launch& l) { return std::ranges::any_of(l.fused.group.tile.trips, &gpu_trip::matrix); }

/// The factors of several products of one X, each once, and which of them the terms have.
struct known_factors {
    planning::sum_of_terms sum;
    std::vector<std::int32_t> level;
    std::vector<memory_reference> at;
    std::vector<std::int64_t> p;
    std::vector<std::int64_t> q;

    void add(const launch& term, std::int32_t output) {
        sum.outputs.push_back(output);
        sum.factors.emplace_back();
        for (std::size_t k = 0; k < term.factors.size(); ++k) {
            const auto own = static_cast<std::int32_t>(k + 1);
            std::size_t i = 0;
            while (i < at.size() && !(level[i] == own && at[i] == term.factors[k] && p[i] == term.fused.factor_p[k] &&
                                      q[i] == term.fused.factor_q[k])) {
                ++i;
            }
            if (i == at.size()) {
                level.push_back(own);
                at.push_back(term.factors[k]);
                p.push_back(term.fused.factor_p[k]);
                q.push_back(term.fused.factor_q[k]);
            }
            sum.factors.back().push_back(static_cast<std::int32_t>(i));
        }
    }
};

/// The launch that computes the products of `first` and its like as `known` says; nothing where no kernel does, or nothing is shared.
std::optional<launch> shared_launch(const launch& first, const known_factors& known, const gpu_description& gpu) {
    const fused_shape& s = first.fused;
    const planning::moves_of_sum moves(known.sum);
    const std::size_t apart = known.sum.factors.size() * s.group.p.size();
    if (s.group.outer || !s.group.is_square() || known.at.size() > planning::most_group_modes ||
        moves.moves().size() >= apart) {
        return std::nullopt;
    }
    const std::optional<gpu_group> group =
        planning::shared_terms_group(first.type, {s.group.p.begin(), s.group.p.end()}, moves.moves(), s.place.groups(),
                                     s.place.parts_per_line, has_unit(first), gpu);
    if (!group) {
        return std::nullopt;
    }
    launch shared = first;
    shared.factors = known.at;
    shared.fused.group = *group;
    shared.fused.factor_p = known.p;
    shared.fused.factor_q = known.q;
    return shared;
}

/// Y = (X * A1) * B1 + (X * A2) * B2 + .., where A is what the first pass does and B an outer mode, with one B or two: one pass over X leaves
/// what each B is applied to, in Y and in the buffer between the passes, and one more applies them.
void share_two_passes(std::vector<launch>& list, const gpu_description& gpu) {
    const auto begins = [&list](std::size_t i) {
        if (i + 1 >= list.size()) {
            return false;
        }
        const launch& first = list[i];
        const launch& second = list[i + 1];
        return is_plain(first) && is_plain(second) && first.fused.group.terms == 1 && second.fused.group.terms == 1 &&
               !first.add && first.scalar < 0 && first.type == second.type && first.y == second.x &&
               !(first.x == first.y) && second.fused.group.outer && second.fused.group.modes() == 1 &&
               second.fused.group.is_square() && has_unit(second) &&
               second.addend.where == memory_reference::place::none;
    };
    for (std::size_t i = 0; i < list.size(); ++i) {
        if (!begins(i) || list[i + 1].add || !(list[i].y == list[i + 1].y)) {
            continue;
        }
        const launch first = list[i];
        const launch last = list[i + 1];
        known_factors known;
        std::vector<launch> outer;  // with different factors
        launch scalars;
        memory_reference buffer;
        std::size_t end = i;
        for (; begins(end) && (end - i) / 2 < static_cast<std::size_t>(planning::most_group_terms); end += 2) {
            const launch& one = list[end];
            const launch& then = list[end + 1];
            const bool same_places = one.x == first.x && one.type == first.type &&
                                     one.fused.place == first.fused.place && one.fused.group.p == first.fused.group.p &&
                                     one.fused.group.outer == first.fused.group.outer && then.y == last.y &&
                                     then.fused.place == last.fused.place && then.fused.group.p == last.fused.group.p;
            const bool through = one.y.where == memory_reference::place::buffer && then.add &&
                                 (buffer.where == memory_reference::place::none || buffer == one.y);
            const auto same_factor = [&then](const launch& o) {
                return o.factors == then.factors && o.fused.factor_p == then.fused.factor_p &&
                       o.fused.factor_q == then.fused.factor_q;
            };
            auto at = std::ranges::find_if(outer, same_factor);
            if (!same_places || (end > i && !through) || (at == outer.end() && outer.size() == 2)) {
                break;
            }
            if (end > i) {
                buffer = one.y;
                scalars.more_scalars.push_back(then.scalar);
            } else {
                scalars.scalar = then.scalar;
            }
            const auto output = static_cast<std::int32_t>(at - outer.begin());
            if (at == outer.end()) {
                outer.push_back(then);
            }
            known.add(one, output);
        }
        if (end < i + 4) {
            continue;
        }
        std::optional<launch> shared = shared_launch(first, known, gpu);
        if (!shared) {
            continue;
        }
        launch applied = last;
        applied.scalar = -1;
        if (outer.size() == 2) {
            planning::group_request r;
            r.outer = true;
            r.type = last.type;
            r.p = r.q = {last.fused.group.p.front()};
            r.order = {1};
            r.groups = last.fused.place.groups();
            r.parts_per_line = last.fused.place.parts_per_line;
            r.inner = last.fused.place.inner;
            const std::optional<gpu_group> both = planning::two_inputs_group(r, gpu);
            if (!both) {
                continue;
            }
            applied.fused.group = *both;
            applied.second = shared->second = buffer;
            applied.factors.push_back(outer[1].factors.front());
            applied.fused.factor_p.push_back(outer[1].fused.factor_p.front());
            applied.fused.factor_q.push_back(outer[1].fused.factor_q.front());
        }
        shared->scalar = scalars.scalar;
        shared->more_scalars = scalars.more_scalars;
        list[i] = std::move(*shared);
        list[i + 1] = std::move(applied);
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(i + 2), list.begin() + static_cast<std::ptrdiff_t>(end));
    }
}

/// Terms of one X and one Y that one pass does each, and that share factors.
void share_one_pass(std::vector<launch>& list, const gpu_description& gpu) {
    for (std::size_t i = 0; i < list.size(); ++i) {
        const launch first = list[i];
        if (!is_plain(first) || first.fused.group.terms > 1 || first.x == first.y) {
            continue;
        }
        known_factors known;
        std::vector<std::int32_t> scalars;
        std::size_t end = i;
        const auto joins = [&](const launch& l) {
            return is_plain(l) && l.fused.group.terms == 1 && (end == i || l.add) && l.x == first.x && l.y == first.y &&
                   l.type == first.type && l.fused.place == first.fused.place &&
                   l.fused.group.p == first.fused.group.p && l.fused.group.outer == first.fused.group.outer;
        };
        for (; end < list.size() && end - i < static_cast<std::size_t>(planning::most_group_terms) && joins(list[end]);
             ++end) {
            known.add(list[end], 0);
            scalars.push_back(list[end].scalar);
        }
        if (end < i + 2) {
            continue;
        }
        std::optional<launch> shared = shared_launch(first, known, gpu);
        if (!shared || has_unit(*shared)) {
            continue;  // by the matrix unit in pairs of modes, apart: faster as long as all stays on chip
        }
        shared->more_scalars.assign(scalars.begin() + 1, scalars.end());
        list[i] = std::move(*shared);
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(i + 1), list.begin() + static_cast<std::ptrdiff_t>(end));
    }
}

/// Terms of one X whose second pass is the same, (X * B) * F + (X * C) * F: their first passes are added up in the buffer between,
/// and F is applied once.
void join_outer_factors(std::vector<launch>& list) {
    const auto begins = [&list](std::size_t i) {
        if (i + 1 >= list.size()) {
            return false;
        }
        const launch& first = list[i];
        const launch& second = list[i + 1];
        const auto plain = [](const launch& l) { return is_plain(l) && l.more_scalars.empty(); };
        return plain(first) && plain(second) && !first.add && first.scalar < 0 && first.type == second.type &&
               first.y == second.x && !(first.x == second.y) && !(first.x == first.y) &&
               (first.y == second.y ? !second.add : first.y.where == memory_reference::place::buffer);
    };
    const auto reads = [](const launch& l, const memory_reference& at) {
        return l.x == at || l.addend == at || (l.add && l.y == at) ||
               std::ranges::find(l.factors, at) != l.factors.end();
    };
    // Nobody reads what stands between the two passes but the second one.
    const auto is_done_with = [&](std::size_t k) {
        for (std::size_t l = k + 1; l < list.size(); ++l) {
            if (reads(list[l], list[k].x)) {
                return false;
            }
            if (list[l].y == list[k].x) {
                return true;
            }
        }
        return true;
    };
    // What comes between two sums into Y only adds to it, and leaves X.
    const auto may_move = [&](std::size_t second, std::size_t j) {
        for (std::size_t k = second + 1; k < j; ++k) {
            const launch& l = list[k];
            if (l.x == list[second].y || l.addend == list[second].y || l.y == list[j].x ||
                (l.y == list[second].y && !l.add)) {
                return false;
            }
        }
        return true;
    };
    // Between a first pass and a later one nobody reads what the buffer of the later one held before.
    const auto is_free_from = [&](std::size_t i, std::size_t j) {
        for (std::size_t k = i; k < j; ++k) {
            if (reads(list[k], list[j].y)) {
                return false;
            }
            if (list[k].y == list[j].y) {
                return true;
            }
        }
        return true;
    };
    for (std::size_t i = 0; i < list.size(); ++i) {
        if (!begins(i) || (list[i].y.where == memory_reference::place::buffer && !is_done_with(i + 1))) {
            continue;
        }
        std::size_t second = i + 1;
        for (std::size_t j = second + 1; j + 1 < list.size(); ++j) {
            if (!begins(j) || !list[j + 1].add || !(list[j].x == list[i].x) || list[j].type != list[i].type ||
                !(list[j + 1].y == list[second].y) || list[j + 1].factors != list[second].factors ||
                !(list[j + 1].fused == list[second].fused) || !(list[j].fused.place == list[i].fused.place) ||
                !may_move(second, j) || !is_done_with(j + 1) || (list[i].y == list[second].y && !is_free_from(i, j))) {
                continue;
            }
            if (list[i].y == list[second].y) {  // through Y itself: now through the other's buffer
                list[i].y = list[second].x = list[j].y;
            }
            launch more = list[j];
            more.y = list[i].y;
            more.add = true;
            more.scalar = list[j + 1].scalar;
            if (second == i + 1) {
                list[i].scalar = std::exchange(list[second].scalar, -1);
            }
            const auto at = [&list](std::size_t k) { return list.begin() + static_cast<std::ptrdiff_t>(k); };
            list.erase(at(j), at(j + 2));
            list.insert(at(second++), std::move(more));
        }
    }
}

/// Makes one launch of neighbouring ones that add products of the same X to the same Y, by kernels with the same tile: X and Y then
/// go through memory once instead of once for each.
void join_terms(std::vector<launch>& list, const gpu_description& gpu) {
    std::vector<launch> joined;
    for (launch& next : list) {
        if (!joined.empty() && is_plain(next) && next.add) {
            launch& sum = joined.back();
            // Terms are loaded where they are worked on. A whole tile that arrives ahead makes room for the input that stays.
            const auto without_rotation = [](gpu_group g) {
                if (planning::group_memory::rotates(g)) {
                    g.tile.segments = 1;
                    g.tile.slots = 0;
                }
                return g;
            };
            gpu_group group = without_rotation(next.fused.group);
            const bool ahead = group.tile.slots > 0 && group.tile.segments == 1;
            gpu_group of_sum = without_rotation(sum.fused.group);
            if (ahead) {
                group.tile.slots = of_sum.tile.slots = 0;
            }
            group.terms = of_sum.terms;
            if (sum.kind == launch_kind::fused && sum.type == next.type && sum.x == next.x && sum.y == next.y &&
                !(sum.x == sum.y) && sum.fused.place == next.fused.place && of_sum == group) {
                ++group.terms;
                if (planning::why_illegal(group, gpu).empty() && (!ahead || planning::terms_group(group, gpu).kept)) {
                    sum.fused.group = group;
                    sum.more_scalars.push_back(next.scalar);
                    const auto append = [](auto& to, const auto& from) {
                        to.insert(to.end(), from.begin(), from.end());
                    };
                    append(sum.factors, next.factors);
                    append(sum.fused.factor_p, next.fused.factor_p);
                    append(sum.fused.factor_q, next.fused.factor_q);
                    continue;
                }
            }
        }
        joined.push_back(std::move(next));
    }
    for (launch& l : joined) {
        if (l.kind == launch_kind::fused && l.fused.group.terms > 1) {
            l.fused.group = planning::terms_group(l.fused.group, gpu);
        }
    }
    list = std::move(joined);
}

/// True when a mode and the next one outside it belong to the same view of X and Y: the same number of elements, and the same lines
/// around them unless these follow each other without a gap.
bool lie_alike(const fused_shape& inside, const fused_shape& outside) {
    const auto elements = [](const fused_shape& s) { return s.place.groups() * s.place.inner * s.group.count_p(); };
    const auto lines = [](const fused_shape& s) {
        const std::int64_t length = s.place.parts_per_line * s.place.inner * s.group.count_p();
        const bool whole = s.place.lines == 1 || (s.place.x_line == length && s.place.y_line == length);
        return whole ? std::array<std::int64_t, 3>{1, 0, 0}
                     : std::array<std::int64_t, 3>{s.place.lines, s.place.x_line, s.place.y_line};
    };
    return elements(inside) == elements(outside) && lines(inside) == lines(outside);
}

/// Makes one launch of neighbouring ones that add products of the same X with one mode each, where the modes follow each other up
/// to the innermost: X and Y go through memory once. The launches that do not fit come after it.
void join_mode_products(std::vector<launch>& list, const gpu_description& gpu) {
    const auto is_one_mode = [](const launch& l) {
        const fused_shape& s = l.fused;
        return l.kind == launch_kind::fused && s.group.modes() == 1 && s.group.is_square() && s.group.terms == 1 &&
               !is_complex(l.type) && !(l.x == l.y) && s.place.x_inner == s.place.inner &&
               s.place.y_inner == s.place.inner;
    };
    for (std::size_t begin = 0; begin < list.size(); ++begin) {
        if (!is_one_mode(list[begin])) {
            continue;
        }
        std::size_t end = begin + 1;
        while (end < list.size() && is_one_mode(list[end]) && list[end].add && list[end].x == list[begin].x &&
               list[end].y == list[begin].y && list[end].type == list[begin].type) {
            ++end;
        }
        // The levels from the innermost outwards, as far as there is one below the other.
        std::vector<std::size_t> levels;
        const auto next_level = [&] {
            const std::int64_t inner =
                levels.empty() ? 1 : list[levels.back()].fused.place.inner * list[levels.back()].fused.group.count_p();
            for (std::size_t i = begin; i < end; ++i) {
                if (list[i].fused.place.inner == inner && std::ranges::find(levels, i) == levels.end() &&
                    (levels.empty() || lie_alike(list[levels.back()].fused, list[i].fused))) {
                    return i;
                }
            }
            return end;
        };
        for (std::size_t i = next_level(); i != end; i = next_level()) {
            levels.push_back(i);
        }
        for (; levels.size() > 1; levels.pop_back()) {
            const launch& outermost = list[levels.back()];
            std::vector<std::int64_t> p;
            for (std::size_t i = levels.size(); i-- > 0;) {
                p.push_back(list[levels[i]].fused.group.count_p());
            }
            // Where the plan forbids the matrix unit no launch has it.
            const bool may_use_unit = std::ranges::any_of(levels, [&list](std::size_t i) {
                return std::ranges::any_of(list[i].fused.group.tile.trips, &gpu_trip::matrix);
            });
            const planning::group_place& around = outermost.fused.place;
            const std::optional<gpu_group> group =
                planning::sum_group(outermost.type, p, around.groups(), around.parts_per_line, may_use_unit, gpu);
            if (!group) {
                continue;
            }
            launch sum = outermost;
            sum.add = list[begin].add;
            sum.factors.clear();
            sum.fused = {};
            sum.fused.group = *group;
            sum.fused.place = around;
            sum.fused.place.inner = sum.fused.place.x_inner = sum.fused.place.y_inner = 1;
            for (std::size_t i = levels.size(); i-- > 0;) {
                const launch& one = list[levels[i]];
                sum.factors.push_back(one.factors.front());
                sum.fused.factor_p.push_back(one.fused.factor_p.front());
                sum.fused.factor_q.push_back(one.fused.factor_q.front());
                if (i + 1 < levels.size()) {
                    sum.more_scalars.push_back(one.scalar);
                }
            }
            std::vector<launch> changed(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(begin));
            changed.push_back(std::move(sum));
            for (std::size_t i = begin; i < list.size(); ++i) {
                if (std::ranges::find(levels, i) == levels.end()) {
                    changed.push_back(list[i]);
                    changed.back().add = list[i].add || i < end;
                }
            }
            list = std::move(changed);
            break;
        }
    }
}

/// A matrix that is copied to Y and to which a fused kernel adds: the kernel reads it instead of Y, and nothing is copied.
void join_addends(std::vector<launch>& list) {
    for (std::size_t i = 0; i < list.size(); ++i) {
        const launch& copy = list[i];
        const auto stays = [](const free_mode& m) { return m.x == m.y; };
        if (copy.kind != launch_kind::sliced || copy.add || !copy_of(copy) || copy.sliced.conjugate_x ||
            copy.x.where != memory_reference::place::operand ||  // a buffer may hold something else by then
            !std::ranges::all_of(copy.sliced.free, stays)) {
            continue;
        }
        std::size_t at = i + 1;
        while (at < list.size() && !(list[at].y == copy.y) && !(list[at].x == copy.y)) {
            ++at;
        }
        if (at == list.size()) {
            continue;
        }
        launch& sum = list[at];
        if (sum.kind != launch_kind::fused || !sum.add || sum.type != copy.type || is_widened(sum.type) ||
            !(sum.y == copy.y) || sum.x == copy.y || sum.addend.where != memory_reference::place::none ||
            sum.fused.place.groups() * sum.fused.place.inner * sum.fused.group.count_q() !=
                copy_of(copy)->lines * copy_of(copy)->count) {
            continue;
        }
        sum.fused.group.addend = true;
        sum.addend = copy.x;
        sum.addend_scalar = copy.scalar;
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
        --i;
    }
}

/// True for a product of one term that is stored, and nothing added to it, by a kernel that can multiply as it stores.
bool only_stores(const launch& l) {
    if (l.add || is_widened(l.type)) {
        return false;
    }
    if (l.kind == launch_kind::sliced) {
        return keeps_factor(l) && l.sliced.ending == gpu_ending::stored;
    }
    return l.kind == launch_kind::fused && l.more_scalars.empty() && !l.fused.group.sum && l.fused.group.terms == 1 &&
           l.fused.group.moves.empty() && l.fused.group.inputs == 1 && l.fused.group.ending == gpu_ending::stored;
}
/// How many elements Y has, if they follow each other without a gap; else 0.
std::int64_t elements_of_stretch(const launch& l) {
    if (l.kind == launch_kind::fused) {
        const planning::group_place& place = l.fused.place;
        const std::int64_t line = place.parts_per_line * l.fused.group.count_q() * place.inner;
        const bool fills = place.y_inner == place.inner && (place.lines == 1 || place.y_line == line);
        return fills ? place.groups() * place.inner * l.fused.group.count_q() : 0;
    }
    std::vector<std::pair<std::int64_t, std::int64_t>> modes{{l.sliced.y_q, l.sliced.q_extent}};  // stride, extent
    for (const free_mode& m : l.sliced.free) {
        modes.emplace_back(m.y, m.extent);
    }
    std::ranges::sort(modes);
    std::int64_t count = 1;
    for (const auto& [stride, extent] : modes) {
        if (extent != 1 && stride != count) {
            return 0;
        }
        count *= extent;
    }
    return count;
}

/// A product and, in place, its elements times those of a vector: the product's last kernel multiplies as it stores.
void join_scalings(std::vector<launch>& list) {
    constexpr std::int64_t most_elements = std::int64_t{1} << 31;  // the kernel divides what is below
    for (std::size_t i = 0; i + 1 < list.size(); ++i) {
        launch& product = list[i];
        const launch& scale = list[i + 1];
        const std::optional<diagonal_shape> d = diagonal_of(scale);
        if (!d || !only_stores(product) || !(scale.x == product.y) || !(scale.y == product.y) ||
            scale.type != product.type || scale.add || scale.scalar >= 0 || scale.sliced.conjugate_x ||
            scale.sliced.conjugate_f) {
            continue;
        }
        const copy_shape& s = d->stretches;
        const std::int64_t elements = elements_of_stretch(product);
        const bool along = d->d_step == 1 && (s.lines == 1 || d->d_line == 0);
        const bool across = d->d_step == 0 && d->d_line == 1 && s.lines > 1 && d->d_lines >= s.lines;
        if ((!along && !across) || s.count < 2 || elements != s.lines * s.count || elements >= most_elements ||
            (s.lines > 1 && s.y_line != s.count)) {
            continue;
        }
        (product.kind == launch_kind::fused ? product.fused.group.ending : product.sliced.ending) =
            along ? gpu_ending::scaled_along : gpu_ending::scaled_across;
        product.sums_or_diagonal = scale.factors.front();
        product.divisor = s.count;
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(i + 1));
    }
}

}  // namespace

void join_launches(std::vector<launch>& list, const gpu_description& gpu) {
    // Kernels of several terms are not among those that are compiled ahead of time.
    if (gpu.compiles) {
        join_mode_products(list, gpu);
        share_two_passes(list, gpu);
        share_one_pass(list, gpu);
    }
    join_outer_factors(list);
    if (gpu.compiles) {
        join_terms(list, gpu);
        join_addends(list);
        join_scalings(list);
    }
}

}  // namespace otimes::backend
