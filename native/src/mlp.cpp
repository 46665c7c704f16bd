// A layer's norm and MLP, built from the kernels of its parts; the reference in torch is engine/model/layer.py.
#include <vector>

#include "kernels.h"

// Adds down(silu(gate(x)) * up(x)) to the residual [tokens, hidden] in place; x is the normed residual. Each product
// has panels, scales or null, bias or null.
extern "C" void swiglu(float* residual, const float* gain, const float* floor, const void* gate_up,
                       const float* gate_up_scales, const float* gate_up_bias, const void* down,
                       const float* down_scales, const float* down_bias, long tokens, long hidden, long inner) {
  static thread_local std::vector<float> x, both, product;
  x.resize(tokens * hidden);
  both.resize(tokens * 2 * inner);
  product.resize(tokens * inner);
  normed(x.data(), residual, gain, floor, tokens, hidden, hidden);
  multiplied(both.data(), x.data(), gate_up, gate_up_scales, gate_up_bias, tokens, 2 * inner, hidden, false);
  gated(product.data(), both.data(), tokens, inner);
  multiplied(residual, product.data(), down, down_scales, down_bias, tokens, hidden, inner, true);
}
