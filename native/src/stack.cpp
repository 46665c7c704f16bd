// Layers one after the other in one call, built from the kernels of their parts; the reference in torch is
// engine/model/stack.py. Streams are floats throughout. For a model in bf16, each part's output is rounded to bf16, as it is
// where each part is called separately.
#include <cstring>
#include <vector>

#include "kernels.h"
#include "vectors.h"

using namespace aerie;

namespace {

struct Shape {
  long tokens, rows, hidden, heads, kv_heads, dim, page_size;
  bool halves;
};

void multiply(float* out, const float* x, const Matrix& matrix, const Shape& shape, bool adds) {
  multiplied(out, x, &matrix, shape.tokens, adds);
  settle(out, shape.tokens * matrix.outputs, shape.halves);
}

// The normed stream, to the right of the normed embeddings if the layer reads them.
void read(float* x, const float* stream, const float* embedded, const Layer& layer, const Shape& shape) {
  const long hidden = shape.hidden;
  if (!layer.embedding.gain) {
    normed(x, stream, layer.input.gain, layer.input.floor, shape.tokens, hidden, hidden);
  } else {
    for (long token = 0; token < shape.tokens; ++token) {
      float* own = x + token * 2 * hidden;
      normed(own, embedded + token * hidden, layer.embedding.gain, layer.embedding.floor, 1, hidden, hidden);
      normed(own + hidden, stream + token * hidden, layer.input.gain, layer.input.floor, 1, hidden, hidden);
    }
  }
  settle(x, shape.tokens * layer.qkv.inputs, shape.halves);
}

void normalize_heads(float* merged, const Layer& layer, const Shape& shape) {
  if (!layer.query.gain) return;
  const long dim = shape.dim;
  for (long token = 0; token < shape.tokens; ++token, merged += (shape.heads + 2 * shape.kv_heads) * dim) {
    float* keys = merged + shape.heads * dim;
    normed(merged, merged, layer.query.gain, layer.query.floor, shape.heads, dim, dim);
    normed(keys, keys, layer.key.gain, layer.key.floor, shape.kv_heads, dim, dim);
    settle(merged, (shape.heads + shape.kv_heads) * dim, shape.halves);
  }
}

}  // namespace

// stream [tokens, hidden], in place; taps [tokens, boundaries, hidden] of the layers `tapped` [boundaries], which are
// in order; embedded [tokens, hidden] may be null. The other arrays are those of `rotated` and `attended`; the layers of
// `pool` are `layer_bytes` apart.
extern "C" void passed(float* stream, float* taps, const float* embedded, const Layer* layers, const int64_t* tapped,
                       const float* rotations, const int64_t* slots, char* pool, const int32_t* qo_indptr,
                       const int32_t* kv_indptr, const int32_t* pages, const int64_t* prefixes, const int64_t* words,
                       long count, long boundaries, long tokens, long rows, long hidden, long heads, long kv_heads,
                       long dim, long page_size, long layer_bytes, bool normed_residual, bool halves) {
  static thread_local std::vector<float> x, merged, mixed;
  const Shape shape{tokens, rows, hidden, heads, kv_heads, dim, page_size, halves};
  long next = 0;
  const auto tap = [&](long index) {
    if (next == boundaries || tapped[next] != index) return;
    for (long token = 0; token < tokens; ++token)
      std::memcpy(taps + (token * boundaries + next) * hidden, stream + token * hidden, hidden * sizeof(float));
    ++next;
  };
  merged.resize(tokens * (heads + 2 * kv_heads) * dim);
  mixed.resize(tokens * heads * dim);
  for (long index = 0; index < count; ++index, pool += layer_bytes) {
    const Layer& layer = layers[index];
    tap(index);
    x.resize(tokens * layer.qkv.inputs);
    read(x.data(), stream, embedded, layer, shape);
    if (normed_residual && index == 0)
      for (long token = 0; token < tokens; ++token)
        std::memcpy(stream + token * hidden, x.data() + (token + 1) * layer.qkv.inputs - hidden, hidden * sizeof(float));
    multiply(merged.data(), x.data(), layer.qkv, shape, false);
    normalize_heads(merged.data(), layer, shape);
    rotated_to(merged.data(), rotations, pool, slots, tokens, heads, kv_heads, dim, halves);
    settle(merged.data(), merged.size(), shape.halves);
    attended(mixed.data(), merged.data(), pool, qo_indptr, kv_indptr, pages, prefixes, words, rows,
             (heads + 2 * kv_heads) * dim, heads, kv_heads, dim, page_size, halves);
    settle(mixed.data(), mixed.size(), shape.halves);
    multiply(stream, mixed.data(), layer.output, shape, true);
    swiglu(stream, layer.post.gain, layer.post.floor, &layer.gate_up, &layer.down, tokens);
    settle(stream, tokens * hidden, shape.halves);
  }
  tap(count);
}
