// x W^T for a few rows of x, bound by reading W once. W lies in panels of 32 outputs, [outputs / 32, inputs, 32], as bf16
// or as 8-bit integers with a scale for each output, so that it is read from front to back and widened in registers. Of
// bf16, outputs o and o + 16 of a panel lie side by side: the halves of a float's bits, told apart by one operation each.
// Every output of every row is summed over the inputs in their order, so a row's result does not depend on how many rows
// there are.
#include "kernels.h"
#include "vectors.h"

using namespace aerie;

namespace {

constexpr long kPanel = 32;
constexpr long kMostRows = 14;  // times two vectors of a panel: 28 sums, as many as registers hold
constexpr long kAhead = 2048;   // bytes that are fetched ahead of what is read

inline void widen(Floats* pair, const uint16_t* from) {
  const Words both = load<Words>(from);
  pair[0] = same_bits<Floats>(both << 16);
  pair[1] = same_bits<Floats>(both & 0xFFFF0000u);
}

inline void widen(Floats* pair, const int8_t* from) {
  pair[0] = widened(from);
  pair[1] = widened(from + kLanes);
}

template <class Weight>
struct Product {
  float* out;
  const float* x;
  const Weight* panels;
  const float* scales;  // null for weights that are what they are
  const float* bias;    // or null
  long outputs, inputs;
  bool adds;
};

template <class Weight>
[[gnu::noinline]] void put(const Product<Weight>& product, long row, long output, Floats sums) {
  float* out = product.out + row * product.outputs + output;
  if (product.scales) sums *= load(product.scales + output);
  const float* bias = product.bias ? product.bias + output : nullptr;
  if (product.outputs - output >= kLanes) {
    if (bias) sums += load(bias);
    store(out, product.adds ? load(out) + sums : sums);
    return;
  }
  for (long lane = 0; lane < product.outputs - output; ++lane) {
    const float biased = bias ? sums[lane] + bias[lane] : sums[lane];
    out[lane] = product.adds ? out[lane] + biased : biased;
  }
}

// Rows row .. row + Rows of Panels adjacent panels.
template <class Weight, int Rows, int Panels>
void tile(const Product<Weight>& product, long row, long panel) {
  const long inputs = product.inputs;
  const float* x = product.x + row * inputs;
  const Weight* weights = product.panels + panel * kPanel * inputs;
  Floats sums[Rows][2 * Panels];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < 2 * Panels; ++v) sums[r][v] = Floats{};
#pragma GCC unroll 2
  for (long i = 0; i < inputs; ++i) {
    Floats read[2 * Panels];
#pragma GCC unroll 16
    for (int p = 0; p < Panels; ++p) {
      const Weight* from = weights + (p * inputs + i) * kPanel;
      __builtin_prefetch(reinterpret_cast<const char*>(from) + kAhead);
      widen(read + 2 * p, from);
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const float factor = x[r * inputs + i];
#pragma GCC unroll 16
      for (int v = 0; v < 2 * Panels; ++v) sums[r][v] += read[v] * factor;
    }
  }
  Floats finished[Rows][2 * Panels];  // a copy in memory, so that the sums themselves stay in registers
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < 2 * Panels; ++v) finished[r][v] = sums[r][v];
  for (int v = 0; v < 2 * Panels; ++v) {
    const long output = panel * kPanel + v * kLanes;
    if (output >= product.outputs) break;
    for (int r = 0; r < Rows; ++r) put(product, row + r, output, finished[r][v]);
  }
}

template <class Weight>
using Tile = void (*)(const Product<Weight>&, long, long);

template <class Weight, int... Rows>
struct Tiles {
  static constexpr Tile<Weight> of[] = {tile<Weight, Rows, 1>...};
};

template <class Weight>
void multiply(const Product<Weight>& product, long tokens) {
  using OnePanel = Tiles<Weight, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>;
  // Few rows take more panels at once: the two sums of a single row would wait for each other.
  constexpr struct {
    long panels;
    Tile<Weight> tile;
  } kWide[] = {{4, tile<Weight, 1, 4>}, {4, tile<Weight, 2, 4>}, {2, tile<Weight, 3, 2>},
               {2, tile<Weight, 4, 2>}, {2, tile<Weight, 5, 2>}};
  const long all = (product.outputs + kPanel - 1) / kPanel, parts = (tokens + kMostRows - 1) / kMostRows;
  long panel = 0;
  if (tokens <= 5) {
    const auto& wide = kWide[tokens - 1];
    for (; panel + wide.panels <= all; panel += wide.panels) wide.tile(product, 0, panel);
  }
  for (; panel < all; ++panel) {
    for (long part = 0, row = 0; part < parts; ++part) {
      const long rows = (tokens - row) / (parts - part);
      OnePanel::of[rows - 1](product, row, panel);
      row += rows;
    }
  }
}

}  // namespace

// x [tokens, inputs] -> out [tokens, outputs], written or added to; `bias` [outputs] may be null. With `scales`, one for
// each place of the panels, weights are 8-bit integers; without, bf16.
extern "C" void multiplied(float* out, const float* x, const void* panels, const float* scales, const float* bias,
                           long tokens, long outputs, long inputs, bool adds) {
  if (tokens == 0) return;
  if (scales)
    multiply(Product<int8_t>{out, x, static_cast<const int8_t*>(panels), scales, bias, outputs, inputs, adds}, tokens);
  else
    multiply(Product<uint16_t>{out, x, static_cast<const uint16_t*>(panels), scales, bias, outputs, inputs, adds},
             tokens);
}
