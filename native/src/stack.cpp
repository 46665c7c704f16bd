// Layers one after the other in one call, built from the kernels of their parts; the reference in torch is
// engine/model/stack.py. Streams are floats throughout. For a model in bf16, each part's output is rounded to bf16, as it is
// where each part is called separately.
#include <algorithm>
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

// The last query of each row that has any: what each one sees, as the arguments of `attended`.
struct Lasts {
  std::vector<int32_t> bounds;
  std::vector<int64_t> prefixes;

  // Moves the values [tokens, size] of these queries to the front.
  void gather(float* values, const int32_t* qo_indptr, long size) const {
    for (long row = 0; row + 1 < static_cast<long>(bounds.size()); ++row)
      if (bounds[row] < bounds[row + 1])
        std::memmove(values + bounds[row] * size, values + (qo_indptr[row + 1] - 1) * size, size * sizeof(float));
  }
};

Lasts lasts_of(const int32_t* qo_indptr, const int64_t* prefixes, long rows) {
  Lasts found{{0}, {}};
  for (long row = 0; row < rows; ++row) {
    const long queries = qo_indptr[row + 1] - qo_indptr[row];
    found.bounds.push_back(found.bounds.back() + (queries > 0));
    found.prefixes.push_back(prefixes[row] + std::max(queries - 1, 0L));
  }
  return found;
}

}  // namespace

// stream [tokens, hidden], in place; taps [tokens, boundaries, hidden] of the layers `tapped` [boundaries], which are
// in order; embedded [tokens, hidden] may be null. The other arrays are those of `rotated` and `attended`; the layers of
// `pool` are `layer_bytes` apart. With `lasts` the last layer goes on with the last token of each row alone, whose outputs
// are then at the front of the stream: others need its keys and values only. That takes causal queries (null words), and
// no tap behind the last layer.
extern "C" void passed(float* stream, float* taps, const float* embedded, const Layer* layers, const int64_t* tapped,
                       const float* rotations, const int64_t* slots, char* pool, const int32_t* qo_indptr,
                       const int32_t* kv_indptr, const int32_t* pages, const int64_t* prefixes, const int64_t* words,
                       long count, long boundaries, long tokens, long rows, long hidden, long heads, long kv_heads,
                       long dim, long page_size, long layer_bytes, bool normed_residual, bool halves, bool lasts) {
  static thread_local std::vector<float> x, merged, mixed;
  Shape shape{tokens, rows, hidden, heads, kv_heads, dim, page_size, halves};
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
    const long wide = (heads + 2 * kv_heads) * dim;
    Lasts few;
    if (lasts && index == count - 1) {
      few = lasts_of(qo_indptr, prefixes, rows);
      few.gather(merged.data(), qo_indptr, wide);
      few.gather(stream, qo_indptr, hidden);
      qo_indptr = few.bounds.data(), prefixes = few.prefixes.data(), shape.tokens = few.bounds.back();
    }
    settle(merged.data(), shape.tokens * wide, shape.halves);
    attended(mixed.data(), merged.data(), pool, qo_indptr, kv_indptr, pages, prefixes, words, rows, wide, heads, kv_heads,
             dim, page_size, halves);
    settle(mixed.data(), shape.tokens * heads * dim, shape.halves);
    multiply(stream, mixed.data(), layer.output, shape, true);
    swiglu(stream, layer.post.gain, layer.post.floor, &layer.gate_up, &layer.down, shape.tokens);
    settle(stream, shape.tokens * hidden, shape.halves);
  }
  tap(count);
}
