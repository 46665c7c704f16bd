"""Who runs next, on which pages, and with what result. Knows the Lane protocol of `contracts.step`, never a model.

loop        one iteration: plan and launch step t+1, settle step t; also the synchronous loop
policy      who goes into the next step: admission, prompt chunks, preemption
shares      how prompts share a prefill step, and the bound on how long one waits
queue       the waiting requests: bound, order and deadlines
drafting    how much to draft at which load, and which rows keep head KV
staging     a decision -> the arrays of a StepPlan
settle      a StepOutput -> messages; the only reader of outputs
rows        per-row numbers as numpy columns; the FutureMap's host side is in future_map
memory      which pages a row holds: pages (free list), page_table (mirror of the device's), prefix (cache)
request     a request's life on the host
stats       counters since the start
process     the scheduler as a process on a socket
"""

from aerie.scheduler.loop import Scheduler

__all__ = ["Scheduler"]
