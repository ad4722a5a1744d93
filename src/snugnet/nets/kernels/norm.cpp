// Batch norm in training and the activation behind it, in two passes forward and two backward.
//
// Forward: statistics, then the activation of the normalised values. Backward: the activation's input is computed again
// from what batch norm saw, so nothing else is kept; sums of the gradient first, then the gradient itself.
#include "common.h"

namespace {

constexpr Index BLOCK = 32;  // rows whose sums stay in float and in the first cache

// Into how many parts sums are divided: by size alone.
Index parts_of(Index rows, Index channels) { return std::clamp<Index>(rows * channels >> 15, 1, std::clamp<Index>(rows / 64, 1, 32)); }

// Mean and squared deviations of rows [first, last): exact to rounding, since each block is looked at twice.
void block_moments(const float* x, Index channels, Index first, Index last, float* sums) {
    const Index rows = last - first;
    float *mean = sums, *squares = sums + channels;
    const auto columns = [&](Index c, auto width) {
        constexpr int N = decltype(width)::value;  // vectors side by side, to keep additions from waiting for another
        Vector s[N] = {}, q[N] = {};
        for (Index r = first; r < last; r++)
            for (int i = 0; i < N; i++) s[i] += load(x + r * channels + c + i * WIDE);
        for (int i = 0; i < N; i++) s[i] *= 1.0f / rows;
        for (Index r = first; r < last; r++)
            for (int i = 0; i < N; i++) {
                const Vector d = load(x + r * channels + c + i * WIDE) - s[i];
                q[i] += d * d;
            }
        for (int i = 0; i < N; i++) store(mean + c + i * WIDE, s[i]), store(squares + c + i * WIDE, q[i]);
    };
    Index c = 0;
    for (; c + 4 * WIDE <= channels; c += 4 * WIDE) columns(c, std::integral_constant<int, 4>{});
    for (; c + WIDE <= channels; c += WIDE) columns(c, std::integral_constant<int, 1>{});
    if (c < channels) {
        std::fill(sums + c, sums + channels, 0.0f), std::fill(squares + c, squares + channels, 0.0f);
        for (Index r = first; r < last; r++)
            for (Index i = c; i < channels; i++) mean[i] += x[r * channels + i];
        for (Index i = c; i < channels; i++) mean[i] *= 1.0f / rows;
        for (Index r = first; r < last; r++)
            for (Index i = c; i < channels; i++) {
                const float d = x[r * channels + i] - mean[i];
                squares[i] += d * d;
            }
    }
}

template <int A, bool POOL>
void normalise_rows(const float* __restrict y, float* __restrict out, Index rows, Index channels,
                    const float* __restrict scale, const float* __restrict shift, float* __restrict sum) {
    for (Index r = 0; r < rows; r++, y += channels, out += channels)
        for (Index c = 0; c < channels; c++) {
            const float a = activated<A>(y[c] * scale[c] + shift[c]);
            out[c] = a;
            if (POOL) sum[c] += a;
        }
}

// Sums of g and of g * (y - mean) over rows of one image; `pooled` is what its means add to the gradient of each position.
template <int A, bool POOL>
void add_gradients(const float* __restrict y, const float* __restrict gradient, const float* __restrict pooled,
                   float per_position, Index rows, Index channels, const Backward& b, float* __restrict sum_g,
                   float* __restrict sum_gx) {
    const float *__restrict scale = b.scale.data(), *__restrict shift = b.shift.data(), *__restrict mean = b.mean.data();
    for (Index r = 0; r < rows; r++, y += channels, gradient += channels)
        for (Index c = 0; c < channels; c++) {
            const float incoming = POOL ? gradient[c] + pooled[c] * per_position : gradient[c];
            const float g = incoming * slope<A>(y[c] * scale[c] + shift[c]);
            sum_g[c] += g;
            sum_gx[c] += g * (y[c] - mean[c]);
        }
}

template <int A, bool POOL>
void apply_gradient(const float* __restrict y, const float* __restrict gradient, const float* __restrict pooled,
                    float per_position, float* __restrict out, Index rows, Index channels, const Backward& b) {
    const float *__restrict scale = b.scale.data(), *__restrict shift = b.shift.data(), *__restrict mean = b.mean.data();
    const float *__restrict mean_g = b.mean_g.data(), *__restrict mean_gx = b.mean_gx.data();
    for (Index r = 0; r < rows; r++, y += channels, gradient += channels, out += channels)
        for (Index c = 0; c < channels; c++) {
            const float incoming = POOL ? gradient[c] + pooled[c] * per_position : gradient[c];
            const float g = incoming * slope<A>(y[c] * scale[c] + shift[c]);
            out[c] = scale[c] * (g - mean_g[c] - (y[c] - mean[c]) * mean_gx[c]);
        }
}

// f(row, rows, pooled): stretches of rows [first, last) that lie in one image.
template <class F>
void by_image(const Map& map, Index first, Index last, F&& f) {
    for (Index r = first; r < last;) {
        const Index image = r / map.positions, end = std::min(last, (image + 1) * map.positions);
        f(r, end - r, map.pooled_of(image));
        r = end;
    }
}

}  // namespace

