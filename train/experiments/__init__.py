"""Experiments on how heads are trained: claims of the papers, repeated on a pair small enough for a CPU.

config     what a file of configs/train/experiments/ says
lessons    what heads learn from: the target's own answers to fresh exercises, by the stages of `aerie train`
teaching   the masks and losses that `aerie train` does not have
variants   one arm with one seed: its settings of the stage `train`, its start and its losses
intervals  bootstrap intervals over prompts and seeds, and which differences are noise
table      all arms of an experiment, trained, measured and summed up; plots draws them

Called by `python -m aerie.experiments`, which lends the engine to measure with.
"""
