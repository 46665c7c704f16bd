// A plan as Python passes it; layouts.cpp compares how both sides lay it out.
#pragma once

#include <cstdint>

namespace aerie {

struct Model;
struct Tables;
struct Futures;
struct Head;

struct Step;

// Holds what a row chose to its grammar: overwrites chosen [nodes] along its path. tokens and parents [nodes] are those
// of its tree, and null for a root alone; logits [nodes, vocabulary]; chosen are for positions [nodes].
using Hold = void (*)(const Step* step, long place, long nodes, const int64_t* tokens, const int64_t* parents,
                      int64_t* chosen, const float* logits, const int64_t* positions);

// What the tokens that a row chooses at its root are among; native/structs/board.py sets it.
enum Among : int32_t { kAll, kAwaited, kMask };

// The masks of roots, by row of the tables; same layout as in native/structs/board.py.
struct Board {
  const int32_t* among;   // [rows]
  const uint32_t* masks;  // [rows, words] bit i of word w is token 32 w + i
  long words;
};

// A plan's rows, and what they run on; same layout as in native/structs/plan.py.
struct Step {
  const Model* target;
  const Tables* tables;
  const Futures* futures;
  Hold hold;  // null if no row has a grammar
  const Board* board;
  const int32_t *rows, *generations;  // [count]
  long count;
  long open, stop, full;  // codes of endings
  float greedy_below;
  bool samples, filters, bans, edits;  // what at least one row needs
};

// Chunks of prompts, [count] of the plan's rows; same layout as in native/structs/prompts.py.
struct Prompts {
  const int32_t* tokens;  // of all chunks
  const int32_t *starts, *counts;
  const int32_t* next;    // the token after each chunk; none after the last of a prompt
  const bool* last;
  const int64_t* tapped;  // [boundaries]
  long boundaries;
};

// What a step drafts; same layout as in native/structs/draft.py.
struct Drafts {
  const Head* head;
  const float* heats;     // [depth] temperatures of a tree's edges
  const int64_t* tapped;  // [boundaries]
  const int64_t* forced;  // [count, depth] tokens that a grammar forces, -1 elsewhere; null if it forces none
  const int32_t* nodes;   // [count] to verify in each of the plan's rows, including the root
  const bool* extends;    // [count] rows whose committed tokens extend the head; only they draft
  long boundaries, depth, topk;
  float floor;  // log probability below which a chain gets no further level
};

// Where rows that rest keep what their head has not seen (spec/round/tails.py); same layout as in
// native/structs/tails.py.
struct Tails {
  float* taps;           // [rows + 1, size, wide], a token at its position modulo size
  int64_t* tokens;       // [rows + 1, size] the token after each
  const int64_t* tapped;  // [boundaries]
  const bool* resting;   // [count] of the plan's rows
  long size, wide, boundaries;
};

}  // namespace aerie
