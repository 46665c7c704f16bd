// What a row's penalties and biases make of its logits. The reference in torch is engine/sampling/edits.py: both compute
// in double precision, where a product of two floats is exact, so that no fused multiply-add tells them apart.
#include <algorithm>

#include "crew.h"
#include "kernels.h"

using namespace aerie;

namespace {

constexpr int32_t kCount = 0x7FFFFFFF;  // the other bit marks tokens of the prompt
constexpr double kMost = 1e30;
constexpr long kBlock = 64;
constexpr long kNodes = 64;  // of one row

// What a row does to its logits.
class Row {
 public:
  Row(const int32_t* counts, const float* biases, long vocabulary, float repetition, float frequency, float presence)
      : counts_(counts),
        biases_(biases),
        vocabulary_(vocabulary),
        repetition_(repetition),
        frequency_(frequency),
        presence_(presence) {}

  // Of a node with the ids `path` [width] above and at it.
  void edit(float* out, const float* logits, const int64_t* path, long width) const {
    float drafted[kNodes];  // from the raw logits, before `out` takes their place
    for (long i = 0; i < width; ++i)
      if (path[i] >= 0)
        drafted[i] = edited(logits[path[i]], path[i], static_cast<int32_t>(std::count(path, path + width, path[i])));
    for (long first = 0; first < vocabulary_; first += kBlock) {
      const long end = std::min(vocabulary_, first + kBlock);
      int32_t known = 0;
      for (long i = first; i < end; ++i) known |= counts_[i];
      if (known)
        for (long i = first; i < end; ++i) out[i] = edited(logits[i], i, 0);
      else  // rounds once, as it would through a double
        for (long i = first; i < end; ++i) out[i] = logits[i] + biases_[i];
    }
    for (long i = 0; i < width; ++i)
      if (path[i] >= 0) out[path[i]] = drafted[i];
  }

 private:
  // `more` of the token are drafted.
  float edited(float raw, int64_t token, int32_t more) const {
    const int32_t count = (counts_[token] & kCount) + more;
    double value = static_cast<double>(raw) + biases_[token];
    if (counts_[token] < 0 || count > 0) value = value > 0 ? value / repetition_ : value * repetition_;
    value = value - frequency_ * count - presence_ * (count > 0);
    return static_cast<float>(std::min(value, kMost));
  }

  const int32_t* counts_;
  const float* biases_;
  long vocabulary_;
  double repetition_, frequency_, presence_;
};

}  // namespace

// logits [count, vocabulary] of table rows [count], path [count, width] drafted ids above and at each node, -1 elsewhere,
// or null -> out [count, vocabulary], which may be the logits. The tables: edit slots and penalties by row, counts and
// biases by slot. Rows with `no_slot` keep their logits.
extern "C" void edited(float* out, const float* logits, const int64_t* rows, const int64_t* path, const int64_t* slots,
                       const int32_t* counts, const float* biases, const float* repetitions, const float* frequencies,
                       const float* presences, long count, long vocabulary, long width, long no_slot) {
  in_parts(count, 1, [=](long first, long last) {
    for (long node = first; node < last; ++node) {
      const int64_t row = rows[node], place = slots[row] * vocabulary;
      float* own = out + node * vocabulary;
      const float* raw = logits + node * vocabulary;
      if (slots[row] != no_slot)
        Row(counts + place, biases + place, vocabulary, repetitions[row], frequencies[row], presences[row])
            .edit(own, raw, path ? path + node * width : nullptr, path ? width : 0);
      else if (own != raw)
        std::copy_n(raw, vocabulary, own);
    }
  });
}
