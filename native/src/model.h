// A model as a whole step runs it: a batch's tokens, from their embeddings to their logits.
#pragma once

#include <cstdint>
#include <vector>

#include "columns.h"
#include "kernels.h"

namespace aerie {

// A target, or the body of a head; same layout as in native/structs/model.py.
struct Model {
  const Layer* layers;
  const float* rotations;  // [positions, dim]
  const void* embeddings;  // [vocabulary, hidden]
  char* pool;
  Norm norm;
  Matrix output;
  long count, hidden, heads, kv_heads, dim, page_size, layer_bytes;
  bool normed_residual, halves;
};

// What is stored for each row until its next owner (engine/state/row_tables.py); the last row is the dummy.
struct Tables {
  const int32_t* pages;  // [rows + 1, per_row]
  const int64_t* noise_keys;
  const Columns* sampling;
  const int32_t *limits, *min_lengths;
  const int64_t* stop_ids;    // [rows + 1, stops]
  const int64_t* edit_slots;  // [rows + 1]
  int32_t* counts;            // [no_slot + 1, vocabulary], of edit slots (engine/state/edit_tables.py); so are
  const float* biases;        // the biases
  long per_row, stops, no_slot;
};

// Generations [2, per_generation] of what one step leaves for the next (engine/state/future_map.py).
struct Futures {
  int64_t *tokens, *lengths;
  bool* done;
  char* seeds;  // [2, per_generation, seed_bytes]
  long per_generation, seed_bytes;
};

// Table rows, each with the number of positions that it already has.
struct Rows {
  const int64_t *owners, *lengths;
  long count;
};

// Tokens of some rows on their way through a model: the position of each, and what it sees.
class Pass {
 public:
  Pass(const Model& model, const Tables& tables) : model_(model), tables_(tables) {}

  // `counts` tokens of each row. They see and write as many positions past its length, or `scratch` if that is more.
  void lay(const Rows& rows, const int64_t* counts, long scratch = 0);

  // Token i, of row `row`: its KV goes to position `place`, and it is rotated for `position`.
  void put(long i, long row, int64_t token, int64_t place, int64_t position);

  long tokens() const { return static_cast<long>(slots_.size()); }

  // Runs all layers: stream [tokens, hidden] in place, with the embeddings beside it where layers read them. taps
  // [tokens, boundaries, hidden] and words [tokens] may be null. With `lasts` the outputs of each row's last token alone
  // are computed, and lie at the front.
  void run(float* stream, const int64_t* words, float* taps = nullptr, const int64_t* tapped = nullptr,
           long boundaries = 0, bool lasts = false);

  std::vector<float> embedded;  // [tokens, hidden]

 private:
  const Model& model_;
  const Tables& tables_;
  Rows rows_{};
  std::vector<int32_t> queries_, page_bounds_, pages_;
  std::vector<int64_t> slots_;
  std::vector<float> rotations_;
};

// Output of a stream [tokens, hidden]: its norm, and logits [tokens, vocabulary].
void read(std::vector<float>& normed_stream, std::vector<float>& logits, const float* stream, const Model& model,
          long tokens);

}  // namespace aerie
