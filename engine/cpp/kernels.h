// Kernels that other kernels are made of; each is told where it is defined.
#pragma once

extern "C" {

void normed(float* out, const float* x, const float* gain, const float* floor, long rows, long size, long stride);

void gated(float* out, const float* both, long tokens, long inner);

void multiplied(float* out, const float* x, const void* panels, const float* scales, const float* bias, long tokens,
                long outputs, long inputs, bool adds);
}
