// Depthwise convolution, forward and backward, with the batch norm and activation behind it.
//
// A vector of channels of one image is copied into a small padded map, so that no tap asks where the border is. Forward:
// convolve, take the map's moments while it is in the first cache, then normalise. Backward: the gradient of the
// convolution's output comes into being position by position, in a padded map of its own, and both gradients are taken
// from these two maps: of images as a convolution with the kernel turned round (at stride 1; else every output scatters
// what it gives), of weights with all taps in registers at once.
#include "common.h"

#include <functional>

namespace {

struct Shape {
    Index images, channels, height, width, out_height, out_width;
    int kernel, stride, pad;
    Index positions() const { return height * width; }
    Index out_positions() const { return out_height * out_width; }
};

// A map of one vector of channels with `pad` zeros around it (and what a stride leaves over at the end).
struct Padded {
    Index height, width, pad;
    Buffer data;
    Padded(Index h, Index w, Index p, Index slack = 0)
        : height(h + 2 * p + slack), width(w + 2 * p + slack), pad(p), data(buffer(height * width * WIDE)) {
        clear();
    }
    void clear() { std::memset(data.get(), 0, sizeof(float) * height * width * WIDE); }
    float* at(Index row, Index column) { return data.get() + (row * width + column) * WIDE; }
    const float* at(Index row, Index column) const { return data.get() + (row * width + column) * WIDE; }
};

void read_map(const float* from, Index height, Index width, Index channels, int count, Padded& to) {
    for (Index r = 0; r < height; r++) {
        float* row = to.at(r + to.pad, to.pad);
        for (Index c = 0; c < width; c++, from += channels) store(row + c * WIDE, load_some(from, count));
    }
}

void write_map(const Padded& from, Index height, Index width, Index channels, int count, float* to) {
    for (Index r = 0; r < height; r++) {
        const float* row = from.at(r + from.pad, from.pad);
        for (Index c = 0; c < width; c++, to += channels) store_some(to, load(row + c * WIDE), count);
    }
}

// Where the outputs of a convolution go: `channels` floats from one position to the next, of which `count` are written;
// and, unless null, `packed`: the same, vector by vector.
struct Output {
    float* map;
    Index channels;
    int count;
    float* packed;
};

// N neighbouring outputs of a row at once, at stride S, the first of which is `position`.
template <int K, int S, int N>
inline void convolve_few(const float* x, Index x_width, const float* w, const Output& out, Index position) {
    Vector sum[N] = {};
    for (int i = 0; i < K; i++, x += x_width * WIDE, w += K * WIDE)
#pragma GCC unroll 8
        for (int j = 0; j < K; j++) {
            const Vector tap = load(w + j * WIDE);
            for (int n = 0; n < N; n++) sum[n] += load(x + (n * S + j) * WIDE) * tap;
        }
    for (int n = 0; n < N; n++) {
        store_some(out.map + (position + n) * out.channels, sum[n], out.count);
        if (out.packed) store(out.packed + (position + n) * WIDE, sum[n]);
    }
}

template <int K, int S>
void convolve(const Padded& x, const float* w, Index height, Index width, const Output& out) {
    for (Index r = 0; r < height; r++) {
        const float* row = x.at(r * S, 0);
        Index at = r * width;
        Index left = width;
        for (; left >= 8; left -= 8, at += 8, row += 8 * S * WIDE) convolve_few<K, S, 8>(row, x.width, w, out, at);
        switch (left) {
            case 7: convolve_few<K, S, 7>(row, x.width, w, out, at); break;
            case 6: convolve_few<K, S, 6>(row, x.width, w, out, at); break;
            case 5: convolve_few<K, S, 5>(row, x.width, w, out, at); break;
            case 4: convolve_few<K, S, 4>(row, x.width, w, out, at); break;
            case 3: convolve_few<K, S, 3>(row, x.width, w, out, at); break;
            case 2: convolve_few<K, S, 2>(row, x.width, w, out, at); break;
            case 1: convolve_few<K, S, 1>(row, x.width, w, out, at); break;
        }
    }
}

// Every output hands its gradient to the inputs it has seen.
template <int K>
void scatter(const Padded& g, const float* w, int stride, Index height, Index width, Padded& to) {
    to.clear();
    for (Index r = 0; r < height; r++)
        for (Index c = 0; c < width; c++) {
            const Vector v = load(g.at(r + g.pad, c + g.pad));
            for (int i = 0; i < K; i++) {
                float* row = to.at(r * stride + i, c * stride);
                for (int j = 0; j < K; j++) store(row + j * WIDE, load(row + j * WIDE) + v * load(w + (i * K + j) * WIDE));
            }
        }
}

// sums[K * K] += what each tap has seen, weighted by the gradient; as many rows of taps at once as fit the registers.
template <int K, int ROWS>
void add_taps(const Padded& x, const Padded& g, int stride, Index height, Index width, int first, float* sums) {
    Vector sum[ROWS][K] = {};
    for (Index r = 0; r < height; r++) {
        const float* gradient = g.at(r + g.pad, g.pad);
        const float* seen = x.at(r * stride + first, 0);
        for (Index c = 0; c < width; c++) {
            const Vector v = load(gradient + c * WIDE);
            const float* from = seen + c * stride * WIDE;
#pragma GCC unroll 8
            for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 8
                for (int j = 0; j < K; j++) sum[i][j] += load(from + (i * x.width + j) * WIDE) * v;
        }
    }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < K; j++) {
            float* to = sums + ((first + i) * K + j) * WIDE;
            store(to, load(to) + sum[i][j]);
        }
}

