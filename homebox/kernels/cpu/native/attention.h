// What does a token see, out of keys and values that lie in blocks?
//
// A block holds 16 tokens of one layer: keys as [kv_heads][head_dim][16], so that a vector holds one dimension of 16
// keys, values as [kv_heads][16][head_dim]. In bf16 two dimensions of a key lie beside each other,
// [kv_heads][head_dim / 2][16][2], and two keys of a dimension, [kv_heads][head_dim / 16][8][16][2], as matrix registers
// want it. A sequence's table says which blocks are its own.
//
// One arithmetic for a query, whoever is computed beside it, in the order of absolute positions:
//   tiles of 64 keys:  s = q . k (dimensions in order), m' = max(m, s), p = e^(s - m'),
//                      l = l * e^(m - m') + sum(p),  o = o * e^(m - m') + p . v (keys in order)
//   splits of 512 keys: each begins anew; afterwards they are joined in order, by the same rule.
// With bf16 keys and values, q and p are rounded to bf16, too, l adds the rounded p, and the products are summed as the
// matrix instruction does it: 32 dimensions, or 16 keys, at a time (attention_bf16.h).
// (Online softmax: Milakov and Gimelshein 2018; splits: Dao et al., FlashDecoding, 2023.) So one query alone can be
// shared by many threads, and gives the bits that it gives inside a long prompt.
#pragma once

#include <algorithm>
#include <vector>

#include "vec.h"

namespace hb {

constexpr int BLOCK = 16;   // tokens of a block
constexpr int TILE = 64;    // keys of a softmax step
constexpr int SPLIT = 512;  // keys that one thread takes
constexpr int BLOCKS_IN_TILE = TILE / BLOCK, TILES_IN_SPLIT = SPLIT / TILE;

enum KvKind : std::int32_t { KV_FLOAT32 = 0, KV_BFLOAT16 = 1 };

struct Shape {
    std::int32_t heads, kv_heads, head_dim, kv_kind;
    int shared() const { return heads / kv_heads; }
};

// The batch of one step, for one group of layers. Row i holds tokens `starts[i]` .. `starts[i] + counts[i] - 1` of the
// sequence in slot `slots[i]`; the rows lie behind each other. Of a table only those entries are read that a row writes
// or sees.
struct Batch {
    std::int32_t rows;           // sequences
    std::int32_t tokens;         // of all of them
    std::int32_t width;          // entries of a table
    std::int32_t window;         // how far back a query sees, itself included; 0 is all
    const std::int32_t* slots;   // [rows]
    const std::int32_t* starts;  // [rows]
    const std::int32_t* counts;  // [rows]
    const std::int32_t* tables;  // [slots, width]
};

// Where each row and token is: what every loop over tokens asks.
struct Layout {
    std::vector<std::int32_t> offset;    // [rows] index of the first token in the flat batch
    std::vector<std::int32_t> row;       // [tokens]
    std::vector<std::int32_t> position;  // [tokens]
    void set(const Batch& batch);
};

// A piece of the work: some queries of a sequence, some heads that share a kv head, one split or all of them.
struct Piece {
    std::int32_t row, first, count;     // queries first .. first + count - 1 of the row
    std::int32_t kv_head, head, heads;  // heads head .. head + heads - 1
    std::int32_t split;                 // -1: all of them, joined here; else this one, joined later
    std::int32_t slot;                  // where the part of a split is left, a slot a query; of a join, the first
    std::int32_t splits;                // of a join
};

constexpr int MOST_DIMENSIONS = 512;  // of a head; Python refuses models with more
constexpr int MOST_QUERIES = 48;      // queries times heads of a piece

// Of a thread: scores, two outputs, and in bf16 the rounded queries, and for matrix registers weights, with as many
// zeros, twice. Whole lines of a cache, from the first one on.
inline std::size_t scratch_floats(int head_dim) {
    return std::size_t(MOST_QUERIES) * (TILE + 3 * head_dim + BLOCKS_IN_TILE * 4 * BLOCK / 2);
}
class Scratch {
public:
    void resize(int head_dim, int threads) {
        each_ = scratch_floats(head_dim);
        if (floats_.size() < each_ * std::size_t(threads) + 16) floats_.resize(each_ * std::size_t(threads) + 16);
    }
    float* of(int thread) {
        const std::uintptr_t start = (std::uintptr_t(floats_.data()) + 63) / 64 * 64;
        return (float*)start + each_ * std::size_t(thread);
    }

private:
    std::size_t each_ = 0;
    std::vector<float> floats_;
};

// The part of a split, for one query and head: m, l, o[head_dim]; a slot holds all heads of its piece.
inline std::size_t slot_floats(const Shape& shape) { return std::size_t(shape.shared()) * (shape.head_dim + 2); }

// The keys of B blocks. False where none is seen: nobody looks at their scores. Where one of several is not there,
// zeros are read, and what comes out is hidden anyway.
template <int B, class T>
inline bool find_keys(const T* const* blocks, const T** keys) {
    static const std::vector<T> zeros(std::size_t(MOST_DIMENSIONS) * BLOCK);
    bool seen = false;
    for (int j = 0; j < B; ++j) {
        seen = seen || blocks[j] != nullptr;
        keys[j] = blocks[j] != nullptr ? blocks[j] : zeros.data();
    }
    return seen;
}

// While a tile is computed, the next one is asked for, line by line: blocks lie here and there, which no processor
// foresees, and what is asked for all at once stands in the way of what is needed now. `at` elements into a block.
template <class T>
inline void ask_for(const T* const* next, int block, int at) {
    if (next != nullptr && next[block] != nullptr) __builtin_prefetch(next[block] + at, 0, 2);
}

// Cut one step's attention into pieces; `joins` come after them. Returns how many slots are needed. What is one piece
// of queries, a token or a short chunk, is cut by splits: else one thread would read a long context alone.
int cut(const Shape& shape, const Batch& batch, std::vector<Piece>& pieces, std::vector<Piece>& joins);

// Keys and values of one token into its block. `k` and `v` are of one kv head.
void write_kv(
    const Shape& shape, const Batch& batch, const Layout& layout, int token, int kv_head, const float* k,
    const float* v, void* keys, void* values);

// Piece `index`. Queries are [tokens, step] with head h at h * head_dim, scaled already; so is the output, with
// `out_step`. `scratch` is a thread's own, `scratch_floats` of it; `parts` has the slots of all pieces. What the next
// piece reads first is asked for at the end of this one: a thread had better take both.
void attend(
    const Shape& shape, const Batch& batch, const Layout& layout, const std::vector<Piece>& pieces, int index,
    const void* keys, const void* values, const float* q, int step, float* out, int out_step, float* scratch,
    float* parts);

// The same queries again, out of what the pieces of their splits have left in `parts`.
void join(
    const Shape& shape, const Layout& layout, const Piece& piece, const float* parts, float* out, int out_step,
    float* scratch);

}  // namespace hb
