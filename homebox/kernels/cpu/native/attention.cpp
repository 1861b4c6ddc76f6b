// Paged attention that reads the blocks in place, for decoding and for prompts: attention.h has the arithmetic.
#include "attention.h"

#include "attention_amx.h"
#include "attention_bf16.h"
#include "attention_float.h"
#include "pool.h"

#define HB_EXPORT extern "C" __attribute__((visibility("default")))

namespace hb {
namespace {

// The first position that a query sees.
int first_seen(const Batch& batch, int position) {
    return batch.window > 0 ? std::max(0, position + 1 - batch.window) : 0;
}

// The queries of a piece, head beside head.
struct Queries {
    int count, token;
    const float* at[MOST_QUERIES];
    int position[MOST_QUERIES];

    Queries(const Shape& shape, const Batch& batch, const Layout& layout, const Piece& piece, const float* q, int step)
        : count(piece.count * piece.heads), token(layout.offset[std::size_t(piece.row)] + piece.first) {
        for (int i = 0; i < count; ++i) {
            const int head = piece.head + i % piece.heads;
            at[i] = q + std::int64_t(token + i / piece.heads) * step + head * shape.head_dim;
            position[i] = batch.starts[piece.row] + piece.first + i / piece.heads;
        }
    }
};

// What the queries of a piece see between them: blocks of the sequence, and the tiles of its split.
struct Span {
    int first_block, last_block;  // the table may say anything of the others
    int tile, end;
    Span(const Batch& batch, const Piece& piece) {
        const int position = batch.starts[piece.row] + piece.first;
        const int earliest = first_seen(batch, position), latest = position + piece.count - 1;
        first_block = earliest / BLOCK, last_block = latest / BLOCK;
        tile = earliest / TILE, end = latest / TILE + 1;
        if (piece.split >= 0) {
            tile = std::max(tile, piece.split * TILES_IN_SPLIT);
            end = std::min(end, (piece.split + 1) * TILES_IN_SPLIT);
        }
    }
};

// Where the keys and values of a tile lie, for one kv head; null where nothing is seen.
template <class T>
struct Tile {
    const T *k[BLOCKS_IN_TILE] = {}, *v[BLOCKS_IN_TILE] = {};
    void find(
        const Shape& shape, const Batch& batch, const Piece& piece, const Span& span, int tile, const T* keys,
        const T* values) {
        const std::int32_t* table = batch.tables + std::int64_t(batch.slots[piece.row]) * batch.width;
        const std::int64_t of_head = std::int64_t(shape.head_dim) * BLOCK;
        for (int b = 0; b < BLOCKS_IN_TILE; ++b) {
            const int index = tile * BLOCKS_IN_TILE + b;
            const int block = span.first_block <= index && index <= span.last_block ? table[index] : -1;
            const std::int64_t at = (std::int64_t(block) * shape.kv_heads + piece.kv_head) * of_head;
            k[b] = block >= 0 ? keys + at : nullptr;
            v[b] = block >= 0 ? values + at : nullptr;
        }
    }
};

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
    const Shape& shape, const Batch& batch, const Layout& layout, const Piece& piece, const Piece* next,
    const void* keys, const void* values, const float* q, int step, float* out, int out_step, float* scratch,
    float* parts) {
    using T = typename Kernel::Value;
    const int dim = shape.head_dim;
    const Queries queries(shape, batch, layout, piece, q, step);
    const Span span(batch, piece);
    float* scores = scratch;
    float* output = scores + MOST_QUERIES * TILE;
    float* joined = output + MOST_QUERIES * dim;
    Kernel kernel(queries.at, queries.count, dim, joined + MOST_QUERIES * dim);
    Softmax now, all_splits;
    now.begin(queries.count), all_splits.begin(queries.count);
    std::fill(output, output + queries.count * dim, 0.0f);
    std::fill(joined, joined + queries.count * dim, 0.0f);
    float factor[MOST_QUERIES];
    Tile<T> here, ahead;
    const auto find = [&](Tile<T>& tile, const Piece& of, const Span& seen, int index) {
        tile.find(shape, batch, of, seen, index, (const T*)keys, (const T*)values);
    };
    find(ahead, piece, span, span.tile);
    for (int tile = span.tile; tile < span.end; ++tile) {
        here = ahead;
        if (tile + 1 < span.end) {
            find(ahead, piece, span, tile + 1);
        } else if (next != nullptr) {
            const Span seen(batch, *next);
            find(ahead, *next, seen, seen.tile);
        }
        kernel.score(here.k, ahead.k, scores);
        const int visible = soften_all(kernel, queries, tile, batch.window, scores, now, factor);
        kernel.mix(scores, factor, here.v, ahead.v, visible, output);
        if (piece.split >= 0 || ((tile + 1) % TILES_IN_SPLIT != 0 && tile + 1 < span.end)) continue;
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
    const std::int64_t at = (block * shape.kv_heads + kv_head) * shape.head_dim * BLOCK;
    if (shape.kv_kind == KV_BFLOAT16)
        write_bf16(at, shape.head_dim, position % BLOCK, k, v, (bf16*)keys, (bf16*)values);
    else
        write_floats(at, shape.head_dim, position % BLOCK, k, v, (float*)keys, (float*)values);
}

void attend(
    const Shape& shape, const Batch& batch, const Layout& layout, const std::vector<Piece>& pieces, int index,
    const void* keys, const void* values, const float* q, int step, float* out, int out_step, float* scratch,
    float* parts) {
    const Piece& piece = pieces[std::size_t(index)];
    const Piece* next = std::size_t(index) + 1 < pieces.size() ? &piece + 1 : nullptr;
    const auto by = [&](auto kernel) {
        attend_by<typename decltype(kernel)::type>(
            shape, batch, layout, piece, next, keys, values, q, step, out, out_step, scratch, parts);
    };
    const NoSubnormals mode;
    if (shape.kv_kind == KV_FLOAT32) return by(Named<Floats>{});
#if defined(HB_AMX)
    if (piece.count * piece.heads > FEW_QUERIES && shape.head_dim % DIMENSIONS_AT_ONCE == 0)
        return by(Named<Matrices>{});
#endif
    by(Named<Pairs>{});
}

void join(
    const Shape& shape, const Layout& layout, const Piece& piece, const float* parts, float* out, int out_step,
    float* scratch) {
    const NoSubnormals mode;
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
        attend(*shape, *batch, layout, pieces, i, keys, values, q, step, out, step, mine, parts.data());
    });
    pool_each(int(joins.size()), [&](int i) {
        float* mine = scratch.of(Team::member());
        join(*shape, layout, joins[std::size_t(i)], parts.data(), out, step, mine);
    });
}
