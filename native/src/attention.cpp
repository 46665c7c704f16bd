// Attention over paged keys and values: every query sees its row's prefix and the nodes in its ancestor word. A row's
// prefix is read once for all its queries, but each query is computed separately in the order of positions, so its
// result does not depend on the rest of the batch.
#include <algorithm>
#include <cmath>
#include <vector>

#include "crew.h"
#include "kernels.h"
#include "scores.h"
#include "vectors.h"

using namespace aerie;

namespace {

constexpr long kScores = 1 << 18;  // one MiB
constexpr long kBlock = 16;        // head sizes are multiples of this
constexpr long kAlone = 4;         // queries that are not worth a second thread

struct Rows {
  const int32_t *qo_indptr, *kv_indptr, *pages;
  const int64_t *prefixes, *words;
  long count, heads, kv_heads, dim, page_size;
};

// What the queries of a row see, by slot, and its weights.
template <class Number>
struct Sight {
  std::vector<const Number*> slots;  // the prefix, then the row's nodes
  std::vector<float> scores;         // [some queries, heads, stride]: of seen slots, -infinity, and a factor at the end
  std::vector<long> nodes;           // those that one query sees
  std::vector<long> keys;            // offset in a slot of each head's key
  long stride;
};

// Prefetches as many positions as there are lanes, some at a time: a core waits for so many lines at once that others
// could not come meanwhile.
template <class Number>
class Ahead {
 public:
  Ahead(const Sight<Number>& sight, long first, long offset, long size)
      : sight_(sight), next_(first), last_(std::min<long>(first + kLanes, sight.slots.size())), offset_(offset),
        size_(size) {}

  void some(long positions) {
    for (const long end = std::min(next_ + positions, last_); next_ < end; ++next_)
      for (long at = 0; at < size_; at += 64 / sizeof(Number)) __builtin_prefetch(sight_.slots[next_] + offset_ + at);
  }

 private:
  const Sight<Number>& sight_;
  long next_;
  const long last_, offset_, size_;
};

// The queries of one row, some at a time.
template <class Number, int Parts>
class Gaze {
 public:
  // out and query [queries, heads, dim], query with token stride `stride`; words [queries], or null for causal.
  Gaze(float* out, const float* query, long stride, long prefix, const int64_t* words, const Rows& rows,
       Sight<Number>& sight)
      : out_(out), query_(query), words_(words), stride_(stride), prefix_(prefix), heads_(rows.heads),
        to_values_(rows.kv_heads * kDim), at_once_((2 * kLanes + heads_ - 1) / heads_), sight_(sight) {}

  void look(long begin, long end) {
    begin_ = begin;
    over_prefix(0, [&](long first, long count, Ahead<Number>& ahead) {
      for (long node = begin; node < end; ++node)
        score_all(node, first, count, [&](long i) { return sight_.slots[first + i]; }, [&] { ahead.some(at_once_); });
    });
    for (long node = begin; node < end; ++node) weigh_own(node);
    over_prefix(to_values_, [&](long first, long count, Ahead<Number>& ahead) {
      for (long node = begin; node < end; ++node)
        mix_all(node, first, count, [&](long i) { return sight_.slots[first + i]; }, [&] { ahead.some(at_once_); });
    });
    for (long node = begin; node < end; ++node) mix_own(node);
  }

 private:
  static constexpr long kDim = Parts * kLanes;

  float* scores(long node, long head) const {
    return &sight_.scores[((node - begin_) * heads_ + head) * sight_.stride];
  }

  float& share(long node, long head) const { return scores(node, head)[sight_.stride - 1]; }

  float* mixed(long node, long head) const { return out_ + (node * heads_ + head) * kDim; }

  // Takes as many positions at a time as there are lanes; `work` prefetches what comes after them.
  template <class Work>
  void over_prefix(long offset, Work work) const {
    for (long first = 0; first < prefix_; first += kLanes) {
      Ahead<Number> ahead(sight_, first + kLanes, offset, to_values_);
      work(first, std::min(kLanes, prefix_ - first), ahead);
    }
  }

