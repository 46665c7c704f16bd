#include "head.h"

#include "vectors.h"

namespace aerie {

std::vector<float> fused(std::vector<float>& taps, const Head& head, long pairs) {
  const Matrix& fuse = head.fuse;
  for (long part = 0; part < head.parts; ++part) {
    const long size = fuse.inputs / head.parts;
    for (long pair = 0; pair < pairs; ++pair) {
      float* own = taps.data() + pair * fuse.inputs + part * size;
      normed(own, own, head.pre_norms[part].gain, head.pre_norms[part].floor, 1, size, size);
    }
  }
  if (head.parts) settle(taps.data(), pairs * fuse.inputs, head.body.halves);
  std::vector<float> out(pairs * fuse.outputs);
  multiplied(out.data(), taps.data(), &fuse, pairs, false);
  settle(out.data(), pairs * fuse.outputs, head.body.halves);
  return out;
}

}  // namespace aerie
