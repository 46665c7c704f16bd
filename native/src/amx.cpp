// x W^T by AMX: sixteen rows of x at a time with 32 inputs of 32 outputs. W is stored in bf16 as for dot products, with
// whole tiles of inputs, or in 8 bits, which are widened tile by tile. x is rounded to bf16, or split into three of its
// numbers that add up to it, so that nothing is rounded but sums. Every sum is over the tiles of inputs in order, so a
// row's result does not depend on the number of rows; rows that a tile lacks are zeros. Vectors multiply a few rows of
// rounded x, with the same sums (amx_rows.h).
#include <vector>

#include "amx_rows.h"
#include "amx_sums.h"

#include "crew.h"
#include "outputs.h"
#include "tile.h"

#ifdef AERIE_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

using namespace aerie;

#ifdef AERIE_AMX
namespace amx {
namespace {

constexpr long kMostTokens = 256;   // whose inputs fit the cache
constexpr long kFew = 4;            // rows that vectors multiply faster than tiles do
constexpr long kFewByIntegers = 2;  // the same, where vectors have to widen weights, too
constexpr long kTogether = 4;       // panels, whose weights memory sends at once
constexpr long kAlone = 1 << 20;    // multiply-adds, not worth a second thread
constexpr long kOnce = kPlaces * kTileRows;  // rows that are multiplied at once

// x in bf16, in tiles of rows and of inputs as they are read: [rows / 16, inputs / 32, Parts, 16, 32].
template <int Parts>
class Inputs {
 public:
  Inputs(uint16_t* at, long inputs) : at_(at), tiles_((inputs + kTileInputs - 1) / kTileInputs) {}

  static long size(long tokens, long inputs) {
    const Inputs sized(nullptr, inputs);
    return (tokens + kTileRows - 1) / kTileRows * sized.tiles_ * kTile * Parts;
  }
  long tiles() const { return tiles_; }
  const uint16_t* of(long tile_of_rows) const { return at_ + tile_of_rows * tiles_ * kTile * Parts; }

  void fill(const float* x, long tokens, long inputs) {
    const long rows = tokens < kTileRows ? tokens : (tokens + kTileRows - 1) / kTileRows * kTileRows;
    for (long row = 0; row < rows; ++row)
      for (long tile = 0; tile < tiles_; ++tile) {
        float numbers[kTileInputs] = {};
        if (row < tokens)
          std::memcpy(numbers, x + row * inputs + tile * kTileInputs,
                      std::min(kTileInputs, inputs - tile * kTileInputs) * sizeof(float));
        split(at_ + ((row / kTileRows * tiles_ + tile) * Parts * kTileRows + row % kTileRows) * kTileInputs, numbers);
      }
  }

 private:
  // The number rounded to bf16, then what is left of it, twice.
  static void split(uint16_t* to, const float* numbers) {
    if (Parts == 1) return halve_for_amx(to, numbers), halve_for_amx(to + kLanes, numbers + kLanes);
    for (long i = 0; i < kTileInputs; i += kLanes) {
      Floats rest = load(numbers + i);
      for (int part = 0; part < Parts; ++part) {
        put(to + part * kTile + i, rest);
        const Floats left = rest - widened(to + part * kTile + i);
        rest = left == left ? left : Floats{};  // of an infinite number nothing is left
      }
    }
  }

  static constexpr long kTile = kTileOfX;
  uint16_t* at_;
  long tiles_;
};

// Writes `rows` rows of the sums of a panel, in the tiles First and First + 1 of `whole` rows.
template <int First>
void put(const Outputs& outputs, long row, long rows, long whole, long panel) {
  const long output = panel * kPanel;
  if (outputs.plain() && rows == whole && output + kPanel <= outputs.count) {
    const long pitch = outputs.count * static_cast<long>(sizeof(float));
    store_tile<First>(outputs.at(row, output), pitch), store_tile<First + 1>(outputs.at(row, output + kLanes), pitch);
    return;
  }
  alignas(kLine) float sums[kTileRows * kPanel];
  store_tile<First>(sums, sizeof(float) * kPanel), store_tile<First + 1>(sums + kLanes, sizeof(float) * kPanel);
  outputs.put(sums, kPanel, row, rows, output, kPanel);
}

// The product of `tokens` rows, whose tiles have `whole` rows, by one panel of weights, or by two.
template <int Parts>
struct Rows {
  template <class Weight>
  void by_one(const Weight* weights, long panel) const {
    for (long row = 0; row < tokens; row += kOnce) {
      const bool both = row + kTileRows < tokens;
      const auto sum = both ? sum_up<Parts, 2, 1, Weight> : sum_up<Parts, 1, 1, Weight>;
      sum(x.of(row / kTileRows), weights, x.tiles(), row == 0);
      put<0>(outputs, row, std::min(kTileRows, tokens - row), whole, panel);
      if (both) put<2>(outputs, row + kTileRows, std::min(kTileRows, tokens - row - kTileRows), whole, panel);
    }
  }

  template <class Weight>
  void by_two(const Weight* weights, long panel) const {
    sum_up<Parts, 1, 2>(x.of(0), weights, x.tiles(), true);
    put<0>(outputs, 0, tokens, whole, panel), put<2>(outputs, 0, tokens, whole, panel + 1);
  }

