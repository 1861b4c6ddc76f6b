// Paged attention that reads the blocks in place, for decoding and for prompts: attention.h has the arithmetic.
#include "attention.h"

#include <algorithm>
#include <limits>

#include "pool.h"

#define HB_EXPORT extern "C" __attribute__((visibility("default")))

namespace hb {
namespace {

constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// Zeros to read where a tile has no block: what comes out is hidden anyway.
template <class T>
const T* any_block() {
    static const std::vector<T> zeros(std::size_t(MOST_DIMENSIONS) * BLOCK);
    return zeros.data();
}

// A softmax under way, for each query of a piece.
struct Softmax {
    float peak[MOST_QUERIES];
    float sum[MOST_QUERIES];
    void begin(int queries) {
        std::fill(peak, peak + queries, NOTHING);
        std::fill(sum, sum + queries, 0.0f);
    }
};

// scores[i] = q[i] . k for the 64 keys of a tile, B blocks at a time; N queries share the loaded keys.
template <class T, int N, int B>
void score(const float* const* queries, const T* const* blocks, int head_dim, float* scores) {
    const float* q[N];
    for (int i = 0; i < N; ++i) q[i] = queries[i];
    for (int b = 0; b < BLOCKS_IN_TILE; b += B) {
        const T* k[B];
        for (int j = 0; j < B; ++j) k[j] = blocks[b + j] != nullptr ? blocks[b + j] : any_block<T>();
        F16 sum[N][B];
        HB_UNROLL
        for (int i = 0; i < N; ++i)
            HB_UNROLL
            for (int j = 0; j < B; ++j) sum[i][j] = zero();
        for (int d = 0; d < head_dim; ++d) {
            F16 keys[B];
            HB_UNROLL
            for (int j = 0; j < B; ++j) keys[j] = load(k[j] + d * BLOCK);
            HB_UNROLL
            for (int i = 0; i < N; ++i) {
                const F16 value = all(q[i][d]);
                HB_UNROLL
                for (int j = 0; j < B; ++j) sum[i][j] = fma(value, keys[j], sum[i][j]);
            }
        }
        HB_UNROLL
        for (int i = 0; i < N; ++i)
            HB_UNROLL
            for (int j = 0; j < B; ++j) store(scores + i * TILE + (b + j) * BLOCK, sum[i][j]);
    }
}

// output[i] = output[i] * factor[i] + p[i] . v, for N queries and 16 * D dimensions.
template <class T, int N, int D>
void mix(const float* p, const float* factor, const T* const* blocks, int head_dim, int keys, float* output) {
    F16 sum[N][D];
    HB_UNROLL
    for (int i = 0; i < N; ++i)
        HB_UNROLL
        for (int j = 0; j < D; ++j) sum[i][j] = load(output + i * head_dim + j * LANES) * all(factor[i]);
    for (int b = 0; b * BLOCK < keys; ++b) {
        if (blocks[b] == nullptr) continue;
        const int count = std::min(BLOCK, keys - b * BLOCK);
        for (int key = 0; key < count; ++key) {
            F16 values[D];
            HB_UNROLL
            for (int j = 0; j < D; ++j) values[j] = load(blocks[b] + key * head_dim + j * LANES);
            HB_UNROLL
            for (int i = 0; i < N; ++i) {
                const F16 weight = all(p[i * TILE + b * BLOCK + key]);
                HB_UNROLL
                for (int j = 0; j < D; ++j) sum[i][j] = fma(weight, values[j], sum[i][j]);
            }
        }
    }
    HB_UNROLL
    for (int i = 0; i < N; ++i)
        HB_UNROLL
        for (int j = 0; j < D; ++j) store(output + i * head_dim + j * LANES, sum[i][j]);
}

template <class T, int N>
void mix_row(const float* p, const float* factor, const T* const* blocks, int head_dim, int keys, float* output) {
    const T* at[BLOCKS_IN_TILE];
    int d = 0;
    const auto from = [&](int dimension) {
        for (int b = 0; b < BLOCKS_IN_TILE; ++b) at[b] = blocks[b] != nullptr ? blocks[b] + dimension : nullptr;
    };
    for (; d + 4 * LANES <= head_dim; d += 4 * LANES) from(d), mix<T, N, 4>(p, factor, at, head_dim, keys, output + d);
    for (; d < head_dim; d += LANES) from(d), mix<T, N, 1>(p, factor, at, head_dim, keys, output + d);
}

// Scores become weights e^(s - peak), those outside [from, to) become 0. Returns what earlier sums are scaled with.
float soften(float* scores, int from, int to, float& peak, float& sum_so_far) {
    if (from >= to) {
        std::fill(scores, scores + TILE, 0.0f);
        return 1.0f;
    }
    std::fill(scores, scores + from, NOTHING);
    std::fill(scores + to, scores + TILE, NOTHING);
    F16 s[BLOCKS_IN_TILE];
    for (int b = 0; b < BLOCKS_IN_TILE; ++b) s[b] = load(scores + b * BLOCK);
    const float before = peak;
    peak = std::max(before, largest(max(max(s[0], s[1]), max(s[2], s[3]))));
    F16 total = zero();
    for (int b = 0; b < BLOCKS_IN_TILE; ++b) {
        s[b] = exp(s[b] - all(peak));
        store(scores + b * BLOCK, s[b]);
        total = total + s[b];
    }
    const float factor = before == peak ? 1.0f : first(exp(all(before - peak)));
    sum_so_far = sum_so_far * factor + sum(total);
    return factor;
}

// Join the softmax (m, l, o) of a split to that of the splits before it.
void join_one(float m, float l, const float* o, int head_dim, float& peak, float& total, float* output) {
    if (m == NOTHING) return;
    const float joined = std::max(peak, m);
    const float a = first(exp(all(peak - joined))), b = first(exp(all(m - joined)));
    peak = joined;
    total = total * a + l * b;
    for (int d = 0; d < head_dim; d += LANES)
        store(output + d, fma(load(o + d), all(b), load(output + d) * all(a)));
}

void finish(const float* output, float total, int head_dim, float* out) {
    const F16 share = all(1.0f / total);
    for (int d = 0; d < head_dim; d += LANES) store(out + d, load(output + d) * share);
}

// Ask for `size` bytes before they are needed: a tile lies in blocks here and there, which no prefetcher foresees.
inline void soon(const void* at, std::int64_t size) {
    for (std::int64_t i = 0; i < size; i += 64) __builtin_prefetch((const char*)at + i, 0, 2);
}

template <class T>
void attend_as(
    const Shape& shape, const Batch& batch, const Layout& layout, const Piece& piece, const T* keys, const T* values, const float* q, int step,
    float* out, int out_step, float* scratch, float* parts) {
    const int dim = shape.head_dim, queries = piece.count * piece.heads;
    float* scores = scratch;
    float* output = scores + MOST_QUERIES * TILE;
    float* joined = output + MOST_QUERIES * dim;
    const float* query[MOST_QUERIES];
    int position[MOST_QUERIES];
    const int token = layout.offset[std::size_t(piece.row)] + piece.first;
    for (int i = 0; i < queries; ++i) {
        query[i] = q + std::int64_t(token + i / piece.heads) * step + (piece.head + i % piece.heads) * dim;
        position[i] = batch.starts[piece.row] + piece.first + i / piece.heads;
    }
    const int earliest = batch.window > 0 ? std::max(0, position[0] + 1 - batch.window) : 0;
    const int latest = position[queries - 1];
    int tile = earliest / TILE, end = latest / TILE + 1;
    if (piece.split >= 0) {
        tile = std::max(tile, piece.split * (SPLIT / TILE));
        end = std::min(end, (piece.split + 1) * (SPLIT / TILE));
    }
    Softmax now, all_splits;
    now.begin(queries), all_splits.begin(queries);
    std::fill(output, output + queries * dim, 0.0f);
    std::fill(joined, joined + queries * dim, 0.0f);
    float factor[MOST_QUERIES];
    const std::int32_t* table = batch.tables + std::int64_t(batch.slots[piece.row]) * batch.width;
    const std::int64_t block_size = std::int64_t(shape.kv_heads) * dim * BLOCK;
    // Where a block of this kv head begins, or -1 where nothing of it is seen.
    const auto place = [&](int index) -> std::int64_t {
        const int block = earliest / BLOCK <= index && index <= latest / BLOCK ? table[index] : -1;
        return block < 0 ? -1 : block * block_size + std::int64_t(piece.kv_head) * dim * BLOCK;
    };
    const T *k[BLOCKS_IN_TILE], *v[BLOCKS_IN_TILE];
    for (; tile < end; ++tile) {
        for (int b = 0; b < BLOCKS_IN_TILE; ++b) {
            const std::int64_t at = place(tile * BLOCKS_IN_TILE + b);
            k[b] = at >= 0 ? keys + at : nullptr;
            v[b] = at >= 0 ? values + at : nullptr;
            const std::int64_t next = tile + 1 < end ? place((tile + 1) * BLOCKS_IN_TILE + b) : -1;
            if (next >= 0) soon(keys + next, sizeof(T) * dim * BLOCK), soon(values + next, sizeof(T) * dim * BLOCK);
        }
        int i = 0;
        for (; i + 12 <= queries; i += 12) score<T, 12, 2>(query + i, k, dim, scores + i * TILE);
        for (; i + 4 <= queries; i += 4) score<T, 4, 4>(query + i, k, dim, scores + i * TILE);
        for (; i + 3 <= queries; i += 3) score<T, 3, 4>(query + i, k, dim, scores + i * TILE);
        for (; i + 1 <= queries; i += 1) score<T, 1, 4>(query + i, k, dim, scores + i * TILE);
        int visible = 0;
        for (i = 0; i < queries; ++i) {
            const int from = batch.window > 0 ? std::max(0, position[i] + 1 - batch.window - tile * TILE) : 0;
            const int to = std::min(TILE, position[i] + 1 - tile * TILE);
            visible = std::max(visible, to);
            factor[i] = soften(scores + i * TILE, from, to, now.peak[i], now.sum[i]);
        }
        const auto mixed = [&](auto n, int at) {
            mix_row<T, n.value>(scores + at * TILE, factor + at, v, dim, visible, output + at * dim);
        };
        for (i = 0; i + 6 <= queries; i += 6) mixed(std::integral_constant<int, 6>{}, i);
        for (; i + 3 <= queries; i += 3) mixed(std::integral_constant<int, 3>{}, i);
        for (; i + 1 <= queries; i += 1) mixed(std::integral_constant<int, 1>{}, i);
        const bool split_ends = (tile + 1) % (SPLIT / TILE) == 0 || tile + 1 == end;
        if (piece.split < 0 && split_ends) {
            for (i = 0; i < queries; ++i)
                join_one(now.peak[i], now.sum[i], output + i * dim, dim, all_splits.peak[i], all_splits.sum[i], joined + i * dim);
            now.begin(queries);
            std::fill(output, output + queries * dim, 0.0f);
        }
    }
    for (int i = 0; i < queries; ++i) {
        if (piece.split >= 0) {
            float* part = parts + piece.slot * slot_floats(shape) + i * (dim + 2);
            part[0] = now.peak[i], part[1] = now.sum[i];
            std::copy(output + i * dim, output + (i + 1) * dim, part + 2);
        } else {
            float* to = out + std::int64_t(token + i / piece.heads) * out_step + (piece.head + i % piece.heads) * dim;
            finish(joined + i * dim, all_splits.sum[i], dim, to);
        }
    }
}

}  // namespace

void Layout::set(const Batch& batch) {
    offset.clear(), row.clear(), position.clear();
    for (int i = 0; i < batch.rows; ++i) {
        offset.push_back(std::int32_t(row.size()));
        for (int t = 0; t < batch.counts[i]; ++t) row.push_back(i), position.push_back(batch.starts[i] + t);
    }
}

int cut(const Shape& shape, const Batch& batch, std::vector<Piece>& pieces, std::vector<Piece>& joins) {
    pieces.clear(), joins.clear();
    const int heads_at_once = std::min(shape.shared(), MOST_QUERIES);
    const int queries = std::max(1, std::min(16, MOST_QUERIES / heads_at_once));
    int slots = 0;
    for (int longer = 1; longer >= 0; --longer)  // the large pieces first, the small ones fill the gaps
        for (int row = 0; row < batch.rows; ++row) {
            if ((batch.counts[row] > 1) != (longer == 1)) continue;
            const int last = batch.starts[row] + batch.counts[row] - 1;
            const int earliest = batch.window > 0 ? std::max(0, last + 1 - batch.window) : 0;
            const int split = earliest / SPLIT, splits = last / SPLIT - split + 1;
            for (int kv_head = 0; kv_head < shape.kv_heads; ++kv_head)
                for (int head = 0; head < shape.shared(); head += heads_at_once) {
                    const int heads = std::min(heads_at_once, shape.shared() - head);
                    Piece piece{row, 0, 1, kv_head, kv_head * shape.shared() + head, heads, -1, 0, 0};
                    if (batch.counts[row] > 1 || splits == 1) {
                        for (; piece.first < batch.counts[row]; piece.first += queries) {
                            piece.count = std::min(queries, batch.counts[row] - piece.first);
                            pieces.push_back(piece);
                        }
                        continue;
                    }
                    piece.slot = slots, piece.splits = splits;
                    joins.push_back(piece);
                    for (int i = 0; i < splits; ++i) {
                        piece.split = split + i, piece.slot = slots++;
                        pieces.push_back(piece);
                    }
                }
        }
    return slots;
}

template <class T>
static void write_as(const Shape& shape, std::int64_t block, int kv_head, int slot, const float* k, const float* v, T* keys, T* values) {
    const int dim = shape.head_dim;
    const std::int64_t at = (block * shape.kv_heads + kv_head) * dim * BLOCK;
    for (int d = 0; d < dim; d += LANES) {
        T rounded[LANES];
        store(rounded, load(k + d));
        for (int i = 0; i < LANES; ++i) keys[at + std::int64_t(d + i) * BLOCK + slot] = rounded[i];
        store(values + at + std::int64_t(slot) * dim + d, load(v + d));
    }
}

void write_kv(
    const Shape& shape, const Batch& batch, const Layout& layout, int token, int kv_head, const float* k, const float* v, void* keys,
    void* values) {
    const int position = layout.position[std::size_t(token)];
    const int slot = batch.slots[layout.row[std::size_t(token)]];
    const std::int64_t block = batch.tables[std::int64_t(slot) * batch.width + position / BLOCK];
    if (shape.kv_kind == KV_HALF)
        write_as(shape, block, kv_head, position % BLOCK, k, v, (half*)keys, (half*)values);
    else
        write_as(shape, block, kv_head, position % BLOCK, k, v, (float*)keys, (float*)values);
}

void attend(
    const Shape& shape, const Batch& batch, const Layout& layout, const Piece& piece, const void* keys, const void* values, const float* q,
    int step, float* out, int out_step, float* scratch, float* parts) {
    if (shape.kv_kind == KV_HALF)
        attend_as(shape, batch, layout, piece, (const half*)keys, (const half*)values, q, step, out, out_step, scratch, parts);
    else
        attend_as(shape, batch, layout, piece, (const float*)keys, (const float*)values, q, step, out, out_step, scratch, parts);
}

void join(
    const Shape& shape, const Layout& layout, const Piece& piece, const float* parts, float* out, int out_step,
    float* scratch) {
    const int dim = shape.head_dim, token = layout.offset[std::size_t(piece.row)];
    for (int i = 0; i < piece.heads; ++i) {
        float peak = NOTHING, total = 0.0f;
        std::fill(scratch, scratch + dim, 0.0f);
        for (int split = 0; split < piece.splits; ++split) {
            const float* part = parts + (piece.slot + split) * slot_floats(shape) + i * (dim + 2);
            join_one(part[0], part[1], part + 2, dim, peak, total, scratch);
        }
        finish(scratch, total, dim, out + std::int64_t(token) * out_step + (piece.head + i) * dim);
    }
}

}  // namespace hb