void finish_statistics(const Moments& parts, const std::vector<Index>& rows_of, const Norm& norm) {
    const Index channels = parts.channels;
    Moments all(1, channels);
    double n = 0;
    for (Index p = 0; p < static_cast<Index>(rows_of.size()); p++) {
        all.add(0, 0, channels, n, rows_of[p], parts.mean.data() + p * channels, parts.m2.data() + p * channels);
        n += rows_of[p];
    }
    for (Index c = 0; c < channels; c++) {
        const double variance = all.m2[c] / n;
        norm.saved[c] = static_cast<float>(all.mean[c]);
        norm.saved[channels + c] = static_cast<float>(1 / __builtin_sqrt(variance + norm.eps));
        if (!norm.running_mean) continue;
        const float keep = 1 - norm.momentum;
        norm.running_mean[c] = keep * norm.running_mean[c] + norm.momentum * static_cast<float>(all.mean[c]);
        norm.running_var[c] = keep * norm.running_var[c] + norm.momentum * static_cast<float>(all.m2[c] / (n - 1));
    }
}

void normalise(const float* y, float* out, const Map& map, const Norm& norm, int threads) {
    const Index channels = map.channels;
    std::vector<float> scale(channels), shift(channels);
    for (Index c = 0; c < channels; c++) {
        scale[c] = norm.saved[channels + c] * norm.gain(c);
        shift[c] = norm.offset(c) - norm.saved[c] * scale[c];
    }
    with_act(norm.act, [&](auto act) {
        constexpr int A = decltype(act)::value;
#pragma omp parallel for schedule(static) num_threads(threads)
        for (Index image = 0; image < map.images; image++) {
            const Index at = image * map.positions * channels;
            float* pooled = map.pooled_of(image);
            if (!pooled) {
                normalise_rows<A, false>(y + at, out + at, map.positions, channels, scale.data(), shift.data(), nullptr);
                continue;
            }
            std::fill(pooled, pooled + channels, 0.0f);
            normalise_rows<A, true>(y + at, out + at, map.positions, channels, scale.data(), shift.data(), pooled);
            for (Index c = 0; c < channels; c++) pooled[c] *= 1.0f / map.positions;
        }
    });
}

Backward reduce_gradient(const float* y, const float* gradient, const Map& map, const Norm& norm, float* by_weight,
                         float* by_bias, int threads) {
    const Index channels = map.channels, rows = map.rows(), parts = parts_of(rows, channels);
    Backward b{std::vector<float>(channels), std::vector<float>(channels), std::vector<float>(channels),
               std::vector<float>(channels), std::vector<float>(channels)};
    for (Index c = 0; c < channels; c++) {
        b.mean[c] = norm.saved[c];
        b.scale[c] = norm.saved[channels + c] * norm.gain(c);
        b.shift[c] = norm.offset(c) - b.mean[c] * b.scale[c];
    }
    std::vector<double> sums(parts * 2 * channels);
    with_act(norm.act, [&](auto act) {
        constexpr int A = decltype(act)::value;
#pragma omp parallel for schedule(static) num_threads(threads)
        for (Index p = 0; p < parts; p++) {
            std::vector<float> some(2 * channels);
            double* total = sums.data() + p * 2 * channels;
            for (Index first = p * rows / parts, end = (p + 1) * rows / parts; first < end; first += BLOCK) {
                std::fill(some.begin(), some.end(), 0.0f);
                by_image(map, first, std::min(first + BLOCK, end), [&](Index row, Index n, const float* pooled) {
                    const auto add = pooled ? add_gradients<A, true> : add_gradients<A, false>;
                    const Index at = row * channels;
                    add(y + at, gradient + at, pooled, 1.0f / map.positions, n, channels, b, some.data(),
                        some.data() + channels);
                });
                for (Index i = 0; i < 2 * channels; i++) total[i] += some[i];
            }
        }
    });
    for (Index c = 0; c < channels; c++) {
        double g = 0, gx = 0;
        for (Index p = 0; p < parts; p++) g += sums[p * 2 * channels + c], gx += sums[(p * 2 + 1) * channels + c];
        const double rstd = norm.saved[channels + c];
        b.mean_g[c] = static_cast<float>(g / rows);
        b.mean_gx[c] = static_cast<float>(gx * rstd * rstd / rows);
        if (by_weight) by_weight[c] = static_cast<float>(gx * rstd), by_bias[c] = static_cast<float>(g);
    }
    return b;
}

