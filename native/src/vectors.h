// Vectors of as many floats as fit in one register: sixteen with AVX-512, eight with AVX2, four with SSE, NEON and
// everything else, where compilers lower these generic vectors to what the machine has.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace aerie {

#if defined(__AVX512F__)
constexpr long kLanes = 16, kRegisters = 32;
#elif defined(__AVX2__)
constexpr long kLanes = 8, kRegisters = 16;
#elif defined(__aarch64__)
constexpr long kLanes = 4, kRegisters = 32;
#else
constexpr long kLanes = 4, kRegisters = 16;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
typedef int16_t Shorts __attribute__((vector_size(2 * kLanes)));
typedef int8_t Bytes __attribute__((vector_size(kLanes)));

template <class Vector, class Number>
inline Vector load(const Number* from) {
  Vector lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

inline Floats load(const float* from) { return load<Floats>(from); }

template <class Vector, class Number>
inline void store(Number* to, Vector lanes) {
  std::memcpy(to, &lanes, sizeof lanes);
}

template <class To, class From>
inline To same_bits(From lanes) {
  static_assert(sizeof(To) == sizeof(From));
  To other;
  std::memcpy(&other, &lanes, sizeof other);
  return other;
}

// bf16 numbers: the upper halves of floats.
inline Floats widened(const uint16_t* from) {
#if defined(__AVX512F__)  // GCC would do it in halves
  return same_bits<Floats>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load<__m256i>(from)), 16));
#elif defined(__AVX2__)  // and here in quarters
  return same_bits<Floats>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load<__m128i>(from)), 16));
#else
  return same_bits<Floats>(__builtin_convertvector(load<Halves>(from), Words) << 16);
#endif
}

// Numbers of the types of activations and pools, to floats and back; bf16 is rounded to nearest, ties to even.
inline Floats floats(const float* from) { return load(from); }

inline Floats floats(const uint16_t* from) { return widened(from); }

inline void put(float* to, Floats lanes) { store(to, lanes); }

inline void put(uint16_t* to, Floats lanes) {
  const Words bits = same_bits<Words>(lanes);
  const Words rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  store(to, __builtin_convertvector(lanes == lanes ? rounded : Words{} + 0x7FC0u, Halves));
}

// `count` numbers, in whole vectors, of floats or of bf16, to floats and back.
inline void unpack(float* to, const void* from, long count, bool halves) {
  if (!halves) std::memcpy(to, from, count * sizeof(float));
  for (long i = 0; halves && i < count; i += kLanes) store(to + i, widened(static_cast<const uint16_t*>(from) + i));
}

inline void pack(void* to, const float* from, long count, bool halves) {
  if (!halves) std::memcpy(to, from, count * sizeof(float));
  for (long i = 0; halves && i < count; i += kLanes) put(static_cast<uint16_t*>(to) + i, load(from + i));
}

// `count` floats, rounded to bf16, in whole vectors, of which the last is filled with zeros.
inline void halve(uint16_t* to, const float* from, long count) {
  long i = 0;
  for (; i + kLanes <= count; i += kLanes) put(to + i, load(from + i));
  if (i == count) return;
  float rest[kLanes] = {};
  std::memcpy(rest, from + i, (count - i) * sizeof(float));
  put(to + i, load(rest));
}

// Rounds `count` floats to bf16 with `halves`, as a model in bf16 would.
inline void settle(float* numbers, long count, bool halves) {
  if (!halves) return;
  uint16_t rounded[kLanes];
  long i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    put(rounded, load(numbers + i));
    store(numbers + i, widened(rounded));
  }
  if (i == count) return;
  float rest[kLanes] = {};
  std::memcpy(rest, numbers + i, (count - i) * sizeof(float));
  settle(rest, kLanes, true);
  std::memcpy(numbers + i, rest, (count - i) * sizeof(float));
}

// 8-bit integers.
inline Floats widened(const int8_t* from) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(from)));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  const Shorts wider = __builtin_convertvector(load<Bytes>(from), Shorts);  // in one step GCC converts lane by lane
  return __builtin_convertvector(__builtin_convertvector(wider, Ints), Floats);
#endif
}

// Lane l is number Order::of(l) of two adjacent vectors.
template <class Order, class Vector, std::size_t... Lane>
inline Vector shuffled(Vector one, Vector other, std::index_sequence<Lane...>) {
#ifdef __clang__
  return __builtin_shufflevector(one, other, Order::of(Lane)...);
#else
  return __builtin_shuffle(one, other, Ints{Order::of(Lane)...});
#endif
}

template <class Order, class Vector>
inline Vector shuffled(Vector one, Vector other) {
  return shuffled<Order>(one, other, std::make_index_sequence<kLanes>());
}

// Of two vectors in blocks, the first blocks of one and the second blocks of the other, each at its place.
template <int Block>
struct FirstAndSecond {
  static constexpr int of(int lane) { return lane & Block ? kLanes + lane : lane; }
};

// The two blocks of each pair change places.
template <int Block>
struct Exchanged {
  static constexpr int of(int lane) { return lane ^ Block; }
};

// The sums of each two blocks of one vector, and at the places of the second ones those of the other. Only one shuffle
// crosses lanes; the others keep them, and have more ports.
template <int Block>
inline Floats folded(Floats one, Floats other) {
  const Floats moved = shuffled<FirstAndSecond<Block>>(other, one);
  return shuffled<FirstAndSecond<Block>>(one, other) + shuffled<Exchanged<Block>>(moved, moved);
}

// In halves, always in the same order.
inline float sum(Floats lanes) {
  if constexpr (kLanes > 8) lanes = folded<8>(lanes, lanes);
  if constexpr (kLanes > 4) lanes = folded<4>(lanes, lanes);
  lanes = folded<2>(lanes, lanes);
  return folded<1>(lanes, lanes)[0];
}

// Folds Count vectors into one, the first half of them with the second, in blocks of Block lanes and then smaller ones.
template <int Block, int Count>
inline Floats fold(Floats* of) {
  if constexpr (Count > 1) {
#pragma GCC unroll 8
    for (int i = 0; i < Count / 2; ++i) of[i] = folded<Block>(of[i], of[i + Count / 2]);
    return fold<Block / 2, Count / 2>(of);
  }
  return of[0];
}

// `sum` of as many vectors as there are lanes, each to its lane, in the same order and with few more operations than
// one.
inline Floats sums(Floats* of) { return fold<kLanes / 2, kLanes>(of); }

template <std::size_t... Lane>
inline Ints lane_numbers(std::index_sequence<Lane...>) {
  return Ints{Lane...};
}

// 0, 1, 2 ..
inline Ints lane_numbers() { return lane_numbers(std::make_index_sequence<kLanes>()); }

// Whether any lane of a comparison is true.
inline bool any(Ints lanes) {
  int64_t parts[sizeof lanes / sizeof(int64_t)], all = 0;
  std::memcpy(parts, &lanes, sizeof lanes);
  for (const int64_t part : parts) all |= part;
  return all != 0;
}

}  // namespace aerie
