// The small operations of a layer; their twins in torch are engine/norm.py and engine/layer.py.
#include <cmath>

#include "kernels.h"
#include "vectors.h"

using namespace aerie;

// x / hypot(|x|, floor) * gain, rows [rows, size] that lie `stride` apart; size is a multiple of 16.
extern "C" void normed(float* out, const float* x, const float* gain, const float* floor, long rows, long size,
                       long stride) {
  for (long row = 0; row < rows; ++row, x += stride, out += size) {
    Floats squares{};
    for (long i = 0; i < size; i += kLanes) {
      const Floats part = load(x + i);
      squares += part * part;
    }
    const float shrink = 1.0f / std::sqrt(sum(squares) + *floor * *floor);
    for (long i = 0; i < size; i += kLanes) store(out + i, load(x + i) * shrink * load(gain + i));
  }
}

// merged [tokens, heads + 2 * kv_heads, dim]: queries and keys are turned in place, then keys and values copied to the
// pool [slots, 2 * kv_heads, dim]. turns [tokens, dim / 2] complex; pairs that turn together lie side by side.
extern "C" void turned(float* merged, const float* turns, float* pool, const int64_t* slots, long tokens, long heads,
                       long kv_heads, long dim) {
  const long kept = 2 * kv_heads * dim;
  for (long token = 0; token < tokens; ++token, turns += dim) {
    for (long head = 0; head < heads + kv_heads; ++head, merged += dim) {
      for (long i = 0; i < dim; i += 2) {
        const float x = merged[i], y = merged[i + 1], cosine = turns[i], sine = turns[i + 1];
        merged[i] = x * cosine - y * sine;
        merged[i + 1] = x * sine + y * cosine;
      }
    }
    merged += kv_heads * dim;
    std::memcpy(pool + slots[token] * kept, merged - kept, kept * sizeof(float));
  }
}

// both [tokens, 2 * inner], gate then up -> silu(gate) * up [tokens, inner]; inner is a multiple of 16.
extern "C" void gated(float* out, const float* both, long tokens, long inner) {
  for (long token = 0; token < tokens; ++token, both += 2 * inner, out += inner) {
    for (long i = 0; i < inner; i += kLanes) {
      const Floats gate = load(both + i);
      store(out + i, gate / (1.0f + exp(-gate)) * load(both + inner + i));
    }
  }
}
