// The columns of sampling fields that the kernels read. Names and types are those of the table in
// contracts/sampling.py: native/structs/columns.py finds the columns by name, native/layouts.py compares the types.
#pragma once

#include <cstdint>

#define SAMPLING_COLUMNS(COLUMN) \
  COLUMN(float, temperature)        \
  COLUMN(float, min_p)              \
  COLUMN(int32_t, top_k)            \
  COLUMN(float, top_p)              \
  COLUMN(float, repetition_penalty) \
  COLUMN(float, frequency_penalty)  \
  COLUMN(float, presence_penalty)

namespace aerie {

// Each has one value for each table row.
struct Columns {
#define MEMBER(type, name) const type* name;
  SAMPLING_COLUMNS(MEMBER)
#undef MEMBER
};

}  // namespace aerie
