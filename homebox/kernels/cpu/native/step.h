// The model as the native step sees it: numbers and addresses. Python fills these (kernels/cpu/decoder.py has the twins).
#pragma once

#include "attention.h"
#include "linear.h"

namespace hb {

struct Layer {
    const float* attention_norm;
    Weight q, k, v, output;
    const float* mlp_norm;
    Weight gate, up, down;
    void* keys;    // this layer's blocks
    void* values;
    std::int32_t group, unused;
};

struct Model {
    Shape shape;
    std::int32_t layers, hidden, mlp, groups;
    float eps, scale;          // of the norms; of the scores
    const float* frequencies;  // [head_dim / 2] radians a position
    Weight embedding;
    const float* norm;
    Weight head;
    const Layer* layer;
};

}  // namespace hb
