// Where a product leaves its sums.
#pragma once

#include <algorithm>

#include "kernels.h"
#include "vectors.h"

namespace aerie {

struct Outputs {
  Outputs(float* out, const Matrix& matrix, bool adds)
      : out(out), scales(matrix.scales), bias(matrix.bias), count(matrix.outputs), adds(adds) {}

  float* at(long row, long output) const { return out + row * count + output; }

  // Whether sums are written as they are.
  bool plain() const { return !scales && !bias && !adds; }

  // Writes sums [rows, many], whose rows are `pitch` apart, from `row` and `output` on.
  void put(const float* sums, long pitch, long row, long rows, long output, long many) const {
    many = std::min(many, count - output);
    float* to = at(row, output);
    for (; rows > 0; --rows, to += count, sums += pitch) {
      long i = 0;
      for (; i + kLanes <= many; i += kLanes) store(to + i, whole<Floats>(load(sums + i), to + i, output + i));
      for (; i < many; ++i) to[i] = whole<float>(sums[i], to + i, output + i);
    }
  }

  float* out;  // [tokens, count]
  const float *scales, *bias;  // [count], or null
  long count;
  bool adds;

 private:
  // A vector of sums, or one, of the outputs from `output` on.
  template <class Sums>
  Sums whole(Sums sums, const float* before, long output) const {
    if (scales) sums *= load<Sums>(scales + output);
    if (bias) sums += load<Sums>(bias + output);
    if (adds) sums += load<Sums>(before);
    return sums;
  }
};

}  // namespace aerie
