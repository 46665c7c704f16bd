// x W^T for a few rows of x, bound by reading W once, and for many, bound by arithmetic. W is stored as bf16 or as
// 8-bit integers with a scale for each output, and widened in registers (tile.h), or multiplied in pairs of bf16 (dots.h),
// for which x is rounded. For many rows integers become bf16 first, once for all of them. Every output of every row is
// summed over the inputs in order, so a row's result does not depend on the number of rows.
#include <atomic>
#include <cstring>
#include <type_traits>
#include <vector>

#include "crew.h"
#include "kernels.h"
#include "outputs.h"
#include "tile.h"

using namespace aerie;

namespace {

constexpr long kMostTokens = 64 / kMostRows * kMostRows + kMostRows;  // their sums over a strip fit the cache
constexpr long kStrip = 512 / kPanel;                                 // panels
constexpr long kAlone = 1 << 17;                                     // multiply-adds, not worth a second thread
constexpr long kTilesToWidenFor = 5;                                 // each would convert the integers once more
constexpr long kPitch = kStrip * kPanel + 16;                         // of rows of sums, padded against cache conflicts

template <class Weight>
struct Product {
  static constexpr long at_once = Arithmetic<Weight>::inputs;

  Product(float* out, const float* x, const Matrix& matrix, bool adds)
      : outputs(out, matrix, adds), x(x), panels(static_cast<const Weight*>(matrix.panels)), inputs(matrix.inputs),
        steps((inputs + at_once - 1) / at_once) {}

  Outputs outputs;
  const float* x;
  const Weight* panels;
  long inputs, steps;  // as many steps as inputs, or as pairs of them
};

std::atomic<bool> far_ahead{false};

// `tokens` rows of a product, in tiles of the maximum size and one of the rest: what a full tile computes hides the time
// to read its weights.
struct Cut {
  explicit Cut(long tokens) : tokens(tokens), tiles((tokens + kMostRows - 1) / kMostRows) {}
  long first(long tile) const { return tile * kMostRows; }
  long rows(long tile) const { return std::min(kMostRows, tokens - first(tile)); }
  const long tokens, tiles;
};

template <class Weight>
constexpr bool integers = sizeof(Weight) == Product<Weight>::at_once;  // a byte each

template <class Weight>
using Tile = void (*)(float*, long, bool, const Factor<Weight>*, const Weight*, long, long);

// By rows: a tile of one panel, and a tile of as many panels as are computed at once.
template <class Weight>
struct Tiles {
  Tile<Weight> one[kMostRows], wide[kMostRows];
};

template <class Weight, bool Far, int... Before>
constexpr Tiles<Weight> tiles_of(std::integer_sequence<int, Before...>) {
  return {{tile<Weight, Far, Before + 1, 1>...}, {tile<Weight, Far, Before + 1, panels_at_once(Before + 1)>...}};
}

template <class Weight, bool Far>
constexpr Tiles<Weight> kTiles = tiles_of<Weight, Far>(std::make_integer_sequence<int, kMostRows>());

inline void copy(float* to, const float* x, long count) { std::memcpy(to, x, count * sizeof(float)); }

inline void copy(Pair* to, const float* x, long count) { halve(to->numbers, x, count); }

// x [tokens, inputs] in blocks [steps / kDepth, tokens, kStride], rounded where factors are pairs.
template <class Weight>
void arrange(std::vector<Factor<Weight>>& blocks, const Product<Weight>& product, long tokens) {
  constexpr long depth = kDepth * Product<Weight>::at_once;
  blocks.resize((product.steps + kDepth - 1) / kDepth * tokens * kStride);
  Factor<Weight>* to = blocks.data();
  for (long first = 0; first < product.inputs; first += depth)
    for (long token = 0; token < tokens; ++token, to += kStride)
      copy(to, product.x + token * product.inputs + first, std::min(depth, product.inputs - first));
}

// Some steps of a product, for all tokens of a cut. Sums [tokens, kPitch] are kept between the calls for all steps; the
// last one puts them.
template <class Factor>
struct Part {
  // The panels from `begin` to `end` of a strip, which itself begins with panel `strip`; `weights` are those of `begin`,
  // each panel `apart` from the one before.
  template <class Weight>
  void add(const Weight* weights, long apart, long strip, long begin, long end) const {
    const Tiles<Weight>& tiles = far_ahead ? kTiles<Weight, true> : kTiles<Weight, false>;
    for (long tile_row = 0; tile_row < cut.tiles; ++tile_row) {
      const long row = cut.first(tile_row), rows = cut.rows(tile_row), many = panels_at_once(rows);
      for (long at = begin, next; at < end; at = next) {
        const bool wide = at + many <= end;
        next = at + (wide ? many : 1);
        const auto tile = wide ? tiles.wide[rows - 1] : tiles.one[rows - 1];
        float* const own = fresh && done ? sums : sums + row * kPitch + at * kPanel;  // one place stays in the cache
        tile(own, kPitch, fresh, x + row * kStride, weights + (at - begin) * apart, apart, count);
        if (done) outputs.put(own, kPitch, row, rows, (strip + at) * kPanel, (next - at) * kPanel);
      }
    }
  }

