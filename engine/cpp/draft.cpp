// A head's guesses in one call: level by level, what it reads off its last output, and its pass over the next nodes. The
// twins in torch are spec/draft.py and spec/frontier.py.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels.h"
#include "vectors.h"

using namespace aerie;

namespace {

// As spec/cpp/draft.py lays them out.
struct Head {
  const Layer* layers;
  const float* rotations;     // [positions, dim]
  const void* embeddings;     // [vocabulary, hidden]
  const int64_t* mapping;     // of draft ids to the target's; null for identity
  char* pool;
  Norm norm;
  Matrix output;
  long count, hidden, heads, kv_heads, dim, page_size, layer_bytes;
  bool normed_residual, norm_output, halves;
};

struct Roots {
  const int64_t *owners, *lengths, *tokens;  // [rows]
  const float *seeds;                        // [rows, hidden]
  const float *temperatures;                 // [rows]; null for 1
  const int32_t *table, *kv_indptr, *pages;
  long rows, per_row;
};

// What is kept from level to level, for `nodes` nodes of each row.
class Drafting {
 public:
  Drafting(const Head& head, const Roots& roots, long nodes)
      : head_(head), roots_(roots), nodes_(nodes), feedback(roots.seeds, roots.seeds + roots.rows * head.hidden) {
    for (long row = 0; row <= roots.rows; ++row) qo_indptr_.push_back(static_cast<int32_t>(row * nodes));
  }

  // What the last outputs say; `feedback` is what their children are fed.
  void read() {
    const long hidden = head_.hidden, tokens = static_cast<long>(feedback.size()) / hidden;
    normed_.resize(feedback.size());
    logits.resize(tokens * head_.output.outputs);
    normed(normed_.data(), feedback.data(), head_.norm.gain, head_.norm.floor, tokens, hidden, hidden);
    multiplied(logits.data(), normed_.data(), head_.output.panels, head_.output.scales, head_.output.bias, tokens,
               head_.output.outputs, hidden, false);
    if (head_.norm_output) feedback = normed_;
  }

  // The head's pass over the nodes of depth `level`: tokens and words [rows, nodes], fed what `feedback` holds.
  void pass(long level, const int64_t* tokens, const int64_t* words) {
    const long count = roots_.rows * nodes_, dim = head_.dim;
    embedded_.resize(count * head_.hidden);
    turns_.resize(count * dim);
    slots_.resize(count);
    for (long i = 0; i < count; ++i) {
      const long row = i / nodes_, length = roots_.lengths[row];
      const int64_t place = length + (level - 1) * nodes_ + i % nodes_;
      slots(&slots_[i], roots_.owners + row, &place, roots_.table, 1, roots_.per_row, head_.page_size);
      std::memcpy(&turns_[i * dim], head_.rotations + (length + level - 1) * dim, dim * sizeof(float));
      embed(&embedded_[i * head_.hidden], tokens[i]);
    }
    passed(feedback.data(), nullptr, embedded_.data(), head_.layers, nullptr, turns_.data(), slots_.data(), head_.pool,
           qo_indptr_.data(), roots_.kv_indptr, roots_.pages, roots_.lengths, words, head_.count, 0, count, roots_.rows,
           head_.hidden, head_.heads, head_.kv_heads, dim, head_.page_size, head_.layer_bytes, head_.normed_residual,
           head_.halves);
  }

 private:
  void embed(float* out, int64_t token) const {
    const long hidden = head_.hidden;
    if (!head_.halves) {
      std::memcpy(out, static_cast<const float*>(head_.embeddings) + token * hidden, hidden * sizeof(float));
      return;
    }
    for (long i = 0; i < hidden; i += kLanes)
      store(out + i, widened(static_cast<const uint16_t*>(head_.embeddings) + token * hidden + i));
  }

  const Head& head_;
  const Roots& roots_;
  const long nodes_;
  std::vector<int32_t> qo_indptr_;
  std::vector<float> normed_, embedded_, turns_;
  std::vector<int64_t> slots_;

 public:
  std::vector<float> feedback, logits;  // [nodes of the level, hidden], [.., draft vocabulary]
};

}  // namespace

// The best child of the best child: tokens [rows, depth + 1], the root first. Ends early where every row's path has less
// than e^floor of the head's probability. Returns the levels drafted.
extern "C" long drafted_chain(int64_t* tokens, const Head* head, const Roots* roots, long depth, float floor) {
  const long rows = roots->rows, count = head->output.outputs;
  Drafting drafting(*head, *roots, 1);
  std::vector<int64_t> best(rows), last(rows), words(rows);
  std::vector<float> paths(rows), level_paths(rows);
  for (long row = 0; row < rows; ++row) tokens[row * (depth + 1)] = roots->tokens[row];
  for (long level = 1;; ++level) {
    drafting.read();
    const float* logits = drafting.logits.data();
    chosen(best.data(), logits, nullptr, nullptr, rows, count, 0.0f);
    for (long row = 0; row < rows; ++row) {
      last[row] = head->mapping ? head->mapping[best[row]] : best[row];
      tokens[row * (depth + 1) + level] = last[row];
    }
    if (level == depth) return level;
    likelihood(level_paths.data(), logits, best.data(), roots->temperatures, rows, count);
    bool sure = false;
    for (long row = 0; row < rows; ++row) sure |= (paths[row] += level_paths[row]) >= floor;
    if (!sure) return level;
    std::fill(words.begin(), words.end(), (int64_t{1} << level) - 1);  // a chain's node sees all before it
    drafting.pass(level, last.data(), words.data());
  }
}

// All candidates of trees, [rows, total] in level order: `wanted` children of each frontier node, edges at `heats`
// [depth].
extern "C" void drafted_tree(int64_t* tokens, float* scores, int64_t* parents, const Head* head, const Roots* roots,
                             const float* heats, long depth, long wanted, long total) {
  const long rows = roots->rows, count = head->output.outputs;
  Drafting drafting(*head, *roots, wanted);
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
    fed.resize(rows * wanted * head->hidden);
    advanced(next.data(), next_indices.data(), next_words.data(), next_tokens.data(), reinterpret_cast<char*>(fed.data()),
             level_scores.data(), level_tokens.data(), words.data(),
             reinterpret_cast<const char*>(drafting.feedback.data()), rows, nodes, wanted, first, (level - 1) * wanted,
             head->hidden * static_cast<long>(sizeof(float)));
    own = next, indices = next_indices, words = next_words;
    drafting.feedback = fed;
    first += wide;
    drafting.pass(level, next_tokens.data(), words.data());
  }
}
