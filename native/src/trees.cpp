// Builds trees from a head's outputs. The references in torch are spec/drafters/frontier.py and spec/trees/tree.py.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels.h"
#include "functions.h"

using namespace aerie;

namespace {

struct Candidate {
  float score;
  int64_t place;

  bool better_than(const Candidate& other) const {
    return score > other.score || (score == other.score && place < other.place);
  }
};

// The best so far, in descending order; ties keep the one that was offered first.
class Best {
 public:
  explicit Best(long wanted) : kept_(wanted) {}

  void clear() { count_ = 0; }
  bool full() const { return count_ == static_cast<long>(kept_.size()); }
  float least() const { return kept_[count_ - 1].score; }
  const Candidate& operator[](long place) const { return kept_[place]; }

  void offer(float score, int64_t place) {
    if (!(score < INFINITY)) score = -INFINITY;  // NaN cannot be ordered among the others
    if (full() && score <= least()) return;
    long at = full() ? count_ - 1 : count_++;
    for (; at > 0 && score > kept_[at - 1].score; --at) kept_[at] = kept_[at - 1];
    kept_[at] = {score, place};
  }

 private:
  std::vector<Candidate> kept_;
  long count_ = 0;
};

// Returns whether all values are numbers or -infinity.
bool find_best(Best& best, const float* values, long count) {
  best.clear();
  Ints broken{};
  long i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats found = load(values + i);
    broken |= ~(found < INFINITY);
    if (best.full() && !any(found > best.least())) continue;
    for (long lane = 0; lane < kLanes; ++lane) best.offer(found[lane], i + lane);
  }
  bool sound = !any(broken);
  for (; i < count; ++i) {
    sound &= values[i] < INFINITY;
    best.offer(values[i], i);
  }
  return sound;
}

// The score of a child on an edge of a node: rounding never lifts it above its parent's.
float below(float score, float edge) { return score + (edge > 0 ? 0 : edge == edge ? edge : -INFINITY); }

}  // namespace

// z [rows * nodes, count] of frontier nodes with scores and indices [rows, nodes] -> the `wanted` best of each, [rows,
// nodes, wanted]: scores, parents and draft ids, the latter through `mapping` [count] unless it is null. A node with a
// NaN or +infinity in its z has children of -infinity.
extern "C" void children(float* scores, int64_t* parents, int64_t* tokens, const float* z, const float* own,
                         const int64_t* indices, const int64_t* mapping, long frontier, long count, long wanted,
                         float heat) {
  Best best(wanted);
  for (long node = 0; node < frontier; ++node, z += count) {
    const bool sound = find_best(best, z, count);
    const float whole = sound ? best[0].score / heat + std::log(exp_sum(z, count, best[0].score, heat)) : NAN;
    for (long child = 0; child < wanted; ++child) {
      *scores++ = below(own[node], best[child].score / heat - whole);
      *parents++ = indices[node];
      *tokens++ = mapping ? mapping[best[child].place] : best[child].place;
    }
  }
}

// The `wanted` best of a level's candidates [rows, nodes * wanted] become the next frontier [rows, wanted]: their
// scores, their indices from `first` on, their tokens, their words with bits from `bit` on, and what their parents in
// the old frontier pass on: `size` bytes of `feedback` [rows, nodes] each.
extern "C" void advanced(float* scores, int64_t* indices, int64_t* words, int64_t* tokens, char* fed,
                         const float* level_scores, const int64_t* level_tokens, const int64_t* frontier_words,
                         const char* feedback, long rows, long nodes, long wanted, long first, long bit, long size) {
  Best best(wanted);
  for (long row = 0; row < rows; ++row) {
    find_best(best, level_scores, nodes * wanted);
    for (long place = 0; place < wanted; ++place, fed += size) {
      const int64_t picked = best[place].place, parent = picked / wanted;
      *scores++ = best[place].score;
      *indices++ = first + picked;
      *words++ = frontier_words[parent] | int64_t{1} << (bit + place);
      *tokens++ = level_tokens[picked];
      std::memcpy(fed, feedback + parent * size, size);
    }
    level_scores += nodes * wanted;
    level_tokens += nodes * wanted;
    frontier_words += nodes;
    feedback += nodes * size;
  }
}

// The best counts [rows] of candidates [rows, total] -> tokens, depths, parents and words [rows, widest]. NaN and
// +infinity count as -infinity, and no score exceeds its parent's.
extern "C" void selected(int64_t* tokens, int64_t* depths, int64_t* parents, int64_t* words, const int64_t* drafted,
                         const float* scores, const int64_t* drafted_parents, const int64_t* drafted_depths,
                         const int64_t* counts, long rows, long total, long widest) {
  std::vector<int64_t> order(total), places(total);
  std::vector<float> sound(total);
  for (long row = 0; row < rows; ++row) {
    const long count = std::min<long>(counts[row], widest);
    for (long i = 0; i < total; ++i) {  // parents come first
      sound[i] = scores[i] < INFINITY ? scores[i] : -INFINITY;
      sound[i] = std::min(sound[i], sound[drafted_parents[i]]);
    }
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int64_t one, int64_t other) {
      return Candidate{sound[one], one}.better_than({sound[other], other});
    });
    std::sort(order.begin(), order.begin() + count);
    for (long node = 0; node < widest; ++node) {
      const bool real = node < count;
      const int64_t candidate = real ? order[node] : total - 1;
      if (real) places[candidate] = node;
      const int64_t parent = real ? places[drafted_parents[candidate]] : 0;
      *tokens++ = drafted[candidate];
      *depths++ = real ? drafted_depths[candidate] : 0;
      parents[node] = parent;
      words[node] = (node ? words[parent] : 0) | int64_t{1} << node;
    }
    drafted += total;
    scores += total;
    drafted_parents += total;
    parents += widest;
    words += widest;
  }
}
