// A guard for the CUDA device that guards nothing, for builds of PyTorch that have none: tests/engine/fake_gpu.py loads it.
#include <c10/core/impl/DeviceGuardImplInterface.h>

using Guard = c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>;
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
