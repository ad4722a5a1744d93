// What the kernels share: vectors as wide as the processor's, activations with their slopes, and how work is divided.
//
// Tensors are channels-last float32: [images, positions, channels], every channel of a position next to the other.
// Whatever adds up numbers of several parts of a batch divides it by its shape alone, never by the number of threads,
// and joins the parts in their order: a result is the same bits with one thread or many.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

using Index = std::int64_t;

#if defined(__AVX512F__)
constexpr int WIDE = 16;
constexpr int REGISTERS = 32;
#elif defined(__AVX__)
constexpr int WIDE = 8;
constexpr int REGISTERS = 16;
#else
constexpr int WIDE = 4;
constexpr int REGISTERS = 16;
#endif

typedef float Vector __attribute__((vector_size(WIDE * 4), aligned(4), may_alias));

inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void store(float* to, Vector v) { *reinterpret_cast<Vector*>(to) = v; }

// One vector of memory that may end before the vector does: `count` numbers, zeros behind them.
inline Vector load_some(const float* from, int count) {
    if (count == WIDE) return load(from);
    alignas(64) float all[WIDE] = {};
    std::memcpy(all, from, sizeof(float) * count);
    return load(all);
}
inline void store_some(float* to, Vector v, int count) {
    if (count == WIDE) return store(to, v);
    alignas(64) float all[WIDE];
    store(all, v);
    std::memcpy(to, all, sizeof(float) * count);
}

struct Free {
    void operator()(float* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<float[], Free>;

inline Buffer buffer(Index floats) {
    return Buffer(static_cast<float*>(std::aligned_alloc(64, (floats * sizeof(float) + 127) / 64 * 64)));
}

// e^x to a unit or two in the last place, in operations that compilers make vectors of.
inline float exponential(float x) {
    const float clipped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
    const float shifted = clipped * 1.44269504f + 12582912.0f;  // rounds to an integer, in the low bits
    std::int32_t bits;
    std::memcpy(&bits, &shifted, 4);
    const float n = shifted - 12582912.0f;
    const float r = (clipped - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const float fraction = p * r * r + r + 1.0f;
    const std::int32_t power = (bits - 0x4b400000 + 127) << 23;
    float scale;
    std::memcpy(&scale, &power, 4);
    return fraction * scale;
}
inline float sigmoid(float z) { return z != z ? z : 1.0f / (1.0f + exponential(-z)); }

enum Act { NONE, RELU, RELU6, HARD_SWISH, SWISH };  // the numbers are `fused.ACTIVATIONS`

inline Vector sigmoid(Vector z) {
    alignas(64) float all[WIDE];
    store(all, z);
    for (int i = 0; i < WIDE; i++) all[i] = sigmoid(all[i]);
    return load(all);
}

// Of a number or a vector of them. Comparisons stand so that a NaN stays one, as in torch.
template <int A, class T>
inline T activated(T z) {
    const T zero{}, six = zero + 6.0f;
    if (A == RELU) return z < zero ? zero : z;
    if (A == RELU6) return z < zero ? zero : (z > six ? six : z);
    if (A == HARD_SWISH) {
        const T t = z + 3.0f;
        return z * (t < zero ? zero : (t > six ? six : t)) * (1.0f / 6.0f);
    }
    if (A == SWISH) return z * sigmoid(z);
    return z;
}
template <int A, class T>
inline T slope(T z) {
    const T zero{}, one = zero + 1.0f, three = zero + 3.0f, six = zero + 6.0f;
    if (A == RELU) return z <= zero ? zero : one;
    if (A == RELU6) return z <= zero ? zero : (z >= six ? zero : one);
    if (A == HARD_SWISH) return z <= -three ? zero : (z >= three ? one : z * (1.0f / 3.0f) + 0.5f);
    if (A == SWISH) {
        const T s = sigmoid(z);
        return s * (1.0f + z * (1.0f - s));
    }
    return one;
}

// f(std::integral_constant<int, act>): what it calls is compiled for each activation.
template <class F>
void with_act(int act, F&& f) {
    switch (act) {
        case RELU: return f(std::integral_constant<int, RELU>{});
        case RELU6: return f(std::integral_constant<int, RELU6>{});
        case HARD_SWISH: return f(std::integral_constant<int, HARD_SWISH>{});
        case SWISH: return f(std::integral_constant<int, SWISH>{});
        default: return f(std::integral_constant<int, NONE>{});
    }
}

// A map of activations: [images, positions, channels], and the means over positions that images from `pooled_from` on
// hand to a squeeze-excite layer (or the gradient of these means); null: none.
struct Map {
    Index images, positions, channels;
    float* pooled;
    Index pooled_from;
    Index rows() const { return images * positions; }
    float* pooled_of(Index image) const {
        return pooled && image >= pooled_from ? pooled + (image - pooled_from) * channels : nullptr;
    }
};

// Mean and sum of squared deviations of each channel, by parts of the batch.
struct Moments {
    Index channels;
    std::vector<double> mean, m2;
    Moments(Index parts, Index channels_) : channels(channels_), mean(parts * channels_), m2(parts * channels_) {}

    // Chan's rule: the moments of `before` values and of `n` further ones, without cancellation; channels from `first`.
    template <class T>
    void add(Index part, Index first, Index n_channels, double before, double n, const T* means, const T* squares) {
        double *__restrict m = mean.data() + part * channels + first, *__restrict q = m2.data() + part * channels + first;
        const double share = n / (before + n), weight = before * share;
        for (Index i = 0; i < n_channels; i++) {
            const double delta = means[i] - m[i];
            m[i] += delta * share;
            q[i] += squares[i] + delta * delta * weight;
        }
    }
};

// Batch norm with the batch's own statistics; `saved` is [2, channels]: mean, 1 / standard deviation.
// Without weights (null) it only normalises; without running statistics (null) it remembers nothing.
struct Norm {
    const float *weight, *bias;
    float *running_mean, *running_var, *saved;
    float momentum, eps;
    int act;

    float gain(Index c) const { return weight ? weight[c] : 1.0f; }
    float offset(Index c) const { return bias ? bias[c] : 0.0f; }
};

// What its backward pass needs of every channel: z = y * scale + shift, and
// gradient of y = scale * (g - mean_g - (y - mean) * mean_gx), g the gradient of z.
struct Backward {
    std::vector<float> scale, shift, mean, mean_g, mean_gx;
};

// `rows_of(part)`: how many values of each channel a part holds.
void finish_statistics(const Moments& parts, const std::vector<Index>& rows_of, const Norm& norm);
void normalise(const float* y, float* out, const Map& map, const Norm& norm, int threads);
Backward reduce_gradient(const float* y, const float* gradient, const Map& map, const Norm& norm, float* by_weight,
                         float* by_bias, int threads);
