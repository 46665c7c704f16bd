"""Lanes carry plans to a worker and outputs back: in place for tests, through a process on a CPU or on a GPU."""
