"""Lanes carry plans to a worker and outputs back: in place for tests, in a process on a CPU, on a stream on a GPU."""
