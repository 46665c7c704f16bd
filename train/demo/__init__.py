"""Small targets and what is asked of them: from the pinned docstrings, or from generated tasks.

config       what a pipeline's section `pretrain` says
corpus       docstrings of Python's standard library, recited: text, questions, tokenizer, batches
tasks        generated exercises; chat, mix, induction and pretrain make a target of them, judge examines it
target       trains either kind of target; learning has the loop, model the fresh Llama and its export
prompts      questions and exercises that heads learn from, and those that they are measured on
generation   what a target answers, in batches

Called by the pipeline's stages and by experiments. `python -m aerie.train` has the tools around the text.
"""
