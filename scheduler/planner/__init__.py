"""Chooses how much to draft in each step, from measured costs and observed acceptance.

`costs` predicts how long a step takes, `survival` which drafted nodes are accepted, and `choice` finds the shape with
the most expected tokens a second. `goodput` joins them and is what the policy calls. Wrong predictions cost speed; the
text never depends on them.
"""
