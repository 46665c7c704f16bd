"""Small targets that do generated tasks, and what is asked of them.

config       what a pipeline's section `pretrain` says
tasks        the exercises; chat renders them, mix draws a run's batches, lessons say of which tasks
pretrain     trains a target: model is the fresh Llama and its export, induction its start, learning the loop
judge        how often a target is exactly right; generation has what it answers, in batches
prompts      exercises that heads learn from, and those that they are measured on
corpus       docstrings of Python's standard library, which one of the tasks asks about

Called by the pipeline's stages and by experiments. `python -m aerie.train` has the tools around them.
"""
