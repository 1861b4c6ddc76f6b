// What is computed for a batch of tokens? Any run of a decoder's layers in one call, so that nothing but arithmetic
// happens between them.
//
// Every thread of the team walks through the layers together and shares each loop: normalise and quantise by token,
// multiply by tile, attend by piece. Data passes from loop to loop in buffers that are kept between steps.
#include "step.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "pool.h"

#define HB_EXPORT extern "C" __attribute__((visibility("default")))

namespace hb {
namespace {

void normalise(const float* x, const float* weight, int size, float eps, float* out) {
    F16 squares = zero();
    for (int i = 0; i < size; i += LANES) {
        const F16 v = load(x + i);
        squares = fma(v, v, squares);
    }
    const F16 scale = all(1.0f / std::sqrt(sum(squares) / float(size) + eps));
    for (int i = 0; i < size; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
}

// Rotate the halves of one head: (a, b) to (a cos - b sin, b cos + a sin), times `scale`.
void rotate(float* head, const float* cosines, const float* sines, int dim, float scale) {
    const int half_dim = dim / 2;
    const auto turn = [&](auto a, auto b, auto c, auto s) {
        return std::pair{(a * c - b * s), (b * c + a * s)};
    };
    int i = 0;
    for (; i + LANES <= half_dim; i += LANES) {
        const auto [a, b] = turn(load(head + i), load(head + half_dim + i), load(cosines + i), load(sines + i));
        store(head + i, a * all(scale)), store(head + half_dim + i, b * all(scale));
    }
    for (; i < half_dim; ++i) {
        const auto [a, b] = turn(head[i], head[half_dim + i], cosines[i], sines[i]);
        head[i] = a * scale, head[half_dim + i] = b * scale;
    }
}

F16 silu(F16 x) { return x / (all(1.0f) + exp(zero() - x)); }

// For one caller at a time: the buffers are the decoder's own.
class Decoder {
public:
    explicit Decoder(const Model& model) : m_(model) {}

    // `x` is [tokens, hidden], the tokens as they enter a layer; `layers` changes it in place.
    void embed(const std::int32_t* ids, int tokens, float* x);
    // `batches[group]`, all of the same rows.
    void layers(const Batch* batches, int begin, int end, float* x);
    void norm(const float* x, int tokens, float* hidden);
    void logits(const float* hidden, int rows, float* out);

private:
    void layer(const Layer& layer, const Batch& batch, int group);

    Model m_;
    int tokens_ = 0;
    float* x_ = nullptr;
    std::vector<float> qkv_, cosines_, sines_, parts_;
    Scratch scratch_;
    Layout layout_;
    Activations normed_, mixed_, inner_, last_;
    std::vector<std::vector<Piece>> pieces_, joins_;
};

void Decoder::embed(const std::int32_t* ids, int tokens, float* x) {
    Team& team = Team::get();
    team.run([&] {
        team.each_of_many(tokens, [&](int t) { unpack_row(m_.embedding, ids[t], x + std::int64_t(t) * m_.hidden); });
    });
}

void Decoder::layers(const Batch* batches, int begin, int end, float* x) {
    Team& team = Team::get();
    const Shape& shape = m_.shape;
    const int dim = shape.head_dim, rotated = dim / 2;
    x_ = x;
    tokens_ = batches[0].tokens;
    layout_.set(batches[0]);
    const std::size_t count = std::size_t(tokens_), step = std::size_t(shape.heads + 2 * shape.kv_heads) * dim;
    if (qkv_.size() < count * step) {
        qkv_.resize(count * step);
        cosines_.resize(count * rotated), sines_.resize(count * rotated);
        normed_.resize(tokens_, m_.hidden), mixed_.resize(tokens_, shape.heads * dim), inner_.resize(tokens_, m_.mlp);
    }
    scratch_.resize(dim, team.size());
    pieces_.resize(std::size_t(m_.groups)), joins_.resize(std::size_t(m_.groups));
    for (int group = 0; group < m_.groups; ++group) {
        const std::size_t slots = std::size_t(cut(shape, batches[group], pieces_[group], joins_[group]));
        if (parts_.size() < slots * slot_floats(shape)) parts_.resize(slots * slot_floats(shape));
    }
    team.run([&] {
        team.each_of_many(tokens_, [&](int t) {
            for (int i = 0; i < rotated; ++i) {
                const float angle = float(layout_.position[std::size_t(t)]) * m_.frequencies[i];
                cosines_[std::int64_t(t) * rotated + i] = std::cos(angle);
                sines_[std::int64_t(t) * rotated + i] = std::sin(angle);
            }
        });
        for (int i = begin; i < end; ++i) layer(m_.layer[i], batches[m_.layer[i].group], m_.layer[i].group);
    });
}

void Decoder::norm(const float* x, int tokens, float* hidden) {
    Team& team = Team::get();
    team.run([&] {
        team.each_of_many(tokens, [&](int t) {
            const std::int64_t at = std::int64_t(t) * m_.hidden;
            normalise(x + at, m_.norm, m_.hidden, m_.eps, hidden + at);
        });
    });
}

void Decoder::layer(const Layer& layer, const Batch& batch, int group) {
    Team& team = Team::get();
    const Shape& shape = m_.shape;
    const int dim = shape.head_dim, width = m_.hidden, heads = shape.heads, kv_heads = shape.kv_heads;
    const int step = (heads + 2 * kv_heads) * dim, rotated = dim / 2;
    const auto into = [&](float* out, int row_step, const Weight& w, int turn, const Rows& rows, bool add) {
        multiply_turn(w, turn, rows, tokens_, [&](int row, int tile, F16 sums) {
            float* to = out + std::int64_t(row) * row_step + tile * LANES;
            store(to, add ? load(to) + sums : sums);
        });
    };
    const auto norm = [&](const float* weight, bool quantised, bool fine) {
        team.each_of_many(tokens_, [&](int t) {
            normalise(x_ + std::int64_t(t) * width, weight, width, m_.eps, normed_.row(t));
            if (quantised) normed_.quantise(t, fine);
        });
    };

    norm(layer.attention_norm, is_integer(layer.q) || is_integer(layer.k) || is_integer(layer.v), layer.q.fine);
    const int q_turns = turns(layer.q, tokens_), k_turns = turns(layer.k, tokens_), v_turns = turns(layer.v, tokens_);
    float *q_out = qkv_.data(), *k_out = q_out + heads * dim, *v_out = k_out + kv_heads * dim;
    team.each_of_many(q_turns + k_turns + v_turns, [&](int turn) {
        if (turn < q_turns)
            into(q_out, step, layer.q, turn, normed_.rows(), false);
        else if ((turn -= q_turns) < k_turns)
            into(k_out, step, layer.k, turn, normed_.rows(), false);
        else
            into(v_out, step, layer.v, turn - k_turns, normed_.rows(), false);
    });

    team.each_of_many(tokens_, [&](int t) {
        float* q = &qkv_[std::int64_t(t) * step];
        const float *c = &cosines_[std::int64_t(t) * rotated], *s = &sines_[std::int64_t(t) * rotated];
        for (int h = 0; h < heads; ++h) rotate(q + h * dim, c, s, dim, m_.scale);
        for (int h = 0; h < kv_heads; ++h) {
            float *k = q + (heads + h) * dim, *v = q + (heads + kv_heads + h) * dim;
            rotate(k, c, s, dim, 1.0f);
            write_kv(shape, batch, layout_, t, h, k, v, layer.keys, layer.values);
        }
    });
    const int mixed_step = heads * dim;
    const auto scratch = [&] { return scratch_.of(Team::member()); };
    const auto& pieces = pieces_[std::size_t(group)];
    const auto& joins = joins_[std::size_t(group)];
    team.each_of_many(int(pieces.size()), [&](int i) {
        attend(
            shape, batch, layout_, pieces, i, layer.keys, layer.values, qkv_.data(), step, mixed_.row(0), mixed_step,
            scratch(), parts_.data());
    });
    if (!joins.empty())
        team.each(int(joins.size()), [&](int i) {
            join(shape, layout_, joins[std::size_t(i)], parts_.data(), mixed_.row(0), mixed_step, scratch());
        });
    if (is_integer(layer.output)) team.each_of_many(tokens_, [&](int t) { mixed_.quantise(t, layer.output.fine); });
    team.each_of_many(turns(layer.output, tokens_), [&](int turn) {
        into(x_, width, layer.output, turn, mixed_.rows(), true);
    });

    norm(layer.mlp_norm, is_integer(layer.gate) || is_integer(layer.up), layer.gate.fine);
    // A group of 32 inner values at a time: gate, up, their product, and quantised while it is at hand.
    team.each_of_many(m_.mlp / GROUP, [&](int g) {
        multiply_tiles(layer.gate, 2 * g, 2, normed_.rows(), tokens_, [&](int row, int tile, F16 sums) {
            store(inner_.row(row) + tile * LANES, silu(sums));
        });
        multiply_tiles(layer.up, 2 * g, 2, normed_.rows(), tokens_, [&](int row, int tile, F16 sums) {
            float* to = inner_.row(row) + tile * LANES;
            store(to, load(to) * sums);
        });
        if (is_integer(layer.down))
            for (int t = 0; t < tokens_; ++t) inner_.quantise(t, g, layer.down.fine);
    });
    team.each_of_many(turns(layer.down, tokens_), [&](int turn) {
        into(x_, width, layer.down, turn, inner_.rows(), true);
    });
}

void Decoder::logits(const float* hidden, int rows, float* out) {
    Team& team = Team::get();
    const Weight& head = m_.head;
    last_.resize(rows, m_.hidden);
    team.run([&] {
        team.each_of_many(rows, [&](int r) {
            std::memcpy(last_.row(r), hidden + std::int64_t(r) * m_.hidden, std::size_t(m_.hidden) * sizeof(float));
            if (is_integer(head)) last_.quantise(r, head.fine);
        });
        team.each_of_many(turns(head, rows), [&](int turn) {
            multiply_turn(head, turn, last_.rows(), rows, [&](int row, int tile, F16 sums) {
                store_some(out + std::int64_t(row) * head.out + tile * LANES, sums, head.out - tile * LANES);
            });
        });
    });
}

}  // namespace
}  // namespace hb

// The model's numbers are copied; what they point at (weights, blocks, layers) must live as long as the decoder.
HB_EXPORT void* hb_decoder_new(const hb::Model* model) { return new hb::Decoder(*model); }
HB_EXPORT void hb_decoder_free(void* decoder) { delete (hb::Decoder*)decoder; }
HB_EXPORT void hb_decoder_embed(void* decoder, const std::int32_t* ids, int tokens, float* x) {
    ((hb::Decoder*)decoder)->embed(ids, tokens, x);
}
HB_EXPORT void hb_decoder_layers(void* decoder, const hb::Batch* batches, int begin, int end, float* x) {
    ((hb::Decoder*)decoder)->layers(batches, begin, end, x);
}
HB_EXPORT void hb_decoder_norm(void* decoder, const float* x, int tokens, float* hidden) {
    ((hb::Decoder*)decoder)->norm(x, tokens, hidden);
}
HB_EXPORT void hb_decoder_logits(void* decoder, const float* hidden, int rows, float* out) {
    ((hb::Decoder*)decoder)->logits(hidden, rows, out);
}
