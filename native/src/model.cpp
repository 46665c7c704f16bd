#include "model.h"

#include <algorithm>
#include <cstring>

#include "vectors.h"

namespace aerie {

void Pass::lay(const Rows& rows, const int64_t* counts, long scratch) {
  rows_ = rows;
  queries_.assign(1, 0);
  page_bounds_.assign(1, 0);
  pages_.clear();
  for (long row = 0; row < rows.count; ++row) {
    const int32_t* own = tables_.pages + rows.owners[row] * tables_.per_row;
    const long covered = rows.lengths[row] + std::max<long>(counts[row], scratch);
    pages_.insert(pages_.end(), own, own + (covered + model_.page_size - 1) / model_.page_size);
    page_bounds_.push_back(static_cast<int32_t>(pages_.size()));
    queries_.push_back(static_cast<int32_t>(queries_.back() + counts[row]));
  }
  const long tokens = queries_.back();
  slots_.resize(tokens);
  rotations_.resize(tokens * model_.dim);
  embedded.resize(tokens * model_.hidden);
}

void Pass::put(long i, long row, int64_t token, int64_t place, int64_t position) {
  const long hidden = model_.hidden;
  ::slots(&slots_[i], rows_.owners + row, &place, tables_.pages, 1, tables_.per_row, model_.page_size);
  std::memcpy(&rotations_[i * model_.dim], model_.rotations + position * model_.dim, model_.dim * sizeof(float));
  const long bytes = hidden * (model_.halves ? sizeof(uint16_t) : sizeof(float));
  unpack(&embedded[i * hidden], static_cast<const char*>(model_.embeddings) + token * bytes, hidden, model_.halves);
}

void Pass::run(float* stream, const int64_t* words, float* taps, const int64_t* tapped, long boundaries, bool lasts) {
  const Model& model = model_;
  passed(stream, taps, stream == embedded.data() ? nullptr : embedded.data(), model.layers, tapped, rotations_.data(),
         slots_.data(), model.pool, queries_.data(), page_bounds_.data(), pages_.data(), rows_.lengths, words, model.count,
         boundaries, tokens(), rows_.count, model.hidden, model.heads, model.kv_heads, model.dim, model.page_size,
         model.layer_bytes, model.normed_residual, model.halves, lasts);
}

void read(std::vector<float>& normed_stream, std::vector<float>& logits, const float* stream, const Model& model,
          long tokens) {
  const Matrix& output = model.output;
  normed_stream.resize(tokens * model.hidden);
  logits.resize(tokens * output.outputs);
  normed(normed_stream.data(), stream, model.norm.gain, model.norm.floor, tokens, model.hidden, model.hidden);
  settle(normed_stream.data(), normed_stream.size(), model.halves);
  multiplied(logits.data(), normed_stream.data(), &output, tokens, false);
  settle(logits.data(), logits.size(), model.halves);
}

}  // namespace aerie
