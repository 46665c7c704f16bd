// Kernels that other kernels are made of; each is told where it is defined.
#pragma once

#include <cstdint>

extern "C" {

void normed(float* out, const float* x, const float* gain, const float* floor, long rows, long size, long stride);

void gated(float* out, const float* both, long tokens, long inner);

void multiplied(float* out, const float* x, const void* panels, const float* scales, const float* bias, long tokens,
                long outputs, long inputs, bool adds);
void turned_to(float* merged, const float* turns, void* pool, const int64_t* slots, long tokens, long heads, long kv_heads,
               long dim, bool halves);

void attended(float* out, const float* query, const void* pool, const int32_t* qo_indptr, const int32_t* kv_indptr,
              const int32_t* pages, const int64_t* prefixes, const int64_t* words, long rows, long stride, long heads,
              long kv_heads, long dim, long page_size, bool halves);

void swiglu(float* residual, const float* gain, const float* floor, const void* gate_up, const float* gate_up_scales,
            const float* gate_up_bias, const void* down, const float* down_scales, const float* down_bias, long tokens,
            long hidden, long inner);
}