  // The nodes of the row that a query sees, including itself.
  void see(long node) const {
    sight_.nodes.clear();
    const long own = static_cast<long>(sight_.slots.size()) - prefix_;
    if (words_ == nullptr) {
      for (long other = 0; other <= node && other < own; ++other) sight_.nodes.push_back(other);
    } else {
      for (uint64_t word = static_cast<uint64_t>(words_[node]); word; word &= word - 1)
        if (const long other = __builtin_ctzll(word); other < own) sight_.nodes.push_back(other);
    }
  }

  // Processes heads that share keys in pairs, with `between` before each.
  template <class Slot, class Between>
  void score_all(long node, long first, long count, Slot slot, Between between) const {
    for (long head = 0; head < heads_;) {
      between();
      const bool two = pairs(head);
      Floats asked[2][Parts];
      float* const found[] = {scores(node, head) + first, scores(node, head + two) + first};
      for (long one = 0; one <= two; ++one) scaled<Parts>(asked[one], query_ + node * stride_ + (head + one) * kDim);
      if (two)
        score<Number, Parts, 2>(found, asked, count, sight_.keys[head], slot);
      else
        score<Number, Parts, 1>(found, asked, count, sight_.keys[head], slot);
      head += two ? 2 : 1;
    }
  }

  bool pairs(long head) const { return head + 1 < heads_ && sight_.keys[head + 1] == sight_.keys[head]; }

  void weigh_own(long node) const {
    see(node);
    const long own = static_cast<long>(sight_.nodes.size()), seen = prefix_ + own;
    const long padded = std::max((seen + kLanes - 1) / kLanes * kLanes, kLanes);
    for (long first = 0; first < own; first += kLanes)
      score_all(node, prefix_ + first, std::min(kLanes, own - first),
                [&](long i) { return sight_.slots[prefix_ + sight_.nodes[first + i]]; }, [] {});
    for (long head = 0; head < heads_; ++head) {
      float* found = scores(node, head);
      std::fill(found + seen, found + padded, -INFINITY);
      share(node, head) = weigh(found, padded);
      std::fill_n(mixed(node, head), kDim, 0.0f);
    }
  }

  // As score_all: the sums of one head wait for each other.
  template <class Slot, class Between>
  void mix_all(long node, long first, long count, Slot slot, Between between) const {
    for (long head = 0; head < heads_;) {
      between();
      const long offset = to_values_ + sight_.keys[head];
      const bool two = pairs(head);
      float* const outs[] = {mixed(node, head), mixed(node, head + two)};
      const float* const weights[] = {scores(node, head) + first, scores(node, head + two) + first};
      if (two)
        mix<Number, Parts, 2>(outs, weights, count, offset, slot);
      else
        mix<Number, Parts, 1>(outs, weights, count, offset, slot);
      head += two ? 2 : 1;
    }
  }

  void mix_own(long node) const {
    see(node);
    mix_all(node, prefix_, static_cast<long>(sight_.nodes.size()),
            [&](long i) { return sight_.slots[prefix_ + sight_.nodes[i]]; }, [] {});
    for (long head = 0; head < heads_; ++head)
      for (float* at = mixed(node, head); at < mixed(node, head) + kDim; at += kLanes)
        store(at, load(at) * share(node, head));
  }