template <int K>
void weigh_taps(const Padded& x, const Padded& g, int stride, Index height, Index width, float* sums) {
    constexpr int MOST = std::min(K, std::max(1, (REGISTERS - 4) / K));
    int first = 0;
    for (; first + MOST <= K; first += MOST) add_taps<K, MOST>(x, g, stride, height, width, first, sums);
    constexpr int REST = K % MOST;
    if constexpr (REST > 0) add_taps<K, REST>(x, g, stride, height, width, first, sums);
}

// [channels, 1, k, k] -> [k * k][WIDE] of channels from `first` on; `turned`: back to front.
void read_taps(const float* weight, int taps, int count, bool turned, float* to) {
    for (int t = 0; t < taps; t++)
        for (int i = 0; i < WIDE; i++) to[t * WIDE + i] = i < count ? weight[i * taps + (turned ? taps - 1 - t : t)] : 0.0f;
}

// Work is divided into groups of channels and parts of the images, by shape alone.
constexpr Index GROUP = 64;  // channels: neighbours in memory are read one soon after the other

struct Division {
    Index groups, parts, images, channels;
    explicit Division(const Shape& s)
        : groups((s.channels + GROUP - 1) / GROUP),
          parts(std::clamp<Index>(32 / groups, 1, s.images)),
          images(s.images),
          channels(s.channels) {}
    Index begin(Index part) const { return part * images / parts; }

    // f(scratch, part, first channel, channels): every group of every part, in parallel.
    template <class Make, class F>
    void run(int threads, Make&& make, F&& f) const {
#pragma omp parallel num_threads(threads)
        {
            auto scratch = make();
#pragma omp for schedule(static)
            for (Index item = 0; item < groups * parts; item++) {
                const Index first = item % groups * GROUP;
                f(scratch, item / groups, first, std::min(GROUP, channels - first));
            }
        }
    }
};

// f(lane, first channel of it, how many channels): the vectors of a group.
template <class F>
void by_lane(Index first, Index channels, F&& f) {
    for (Index lane = 0; lane * WIDE < channels; lane++)
        f(lane, first + lane * WIDE, static_cast<int>(std::min<Index>(WIDE, channels - lane * WIDE)));
}

struct Maps {
    Padded x, g, by_x;
    Buffer out, taps, sums;
};

template <class F>
void with_kernel(int kernel, F&& f) {
    if (kernel == 3) f(std::integral_constant<int, 3>{});
    if (kernel == 5) f(std::integral_constant<int, 5>{});
    if (kernel == 7) f(std::integral_constant<int, 7>{});
}

// The moments of a map join those of the `before` values that a part has seen.
void add_moments(const float* map, Index rows, Index before, Index part, Index c, int count, Moments& moments) {
    Vector sum[4] = {}, squares[4] = {};
    for (Index r = 0; r < rows; r++) sum[r % 4] += load(map + r * WIDE);
    const Vector mean = (sum[0] + sum[1] + sum[2] + sum[3]) * (1.0f / rows);
    for (Index r = 0; r < rows; r++) {
        const Vector d = load(map + r * WIDE) - mean;
        squares[r % 4] += d * d;
    }
    alignas(64) float means[WIDE], all[WIDE];
    store(means, mean), store(all, squares[0] + squares[1] + squares[2] + squares[3]);
    moments.add(part, c, count, before, rows, means, all);
}

