// Gumbel noise of rows of tokens; its twin in torch is engine/noise.py, whose hash this is.
#include "vectors.h"

using namespace aerie;

namespace {

constexpr uint32_t kGolden = 0x9E3779B1;

template <class Word>
inline Word finalized(Word x) {
  x = (x ^ x >> 16) * 0x85EBCA6Bu;
  x = (x ^ x >> 13) * 0xC2B2AE35u;
  return x ^ x >> 16;
}

// -log(-log1p(-u)) of u = (hash + 1/2) / 2^32, kept below 1. What 1 - u loses by rounding is given back.
inline Floats gumbels(Words hashes) {
  Floats u = (__builtin_convertvector(hashes, Floats) + 0.5f) * 0x1p-32f;
  const float below_one = 1.0f - 0x1p-24f;
  u = u > below_one ? Floats{} + below_one : u;
  const Floats rest = 1.0f - u;
  const Floats lost = (u - (1.0f - rest)) / rest;
  return -log(lost - log(rest));
}

}  // namespace

// keys, positions [rows], tokens [count] -> out [rows, count].
extern "C" void gumbel(float* out, const int64_t* keys, const int64_t* positions, const int64_t* tokens, long rows,
                       long count) {
  for (long row = 0; row < rows; ++row, out += count) {
    const uint64_t key = static_cast<uint64_t>(keys[row]);
    const uint32_t place = finalized(static_cast<uint32_t>(positions[row]) * kGolden + 1u);
    const uint32_t low = finalized(static_cast<uint32_t>(key) ^ place);
    const uint32_t high = finalized(static_cast<uint32_t>(key >> 32) + low);
    const uint32_t first = finalized(low ^ high), second = high >> 1;
    for (long token = 0; token < count; token += kLanes) {
      const long many = count - token < kLanes ? count - token : kLanes;
      Words ids{};
      for (long lane = 0; lane < many; ++lane) ids[lane] = static_cast<uint32_t>(tokens[token + lane]);
      const Floats noise = gumbels(finalized(finalized(ids * kGolden ^ first) + second));
      std::memcpy(out + token, &noise, many * sizeof(float));
    }
  }
}