HB_EXPORT void hb_write_kv(
    const hb::Shape* shape, const hb::Batch* batch, const float* k, const float* v, void* keys, void* values) {
    const int heads = shape->kv_heads, dim = shape->head_dim;
    hb::Layout layout;
    layout.set(*batch);
    hb::pool_each(batch->tokens * heads, [&](int i) {
        hb::write_kv(*shape, *batch, layout, i / heads, i % heads, k + std::int64_t(i) * dim, v + std::int64_t(i) * dim, keys, values);
    });
}

// Queries and output are [tokens, heads, head_dim]; queries are scaled already.
HB_EXPORT void hb_attend(
    const hb::Shape* shape, const hb::Batch* batch, const float* q, const void* keys, const void* values, float* out) {
    using namespace hb;
    Layout layout;
    layout.set(*batch);
    std::vector<Piece> pieces, joins;
    const int slots = cut(*shape, *batch, pieces, joins);
    const int step = shape->heads * shape->head_dim;
    const std::size_t size = scratch_floats(shape->head_dim);
    std::vector<float> parts(slots * slot_floats(*shape)), scratch(size * std::size_t(Team::get().size()));
    pool_each(int(pieces.size()), [&](int i) {
        attend(*shape, *batch, layout, pieces[i], keys, values, q, step, out, step, &scratch[size * Team::member()], parts.data());
    });
    pool_each(int(joins.size()), [&](int i) {
        join(*shape, layout, joins[i], parts.data(), out, step, &scratch[size * Team::member()]);
    });
}
