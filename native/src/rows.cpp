// Decisions for each row after a pass: how much of its draft was right, where it ends, and what the next step reads.
// The references in torch are spec/trees/accept.py, engine/sampling/ending.py and engine/state/future_map.py.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels.h"

// tokens, choices [rows, width] of a tree whose node 0 is the root, nodes [rows] of each -> counts [rows] accepted
// besides the root. parents [rows, width] may be null, for chains. With parents, also path [rows, steps] and the
// choices along it, both padded from the root.
extern "C" void accepted(int64_t* counts, int64_t* path, int64_t* along, const int64_t* tokens, const int64_t* choices,
                         const int64_t* parents, const int64_t* nodes, long rows, long width, long steps) {
  for (long row = 0; row < rows; ++row) {
    long last = 0, count = 0;
    if (path) path[row * steps] = 0;
    for (long node = 1; node < nodes[row]; ++node) {  // parents come first, so one walk finds the whole path
      const bool continues = parents ? parents[row * width + node] == last : node == last + 1;
      if (!continues || tokens[row * width + node] != choices[row * width + last]) continue;
      last = node;
      ++count;
      if (path) path[row * steps + count] = node;
    }
    counts[row] = count;
    if (!path) continue;
    for (long step = 0; step < steps; ++step) {
      if (step > count) path[row * steps + step] = 0;
      along[row * steps + step] = choices[row * width + path[row * steps + step]];
    }
  }
}

// tokens [rows, width], of which counts [rows] were committed after lengths [rows]; `owners` [rows] index the rows in
// limits [table] and stop ids [table, stops] -> kept [rows], endings [rows] as codes.
extern "C" void cut(int64_t* kept, int64_t* endings, const int64_t* tokens, const int64_t* counts,
                    const int64_t* lengths, const bool* done, const int64_t* owners, const int32_t* limits,
                    const int64_t* stop_ids, long rows, long width, long stops, long open, long stop, long full) {
  for (long row = 0; row < rows; ++row) {
    kept[row] = 0;
    endings[row] = open;
    if (done[row]) continue;
    const int64_t* own = stop_ids + owners[row] * stops;
    const int64_t room = std::max<int64_t>(limits[owners[row]] - lengths[row], 0), most = std::min(counts[row], room);
    int64_t first = 0;
    while (first < most && std::find(own, own + stops, tokens[row * width + first]) == own + stops) ++first;
    const bool stopped = first < most;
    kept[row] = stopped ? first + 1 : most;
    endings[row] = stopped ? stop : most >= room ? full : open;
  }
}

// Tables [2, per_generation] of tokens, lengths, done flags and `size` bytes of seeds -> the values of generation generations
// [count] of rows [count].
extern "C" void taken(int64_t* tokens, int64_t* lengths, bool* done, char* seeds, const int64_t* all_tokens,
                      const int64_t* all_lengths, const bool* all_done, const char* all_seeds, const int64_t* generations,
                      const int64_t* rows, long count, long per_generation, long size) {
  for (long i = 0; i < count; ++i) {
    const int64_t place = generations[i] * per_generation + rows[i];
    tokens[i] = all_tokens[place];
    lengths[i] = all_lengths[place];
    done[i] = all_done[place];
    std::memcpy(seeds + i * size, all_seeds + place * size, size);
  }
}

// The reverse; seeds may be null and then stay as they are.
extern "C" void published(int64_t* all_tokens, int64_t* all_lengths, bool* all_done, char* all_seeds,
                          const int64_t* tokens, const int64_t* lengths, const bool* done, const char* seeds,
                          const int64_t* generations, const int64_t* rows, long count, long per_generation, long size) {
  for (long i = 0; i < count; ++i) {
    const int64_t place = generations[i] * per_generation + rows[i];
    all_tokens[place] = tokens[i];
    all_lengths[place] = lengths[i];
    all_done[place] = done[i];
    if (seeds) std::memcpy(all_seeds + place * size, seeds + i * size, size);
  }
}