  float* sums;
  const Factor* x;
  const Outputs& outputs;
  const Cut& cut;
  long count;        // of steps
  bool fresh, done;  // whether they are the first ones, and the last
};

// `count` inputs, or pairs of them, of `panels` panels of integers, as bf16. Prefetches those of the panels that follow.
template <class Wide, class Weight>
const Wide* in_bf16(const Weight* from, long apart, long panels, long count) {
  static thread_local std::vector<Wide> kept;
  kept.resize(panels * count * kPanel);
  Wide* to = kept.data();
  for (long panel = 0; panel < panels; ++panel, from += apart)
    for (long i = 0; i < count * kPanel; i += kPanel, to += kPanel) {
      prefetch<true>(from + panels * apart + i);
      to_bf16(to, from + i);
    }
  return kept.data();
}

// The steps from `first` on, of all tokens of a cut, for the panels from `panel` on.
template <class Weight>
void sum_up(float* sums, const Factor<Weight>* x, const Product<Weight>& product, const Cut& cut, long panel, long panels,
            long first) {
  const long apart = product.steps * kPanel, count = std::min(kDepth, product.steps - first);
  const Weight* weights = product.panels + panel * apart + first * kPanel;
  const long group = panels_at_once(cut.rows(cut.tiles - 1));  // panels that stay in the cache for all rows
  const bool fresh = first == 0, done = first + count == product.steps;
  const Part<Factor<Weight>> part{sums, x, product.outputs, cut, count, fresh, done};
  for (long begin = 0; begin < panels; begin += group, weights += group * apart) {
    const long end = std::min(begin + group, panels);
    if constexpr (integers<Weight>)
      if (cut.tiles >= kTilesToWidenFor) {
        using Wide = std::conditional_t<std::is_same_v<Weight, int8_t>, uint16_t, Pair>;
        part.add(in_bf16<Wide>(weights, apart, end - begin, count), count * kPanel, panel, begin, end);
        continue;
      }
    part.add(weights, apart, panel, begin, end);
  }
}

// The panels from `begin` to `end` of a product, for tokens in blocks.
template <class Weight>
void multiply(const Product<Weight>& product, const Factor<Weight>* blocks, const Cut& cut, long begin, long end) {
  static thread_local std::vector<float> sums;
  sums.resize(cut.tokens * kPitch);
  for (long panel = begin; panel < end; panel += kStrip)
    for (long first = 0; first < product.steps; first += kDepth)
      sum_up(sums.data(), blocks + first / kDepth * cut.tokens * kStride, product, cut, panel,
             std::min(kStrip, end - panel), first);
}

template <class Weight>
void multiply(Product<Weight> product, long tokens) {
  static thread_local std::vector<Factor<Weight>> blocks;
  const long all = (product.outputs.count + kPanel - 1) / kPanel, blocks_of_tokens = (tokens + kMostTokens - 1) / kMostTokens;
  for (long part = 0; part < blocks_of_tokens; ++part) {
    const Cut cut{(part + 1) * tokens / blocks_of_tokens - part * tokens / blocks_of_tokens};
    arrange(blocks, product, cut.tokens);
    const Factor<Weight>* const arranged = blocks.data();
    in_parts(all, kAlone / (kPanel * product.inputs * cut.tokens),
             [&, arranged](long begin, long end) { multiply(product, arranged, cut, begin, end); });
    product.x += cut.tokens * product.inputs;
    product.outputs.out += cut.tokens * product.outputs.count;
  }
}

}  // namespace

// The number of outputs per panel.
extern "C" long panel_size() { return kPanel; }

// How far ahead tiles ask memory for weights, for all products of this process from now on; it changes no result.
extern "C" void read_far_ahead(bool far) { far_ahead = far; }

// Whether matrices may be in pairs for dot products: whether this library has them; a CPU may still lack them.
extern "C" bool has_dots() {
#ifdef AERIE_DOTS
  return true;
#else
  return false;
#endif
}

// x [tokens, inputs] -> out [tokens, outputs], written or added to.
extern "C" void multiplied(float* out, const float* x, const Matrix* matrix, long tokens, bool adds) {
  if (tokens == 0) return;
#ifdef AERIE_DOTS
  if (matrix->multiplier == Multiplier::kDots) {
    if (matrix->scales) return multiply(Product<IntegerPair>(out, x, *matrix, adds), tokens);
    return multiply(Product<Pair>(out, x, *matrix, adds), tokens);
  }
#endif
  if (matrix->multiplier != Multiplier::kFp32) return multiplied_by_amx(out, x, matrix, tokens, adds);
  if (matrix->scales) return multiply(Product<int8_t>(out, x, *matrix, adds), tokens);
  multiply(Product<uint16_t>(out, x, *matrix, adds), tokens);
}
