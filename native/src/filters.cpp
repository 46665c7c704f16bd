// A request's filters on a row: min-p, then top-k, then top-p, as the lowest scaled logit that stays. The reference in
// torch, which sorts whole rows, is `filtered` in engine/sampling/choose.py.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "kernels.h"
#include "functions.h"

using namespace aerie;

namespace {

// Of `kept`, all at most `most`: the last value that a walk down from the largest takes until it has `share` of the
// mass. A few values make up most of the mass, so the walk sorts ever longer prefixes.
float edge_of_mass(std::vector<float>& kept, float most, float share) {
  const long count = static_cast<long>(kept.size());
  const double limit = static_cast<double>(share) * exp_sum(kept.data(), count, most, 1.0f);
  double mass = 0;
  for (long done = 0, end; done < count; done = end) {
    end = std::min(count, std::max(4 * done, 64L));
    if (end < count) std::nth_element(kept.begin() + done, kept.begin() + end, kept.end(), std::greater<>());
    std::sort(kept.begin() + done, kept.begin() + end, std::greater<>());
    for (long i = done; i < end; ++i) {
      mass += std::exp(kept[i] - most);
      if (mass >= limit) return kept[i];
    }
  }
  return kept.back();
}

float edge(const std::vector<float>& scaled, float min_p, long top_k, float top_p) {
  static thread_local std::vector<float> kept;
  const float most = *std::max_element(scaled.begin(), scaled.end());
  float least = min_p > 0 ? most + std::log(min_p) : -INFINITY;
  kept.clear();
  for (const float value : scaled)
    if (value >= least && value > -INFINITY) kept.push_back(value);
  if (top_k > 0 && top_k < static_cast<long>(kept.size())) {
    std::nth_element(kept.begin(), kept.begin() + top_k - 1, kept.end(), std::greater<>());
    least = kept[top_k - 1];
    kept.erase(std::remove_if(kept.begin(), kept.end(), [&](float value) { return value < least; }), kept.end());
  }
  return top_p < 1 && !kept.empty() ? edge_of_mass(kept, most, top_p) : least;
}

}  // namespace

// logits [rows, count] and each row's temperature and filters -> out [rows]: the lowest logit / T that stays. Greedy
// rows, colder than `greedy_below`, keep everything.
extern "C" void edges(float* out, const float* logits, const float* temperatures, const float* min_ps,
                      const int32_t* top_ks, const float* top_ps, long rows, long count, float greedy_below) {
  static thread_local std::vector<float> scaled;
  for (long row = 0; row < rows; ++row, logits += count) {
    out[row] = -INFINITY;
    const bool filters = min_ps[row] > 0 || top_ks[row] > 0 || top_ps[row] < 1;
    if (temperatures[row] < greedy_below || !filters) continue;
    scaled.assign(logits, logits + count);
    for (float& value : scaled) value /= temperatures[row];
    out[row] = edge(scaled, min_ps[row], top_ks[row], top_ps[row]);
  }
}
