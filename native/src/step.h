// What plain and drafting steps share: the rows that are still open, their choices, and what the next step reads.
#pragma once

#include "model.h"
#include "plans.h"

namespace aerie {

// A step's answer for its rows, in the order in which native/structs/plan.py reads it; zeros at first.
class Answer {
 public:
  Answer(int32_t* words, long count, long width) : words_(words), count_(count), width_(width) {}

  int32_t* tokens(long row) { return words_ + row * width_; }
  int32_t& kept(long row) { return at(0, row); }
  int32_t& length(long row) { return at(1, row); }
  int32_t& ending(long row) { return at(2, row); }
  int32_t& accepted(long row) { return at(3, row); }
  int32_t& drafted(long row) { return at(4, row); }

 private:
  int32_t& at(long part, long row) { return words_[count_ * (width_ + part) + row]; }

  int32_t* words_;
  long count_, width_;
};

// What penalties, biases and bans make of logits [tokens, vocabulary] of table rows [tokens], in place. The choices are for
// `positions` [tokens]; path [tokens, width] has the drafted ids above and at each token, -1 elsewhere, if something was
// drafted.
void edit(float* logits, const Step& step, const std::vector<int64_t>& rows, const std::vector<int64_t>& positions,
          const std::vector<int64_t>& path);

// The choices [tokens] from edited logits.
void pick(int64_t* chosen, const float* logits, const Step& step, const std::vector<int64_t>& rows,
          const std::vector<int64_t>& positions);

extern "C" int64_t chosen_among(const Step* given, long place, long node, const uint32_t* allowed, const int64_t* tokens,
                                const int64_t* parents, const float* logits, const int64_t* positions);

// The rows that had not ended before the step.
class Standing {
 public:
  // For the others the answer commits nothing, and the next step finds them unchanged.
  void open(const Step& step, Answer answer);

  Rows rows() const { return {owners.data(), lengths.data(), count()}; }
  long count() const { return static_cast<long>(owners.size()); }
  const char* seed(const Step& step, long row) const;

  // Chooses what follows tokens of the rows `of` [tokens], for `positions` [tokens]. path [tokens, width] has the drafted
  // ids above and at each token, -1 elsewhere, if something was drafted. Overwrites the logits, unless the rows have
  // grammars.
  void choose(std::vector<int64_t>& chosen, const Step& step, float* logits, const std::vector<int64_t>& of,
              const std::vector<int64_t>& positions, const std::vector<int64_t>& path = {}) const;

  // Whether a row chooses under a grammar.
  bool held(const Step& step, long row) const;

  // Holds the one choice of each row to the row's grammar.
  void hold_roots(std::vector<int64_t>& chosen, const Step& step, const float* logits,
                  const std::vector<int64_t>& positions) const;

  // Cuts tokens [rows, width], of which counts [rows] were committed, and writes the answer.
  void end(const Step& step, const int64_t* tokens, const int64_t* counts, long width, Answer answer);

  // Leaves a row to the next step: its last token, and its seed, unless that is null.
  void publish(const Step& step, long row, int64_t token, const char* seed) const;

  std::vector<long> places;  // indices among the plan's rows
  std::vector<int64_t> owners, lengths, roots, kept, endings;
};

}  // namespace aerie
