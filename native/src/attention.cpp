// Attention over paged keys and values: every query sees its row's prefix and the nodes in its ancestor word. A row's
// prefix is read once for all its queries, but each query has sums of its own in the order of positions, so its result
// does not depend on the rest of the batch.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "crew.h"
#include "kernels.h"
#include "scores.h"
#include "transposed.h"
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
  std::vector<float> asked;          // [some queries, heads, dim] scaled
  std::vector<float> scores;         // [some queries, heads, stride]: of seen slots, -infinity, and a factor at the end
  std::vector<Line> lines;           // [kv heads, some queries, heads of each]
  std::vector<long> nodes;           // those that one query sees
  long stride;
};

// Prefetches `count` positions from `first` on, in so many parts: a core waits for so many lines at once that others
// could not come meanwhile.
template <class Number>
class Ahead {
 public:
  Ahead(const Sight<Number>& sight, long first, long count, long parts, long offset, long size)
      : sight_(sight), next_(first), last_(std::min<long>(first + count, sight.slots.size())),
        each_((count + parts - 1) / parts), offset_(offset), size_(size) {}

  void part() {
    for (const long end = std::min(next_ + each_, last_); next_ < end; ++next_)
      for (long at = 0; at < size_; at += 64 / sizeof(Number)) __builtin_prefetch(sight_.slots[next_] + offset_ + at);
  }

 private:
  const Sight<Number>& sight_;
  long next_;
  const long last_, each_, offset_, size_;
};

// The queries of one row, some at a time. Lines are kept together by the keys that they share, so that each key and
// value is widened once for several.
template <class Number, int Parts>
class Gaze {
 public:
  // out and query [queries, heads, dim], query with token stride `stride`; words [queries], or null for causal.
  Gaze(float* out, const float* query, long stride, long prefix, const int64_t* words, const Rows& rows,
       Sight<Number>& sight)
      : out_(out), query_(query), words_(words), stride_(stride), prefix_(prefix), kv_heads_(rows.kv_heads),
        each_(rows.heads / rows.kv_heads), to_values_(rows.kv_heads * kDim), sight_(sight) {}

  void look(long begin, long end) {
    lay(begin, end);
    over_shared<Scores>(0);
    for (long node = begin; words_ && node < end; ++node) over_own<Scores>(node, node - begin, 0);
    for (const Line& line : sight_.lines) weigh_all(line);
    over_shared<Mixes>(to_values_);
    for (long node = begin; words_ && node < end; ++node) over_own<Mixes>(node, node - begin, to_values_);
    for (const Line& line : sight_.lines)
      for (float* at = line.mixed; at < line.mixed + kDim; at += kLanes)
        store(at, load(at) * line.scores[sight_.stride - 1]);
  }

 private:
  static constexpr long kDim = Parts * kLanes;

  // What runs over `some` lines and `count` positions that they share: at most as many as there are lanes, or kKeys of
  // what is prepared.
  struct Scores {
    template <class Slot>
    static void run(const Line* lines, long some, long first, long count, long offset, Slot slot) {
      if constexpr (kPrepares)
        if (count > kLanes) {
          alignas(Floats) float keys[kDim * kKeys];
          transpose<Number, Parts>(keys, count, offset, slot);
          return in_tiles(lines, some, [&](const Line* tile, auto size) {
            score_transposed<Parts, decltype(size)::value>(tile, first, keys);
          });
        }
      in_tiles(lines, some, [&](const Line* tile, auto size) {
        score<Number, Parts, decltype(size)::value>(tile, first, count, offset, slot);
      });
    }
  };

  struct Mixes {
    template <class Slot>
    static void run(const Line* lines, long some, long first, long count, long offset, Slot slot) {
      if constexpr (kPrepares && !std::is_same_v<Number, float>)
        if (some > kLines) {  // one tile alone would widen them once, too
          alignas(Floats) float values[kKeys * kDim];
          widen<Number, Parts>(values, count, offset, slot);
          return in_tiles(lines, some, [&](const Line* tile, auto size) {
            mix<float, Parts, decltype(size)::value>(tile, first, count, 0, [&](long i) { return values + i * kDim; });
          });
        }
      in_tiles(lines, some, [&](const Line* tile, auto size) {
        mix<Number, Parts, decltype(size)::value>(tile, first, count, offset, slot);
      });
    }
  };

  void lay(long begin, long end) {
    const long nodes = end - begin, all = static_cast<long>(sight_.slots.size());
    sight_.asked.resize(nodes * kv_heads_ * each_ * kDim);
    sight_.scores.resize(nodes * kv_heads_ * each_ * sight_.stride);
    sight_.lines.clear();
    for (long group = 0; group < kv_heads_; ++group)
      for (long node = begin; node < end; ++node)
        for (long head = group * each_; head < (group + 1) * each_; ++head) {
          const long place = (node - begin) * kv_heads_ * each_ + head;
          float* asked = &sight_.asked[place * kDim];
          float* mixed = out_ + (node * kv_heads_ * each_ + head) * kDim;
          scale(asked, query_ + node * stride_ + head * kDim, kDim);
          std::fill_n(mixed, kDim, 0.0f);
          sight_.lines.push_back({asked, &sight_.scores[place * sight_.stride], mixed,
                                  words_ ? prefix_ : std::min(prefix_ + node + 1, all)});
        }
    lines_ = nodes * each_;
    at_once_ = kPrepares && lines_ >= kLines ? kKeys : kLanes;
  }