extern "C" {

void norm_forward(const float* x, float* out, Index images, Index positions, Index channels, const float* weight,
                  const float* bias, float* running_mean, float* running_var, float momentum, float eps, int act,
                  float* saved, float* pooled, Index pooled_from, int threads) {
    const Norm norm{weight, bias, running_mean, running_var, saved, momentum, eps, act};
    const Map map{images, positions, channels, pooled, pooled_from};
    const Index rows = map.rows(), parts = parts_of(rows, channels);
    Moments moments(parts, channels);
    std::vector<Index> rows_of(parts);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (Index p = 0; p < parts; p++) {
        std::vector<float> sums(2 * channels);
        const Index begin = p * rows / parts, end = (p + 1) * rows / parts;
        rows_of[p] = end - begin;
        for (Index first = begin; first < end; first += BLOCK) {
            const Index last = std::min(first + BLOCK, end);
            block_moments(x, channels, first, last, sums.data());
            moments.add(p, 0, channels, first - begin, last - first, sums.data(), sums.data() + channels);
        }
    }
    finish_statistics(moments, rows_of, norm);
    normalise(x, out, map, norm, threads);
}

void norm_backward(const float* x, const float* gradient, float* by_x, Index images, Index positions, Index channels,
                   const float* weight, const float* bias, int act, float* saved, float* pooled, Index pooled_from,
                   float* by_weight, float* by_bias, int threads) {
    const Norm norm{weight, bias, nullptr, nullptr, saved, 0, 0, act};
    const Map map{images, positions, channels, pooled, pooled_from};
    const Backward b = reduce_gradient(x, gradient, map, norm, by_weight, by_bias, threads);
    if (!by_x) return;
    with_act(act, [&](auto kind) {
        constexpr int A = decltype(kind)::value;
#pragma omp parallel for schedule(static) num_threads(threads)
        for (Index image = 0; image < images; image++) {
            const float* mine = map.pooled_of(image);
            const auto apply = mine ? apply_gradient<A, true> : apply_gradient<A, false>;
            const Index at = image * positions * channels;
            apply(x + at, gradient + at, mine, 1.0f / positions, by_x + at, positions, channels, b);
        }
    });
}

// out = x * gates, a gate for each channel of an image.
void scale_forward(const float* x, const float* gates, float* out, Index images, Index positions, Index channels, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (Index image = 0; image < images; image++) {
        const float *__restrict gate = gates + image * channels, *__restrict from = x + image * positions * channels;
        float* __restrict to = out + image * positions * channels;
        for (Index p = 0; p < positions; p++, from += channels, to += channels)
            for (Index c = 0; c < channels; c++) to[c] = from[c] * gate[c];
    }
}

// Both gradients in one pass; by_gates: null where nobody asks for it.
void scale_backward(const float* x, const float* gates, const float* gradient, float* by_x, float* by_gates, Index images,
                    Index positions, Index channels, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (Index image = 0; image < images; image++) {
        const Index at = image * positions * channels;
        const float *__restrict gate = gates + image * channels, *__restrict from = x + at, *__restrict g = gradient + at;
        float *__restrict to = by_x + at, *__restrict sum = by_gates ? by_gates + image * channels : nullptr;
        if (sum) std::fill(sum, sum + channels, 0.0f);
        for (Index p = 0; p < positions; p++, from += channels, g += channels, to += channels)
            if (sum)
                for (Index c = 0; c < channels; c++) to[c] = g[c] * gate[c], sum[c] += g[c] * from[c];
            else
                for (Index c = 0; c < channels; c++) to[c] = g[c] * gate[c];
    }
}

}  // extern "C"
