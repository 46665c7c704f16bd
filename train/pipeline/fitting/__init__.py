"""The parts of the fit stage: kinds of heads, their initial weights, processes, metrics."""
