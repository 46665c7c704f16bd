// The C++ kernels against loops in double, for a machine that Python's tests do not reach: an emulated one. Prints what is
// wrong, and ends with the number of things that are. tests/native/test_neon.py compiles and runs it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "functions.h"
#include "kernels.h"

extern "C" long panel_size();
extern "C" void gumbel(float* out, const int64_t* keys, const int64_t* positions, const int64_t* tokens, long rows,
                       long count);

using namespace aerie;

namespace {

int wrong = 0;
std::mt19937 source(7);

void check(bool holds, const char* what, long one = 0, long other = 0) {
  if (holds) return;
  ++wrong;
  std::printf("%s is wrong (%ld, %ld)\n", what, one, other);
}

bool near(double ours, double exact, double limit) { return std::abs(ours - exact) <= limit * (1 + std::abs(exact)); }

std::vector<float> drawn_normally(long count) {
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& number : numbers) number = normal(source);
  return numbers;
}

uint16_t half_of(float number) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

float float_of(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

// Both kinds of weights, in panels and as what they are worth.
struct Weights {
  Weights(long outputs, long inputs, bool eight) : outputs(outputs), inputs(inputs), values(outputs * inputs) {
    const long panel = panel_size(), places = (outputs + panel - 1) / panel * panel;
    halves.assign(places * inputs, 0), bytes.assign(places * inputs, 0), scales.assign(places, 0.01f);
    const auto numbers = drawn_normally(outputs * inputs);
    for (long out = 0; out < outputs; ++out) {
      const long place = out % panel, start = out / panel * panel * inputs;
      for (long in = 0; in < inputs; ++in) {
        const float number = numbers[out * inputs + in];
        const auto byte = static_cast<int8_t>(std::clamp(number * 40, -127.0f, 127.0f));
        halves[start + in * panel + place % (panel / 2) * 2 + place / (panel / 2)] = half_of(number);
        bytes[start + in * panel + place] = byte;
        values[out * inputs + in] = eight ? byte * static_cast<double>(scales[0]) : float_of(half_of(number));
      }
    }
  }

  long outputs, inputs;
  std::vector<double> values;
  std::vector<uint16_t> halves;
  std::vector<int8_t> bytes;
  std::vector<float> scales;
};

void check_products(long tokens, long outputs, long inputs, bool eight) {
  const Weights weights(outputs, inputs, eight);
  const auto x = drawn_normally(tokens * inputs), bias = drawn_normally(outputs), before = drawn_normally(tokens * outputs);
  const void* panels = eight ? static_cast<const void*>(weights.bytes.data()) : weights.halves.data();
  const Matrix matrix{panels, eight ? weights.scales.data() : nullptr, bias.data(), outputs, inputs, false};
  auto out = before;
  multiplied(out.data(), x.data(), &matrix, tokens, true);
  for (long token = 0; token < tokens; ++token) {
    std::vector<float> alone(before.begin() + token * outputs, before.begin() + (token + 1) * outputs);
    multiplied(alone.data(), &x[token * inputs], &matrix, 1, true);
    check(!std::memcmp(alone.data(), &out[token * outputs], outputs * sizeof(float)), "a row beside others", tokens, token);
    for (long output = 0; output < outputs; output += 7) {
      double exact = before[token * outputs + output] + static_cast<double>(bias[output]), terms = 0;
      for (long in = 0; in < inputs; ++in) {
        const double term = x[token * inputs + in] * weights.values[output * inputs + in];
        exact += term;
        terms += std::abs(term);
      }
      check(near(out[token * outputs + output], exact, 1e-6 * (1 + terms)), "a product", token, output);
    }
  }
}

void check_functions() {
  for (float x = -86; x < 88; x += 0.37f) check(near(exp(Floats{} + x)[1] / std::exp(double(x)), 1, 3e-7), "exp");
  for (float x = 1e-30f; x < 1e30f; x *= 1.7f) check(near(log(Floats{} + x)[1], std::log(double(x)), 3e-7), "log");
  Floats rows[kLanes];
  const auto numbers = drawn_normally(kLanes * kLanes);
  float each[kLanes];
  for (long i = 0; i < kLanes; ++i) each[i] = sum(rows[i] = load(&numbers[i * kLanes]));
  const Floats together = sums(rows);
  check(!std::memcmp(each, &together, sizeof each), "sums");
  float rounded[kLanes];
  std::copy_n(numbers.begin(), kLanes, rounded);
  settle(rounded, kLanes, true);
  for (long i = 0; i < kLanes; ++i) check(near(rounded[i], numbers[i], 1.0 / 256), "rounding", i);
}

void check_attention(long prefix, long queries, long dim) {
  const long heads = 4, kv_heads = 2, page = 4, covered = prefix + queries, slot = 2 * kv_heads * dim;
  const auto query = drawn_normally(queries * heads * dim), pool = drawn_normally((covered + page) * slot);
  std::vector<int32_t> pages((covered + page - 1) / page);
  for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(pages.size() - 1 - i);
  const int32_t own[] = {0, static_cast<int32_t>(queries)}, bounds[] = {0, static_cast<int32_t>(pages.size())};
  const int64_t length = prefix;
  std::vector<float> out(queries * heads * dim);
  attended(out.data(), query.data(), pool.data(), own, bounds, pages.data(), &length, nullptr, 1, heads * dim, heads, kv_heads,
           dim, page, false);
  for (long node = 0; node < queries; ++node) {
    for (long head = 0; head < heads; ++head) {
      std::vector<double> weights, mixed(dim);
      double all = 0;
      for (long place = 0; place <= prefix + node; ++place) {
        const float* key = &pool[(pages[place / page] * page + place % page) * slot + head / 2 * dim];
        double score = 0;
        for (long i = 0; i < dim; ++i) score += double(key[i]) * query[(node * heads + head) * dim + i];
        all += std::exp(score / std::sqrt(double(dim)));
        for (long i = 0; i < dim; ++i) mixed[i] += std::exp(score / std::sqrt(double(dim))) * key[kv_heads * dim + i];
      }
      for (long i = 0; i < dim; ++i)
        check(near(out[(node * heads + head) * dim + i], mixed[i] / all, 1e-5), "attention", node, head);
    }
  }
}

void check_rows() {
  const long size = 48;
  const auto x = drawn_normally(3 * size), gain = drawn_normally(size), both = drawn_normally(2 * size);
  std::vector<float> out(3 * size), rotated(x);
  const float floor = 1e-3f;
  normed(out.data(), x.data(), gain.data(), &floor, 3, size, size);
  double squares = 0;
  for (long i = 0; i < size; ++i) squares += double(x[size + i]) * x[size + i];
  for (long i = 0; i < size; ++i)
    check(near(out[size + i], x[size + i] / std::sqrt(squares + 1e-6) * gain[i], 1e-6), "the norm", i);
  gated(out.data(), both.data(), 1, size);
  for (long i = 0; i < size; ++i)
    check(near(out[i], both[i] / (1 + std::exp(-double(both[i]))) * both[size + i], 1e-6), "the gate", i);
  const auto rotations = drawn_normally(16);
  std::vector<float> pool(2 * 16);
  const int64_t slot = 0;
  rotated_to(rotated.data(), rotations.data(), pool.data(), &slot, 1, 1, 1, 16, false);
  for (long i = 0; i < 16; i += 2) {
    check(near(rotated[i], double(x[i]) * rotations[i] - double(x[i + 1]) * rotations[i + 1], 1e-6), "a turn", i);
    check(near(rotated[i + 1], double(x[i + 1]) * rotations[i] + double(x[i]) * rotations[i + 1], 1e-6), "a turn", i + 1);
    check(pool[i] == rotated[16 + i] && pool[16 + i] == x[32 + i], "what is written to the pool", i);
  }
}

void check_choices() {
  auto logits = drawn_normally(4001);
  logits[1234] = logits[77] = 9;
  int64_t token = -1;
  chosen(&token, logits.data(), nullptr, nullptr, 1, 4001, 0);
  check(token == 77, "the first of the likeliest", token);
  std::vector<int64_t> ids(4001), places{5, 6}, keys{11, -(int64_t{1} << 62)};
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  std::vector<float> noise(2 * ids.size());
  gumbel(noise.data(), keys.data(), places.data(), ids.data(), 2, 4001);
  for (long row = 0; row < 2; ++row) {
    const float heat = 1;
    int64_t ours, theirs;
    for (float& logit : logits) logit = std::min(logit, 3.0f);
    drawn(&ours, logits.data(), &heat, nullptr, &keys[row], &places[row], 1, 4001, 1e-5f);
    chosen(&theirs, logits.data(), &heat, &noise[row * 4001], 1, 4001, 1e-5f);
    check(ours == theirs, "the draw", ours, theirs);
  }
}

}  // namespace

int main() {
  check_functions();
  for (const bool eight : {false, true}) {
    for (long tokens = 1; tokens <= 33; ++tokens) check_products(tokens, 100, 72, eight);
    check_products(67, 40, 2100, eight);
    check_products(3, 1100, 48, eight);
  }
  for (const long dim : {16, 48, 64, 128, 256}) check_attention(37, 5, dim);
  check_rows();
  check_choices();
  if (!wrong) std::printf("all of the kernels, on vectors of %ld\n", kLanes);
  return std::min(wrong, 100);
}
