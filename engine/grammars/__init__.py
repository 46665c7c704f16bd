"""Grammars in the lane: the matchers of rows whose answers must match one, and how they hold the target's choice."""
