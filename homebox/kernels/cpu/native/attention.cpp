// Paged attention that reads the blocks in place, for decoding and for prompts: attention.h has the arithmetic.
#include "attention.h"

#include <algorithm>
#include <limits>

#include "attention_amx.h"
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

// The first position that a query sees.
int first_seen(const Batch& batch, int position) {
    return batch.window > 0 ? std::max(0, position + 1 - batch.window) : 0;
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

// The same for all dimensions of a head.
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

// Scores become weights e^(s - peak), those outside [from, to) become 0; `weight(p, block)` may round them. Returns
// what earlier sums are scaled with.
template <class F>
float soften(float* scores, int from, int to, float& peak, float& sum_so_far, F&& weight) {
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
        s[b] = weight(exp(s[b] - all(peak)), b);
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

// The queries of a piece, head beside head, and the first and last position that any of them sees.
struct Queries {
    int count, earliest, latest, token;
    const float* at[MOST_QUERIES];
    int position[MOST_QUERIES];

    Queries(const Shape& shape, const Batch& batch, const Layout& layout, const Piece& piece, const float* q, int step)
        : count(piece.count * piece.heads), token(layout.offset[std::size_t(piece.row)] + piece.first) {
        for (int i = 0; i < count; ++i) {
            const int head = piece.head + i % piece.heads;
            at[i] = q + std::int64_t(token + i / piece.heads) * step + head * shape.head_dim;
            position[i] = batch.starts[piece.row] + piece.first + i / piece.heads;
        }
        earliest = first_seen(batch, position[0]);
        latest = position[count - 1];
    }
};

// Where the blocks of a sequence lie, for one kv head.
template <class T>
struct Blocks {
    const T *keys, *values;
    const std::int32_t* table;
    int first, last;              // blocks of which something is seen; the table may say anything of the others
    std::int64_t size, head, of_head;  // in elements: a block, where the kv head begins in it, and how much it has

    Blocks(const Shape& shape, const Batch& batch, const Piece& piece, const Queries& queries, const T* k, const T* v)
        : keys(k), values(v), table(batch.tables + std::int64_t(batch.slots[piece.row]) * batch.width),
          first(queries.earliest / BLOCK), last(queries.latest / BLOCK),
          of_head(std::int64_t(shape.head_dim) * BLOCK) {
        size = shape.kv_heads * of_head, head = piece.kv_head * of_head;
    }
    // -1 where nothing is seen.
    std::int64_t place(int index) const {
        const int block = first <= index && index <= last ? table[index] : -1;
        return block < 0 ? -1 : block * size + head;
    }
    void find(int tile, const T** k, const T** v) const {
        for (int b = 0; b < BLOCKS_IN_TILE; ++b) {
            const std::int64_t at = place(tile * BLOCKS_IN_TILE + b);
            k[b] = at >= 0 ? keys + at : nullptr;
            v[b] = at >= 0 ? values + at : nullptr;
        }
    }
    // Ask for a tile before it is needed: its blocks lie here and there, which no prefetcher foresees.
    void soon(int tile) const {
        for (int b = 0; b < BLOCKS_IN_TILE; ++b) {
            const std::int64_t at = place(tile * BLOCKS_IN_TILE + b);
            if (at < 0) continue;
            for (std::int64_t i = 0; i < of_head; i += 64 / std::int64_t(sizeof(T))) {
                __builtin_prefetch(keys + at + i, 0, 2);
                __builtin_prefetch(values + at + i, 0, 2);
            }
        }
    }
};

// Scores and outputs in vectors; queries, keys and values are multiplied in fp32.
template <class T>
class Vectors {
public:
    using Value = T;
    Vectors(const Queries& queries, int dim, float*) : queries_(queries), dim_(dim) {}
    void score(const T* const* keys, float* scores) {
        int i = 0;
        const auto at = [&] { return queries_.at + i; };
        for (; i + 12 <= queries_.count; i += 12) hb::score<T, 12, 2>(at(), keys, dim_, scores + i * TILE);
        for (; i + 4 <= queries_.count; i += 4) hb::score<T, 4, 4>(at(), keys, dim_, scores + i * TILE);
        for (; i + 3 <= queries_.count; i += 3) hb::score<T, 3, 4>(at(), keys, dim_, scores + i * TILE);
        for (; i < queries_.count; ++i) hb::score<T, 1, 4>(at(), keys, dim_, scores + i * TILE);
    }
    float soften(int, float* scores, int from, int to, float& peak, float& sum) {
        return hb::soften(scores, from, to, peak, sum, [](F16 p, int) { return p; });
    }
    void mix(const float* p, const float* factor, const T* const* v, int keys, float* output) {
        int i = 0;
        for (; i + 6 <= queries_.count; i += 6)
            mix_row<T, 6>(p + i * TILE, factor + i, v, dim_, keys, output + i * dim_);
        for (; i + 3 <= queries_.count; i += 3)
            mix_row<T, 3>(p + i * TILE, factor + i, v, dim_, keys, output + i * dim_);
        for (; i < queries_.count; ++i) mix_row<T, 1>(p + i * TILE, factor + i, v, dim_, keys, output + i * dim_);
    }

private:
    const Queries& queries_;
    int dim_;
};

#if defined(HB_AMX)
// Scores and outputs by matrix registers, in bf16. What they make of rows behind the last query is never looked at.
class Matrices {
public:
    using Value = bf16;
    Matrices(const Queries& queries, int dim, float* scratch)
        : count_(queries.count), dim_(dim), q_((bf16*)scratch), weights_(q_ + MOST_QUERIES * dim) {
        shape_registers();
        for (int i = 0; i < count_; ++i)
            for (int d = 0; d < dim; d += LANES) store_bf16(q_ + i * dim + d, load(queries.at[i] + d));
    }
    void score(const bf16* const* keys, float* scores) {
        if (count_ <= GROUP_OF_QUERIES) score_by_amx<1>(q_, keys, dim_, scores);
        else if (count_ <= 2 * GROUP_OF_QUERIES) score_by_amx<2>(q_, keys, dim_, scores);
        else score_by_amx<3>(q_, keys, dim_, scores);
    }
    float soften(int i, float* scores, int from, int to, float& peak, float& sum) {
        if (from >= to)
            for (int b = 0; b < BLOCKS_IN_TILE; ++b) store_weights(weights(b, i), zero());
        return hb::soften(scores, from, to, peak, sum, [&](F16 p, int b) {
            store_weights(weights(b, i), p);
            return rounded_to_bf16(p);
        });
    }
    void mix(const float*, const float* factor, const bf16* const* v, int keys, float* output) {
        for (int i = 0; i < count_; ++i) {
            if (factor[i] == 1.0f) continue;
            for (int d = 0; d < dim_; d += LANES)
                store(output + i * dim_ + d, load(output + i * dim_ + d) * all(factor[i]));
        }
        if (count_ <= GROUP_OF_QUERIES) mix_by_amx<1>(weights_, v, dim_, keys, output);
        else if (count_ <= 2 * GROUP_OF_QUERIES) mix_by_amx<2>(weights_, v, dim_, keys, output);
        else mix_by_amx<3>(weights_, v, dim_, keys, output);
    }

private:
    bf16* weights(int block, int query) { return weights_ + (block * MOST_QUERIES + query) * WEIGHTS_STEP; }
    int count_, dim_;
    bf16 *q_, *weights_;
};
#endif

// How the kernel weighs all queries with a tile; returns up to which key of it anything is seen.
template <class Kernel>
int soften_all(
    Kernel& kernel, const Queries& queries, int tile, int window, float* scores, Softmax& softmax, float* factor) {
    int visible = 0;
    for (int i = 0; i < queries.count; ++i) {
        const int from = window > 0 ? std::max(0, queries.position[i] + 1 - window - tile * TILE) : 0;
        const int to = std::min(TILE, queries.position[i] + 1 - tile * TILE);
        visible = std::max(visible, to);
        factor[i] = kernel.soften(i, scores + i * TILE, from, to, softmax.peak[i], softmax.sum[i]);
    }
    return visible;
}

template <class Kernel>
void attend_by(
    const Shape& shape, const Batch& batch, const Layout& layout, const Piece& piece, const void* keys,
    const void* values, const float* q, int step, float* out, int out_step, float* scratch, float* parts) {
    using T = typename Kernel::Value;
    const int dim = shape.head_dim;
    const Queries queries(shape, batch, layout, piece, q, step);
    const Blocks<T> blocks(shape, batch, piece, queries, (const T*)keys, (const T*)values);
    float* scores = scratch;
    float* output = scores + MOST_QUERIES * TILE;
    float* joined = output + MOST_QUERIES * dim;
    Kernel kernel(queries, dim, joined + MOST_QUERIES * dim);
    int tile = queries.earliest / TILE, end = queries.latest / TILE + 1;
    if (piece.split >= 0) {
        tile = std::max(tile, piece.split * TILES_IN_SPLIT);
        end = std::min(end, (piece.split + 1) * TILES_IN_SPLIT);
    }
    Softmax now, all_splits;
    now.begin(queries.count), all_splits.begin(queries.count);
    std::fill(output, output + queries.count * dim, 0.0f);
    std::fill(joined, joined + queries.count * dim, 0.0f);
    float factor[MOST_QUERIES];
    const T *k[BLOCKS_IN_TILE], *v[BLOCKS_IN_TILE];
    for (; tile < end; ++tile) {
        blocks.find(tile, k, v);
        if (tile + 1 < end) blocks.soon(tile + 1);
        kernel.score(k, scores);
        const int visible = soften_all(kernel, queries, tile, batch.window, scores, now, factor);
        kernel.mix(scores, factor, v, visible, output);
        if (piece.split >= 0 || ((tile + 1) % TILES_IN_SPLIT != 0 && tile + 1 < end)) continue;
        for (int i = 0; i < queries.count; ++i)  // a split ends
            join_one(
                now.peak[i], now.sum[i], output + i * dim, dim, all_splits.peak[i], all_splits.sum[i],
                joined + i * dim);
        now.begin(queries.count);
        std::fill(output, output + queries.count * dim, 0.0f);
    }
    for (int i = 0; i < queries.count; ++i) {
        if (piece.split >= 0) {
            float* part = parts + piece.slot * slot_floats(shape) + i * (dim + 2);
            part[0] = now.peak[i], part[1] = now.sum[i];
            std::copy(output + i * dim, output + (i + 1) * dim, part + 2);
        } else {
            const int head = piece.head + i % piece.heads;
            float* to = out + std::int64_t(queries.token + i / piece.heads) * out_step + head * dim;
            finish(joined + i * dim, all_splits.sum[i], dim, to);
        }
    }
}

template <class T>
void write_as(
    const Shape& shape, std::int64_t block, int kv_head, int slot, const float* k, const float* v, T* keys, T* values) {
    const int dim = shape.head_dim;
    const std::int64_t at = (block * shape.kv_heads + kv_head) * dim * BLOCK;
    for (int d = 0; d < dim; d += LANES) {
        T rounded[LANES];
        store(rounded, load(k + d));
        for (int i = 0; i < LANES; ++i) keys[at + std::int64_t(d + i) * BLOCK + slot] = rounded[i];
        store(values + at + std::int64_t(slot) * dim + d, load(v + d));
    }
}

template <class T>
struct Named {
    using type = T;
};

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
            const int split = first_seen(batch, batch.starts[row]) / SPLIT, splits = last / SPLIT - split + 1;
            for (int kv_head = 0; kv_head < shape.kv_heads; ++kv_head)
                for (int head = 0; head < shape.shared(); head += heads_at_once) {
                    const int heads = std::min(heads_at_once, shape.shared() - head);
                    Piece piece{row, 0, 1, kv_head, kv_head * shape.shared() + head, heads, -1, 0, 0};
                    if (batch.counts[row] > queries || splits == 1) {
                        for (; piece.first < batch.counts[row]; piece.first += queries) {
                            piece.count = std::min(queries, batch.counts[row] - piece.first);
                            pieces.push_back(piece);
                        }
                        continue;
                    }
                    piece.count = batch.counts[row];
                    piece.slot = slots, piece.splits = splits;
                    joins.push_back(piece);
                    for (int i = 0; i < splits; ++i, slots += piece.count) {
                        piece.split = split + i, piece.slot = slots;
                        pieces.push_back(piece);
                    }
                }
        }
    return slots;
}

