// A head's draft in one call: level by level, it reads tokens off its last output and runs a pass over the next nodes.
// The references in torch are spec/drafters/eagle3.py and spec/drafters/frontier.py.
#include <algorithm>
#include <vector>

#include "head.h"

using namespace aerie;

namespace {

// What is kept from level to level, for `nodes` nodes of each row.
class Drafting {
 public:
  Drafting(const Head& head, const Tables& tables, const Roots& roots, long nodes, long depth)
      : feedback(roots.seeds, roots.seeds + roots.rows.count * head.body.hidden),
        head_(head),
        rows_(roots.rows),
        nodes_(nodes),
        pass_(head.body, tables) {
    pass_.lay(rows_, std::vector<int64_t>(rows_.count, nodes).data(), nodes * (depth - 1));
  }

  // Reads the last outputs; `feedback` is what their children are fed.
  void read() {
    aerie::read(normed_, logits, feedback.data(), head_.body, static_cast<long>(feedback.size()) / head_.body.hidden);
    if (head_.norm_output) feedback = normed_;
  }

  // The head's pass over the nodes of depth `level`: tokens and words [rows, nodes], with `feedback` as input.
  void pass(long level, const int64_t* tokens, const int64_t* words) {
    for (long i = 0; i < rows_.count * nodes_; ++i) {
      const long row = i / nodes_, length = rows_.lengths[row];
      pass_.put(i, row, tokens[i], length + (level - 1) * nodes_ + i % nodes_, length + level - 1);
    }
    pass_.run(feedback.data(), words);
  }

  std::vector<float> feedback, logits;  // [nodes of the level, hidden], [.., draft vocabulary]

 private:
  const Head& head_;
  const Rows rows_;
  const long nodes_;
  Pass pass_;
  std::vector<float> normed_;
};

}  // namespace

// The best child of each best child: tokens [rows, depth + 1], the root first. forced [rows, depth] has tokens that come
// in any case, -1 elsewhere; null if there are none. Ends early if the path probability under the head is less than
// e^floor in every row. Returns the number of levels drafted.
extern "C" long drafted_chain(int64_t* tokens, const Head* head, const Tables* tables, const Roots* roots,
                              const int64_t* forced, long depth, float floor) {
  const long rows = roots->rows.count, count = head->body.output.outputs;
  if (forced && std::all_of(forced, forced + rows * depth, [](int64_t token) { return token >= 0; })) {
    for (long row = 0; row < rows; ++row) {  // nothing is left for the head to draft
      tokens[row * (depth + 1)] = roots->tokens[row];
      std::copy_n(forced + row * depth, depth, tokens + row * (depth + 1) + 1);
    }
    return depth;
  }
  Drafting drafting(*head, *tables, *roots, 1, depth);
  std::vector<int64_t> best(rows), last(rows), words(rows);
  std::vector<float> paths(rows), level_paths(rows);
  for (long row = 0; row < rows; ++row) tokens[row * (depth + 1)] = roots->tokens[row];
  for (long level = 1;; ++level) {
    drafting.read();
    const float* logits = drafting.logits.data();
    chosen(best.data(), logits, nullptr, nullptr, rows, count, 0.0f);
    for (long row = 0; row < rows; ++row) {
      const int64_t sure = forced ? forced[row * depth + level - 1] : -1;
      last[row] = sure >= 0 ? sure : head->mapping ? head->mapping[best[row]] : best[row];
      tokens[row * (depth + 1) + level] = last[row];
    }
    if (level == depth) return level;
    likelihood(level_paths.data(), logits, best.data(), roots->temperatures, rows, count);
    bool sure = false;
    for (long row = 0; row < rows; ++row) {
      if (!forced || forced[row * depth + level - 1] < 0) paths[row] += level_paths[row];
      sure |= paths[row] >= floor;
    }
    if (!sure) return level;
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