  const Inputs<Parts>& x;
  const Outputs& outputs;
  long tokens, whole = std::min(tokens, kTileRows);
};

// The panels from `begin` to `end` of weights [outputs / kPanel, tiles, kTileOfWeights] for `tokens` rows.
template <int Parts, class Weight>
void multiply_by(const Weight* weights, const Inputs<Parts>& x, const Outputs& outputs, long tokens, long begin,
                 long end) {
  const Rows<Parts> rows{x, outputs, tokens};
  const AmxTiles tiles(rows.whole);
  const long apart = x.tiles() * kTileOfWeights;
  for (long panel = begin; panel < end; ++panel) {
    const Weight* const own = weights + panel * apart;
    if (tokens <= kTileRows && panel + 1 < end)
      rows.by_two(own, panel++);
    else if (tokens <= kOnce)
      rows.by_one(own, panel);
    else
      rows.by_one(in_bf16(own, x.tiles()), panel);
  }
}

template <class Weight>
using SumRows = void (*)(float*, const float*, const Weight*, long, long);

template <int Panels, class Weight>
SumRows<Weight> sum_of(long rows) {
  constexpr SumRows<Weight> by_rows[kFew] = {sum_rows<1, Panels, Weight>, sum_rows<2, Panels, Weight>,
                                             sum_rows<3, Panels, Weight>, sum_rows<4, Panels, Weight>};
  return by_rows[rows - 1];
}

// The panels from `begin` to `end` for a few rows, x [tokens, tiles * kTileInputs], rounded.
template <class Weight>
void multiply_rows(const Weight* weights, const float* x, const Outputs& outputs, long tokens, long tiles, long begin,
                   long end) {
  alignas(kLine) float sums[kFew * kTogether * kPanel];
  const long apart = tiles * kTileOfWeights;
  for (long panel = begin, many; panel < end; panel += many) {
    many = panel + kTogether <= end ? kTogether : 1;
    const auto sum = many > 1 ? sum_of<kTogether, Weight>(tokens) : sum_of<1, Weight>(tokens);
    {
      const NoDenormals here;
      sum(sums, x, weights + panel * apart, apart, tiles);
    }
    outputs.put(sums, many * kPanel, 0, tokens, panel * kPanel, many * kPanel);
  }
}

void multiply_few(const Outputs& outputs, const float* x, const Matrix& matrix, long tokens) {
  static thread_local std::vector<float> rounded;
  const long tiles = (matrix.inputs + kTileInputs - 1) / kTileInputs, wide = tiles * kTileInputs;
  rounded.assign(tokens * wide, 0.0f);
  for (long row = 0; row < tokens; ++row)
    std::memcpy(rounded.data() + row * wide, x + row * matrix.inputs, matrix.inputs * sizeof(float));
  for (long i = 0; i < tokens * wide; i += kLanes) {
    uint16_t halves[kLanes];
    halve_for_amx(halves, rounded.data() + i);
    store(rounded.data() + i, widened(halves));
  }
  const float* const numbers = rounded.data();
  const auto rows = [&, numbers](const auto* panels) {
    in_parts((outputs.count + kPanel - 1) / kPanel, kAlone / (kPanel * matrix.inputs * tokens),
             [&](long begin, long end) { multiply_rows(panels, numbers, outputs, tokens, tiles, begin, end); });
  };
  matrix.scales ? rows(static_cast<const int8_t*>(matrix.panels)) : rows(static_cast<const uint16_t*>(matrix.panels));
}

template <int Parts>
void multiply(Outputs outputs, const float* x, const Matrix& matrix, long tokens) {
  static thread_local std::vector<uint16_t> numbers;  // with room to begin on a cache line
  for (long first = 0, count; first < tokens; first += count) {
    count = std::min(kMostTokens, tokens - first);
    numbers.resize(Inputs<Parts>::size(count, matrix.inputs) + kLine / 2);
    Inputs<Parts> split(on_a_line(numbers.data()), matrix.inputs);
    split.fill(x + first * matrix.inputs, count, matrix.inputs);
    in_parts((outputs.count + kPanel - 1) / kPanel, kAlone / (kPanel * matrix.inputs * count),
             [&, split](long begin, long end) {
               if (matrix.scales)
                 multiply_by(static_cast<const int8_t*>(matrix.panels), split, outputs, count, begin, end);
               else
                 multiply_by(static_cast<const uint16_t*>(matrix.panels), split, outputs, count, begin, end);
             });
    outputs.out += count * outputs.count;
  }
}

}  // namespace
}  // namespace amx
#endif

// Whether this process may use tiles: Linux gives a thread room for them only when asked.
extern "C" bool permit_amx() {
#ifdef AERIE_AMX
  constexpr long ask = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, ask, tile_data) == 0;
#else
  return false;
#endif
}

// x [tokens, inputs] -> out [tokens, outputs], written or added to. `matrix` is in pairs; permit_amx was true.
extern "C" void multiplied_by_amx([[maybe_unused]] float* out, [[maybe_unused]] const float* x,
                                  [[maybe_unused]] const Matrix* matrix, [[maybe_unused]] long tokens,
                                  [[maybe_unused]] bool adds) {
#ifdef AERIE_AMX
  const Outputs outputs(out, *matrix, adds);
  if (matrix->multiplier == Multiplier::kAmx) return amx::multiply<3>(outputs, x, *matrix, tokens);
  const long few = matrix->scales ? amx::kFewByIntegers : amx::kFew;
  if (tokens <= few) return amx::multiply_few(outputs, x, *matrix, tokens);
  amx::multiply<1>(outputs, x, *matrix, tokens);
#endif
}
