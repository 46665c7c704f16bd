// The small operations of a layer; the references in torch are engine/model/norm.py and engine/model/layer.py.
#include <cmath>

#include "kernels.h"
#include "functions.h"

using namespace aerie;

// x / hypot(|x|, floor) * gain for rows [rows, size] with stride `stride`; size is a multiple of 16.
extern "C" void normed(float* out, const float* x, const float* gain, const float* floor, long rows, long size,
                       long stride) {
  for (long row = 0; row < rows; ++row, x += stride, out += size) {
    Floats squares{};
    for (long i = 0; i < size; i += kLanes) {
      const Floats part = load(x + i);
      squares += part * part;
    }
    // In double and rounded once: an error in this number affects the whole row.
    const double least = *floor;
    const float shrink = static_cast<float>(1.0 / std::sqrt(sum(squares) + least * least));
    for (long i = 0; i < size; i += kLanes) store(out + i, load(x + i) * shrink * load(gain + i));
  }
}

namespace {

// For adjacent pairs.
struct Evens {
  static constexpr int of(int lane) { return lane & ~1; }
};

struct Odds {
  static constexpr int of(int lane) { return lane | 1; }
};

struct Swapped {
  static constexpr int of(int lane) { return lane ^ 1; }
};

// Multiplies each pair by its complex number: (x, y) (c, s) is (x c - y s, y c + x s).
inline Floats rotated_pairs(Floats pairs, Floats rotations) {
  const Floats cosines = shuffled<Evens>(rotations, rotations), sines = shuffled<Odds>(rotations, rotations);
  const Floats signs = (lane_numbers() & 1) == 0 ? Floats{} - 1.0f : Floats{} + 1.0f;
  return pairs * cosines + shuffled<Swapped>(pairs, pairs) * sines * signs;
}

// To a pool of the same type, or from floats to bf16.
template <class Number, class Kept>
void rotate(Number* merged, const float* rotations, Kept* pool, const int64_t* slots, long tokens, long heads, long kv_heads,
          long dim) {
  const long kept = 2 * kv_heads * dim;
  for (long token = 0; token < tokens; ++token, rotations += dim) {
    for (long head = 0; head < heads + kv_heads; ++head, merged += dim)
      for (long i = 0; i < dim; i += kLanes) put(merged + i, rotated_pairs(floats(merged + i), load(rotations + i)));
    merged += kv_heads * dim;
    Kept* slot = pool + slots[token] * kept;
    for (long i = 0; i < kept; i += kLanes) put(slot + i, floats(merged - kept + i));
  }
}

}  // namespace

// merged [tokens, heads + 2 * kv_heads, dim]: rotates queries and keys in place, then copies keys and values to the
// pool [slots, 2 * kv_heads, dim], both of floats or, with `halves`, of bf16. rotations [tokens, dim / 2] complex; rotated
// pairs lie side by side. dim is a multiple of 16.
extern "C" void rotated(void* merged, const float* rotations, void* pool, const int64_t* slots, long tokens, long heads,
                       long kv_heads, long dim, bool halves) {
  if (halves)
    rotate(static_cast<uint16_t*>(merged), rotations, static_cast<uint16_t*>(pool), slots, tokens, heads, kv_heads, dim);
  else
    rotate(static_cast<float*>(merged), rotations, static_cast<float*>(pool), slots, tokens, heads, kv_heads, dim);
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

// The same for floats, whatever type the pool has.
extern "C" void rotated_to(float* merged, const float* rotations, void* pool, const int64_t* slots, long tokens, long heads,
                          long kv_heads, long dim, bool halves) {
  if (halves)
    rotate(merged, rotations, static_cast<uint16_t*>(pool), slots, tokens, heads, kv_heads, dim);
  else
    rotate(merged, rotations, static_cast<float*>(pool), slots, tokens, heads, kv_heads, dim);
}
