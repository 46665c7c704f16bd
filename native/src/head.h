// A draft head, and the rows before it drafts; same layout as in native/structs/head.py.
#pragma once

#include "model.h"

namespace aerie {

struct Head {
  Model body;              // its output gives draft ids
  const int64_t* mapping;  // from draft ids to target ids; null for identity
  Matrix fuse;             // from taps to the input of its layers
  const Norm* pre_norms;   // for equal parts of the taps
  long parts;
  bool norm_output;
};

struct Roots {
  Rows rows;
  const int64_t* tokens;      // [rows]
  const float* seeds;         // [rows, hidden]
  const float* temperatures;  // [rows]; null for 1
};

// (F0) of spec/heads/head.py: taps [pairs, parts of the target's layers], which are overwritten -> [pairs, hidden].
std::vector<float> fused(std::vector<float>& taps, const Head& head, long pairs);

}  // namespace aerie

extern "C" {

void drafted_chain(int64_t* tokens, int64_t* levels, const int64_t* most, const aerie::Head* head,
                   const aerie::Tables* tables, const aerie::Roots* roots, const int64_t* forced, long depth, float floor);

void drafted_tree(int64_t* tokens, float* scores, int64_t* parents, const aerie::Head* head, const aerie::Tables* tables,
                  const aerie::Roots* roots, const float* heats, long depth, long wanted, long total);
}
