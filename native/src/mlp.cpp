// A layer's norm and MLP, built from the kernels of its parts; the reference in torch is engine/model/layer.py.
#include <vector>

#include "kernels.h"

using namespace aerie;

// Adds down(silu(gate(x)) * up(x)) to the residual [tokens, hidden] in place; x is the normed residual.
extern "C" void swiglu(float* residual, const float* gain, const float* floor, const Matrix* gate_up, const Matrix* down,
                       long tokens) {
  const long hidden = gate_up->inputs, inner = down->inputs;
  static thread_local std::vector<float> x, both, product;
  x.resize(tokens * hidden);
  both.resize(tokens * 2 * inner);
  product.resize(tokens * inner);
  normed(x.data(), residual, gain, floor, tokens, hidden, hidden);
  multiplied(both.data(), x.data(), gate_up, tokens, false);
  gated(product.data(), both.data(), tokens, inner);
  multiplied(residual, product.data(), down, tokens, true);
}