// y = the convolution; moments of every part where there is a norm.
template <int K>
void forward(const float* x, const float* weight, float* y, const Shape& s, const Division& work, Moments* moments, int threads) {
    const Index rows = s.out_positions();
    const auto make = [&] { return Maps{{s.height, s.width, s.pad, s.stride - 1}, {0, 0, 0}, {0, 0, 0}, buffer(rows * WIDE), buffer(K * K * GROUP), {}}; };
    work.run(threads, make, [&](Maps& maps, Index part, Index first, Index channels) {
        by_lane(first, channels, [&](Index lane, Index c, int count) {
            read_taps(weight + c * K * K, K * K, count, false, maps.taps.get() + lane * K * K * WIDE);
        });
        const Index begin = work.begin(part), end = work.begin(part + 1);
        for (Index n = begin; n < end; n++)
            by_lane(first, channels, [&](Index lane, Index c, int count) {
                read_map(x + n * s.positions() * s.channels + c, s.height, s.width, s.channels, count, maps.x);
                float* packed = moments ? maps.out.get() : nullptr;
                const float* taps = maps.taps.get() + lane * K * K * WIDE;
                const Output out{y + n * rows * s.channels + c, s.channels, count, packed};
                const auto run = s.stride == 1 ? convolve<K, 1> : convolve<K, 2>;
                run(maps.x, taps, s.out_height, s.out_width, out);
                if (moments) add_moments(packed, rows, (n - begin) * rows, part, c, count, *moments);
            });
    });
}

// The gradient of y from that of the activation, into a padded map.
template <int A>
void read_gradient(const float* y, const float* incoming, const float* pooled, const Shape& s, const Backward& b, Index c, int count, Padded& to) {
    const Vector scale = load(&b.scale[c]), shift = load(&b.shift[c]), mean = load(&b.mean[c]);
    const Vector mean_g = load(&b.mean_g[c]), mean_gx = load(&b.mean_gx[c]);
    const Vector everywhere = pooled ? load_some(pooled, count) * (1.0f / s.out_positions()) : Vector{};
    for (Index r = 0; r < s.out_height; r++) {
        float* row = to.at(r + to.pad, to.pad);
        for (Index column = 0; column < s.out_width; column++, y += s.channels, incoming += s.channels) {
            const Vector seen = load_some(y, count);
            const Vector g = (load_some(incoming, count) + everywhere) * slope<A>(seen * scale + shift);
            store(row + column * WIDE, scale * (g - mean_g - (seen - mean) * mean_gx));
        }
    }
}

// How the gradient of y gets into a padded map: (image, first channel, count, map).
using Read = std::function<void(Index, Index, int, Padded&)>;

