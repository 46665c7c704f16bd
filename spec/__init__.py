"""Speculation: draft heads, drafters, trees, seed-coupled acceptance, and the worker that runs them around the target.

The parts, each of which imports only parts above it:

heads        the forward pass of a head, (F0)..(F8), its config and vocabulary
checkpoints  a checkpoint of any known format -> one normal form -> a head; which head a target has
trees        trees of drafted tokens; `accept`: which of them are accepted
drafters     what a drafter is, and the kinds of them: EAGLE-3 and P-EAGLE
round        one round on the device: open, draft, verify, accept, extend, publish
kernels      the same operations as Triton kernels, and which of them a worker runs
worker       runs a plan as a round, as the plain worker's step, or as a recorded graph; `build` makes it from a Config

Conventions, shared with `train/`. A row of length n has target KV for x_0 .. x_(n-1); x_n is the root. *Pair* j is (tap
a_j of the target at position j, token x_(j+1)); it sits in the head's KV at slot j with RoPE position j and predicts
x_(j+2). So the head has n pairs when the target has n positions, and the pre-norm output of pair n-1 is the *draft
seed*. A tree node of depth d stands for position n+d; its token is chosen with the Gumbel noise of position n+d, by
head and target alike.

Letters in shapes: R rows of a step, M nodes of the widest row, D depth, K children kept, V and Vd the vocabularies of
target and head, H hidden size, T tokens of a ragged pass.
"""