  float* const out_;
  const float* const query_;
  const int64_t* const words_;
  const long stride_, prefix_, heads_, to_values_;
  const long at_once_;  // positions to prefetch beside the work of two heads
  Sight<Number>& sight_;
  long begin_ = 0;
};

// The queries from `first` to `last` of a row, as many at a time as have their scores in the cache.
template <class Number, int Parts>
void look(float* out, const float* query, long stride, long prefix, long first, long last, const int64_t* words,
          const Rows& rows, Sight<Number>& sight) {
  Gaze<Number, Parts> gaze(out, query, stride, prefix, words, rows, sight);
  const long most = std::max(kScores / (rows.heads * sight.stride), 1L);
  sight.scores.resize(std::min(most, last - first) * rows.heads * sight.stride);
  for (long begin = first; begin < last; begin += most) gaze.look(begin, std::min(begin + most, last));
}

template <class Number>
using Look = void (*)(float*, const float*, long, long, long, long, const int64_t*, const Rows&, Sight<Number>&);

template <class Number, int... Blocks>
struct Looks {
  static constexpr Look<Number> of[] = {look<Number, Blocks * kBlock / kLanes>...};
};

// Heads of up to 128 elements, and of 256.
template <class Number>
Look<Number> for_heads_of(long dim) {
  return dim == 256 ? look<Number, 256 / kLanes> : Looks<Number, 1, 2, 3, 4, 5, 6, 7, 8>::of[dim / kBlock - 1];
}

// Those of the batch's queries `begin` to `end` that are of one row.
template <class Number>
void attend(float* out, const float* query, long stride, const Number* pool, const Rows& rows, long row, long begin,
            long end, Sight<Number>& sight) {
  const long slot_size = 2 * rows.kv_heads * rows.dim;
  const int32_t* own = rows.pages + rows.kv_indptr[row];
  // Plans cover every position, except those of rows that are done: these may look where they have no page.
  const long covered = (rows.kv_indptr[row + 1] - rows.kv_indptr[row]) * rows.page_size;
  const long first = rows.qo_indptr[row], queries = rows.qo_indptr[row + 1] - first;
  const long prefix = std::min<long>(rows.prefixes[row], covered);
  const long reach = std::min(prefix + (rows.words ? std::max<long>(queries, 64) : queries), covered);
  sight.slots.clear();
  for (long page = 0; page * rows.page_size < reach; ++page) {  // dividing per position would cost as much as all
    const Number* start = pool + own[page] * rows.page_size * slot_size;
    for (long at = 0; at < std::min(rows.page_size, reach - page * rows.page_size); ++at)
      sight.slots.push_back(start + at * slot_size);
  }
  sight.stride = (reach + kLanes - 1) / kLanes * kLanes + kLanes;
  for_heads_of<Number>(rows.dim)(out + first * rows.heads * rows.dim, query + first * stride, stride, prefix,
                                 std::max(begin - first, 0L), std::min(end - first, queries),
                                 rows.words ? rows.words + first : nullptr, rows, sight);
}

template <class Number>
void attend(float* out, const float* query, long stride, const Number* pool, const Rows& rows) {
  in_parts(rows.qo_indptr[rows.count], kAlone, [=, &rows](long begin, long end) {
    static thread_local Sight<Number> sight;
    sight.keys.resize(rows.heads);
    for (long head = 0; head < rows.heads; ++head) sight.keys[head] = head / (rows.heads / rows.kv_heads) * rows.dim;
    for (long row = 0; row < rows.count; ++row)
      if (rows.qo_indptr[row] < end && begin < rows.qo_indptr[row + 1])
        attend(out, query, stride, pool, rows, row, begin, end, sight);
  });
}

}  // namespace

// query [queries, heads, dim] with token stride `stride`; pool [slots, 2, kv_heads, dim] of floats or, with `halves`,
// of bf16; words [queries], or null for causal -> out [queries, heads, dim]. The other arrays are those of
// AttentionInputs.
extern "C" void attended(float* out, const float* query, const void* pool, const int32_t* qo_indptr,
                         const int32_t* kv_indptr, const int32_t* pages, const int64_t* prefixes, const int64_t* words,
                         long rows, long stride, long heads, long kv_heads, long dim, long page_size, bool halves) {
  const Rows all{qo_indptr, kv_indptr, pages, prefixes, words, rows, heads, kv_heads, dim, page_size};
  if (halves)
    attend(out, query, stride, static_cast<const uint16_t*>(pool), all);
  else
    attend(out, query, stride, static_cast<const float*>(pool), all);
}
