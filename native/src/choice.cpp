// Which token a row chooses: the most likely one, with noise or without, and the probability of a given token. The
// references in torch are engine/sampling/choose.py and spec/trees/ranking.py.
#include <cmath>

#include "kernels.h"
#include "functions.h"

using namespace aerie;

namespace {

// The first of the largest of values(i), a vector of values, and, for the rest, value(i).
template <class Values, class Value>
long largest(long count, Values values, Value value) {
  long place = 0;
  float most = -INFINITY;
  long i = 0;
  if (count >= kLanes) {
    Floats tops = Floats{} - INFINITY;
    Ints places{}, here = lane_numbers();
    for (; i + kLanes <= count; i += kLanes, here += kLanes) {
      const Floats found = values(i);
      const Ints higher = found > tops;
      tops = higher ? found : tops;
      places = higher ? here : places;
    }
    place = places[0];
    most = tops[0];
    for (long lane = 1; lane < kLanes; ++lane) {
      if (tops[lane] > most || (tops[lane] == most && places[lane] < place)) {
        most = tops[lane];
        place = places[lane];
      }
    }
  }
  for (; i < count; ++i) {
    if (value(i) > most) {
      most = value(i);
      place = i;
    }
  }
  return place;
}

}  // namespace

// logits [rows, count] -> out [rows]: argmax(logits / T + noise) of rows whose temperature is at least `greedy_below`,
// argmax(logits) of the others. temperatures [rows] and noise [rows, count] may be null, for argmax alone.
extern "C" void chosen(int64_t* out, const float* logits, const float* temperatures, const float* noise, long rows,
                       long count, float greedy_below) {
  for (long row = 0; row < rows; ++row, logits += count) {
    if (temperatures == nullptr || temperatures[row] < greedy_below) {
      out[row] = largest(
          count, [&](long i) { return load(logits + i); }, [&](long i) { return logits[i]; });
      continue;
    }
    const float temperature = temperatures[row];
    const float* own = noise + row * count;
    out[row] = largest(
        count, [&](long i) { return load(logits + i) / temperature + load(own + i); },
        [&](long i) { return logits[i] / temperature + own[i]; });
  }
}

// log softmax(logits / T) [rows, count] at ids [rows] -> out [rows]; temperatures [rows] may be null for 1.
extern "C" void likelihood(float* out, const float* logits, const int64_t* ids, const float* temperatures, long rows,
                           long count) {
  for (long row = 0; row < rows; ++row, logits += count) {
    const float heat = temperatures ? temperatures[row] : 1.0f;
    const float most = logits[largest(
        count, [&](long i) { return load(logits + i); }, [&](long i) { return logits[i]; })];
    out[row] = (logits[ids[row]] - most) / heat - std::log(exp_sum(logits, count, most, heat));
  }
}
