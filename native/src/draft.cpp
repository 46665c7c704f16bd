// A head's draft in one call: level by level, it reads tokens off its last output and runs a pass over the next nodes.
// The references in torch are spec/drafters/eagle3.py and spec/drafters/frontier.py.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "head.h"

using namespace aerie;

namespace {

// What is kept from level to level, for `nodes` nodes of each row that drafts on.
class Drafting {
 public:
  Drafting(const Head& head, const Tables& tables, const Roots& roots, long nodes, long depth)
      : feedback(roots.seeds, roots.seeds + roots.rows.count * head.body.hidden),
        head_(head),
        owners_(roots.rows.owners, roots.rows.owners + roots.rows.count),
        lengths_(roots.rows.lengths, roots.rows.lengths + roots.rows.count),
        nodes_(nodes),
        scratch_(nodes * (depth - 1)),
        pass_(head.body, tables) {
    lay();
  }

  // Only these of the rows so far draft on, in this order; ascending.
  void keep(const std::vector<long>& rows) {
    if (rows.size() == owners_.size()) return;
    const long wide = static_cast<long>(feedback.size() / owners_.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      owners_[i] = owners_[rows[i]], lengths_[i] = lengths_[rows[i]];
      std::copy_n(&feedback[rows[i] * wide], wide, &feedback[i * wide]);
    }
    owners_.resize(rows.size()), lengths_.resize(rows.size()), feedback.resize(rows.size() * wide);
    lay();
  }

  // Reads the last outputs; `feedback` is what their children are fed.
  void read() {
    aerie::read(normed_, logits, feedback.data(), head_.body, static_cast<long>(feedback.size()) / head_.body.hidden);
    if (head_.norm_output) feedback = normed_;
  }

  // The head's pass over the nodes of depth `level`: tokens and words [rows, nodes], with `feedback` as input.
  void pass(long level, const int64_t* tokens, const int64_t* words) {
    for (long i = 0; i < static_cast<long>(owners_.size()) * nodes_; ++i) {
      const long row = i / nodes_, length = lengths_[row];
      pass_.put(i, row, tokens[i], length + (level - 1) * nodes_ + i % nodes_, length + level - 1);
    }
    pass_.run(feedback.data(), words);
  }

  std::vector<float> feedback, logits;  // [nodes of the level, hidden], [.., draft vocabulary]

 private:
  void lay() {
    const Rows rows{owners_.data(), lengths_.data(), static_cast<long>(owners_.size())};
    pass_.lay(rows, std::vector<int64_t>(rows.count, nodes_).data(), scratch_);
  }

  const Head& head_;
  std::vector<int64_t> owners_, lengths_;
  const long nodes_, scratch_;
  Pass pass_;
  std::vector<float> normed_;
};

}  // namespace