template <int K>
void backward(const float* x, const float* weight, const Shape& s, float* by_x, float* by_weight, int threads, const Read& read) {
    const Division work(s);
    const bool turn = s.stride == 1;
    std::vector<float> partial(work.parts * K * K * s.channels);
    const auto make = [&] {
        const Index slack = s.stride - 1;
        Padded scattered = turn ? Padded(0, 0, 0) : Padded(s.height, s.width, s.pad, slack);
        return Maps{{s.height, s.width, s.pad, slack}, {s.out_height, s.out_width, turn ? K - 1 - s.pad : 0}, std::move(scattered), {}, buffer(K * K * GROUP), buffer(K * K * GROUP)};
    };
    work.run(threads, make, [&](Maps& maps, Index part, Index first, Index channels) {
        by_lane(first, channels, [&](Index lane, Index c, int count) {
            read_taps(weight + c * K * K, K * K, count, turn, maps.taps.get() + lane * K * K * WIDE);
        });
        std::fill(maps.sums.get(), maps.sums.get() + K * K * GROUP, 0.0f);
        for (Index n = work.begin(part); n < work.begin(part + 1); n++)
            by_lane(first, channels, [&](Index lane, Index c, int count) {
                const float* taps = maps.taps.get() + lane * K * K * WIDE;
                const Index at = n * s.positions() * s.channels + c;
                read(n, c, count, maps.g);
                if (by_weight) {
                    read_map(x + at, s.height, s.width, s.channels, count, maps.x);
                    weigh_taps<K>(maps.x, maps.g, s.stride, s.out_height, s.out_width, maps.sums.get() + lane * K * K * WIDE);
                }
                if (!by_x) return;
                if (turn) {
                    convolve<K, 1>(maps.g, taps, s.height, s.width, {by_x + at, s.channels, count, nullptr});
                } else {
                    scatter<K>(maps.g, taps, s.stride, s.out_height, s.out_width, maps.by_x);
                    write_map(maps.by_x, s.height, s.width, s.channels, count, by_x + at);
                }
            });
        by_lane(first, channels, [&](Index lane, Index c, int count) {
            for (int t = 0; t < K * K; t++)
                for (int i = 0; i < count; i++)
                    partial[(part * s.channels + c + i) * K * K + t] = maps.sums[(lane * K * K + t) * WIDE + i];
        });
    });
    if (!by_weight) return;
    std::fill(by_weight, by_weight + K * K * s.channels, 0.0f);
    for (Index p = 0; p < work.parts; p++)
        for (Index i = 0; i < K * K * s.channels; i++) by_weight[i] += partial[p * K * K * s.channels + i];
}

}  // namespace

extern "C" {

// y: what the convolution gives. out: what the activation of the normalised y gives; null: no norm, no activation.
void depthwise_forward(const float* x, const float* kernels, float* y, float* out, const Index* sizes, const float* weight,
                       const float* bias, float* running_mean, float* running_var, float momentum, float eps, int act,
                       float* saved, float* pooled, Index pooled_from, int threads) {
    const Shape s{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], int(sizes[6]), int(sizes[7]), int(sizes[8])};
    const Division work(s);
    Moments moments(out ? work.parts : 0, s.channels);
    with_kernel(s.kernel, [&](auto k) { forward<decltype(k)::value>(x, kernels, y, s, work, out ? &moments : nullptr, threads); });
    if (!out) return;
    std::vector<Index> rows_of(work.parts);
    for (Index p = 0; p < work.parts; p++) rows_of[p] = (work.begin(p + 1) - work.begin(p)) * s.out_positions();
    const Norm norm{weight, bias, running_mean, running_var, saved, momentum, eps, act};
    finish_statistics(moments, rows_of, norm);
    normalise(y, out, {s.images, s.out_positions(), s.channels, pooled, pooled_from}, norm, threads);
}

// `saved` null: the gradient is that of y itself. by_x, by_kernels null: not asked for.
void depthwise_backward(const float* x, const float* kernels, const float* y, const float* gradient, float* by_x,
                        float* by_kernels, const Index* sizes, const float* weight, const float* bias, int act,
                        float* saved, float* pooled, Index pooled_from, float* by_weight, float* by_bias, int threads) {
    const Shape s{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], int(sizes[6]), int(sizes[7]), int(sizes[8])};
    const Index image = s.out_positions() * s.channels;
    const Norm norm{weight, bias, nullptr, nullptr, saved, 0, 0, act};
    const Map map{s.images, s.out_positions(), s.channels, pooled, pooled_from};
    Read read = [&](Index n, Index c, int count, Padded& to) {
        read_map(gradient + n * image + c, s.out_height, s.out_width, s.channels, count, to);
    };
    Backward b;
    if (saved) {
        b = reduce_gradient(y, gradient, map, norm, by_weight, by_bias, threads);
        for (auto* numbers : {&b.scale, &b.shift, &b.mean, &b.mean_g, &b.mean_gx}) numbers->resize(s.channels + WIDE);
        with_act(act, [&](auto kind) {
            read = [&](Index n, Index c, int count, Padded& to) {
                const Index at = n * image + c;
                const float* mine = map.pooled_of(n);
                read_gradient<decltype(kind)::value>(y + at, gradient + at, mine ? mine + c : nullptr, s, b, c, count, to);
            };
        });
    }
    with_kernel(s.kernel, [&](auto k) { backward<decltype(k)::value>(x, kernels, s, by_x, by_kernels, threads, read); });
}

}  // extern "C"
