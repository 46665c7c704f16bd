"""Draft trees as pure functions on tensors: ancestors, ranking, and which drafted tokens are accepted."""
