// A draft head, and where rows stand before it drafts; as native/head.py lays them out.
#pragma once

#include "model.h"

namespace aerie {

struct Head {
  Model body;              // its output gives draft ids
  const int64_t* mapping;  // of draft ids to the target's; null for identity
  Matrix fuse;             // taps to what its layers are fed
  const Norm* pre_norms;   // of equal parts of the taps
  long parts;
  bool norm_output;
};

struct Roots {
  Rows rows;
  const int64_t* tokens;      // [rows]
  const float* seeds;         // [rows, hidden]
  const float* temperatures;  // [rows]; null for 1
};

// (F0) of spec/head.py: taps [pairs, parts of the target's layers], which are spoiled -> [pairs, hidden].
std::vector<float> fused(std::vector<float>& taps, const Head& head, long pairs);

}  // namespace aerie

extern "C" {

long drafted_chain(int64_t* tokens, const aerie::Head* head, const aerie::Tables* tables, const aerie::Roots* roots,
                   long depth, float floor);

void drafted_tree(int64_t* tokens, float* scores, int64_t* parents, const aerie::Head* head, const aerie::Tables* tables,
                  const aerie::Roots* roots, const float* heats, long depth, long wanted, long total);
}