  // Calls work(lines, how many) for all of `count` lines, in tiles of about equally many.
  template <class Work>
  static void in_tiles(const Line* lines, int count, const Work& work) {
    for (int tiles = (count + kLines - 1) / kLines; tiles > 0; --tiles) {
      const int some = (count + tiles - 1) / tiles;
      in_tile<kLines>(some, lines, work);
      lines += some, count -= some;
    }
  }

  template <int Lines, class Work>
  static void in_tile(int some, const Line* lines, const Work& work) {
    if (some == Lines) return work(lines, std::integral_constant<int, Lines>());
    if constexpr (Lines > 1) in_tile<Lines - 1>(some, lines, work);
  }

  // What all lines see but for the nodes of a tree: takes some positions at a time, and prefetches what comes after them.
  // A line may take in positions that it does not see, as the last ones of a block: their scores become -infinity, and
  // so their weights are zero.
  template <class Work>
  void over_shared(long offset) const {
    const auto shared = [&](const Line& line) { return words_ ? prefix_ : line.seen; };
    const long most = shared(sight_.lines[lines_ - 1]);  // the last query sees the most
    for (long first = 0, begin = 0; first < most; first += at_once_) {
      Ahead<Number> ahead(sight_, first + at_once_, at_once_, kv_heads_, offset, to_values_);
      const auto slot = [&](long i) { return sight_.slots[first + i]; };
      while (shared(sight_.lines[begin]) <= first) ++begin;
      for (long group = 0; group < kv_heads_; ++group) {
        ahead.part();
        Work::run(&sight_.lines[group * lines_ + begin], lines_ - begin, first, std::min(at_once_, most - first),
                  offset + group * kDim, slot);
      }
    }
  }

  // The nodes of a tree that a query sees, including itself: after the prefix.
  template <class Work>
  void over_own(long node, long place, long offset) const {
    see(node);
    for (long group = 0; group < kv_heads_; ++group) {
      Line* lines = &sight_.lines[group * lines_ + place * each_];
      for (long line = 0; line < each_; ++line) lines[line].seen = prefix_ + static_cast<long>(sight_.nodes.size());
      for (long first = 0; first < static_cast<long>(sight_.nodes.size()); first += kLanes)
        Work::run(lines, each_, prefix_ + first, std::min<long>(kLanes, sight_.nodes.size() - first),
                  offset + group * kDim, [&](long i) { return sight_.slots[prefix_ + sight_.nodes[first + i]]; });
    }
  }

  void see(long node) const {
    sight_.nodes.clear();
    const long own = static_cast<long>(sight_.slots.size()) - prefix_;
    for (uint64_t word = static_cast<uint64_t>(words_[node]); word; word &= word - 1)
      if (const long other = __builtin_ctzll(word); other < own) sight_.nodes.push_back(other);
  }

  void weigh_all(const Line& line) const {
    const long padded = std::max((line.seen + at_once_ - 1) / at_once_ * at_once_, kLanes);
    std::fill(line.scores + line.seen, line.scores + padded, -INFINITY);
    line.scores[sight_.stride - 1] = weigh(line.scores, padded);
  }

  float* const out_;
  const float* const query_;
  const int64_t* const words_;
  const long stride_, prefix_, kv_heads_, each_, to_values_;
  Sight<Number>& sight_;
  long lines_ = 0, at_once_ = 0;  // of each head of keys, and the positions that they take at a time
};

// Whether all these nodes of a row see every node up to themselves, as those of a chain do: then they see what tokens
// of a prompt see, each in the same order.
bool causal(const int64_t* words, long first, long last) {
  for (long node = first; node < last; ++node)
    if (words[node] != static_cast<int64_t>((uint64_t{2} << node) - 1)) return false;
  return true;
}

// The queries from `first` to `last` of a row, as many at a time as have their scores in the cache.
template <class Number, int Parts>
void look(float* out, const float* query, long stride, long prefix, long first, long last, const int64_t* words,
          const Rows& rows, Sight<Number>& sight) {
  if (words && causal(words, first, last)) words = nullptr;
  Gaze<Number, Parts> gaze(out, query, stride, prefix, words, rows, sight);
  const long most = std::max(kScores / (rows.heads * sight.stride), 1L);
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
  sight.stride = (reach + kKeys - 1) / kKeys * kKeys + kLanes;
  for_heads_of<Number>(rows.dim)(out + first * rows.heads * rows.dim, query + first * stride, stride, prefix,
                                 std::max(begin - first, 0L), std::min(end - first, queries),
                                 rows.words ? rows.words + first : nullptr, rows, sight);
}

template <class Number>
void attend(float* out, const float* query, long stride, const Number* pool, const Rows& rows) {
  in_parts(rows.qo_indptr[rows.count], kAlone, [=, &rows](long begin, long end) {
    static thread_local Sight<Number> sight;
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