void write_kv(
    const Shape& shape, const Batch& batch, const Layout& layout, int token, int kv_head, const float* k,
    const float* v, void* keys, void* values) {
    const int position = layout.position[std::size_t(token)];
    const int slot = batch.slots[layout.row[std::size_t(token)]];
    const std::int64_t block = batch.tables[std::int64_t(slot) * batch.width + position / BLOCK];
#if defined(HB_AMX)
    if (shape.kv_kind == KV_BFLOAT16)
        return write_bf16(shape, block, kv_head, position % BLOCK, k, v, (bf16*)keys, (bf16*)values);
#endif
    if (shape.kv_kind == KV_HALF)
        write_as(shape, block, kv_head, position % BLOCK, k, v, (half*)keys, (half*)values);
    else
        write_as(shape, block, kv_head, position % BLOCK, k, v, (float*)keys, (float*)values);
}

void attend(
    const Shape& shape, const Batch& batch, const Layout& layout, const Piece& piece, const void* keys,
    const void* values, const float* q, int step, float* out, int out_step, float* scratch, float* parts) {
    const auto by = [&](auto kernel) {
        attend_by<typename decltype(kernel)::type>(
            shape, batch, layout, piece, keys, values, q, step, out, out_step, scratch, parts);
    };
#if defined(HB_AMX)
    if (shape.kv_kind == KV_BFLOAT16) return by(Named<Matrices>{});
#endif
    if (shape.kv_kind == KV_HALF)
        by(Named<Vectors<half>>{});
    else
        by(Named<Vectors<float>>{});
}

