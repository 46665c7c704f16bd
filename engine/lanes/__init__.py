"""Lanes carry plans to a worker and outputs back: in place for tests, as a process on a CPU."""
