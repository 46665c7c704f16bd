"""One step on the device without drafts: a plan as tensors, passes, results. `plain_worker` runs it."""