void join(
    const Shape& shape, const Layout& layout, const Piece& piece, const float* parts, float* out, int out_step,
    float* scratch) {
    const int dim = shape.head_dim, first = layout.offset[std::size_t(piece.row)];
    for (int i = 0; i < piece.count * piece.heads; ++i) {
        float peak = NOTHING, total = 0.0f;
        std::fill(scratch, scratch + dim, 0.0f);
        for (int split = 0; split < piece.splits; ++split) {
            const float* part = parts + (piece.slot + split * piece.count) * slot_floats(shape) + i * (dim + 2);
            join_one(part[0], part[1], part + 2, dim, peak, total, scratch);
        }
        const int token = first + i / piece.heads, head = piece.head + i % piece.heads;
        finish(scratch, total, dim, out + std::int64_t(token) * out_step + head * dim);
    }
}

}  // namespace hb

// Whether keys and values may be bf16.
HB_EXPORT int hb_matrix_registers() {
#if defined(HB_AMX)
    return 1;
#else
    return 0;
#endif
}

HB_EXPORT void hb_write_kv(
    const hb::Shape* shape, const hb::Batch* batch, const float* k, const float* v, void* keys, void* values) {
    const int heads = shape->kv_heads, dim = shape->head_dim;
    hb::Layout layout;
    layout.set(*batch);
    hb::pool_each(batch->tokens * heads, [&](int i) {
        const std::int64_t at = std::int64_t(i) * dim;
        hb::write_kv(*shape, *batch, layout, i / heads, i % heads, k + at, v + at, keys, values);
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
    std::vector<float> parts(slots * slot_floats(*shape));
    Scratch scratch;
    scratch.resize(shape->head_dim, Team::get().size());
    pool_each(int(pieces.size()), [&](int i) {
        float* mine = scratch.of(Team::member());
        attend(*shape, *batch, layout, pieces[std::size_t(i)], keys, values, q, step, out, step, mine, parts.data());
    });
    pool_each(int(joins.size()), [&](int i) {
        float* mine = scratch.of(Team::member());
        join(*shape, layout, joins[std::size_t(i)], parts.data(), out, step, mine);
    });
}
