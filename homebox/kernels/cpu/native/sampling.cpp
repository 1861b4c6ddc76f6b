// Which token comes next, over rows of fp32 logits?
//
// The same arithmetic as kernels/sampling.py, to the bit: the weight of a token is e^((logit - highest) / temperature)
// in fixed point, 2^44 for the likeliest, computed with fp64 sums and products only, each rounded once. Sums of weights
// are sums of integers, so they come out the same in any order and in any number of pieces, and nothing hangs on how a
// row was searched. Compiled with -ffp-contract=off: a fused multiply-add would be another arithmetic.
//
// No row is sorted. A token's place among others is found by halving: the likelier half of what is left is split off
// and weighed, and the search goes on in the half where the sum is reached. What is looked at is first the few tokens
// near the highest, and more only where these do not reach top-p.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "pool.h"

namespace {

// One register: wider ones are taken apart badly by the compiler. How wide it is changes no result.
#if defined(__AVX512F__)
constexpr int BYTES = 64;
#elif defined(__AVX2__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif
constexpr int FLOATS = BYTES / 4, DOUBLES = BYTES / 8;
typedef float Floats __attribute__((vector_size(BYTES)));
typedef std::int32_t Ints __attribute__((vector_size(BYTES)));
typedef float HalfFloats __attribute__((vector_size(BYTES / 2)));
typedef double Doubles __attribute__((vector_size(BYTES)));
typedef std::int64_t Longs __attribute__((vector_size(BYTES)));

constexpr std::int64_t BLOCK = 64;  // tokens that share one maximum and one sum
constexpr std::int64_t ONE = std::int64_t(1) << 44;
constexpr double LEAST = -40.0;  // e^LEAST * 2^44 rounds to nothing
constexpr double NOTHING = 32.0;  // so far below the highest, in temperatures, every weight is 0: e^-31.2 is 2^-45
constexpr double MOST = 1e300;    // 1 / temperature stays a number
constexpr double FIRST_LOOK = 4.0;
constexpr float MINUS_INFINITY = -std::numeric_limits<float>::infinity();

// One row to draw from, as kernels/cpu/sampling.py packs it.
struct Wish {
    std::int64_t row;
    std::int64_t position;
    std::uint64_t seed;
    std::int64_t top_k;  // 0 is off
    double temperature;  // above 0
    double top_p;
    double min_p;
};

struct Item {
    float logit;
    std::int32_t token;
    std::int64_t weight;
};

// Likeliest first, and among equals the first in the vocabulary.
bool likelier(const Item& a, const Item& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

struct Row {
    const float* logits;
    std::int64_t vocab;

    std::int64_t blocks() const { return (vocab + BLOCK - 1) / BLOCK; }

    // The block's logits; those behind the end of the vocabulary are -inf, in `padded`.
    const float* block(std::int64_t b, float* padded) const {
        const float* first = logits + b * BLOCK;
        const std::int64_t there = std::min(BLOCK, vocab - b * BLOCK);
        if (there == BLOCK) return first;
        std::copy(first, first + there, padded);
        std::fill(padded + there, padded + BLOCK, MINUS_INFINITY);
        return padded;
    }
};

// What a thread needs for one row; kept, so that a step allocates nothing.
struct Scratch {
    std::vector<float> maxima;       // of each block
    std::vector<float> ranked;       // the same, in another order
    std::vector<std::int64_t> sums;  // of each block
    std::vector<Item> items;
};

Scratch& scratch() {
    thread_local Scratch mine;
    return mine;
}

struct Peak {
    float highest;
    bool broken;  // there is a NaN

    bool nothing_left() const { return broken || highest == MINUS_INFINITY; }
};

// One pass: the maximum of each block and of all.
Peak survey(const Row& row, std::vector<float>& maxima) {
    maxima.resize(std::size_t(row.blocks()));
    float padded[BLOCK];
    Ints broken = {};
    float highest = MINUS_INFINITY;
    for (std::int64_t b = 0; b < row.blocks(); ++b) {
        const float* logits = row.block(b, padded);
        Floats best = Floats{} + MINUS_INFINITY;
        for (int i = 0; i < BLOCK; i += FLOATS) {
            Floats v;
            std::memcpy(&v, logits + i, sizeof v);
            broken |= v != v;
            best = v > best ? v : best;
        }
        float lanes[FLOATS];
        std::memcpy(lanes, &best, sizeof lanes);
        for (int step = FLOATS / 2; step > 0; step /= 2)
            for (int i = 0; i < step; ++i) lanes[i] = lanes[i] > lanes[i + step] ? lanes[i] : lanes[i + step];
        maxima[std::size_t(b)] = lanes[0];
        highest = lanes[0] > highest ? lanes[0] : highest;
    }
    for (int i = 0; i < FLOATS; ++i)
        if (broken[i]) return {highest, true};
    return {highest, false};
}

std::int64_t first_of(const Row& row, const std::vector<float>& maxima, float value) {
    const std::int64_t b = std::find(maxima.begin(), maxima.end(), value) - maxima.begin();
    std::int64_t token = b * BLOCK;
    while (token < row.vocab && row.logits[token] != value) ++token;
    return token;
}

// How logits become weights.
struct Scale {
    double base;
    double inverse;

    Scale(float highest, double temperature)
        : base(std::min(highest, FLT_MAX)), inverse(std::min(1.0 / temperature, MOST)) {}

    // Below this every weight is 0; rounded to fp32, that still holds for every fp32 number below it.
    float floor(double distance = NOTHING) const {
        return float(std::max(base - distance / inverse, -double(FLT_MAX)));
    }
};

// e^x by Cody-Waite reduction and the Taylor series: r is at most ln(2)/2, so r^12/12! is below 2^-46.
inline void weigh(const float* logits, const Scale& scale, Longs& weights) {
    constexpr double SHIFT = 6755399441055744.0;     // 1.5 * 2^52: adding it leaves a whole number in the low bits
    constexpr double WHOLE = 4503599627370496.0;     // 2^52
    constexpr double LOG2E = 1.4426950408889634;
    constexpr double LN2_HIGH = 0.6931471803691238;  // 32 bits, so that its product with k is exact
    constexpr double LN2_LOW = 1.9082149292705877e-10;
    constexpr double SERIES[] = {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
                                 1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5,         1.0,        1.0};
    const Doubles shift = Doubles{} + SHIFT, whole = Doubles{} + WHOLE, least = Doubles{} + LEAST;
    HalfFloats narrow;
    std::memcpy(&narrow, logits, sizeof narrow);
    Doubles x = (__builtin_convertvector(narrow, Doubles) - scale.base) * scale.inverse;
    x = x > least ? x : least;  // a NaN is not above anything
    x = x < Doubles{} ? x : Doubles{};
    const Doubles shifted = x * LOG2E + shift;
    const Doubles k = shifted - shift;
    const Doubles r = (x - k * LN2_HIGH) - k * LN2_LOW;
    Doubles e = Doubles{} + SERIES[0];
    for (int i = 1; i < 12; ++i) e = e * r + SERIES[i];
    const Longs exponent = ((Longs)shifted - (Longs)shift + (1023 + 44)) << 52;
    weights = (Longs)(e * (Doubles)exponent + whole) - (Longs)whole;
}

// The sum of all weights of at least `least`, and of each block.
std::int64_t weigh_blocks(const Row& row, const Scale& scale, std::int64_t least, Scratch& mine) {
    mine.sums.resize(mine.maxima.size());
    const float floor = scale.floor();
    const Longs bar = Longs{} + least;
    float padded[BLOCK];
    std::int64_t total = 0;
    for (std::size_t b = 0; b < mine.sums.size(); ++b) {
        std::int64_t sum = 0;
        if (mine.maxima[b] >= floor) {
            const float* logits = row.block(std::int64_t(b), padded);
            Longs lanes = {};
            for (int i = 0; i < BLOCK; i += DOUBLES) {
                Longs weights;
                weigh(logits + i, scale, weights);
                lanes += weights >= bar ? weights : Longs{};
            }
            for (int i = 0; i < DOUBLES; ++i) sum += lanes[i];
        }
        total += mine.sums[b] = sum;
    }
    return total;
}

// Every token with a logit of at least `floor`, in the order of the vocabulary. Blocks below it are not read.
void gather(const Row& row, float floor, Scratch& mine) {
    mine.items.clear();
    for (std::size_t b = 0; b < mine.maxima.size(); ++b) {
        if (!(mine.maxima[b] >= floor)) continue;
        const std::int64_t first = std::int64_t(b) * BLOCK, end = std::min(first + BLOCK, row.vocab);
        Item found[BLOCK];
        int count = 0;
        for (std::int64_t token = first; token < end; ++token) {  // without a branch: in a flat row it is a coin toss
            found[count] = {row.logits[token], std::int32_t(token), 0};
            count += row.logits[token] >= floor;
        }
        mine.items.insert(mine.items.end(), found, found + count);
    }
}

std::int64_t weigh_items(const Scale& scale, std::vector<Item>& items) {
    std::int64_t total = 0;
    for (std::size_t first = 0; first < items.size(); first += DOUBLES) {
        const std::size_t there = std::min<std::size_t>(DOUBLES, items.size() - first);
        float logits[DOUBLES] = {};
        for (std::size_t i = 0; i < there; ++i) logits[i] = items[first + i].logit;
        Longs weights;
        weigh(logits, scale, weights);
        for (std::size_t i = 0; i < there; ++i) total += items[first + i].weight = weights[i];
    }
    return total;
}

// The `count` likeliest tokens, or those there are, in no order; none below `floor`.
void gather_likeliest(const Row& row, std::size_t count, float floor, Scratch& mine) {
    if (count <= mine.maxima.size()) {  // as many blocks have their maximum here or above: enough tokens have
        mine.ranked = mine.maxima;
        const auto place = mine.ranked.begin() + std::ptrdiff_t(count) - 1;
        std::nth_element(mine.ranked.begin(), place, mine.ranked.end(), std::greater<float>());
        floor = std::max(floor, *place);
    }
    gather(row, floor, mine);
    if (mine.items.size() <= count) return;
    std::nth_element(mine.items.begin(), mine.items.begin() + std::ptrdiff_t(count), mine.items.end(), likelier);
    mine.items.resize(count);
}

// In descending order, the first place where the sum of the weights so far is above `target`, which is less than the
// sum of all. What comes before that place is likelier than what stands there, and what comes after less likely.
std::size_t crossing(std::vector<Item>& items, std::int64_t target) {
    std::size_t low = 0, high = items.size();
    std::int64_t before = 0;
    while (high - low > 32) {
        const std::size_t middle = low + (high - low) / 2;
        const auto begin = items.begin();
        std::nth_element(
            begin + std::ptrdiff_t(low), begin + std::ptrdiff_t(middle), begin + std::ptrdiff_t(high), likelier);
        std::int64_t half = 0;
        for (std::size_t i = low; i < middle; ++i) half += items[i].weight;
        if (before + half > target) {
            high = middle;
        } else {
            before += half;
            low = middle;
        }
    }
    std::sort(items.begin() + std::ptrdiff_t(low), items.begin() + std::ptrdiff_t(high), likelier);
    while ((before += items[low].weight) <= target) ++low;
    return low;
}

// In [0, 1), from a counter: two rounds of the SplitMix64 finaliser, as `uniform` in kernels/sampling.py.
double uniform(std::uint64_t seed, std::uint64_t position) {
    std::uint64_t x = seed;
    for (const std::uint64_t value : {std::uint64_t(0), position}) {
        x += value * 0xD1B54A32D192ED03u + 0x9E3779B97F4A7C15u;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        x ^= x >> 31;
    }
    return double(x >> 11) / 9007199254740992.0;
}

std::int64_t place(double u, std::int64_t total) { return std::min(std::int64_t(u * double(total)), total - 1); }

// Without top-k and top-p: the sum runs in the order of the vocabulary.
std::int64_t draw_by_token(const Row& row, const Scale& scale, std::int64_t least, double u, Scratch& mine) {
    std::int64_t left = place(u, weigh_blocks(row, scale, least, mine));
    std::size_t b = 0;
    while (mine.sums[b] <= left) left -= mine.sums[b++];
    float padded[BLOCK];
    const float* logits = row.block(std::int64_t(b), padded);
    for (int i = 0;; i += DOUBLES) {
        Longs weights;
        weigh(logits + i, scale, weights);
        for (int lane = 0; lane < DOUBLES; ++lane) {
            if (weights[lane] < least) continue;
            if (weights[lane] > left) return std::int64_t(b) * BLOCK + i + lane;
            left -= weights[lane];
        }
    }
}

// With top-k or top-p: the sum runs from the likeliest down.
std::int64_t draw_by_rank(
    const Row& row, const Scale& scale, const Wish& wish, std::int64_t least, double u, Scratch& mine) {
    std::int64_t total, gathered;
    if (wish.top_k > 0) {
        gather_likeliest(row, std::size_t(std::min(wish.top_k, row.vocab)), scale.floor(), mine);
        total = gathered = weigh_items(scale, mine.items);
    } else {
        total = weigh_blocks(row, scale, 0, mine);
        gathered = 0;
    }
    if (wish.top_p < 1.0) {
        // The smallest set whose probability reaches top_p: a token stays while those before it do not.
        const auto enough = std::max<std::int64_t>(1, std::int64_t(std::ceil(wish.top_p * double(total))));
        for (double look = FIRST_LOOK; gathered < std::min(enough, total); look *= 2) {
            gather(row, scale.floor(std::min(look, NOTHING)), mine);
            gathered = weigh_items(scale, mine.items);
        }
        if (gathered >= enough) mine.items.resize(crossing(mine.items, enough - 1) + 1);
    }
    const auto dropped = [least](const Item& item) { return item.weight < least; };
    mine.items.erase(std::remove_if(mine.items.begin(), mine.items.end(), dropped), mine.items.end());
    total = 0;
    for (const Item& item : mine.items) total += item.weight;
    return mine.items[crossing(mine.items, place(u, total))].token;
}

std::int64_t draw(const Row& row, const Wish& wish) {
    Scratch& mine = scratch();
    const Peak peak = survey(row, mine.maxima);
    if (peak.nothing_left()) return -1;
    const Scale scale(peak.highest, wish.temperature);
    const auto least = std::int64_t(std::ceil(std::min(wish.min_p, 1.0) * double(ONE)));
    const double u = uniform(wish.seed, std::uint64_t(wish.position));
    if (wish.top_k > 0 || wish.top_p < 1.0) return draw_by_rank(row, scale, wish, least, u, mine);
    return draw_by_token(row, scale, least, u, mine);
}

}  // namespace

#define HB_EXPORT extern "C" __attribute__((visibility("default")))

// Of each row the largest logit and the first token that has it; NaN where the row holds one.
HB_EXPORT void hb_sampling_peaks(const float* logits, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
                                 std::int64_t* tokens, float* highest) {
    hb::pool_each(int(rows), [=](int r) {
        const Row row{logits + r * stride, vocab};
        Scratch& mine = scratch();
        const Peak peak = survey(row, mine.maxima);
        tokens[r] = first_of(row, mine.maxima, peak.highest);
        highest[r] = peak.broken ? std::numeric_limits<float>::quiet_NaN() : peak.highest;
    });
}

// Of each row the sum of all weights at temperature 1; ONE is the weight of the highest.
HB_EXPORT void hb_sampling_masses(const float* logits, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
                                  std::int64_t* masses) {
    hb::pool_each(int(rows), [=](int r) {
        const Row row{logits + r * stride, vocab};
        Scratch& mine = scratch();
        const Peak peak = survey(row, mine.maxima);
        masses[r] = peak.nothing_left() ? 0 : weigh_blocks(row, Scale(peak.highest, 1.0), 0, mine);
    });
}

// Of each row the `count` likeliest tokens in their order, -1 where there are fewer.
HB_EXPORT void hb_sampling_likeliest(const float* logits, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
                                     std::int64_t count, std::int64_t* tokens) {
    hb::pool_each(int(rows), [=](int r) {
        const Row row{logits + r * stride, vocab};
        Scratch& mine = scratch();
        survey(row, mine.maxima);
        gather_likeliest(row, std::size_t(count), MINUS_INFINITY, mine);
        std::sort(mine.items.begin(), mine.items.end(), likelier);
        for (std::size_t i = 0; i < std::size_t(count); ++i)
            tokens[r * count + std::int64_t(i)] = i < mine.items.size() ? mine.items[i].token : -1;
    });
}

// The token of each wish; -1 where its row holds a NaN or nothing to choose from.
HB_EXPORT void hb_sampling_draw(const float* logits, std::int64_t vocab, std::int64_t stride, const Wish* wishes,
                                std::int64_t count, std::int64_t* tokens) {
    hb::pool_each(int(count), [=](int i) { tokens[i] = draw({logits + wishes[i].row * stride, vocab}, wishes[i]); });
}