// The best child of each best child: tokens [rows, depth + 1], the root first, of up to `most` [rows] levels. forced
// [rows, depth] has tokens that come in any case, -1 elsewhere; null if there are none. A row leaves the draft once its
// path has a probability under the head of less than e^floor: `levels` [rows] are those before. Tokens of further ones
// say nothing.
extern "C" void drafted_chain(int64_t* tokens, int64_t* levels, const int64_t* most, const Head* head,
                              const Tables* tables, const Roots* roots, const int64_t* forced, long depth, float floor) {
  const long rows = roots->rows.count, count = head->body.output.outputs;
  if (forced && std::all_of(forced, forced + rows * depth, [](int64_t token) { return token >= 0; })) {
    for (long row = 0; row < rows; ++row) {  // nothing is left for the head to draft
      tokens[row * (depth + 1)] = roots->tokens[row];
      std::copy_n(forced + row * depth, depth, tokens + row * (depth + 1) + 1);
    }
    std::copy_n(most, rows, levels);
    return;
  }
  Drafting drafting(*head, *tables, *roots, 1, depth);
  const bool doubts = !std::isinf(floor);
  std::vector<long> going(rows), on;  // rows that draft this level, and places among them of those that draft the next
  std::vector<int64_t> best(rows), last(rows), words(rows);
  std::vector<float> paths(rows), level_paths(rows), heats(rows);
  std::iota(going.begin(), going.end(), 0);
  for (long row = 0; row < rows; ++row) tokens[row * (depth + 1)] = roots->tokens[row], levels[row] = 0;
  for (long level = 1;; ++level) {
    const long open = static_cast<long>(going.size());
    drafting.read();
    const float* logits = drafting.logits.data();
    chosen(best.data(), logits, nullptr, nullptr, open, count, 0.0f);
    if (doubts) {
      for (long i = 0; roots->temperatures && i < open; ++i) heats[i] = roots->temperatures[going[i]];
      likelihood(level_paths.data(), logits, best.data(), roots->temperatures ? heats.data() : nullptr, open, count);
    }
    on.clear();
    for (long i = 0; i < open; ++i) {
      const long row = going[i];
      const int64_t sure = forced ? forced[row * depth + level - 1] : -1;
      const int64_t token = sure >= 0 ? sure : head->mapping ? head->mapping[best[i]] : best[i];
      tokens[row * (depth + 1) + level] = token;
      if (doubts && sure < 0) paths[row] += level_paths[i];
      if (doubts && !(paths[row] >= floor)) continue;
      levels[row] = level;
      if (level == most[row]) continue;
      last[on.size()] = token;
      on.push_back(i);
    }
    if (on.empty()) return;
    drafting.keep(on);
    for (size_t i = 0; i < on.size(); ++i) going[i] = going[on[i]];
    going.resize(on.size());
    std::fill(words.begin(), words.end(), (int64_t{1} << level) - 1);  // a chain's node sees all nodes before it
    drafting.pass(level, last.data(), words.data());
  }
}

// All candidates of trees, [rows, total] in level order: `wanted` children of each frontier node, with edges at
// temperatures `heats` [depth].
extern "C" void drafted_tree(int64_t* tokens, float* scores, int64_t* parents, const Head* head, const Tables* tables,
                             const Roots* roots, const float* heats, long depth, long wanted, long total) {
  const long rows = roots->rows.count, count = head->body.output.outputs;
  Drafting drafting(*head, *tables, *roots, wanted, depth);
  std::vector<float> own(rows), next(rows * wanted), level_scores, fed;
  std::vector<int64_t> indices(rows), words(rows), next_indices(rows * wanted), next_words(rows * wanted),
      next_tokens(rows * wanted), level_tokens, level_parents;
  for (long row = 0; row < rows; ++row) {
    tokens[row * total] = roots->tokens[row];
    scores[row * total] = 0;
    parents[row * total] = 0;
  }
  long first = 1;
  for (long level = 1, nodes = 1;; ++level, nodes = wanted) {
    drafting.read();
    if (roots->temperatures)
      for (long row = 0; row < rows; ++row)
        for (long i = 0; i < nodes * count; ++i) drafting.logits[row * nodes * count + i] /= roots->temperatures[row];
    const long wide = nodes * wanted;
    level_scores.resize(rows * wide);
    level_tokens.resize(rows * wide);
    level_parents.resize(rows * wide);
    children(level_scores.data(), level_parents.data(), level_tokens.data(), drafting.logits.data(), own.data(),
             indices.data(), head->mapping, rows * nodes, count, wanted, heats[level - 1]);
    for (long row = 0; row < rows; ++row) {
      std::copy_n(&level_tokens[row * wide], wide, tokens + row * total + first);
      std::copy_n(&level_scores[row * wide], wide, scores + row * total + first);
      std::copy_n(&level_parents[row * wide], wide, parents + row * total + first);
    }
    if (level == depth) return;
    fed.resize(rows * wanted * head->body.hidden);
    advanced(next.data(), next_indices.data(), next_words.data(), next_tokens.data(), reinterpret_cast<char*>(fed.data()),
             level_scores.data(), level_tokens.data(), words.data(),
             reinterpret_cast<const char*>(drafting.feedback.data()), rows, nodes, wanted, first, (level - 1) * wanted,
             head->body.hidden * static_cast<long>(sizeof(float)));
    own = next, indices = next_indices, words = next_words;
    drafting.feedback = fed;
    first += wide;
    drafting.pass(level, next_tokens.data(), words.data());
  }
}
