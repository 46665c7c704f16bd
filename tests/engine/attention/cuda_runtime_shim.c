/* The four calls of the CUDA runtime that FlashInfer's planner makes, for machines without a GPU.
 *
 * Loaded with RTLD_GLOBAL before a compiled module, so that the module finds these first. The device is an H100 as the
 * planner sees one; a copy to it is a copy within the host.
 */
#include <stddef.h>
#include <string.h>

enum { PROCESSORS = 16, MAJOR = 75, MINOR = 76, SHARED_MEMORY = 97 };

static int copies = 0;

int aerie_copies(void) { return copies; }

int cudaGetDevice(int *device) {
  *device = 0;
  return 0;
}

int cudaSetDevice(int device) {
  return device != 0;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  *value = attribute == PROCESSORS ? 132 : attribute == MAJOR ? 9 : attribute == SHARED_MEMORY ? 232448 : 0;
  return 0;
}

int cudaMemcpyAsync(void *target, const void *source, size_t size, int kind, void *stream) {
  (void)kind;
  (void)stream;
  memcpy(target, source, size);
  copies++;
  return 0;
}
