"""The processes of one training run: one by default, several when `torchrun` starts them (gloo on CPUs, NCCL on GPUs).

Every process holds the whole head, takes its own rows of each update and sums its gradients with the others'. Only the
first writes. Rows are assigned by number, so an update reads the same rows with any number of processes.
"""

import os
from collections.abc import Iterable

import torch
import torch.distributed as dist

# Its functions hold the group of the moment of import as a default. Imported by the first optimizer step, it would keep
# the group and gloo's threads beyond `close`, and threads that free tensors while the interpreter ends abort it.
import torch.distributed.nn.functional
from torch import Tensor, nn


class Processes:
    """Process `rank` of `count`."""

    def __init__(self, device: str) -> None:
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.device = torch.device(device)
        if self.count > 1:
            if self.device.type == "cuda":
                self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
                torch.cuda.set_device(self.device)
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")

    @property
    def first(self) -> bool:
        return self.rank == 0

    def own(self, numbers: Iterable[int]) -> list[int]:
        """The rows among `numbers` that this process takes."""
        return [number for place, number in enumerate(numbers) if place % self.count == self.rank]

    def add_gradients(self, model: nn.Module) -> None:
        """Sums gradients over the processes, in place; a process without rows counts as zero."""
        for weight in model.parameters():
            if not weight.requires_grad:
                continue
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            self.add(weight.grad)

    def add(self, values: Tensor) -> Tensor:
        """Sums over the processes, in place, and returns `values`."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def wait(self) -> None:
        if self.count > 1:
            dist.barrier()

    def close(self) -> None:
        if self.count > 1:
            dist.destroy_process_group()
