"""Experiments on how heads are trained: claims of the papers, repeated on a pair small enough for a CPU.

config     what a file of configs/train/experiments/ says
proxy      the small target, and what it answers: the data of every head
teaching   what a head is shown: taps, states, masks, losses, and the two templates
variants   one arm with one seed: a head from its start to its export
table      all arms of an experiment, measured and summed up; plots draws them

Called by `python -m aerie.experiments`, which lends the engine to measure with.
"""
