// Gumbel noise of rows of tokens; the reference in torch is engine/sampling/noise.py, which has the same hash.
#include <algorithm>
#include <cmath>

#include "kernels.h"
#include "functions.h"

using namespace aerie;

namespace {

constexpr uint32_t kGolden = 0x9E3779B1;

template <class Word>
inline Word finalized(Word x) {
  x = (x ^ x >> 16) * 0x85EBCA6Bu;
  x = (x ^ x >> 13) * 0xC2B2AE35u;
  return x ^ x >> 16;
}

// -log(-log1p(-u)) for u = (hash + 1/2) / 2^32, kept below 1. Compensates for the rounding of 1 - u.
inline Floats gumbels(Words hashes) {
  Floats u = (__builtin_convertvector(hashes, Floats) + 0.5f) * 0x1p-32f;
  const float below_one = 1.0f - 0x1p-24f;
  u = u > below_one ? Floats{} + below_one : u;
  const Floats rest = 1.0f - u;
  const Floats lost = (u - (1.0f - rest)) / rest;
  return -log(lost - log(rest));
}

// The noise of one row of tokens.
class Row {
 public:
  Row(int64_t key, int64_t position) {
    const uint64_t whole = static_cast<uint64_t>(key);
    const uint32_t place = finalized(static_cast<uint32_t>(position) * kGolden + 1u);
    const uint32_t low = finalized(static_cast<uint32_t>(whole) ^ place);
    const uint32_t high = finalized(static_cast<uint32_t>(whole >> 32) + low);
    first_ = finalized(low ^ high);
    second_ = high >> 1;
  }

  Floats of(Words ids) const { return gumbels(finalized(finalized(ids * kGolden ^ first_) + second_)); }

 private:
  uint32_t first_, second_;
};

inline Words ids_from(uint32_t first) { return same_bits<Words>(lane_numbers()) + first; }

// The first of the largest of logits / T + noise, among those whose logit / T is at least `edge`. Noise has a maximum,
// so only tokens that could still win get any.
int64_t winner(const float* logits, long count, float temperature, float edge, const Row& noise) {
  static const float most = gumbels(Words{})[0];  // noise falls as hashes rise
  const long whole = count / kLanes * kLanes;
  const auto block = [&](long i) {  // what lies past the end never wins
    float rest[kLanes];
    if (i >= whole) {
      std::fill_n(rest, kLanes, -INFINITY);
      std::copy(logits + i, logits + count, rest);
    }
    const Floats scaled = load(i < whole ? logits + i : rest) / temperature;
    return scaled < edge ? Floats{} - INFINITY : scaled;
  };
  int64_t likeliest;
  chosen(&likeliest, logits, nullptr, nullptr, 1, count, 0.0f);
  const long own = likeliest / kLanes * kLanes;
  float best = (block(own) + noise.of(ids_from(own)))[likeliest - own];
  int64_t place = likeliest;
  for (long i = 0; i < count; i += kLanes) {
    const Floats scaled = block(i);
    if (!any(scaled + most >= best)) continue;
    const Floats found = scaled + noise.of(ids_from(i));
    for (long lane = 0; lane < kLanes; ++lane) {
      if (found[lane] > best || (found[lane] == best && i + lane < place)) {
        best = found[lane];
        place = i + lane;
      }
    }
  }
  return place;
}

}  // namespace

// keys, positions [rows], tokens [count] -> out [rows, count].
extern "C" void gumbel(float* out, const int64_t* keys, const int64_t* positions, const int64_t* tokens, long rows,
                       long count) {
  for (long row = 0; row < rows; ++row, out += count) {
    const Row noise(keys[row], positions[row]);
    for (long token = 0; token < count; token += kLanes) {
      const long many = count - token < kLanes ? count - token : kLanes;
      Words ids{};
      for (long lane = 0; lane < many; ++lane) ids[lane] = static_cast<uint32_t>(tokens[token + lane]);
      const Floats found = noise.of(ids);
      std::memcpy(out + token, &found, many * sizeof(float));
    }
  }
}

// logits [rows, count], temperatures, keys and positions [rows] -> out [rows]: what `chosen` returns with the noise
// that `gumbel` makes for every token; most of it is never made. Only tokens that `edges` [rows] leave, unless null.
extern "C" void drawn(int64_t* out, const float* logits, const float* temperatures, const float* edges,
                      const int64_t* keys, const int64_t* positions, long rows, long count, float greedy_below) {
  for (long row = 0; row < rows; ++row, logits += count) {
    if (temperatures[row] < greedy_below)
      chosen(out + row, logits, nullptr, nullptr, 1, count, greedy_below);
    else
      out[row] = winner(logits, count, temperatures[row], edges ? edges[row] : -INFINITY, Row(keys[row], positions[row]));
  }
}
