// Where keys and values are stored, and moving them. The references in torch are RowTables.slots and
// spec.round.compact.
#include <cstdint>
#include <cstring>

#include "kernels.h"

namespace {

inline int64_t slot(const int32_t* pages, int64_t position, long page_size) {
  return pages[position / page_size] * page_size + position % page_size;
}

}  // namespace

// Positions [count] of table rows [count] -> slots [count]; pages [table, per_row].
extern "C" void slots(int64_t* out, const int64_t* rows, const int64_t* positions, const int32_t* pages, long count,
                      long per_row, long page_size) {
  for (long i = 0; i < count; ++i) out[i] = slot(pages + rows[i] * per_row, positions[i], page_size);
}

// In `layers` of a pool that are `stride` bytes apart, moves slots of `size` bytes: those along path [rows, width],
// relative to each row's length, go to the places right after it. A node is never before its place on a path, so
// nothing is overwritten before it is read. Past its end a path names its root again.
extern "C" void moved(char* pool, const int64_t* path, const int64_t* rows, const int64_t* lengths,
                      const int32_t* pages, long count, long width, long per_row, long page_size, long layers,
                      long stride, long size) {
  for (long i = 0; i < count; ++i, path += width) {
    const int32_t* own = pages + rows[i] * per_row;
    for (long step = 1; step < width && path[step] != 0; ++step) {
      if (path[step] == step) continue;
      const int64_t source = slot(own, lengths[i] + path[step], page_size);
      const int64_t target = slot(own, lengths[i] + step, page_size);
      for (long layer = 0; layer < layers; ++layer)
        std::memcpy(pool + layer * stride + target * size, pool + layer * stride + source * size, size);
    }
  }
}
