// Kernels that other kernels use, each with the file that defines it.
#pragma once

#include <cstdint>

namespace aerie {

// Same layout as in native/layers.py and, of a matrix, in native/products.py.
struct Norm {
  const float *gain, *floor;  // null where there is none
};

// What multiplies by a matrix. All but the first have panels of pairs of bf16 inputs.
enum class Multiplier : int32_t {
  kFp32,     // weights are widened (tile.h)
  kDots,     // x is rounded to bf16, for dot products (dots.h)
  kAmx,      // x is split into three numbers of bf16 (amx.cpp)
  kAmxBf16,  // the same, and x is rounded
};

struct Matrix {
  const void* panels;
  const float* scales;  // one for each place of the panels, whose weights are 8-bit integers; null if they are bf16
  const float* bias;    // [outputs], or null
  long outputs, inputs;
  Multiplier multiplier;
};

struct Layer {
  Norm embedding, input, query, key, post;
  Matrix qkv, output, gate_up, down;
};

}  // namespace aerie

extern "C" {

void normed(float* out, const float* x, const float* gain, const float* floor, long rows, long size, long stride);

void gated(float* out, const float* both, long tokens, long inner);

void multiplied(float* out, const float* x, const aerie::Matrix* matrix, long tokens, bool adds);

void multiplied_by_amx(float* out, const float* x, const aerie::Matrix* matrix, long tokens, bool adds);

void rotated_to(float* merged, const float* rotations, void* pool, const int64_t* slots, long tokens, long heads, long kv_heads,
               long dim, bool halves);

void attended(float* out, const float* query, const void* pool, const int32_t* qo_indptr, const int32_t* kv_indptr,
              const int32_t* pages, const int64_t* prefixes, const int64_t* words, long rows, long stride, long heads,
              long kv_heads, long dim, long page_size, bool halves);

void swiglu(float* residual, const float* gain, const float* floor, const aerie::Matrix* gate_up, const aerie::Matrix* down,
            long tokens);

void passed(float* stream, float* taps, const float* embedded, const aerie::Layer* layers, const int64_t* tapped,
            const float* rotations, const int64_t* slots, char* pool, const int32_t* qo_indptr, const int32_t* kv_indptr,
            const int32_t* pages, const int64_t* prefixes, const int64_t* words, long count, long boundaries, long tokens,
            long rows, long hidden, long heads, long kv_heads, long dim, long page_size, long layer_bytes,
            bool normed_residual, bool halves, bool lasts);

void slots(int64_t* out, const int64_t* rows, const int64_t* positions, const int32_t* pages, long count, long per_row,
           long page_size);

void chosen(int64_t* out, const float* logits, const float* temperatures, const float* noise, long rows, long count,
            float greedy_below);

void likelihood(float* out, const float* logits, const int64_t* ids, const float* temperatures, long rows, long count);

void children(float* scores, int64_t* parents, int64_t* tokens, const float* z, const float* own, const int64_t* indices,
              const int64_t* mapping, long frontier, long count, long wanted, float heat);

void advanced(float* scores, int64_t* indices, int64_t* words, int64_t* tokens, char* fed, const float* level_scores,
              const int64_t* level_tokens, const int64_t* frontier_words, const char* feedback, long rows, long nodes,
              long wanted, long first, long bit, long size);

void drawn(int64_t* out, const float* logits, const float* temperatures, const float* edges, const int64_t* keys,
           const int64_t* positions, long rows, long count, float greedy_below);

void edges(float* out, const float* logits, const float* temperatures, const float* min_ps, const int32_t* top_ks,
           const float* top_ps, long rows, long count, float greedy_below);

void edited(float* out, const float* logits, const int64_t* rows, const int64_t* path, const int64_t* slots,
            const int32_t* counts, const float* biases, const float* repetitions, const float* frequencies,
            const float* presences, long count, long vocabulary, long width, long no_slot);

void selected(int64_t* tokens, int64_t* depths, int64_t* parents, int64_t* words, const int64_t* drafted,
              const float* scores, const int64_t* drafted_parents, const int64_t* drafted_depths, const int64_t* counts,
              long rows, long total, long widest);

void accepted(int64_t* counts, int64_t* path, int64_t* along, const int64_t* tokens, const int64_t* choices,
              const int64_t* parents, const int64_t* nodes, long rows, long width, long steps);

void cut(int64_t* kept, int64_t* endings, const int64_t* tokens, const int64_t* counts, const int64_t* lengths,
         const bool* done, const int64_t* owners, const int32_t* limits, const int64_t* stop_ids, long rows, long width,
         long stops, long open, long stop, long full);

void moved(char* pool, const int64_t* path, const int64_t* rows, const int64_t* lengths, const int32_t* pages, long count,
           long width, long per_row, long page_size, long layers, long stride, long size);
}
