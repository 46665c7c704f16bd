"""The device side without speculation: target models, attention, device state, the plain worker, and the lanes.

The parts, each of which imports only parts above it:

device, cuda  the device of a deployment; the few CUDA calls that lanes and graphs make
device_time   how long the device takes for a call
bindings      which implementation of an operation a worker runs
state         what stays on the device between steps
sampling      the choice of a token with seeded Gumbel noise, and the end of a row
kernels       Triton kernels, each with the reference in torch that it must equal
attention     attention backends behind one dataclass of inputs
model         the native target
memory        plans the bytes of weights, pools and tables
step          one step: a plan as tensors, passes, results; `plain_worker` runs it
lanes         carry plans to a worker and outputs back
sglang        SGLang's models under Aerie's scheduler
build         from a Config to a target, its pools and a worker
"""
