// A plan as Python hands it over; layouts.cpp compares how both lay it out.
#pragma once

#include <cstdint>

namespace aerie {

struct Model;
struct Tables;
struct Futures;
struct Head;

// A plan's rows, and what it is run on; as native/plan.py lays it out.
struct Step {
  const Model* target;
  const Tables* tables;
  const Futures* futures;
  const int32_t *rows, *turns;  // [count]
  long count;
  long open, stop, full;  // codes of endings
  float greedy_below;
  bool samples, filters, bans;  // what some row calls for
};

// Chunks of prompts, [count] of the plan's rows; as native/prompts.py lays it out.
struct Prompts {
  const int32_t* tokens;  // of all chunks
  const int32_t *starts, *counts;
  const int32_t* next;    // the token after each chunk; none after the last of a prompt
  const bool* last;
  const int64_t* tapped;  // [boundaries]
  long boundaries;
};

// What a step drafts; as native/draft.py lays it out.
struct Drafts {
  const Head* head;
  const float* heats;     // [depth] of a tree's edges
  const int64_t* tapped;  // [boundaries]
  const int32_t* nodes;   // [count] to verify of each of the plan's rows, the root included
  long boundaries, depth, topk;
  float floor;  // log probability of a chain that is not worth another level
};

}  // namespace aerie
