"""The native target: a config-driven decoder, its layers and weights. `target` is the interface to any model."""
