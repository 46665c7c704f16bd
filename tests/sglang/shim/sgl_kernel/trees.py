"""The tree: links and mask from the draft's scores, and greedy verification along them."""

from torch import Tensor

_ONLY_QUERIES = 1
"""SGLang's tree mask mode whose mask covers the tree's own nodes and leaves the prefix out."""


def build_tree_kernel_efficient_cpu(
    parents: Tensor,
    selected: Tensor,
    lengths: Tensor,
    mask: Tensor,
    positions: Tensor,
    index: Tensor,
    first_child: Tensor,
    next_sibling: Tensor,
    topk: int,
    _depth: int,
    nodes: int,
    mode: int,
) -> None:
    """Fills mask [rows, nodes, nodes], positions, and the child and sibling links of every row's tree.

    `selected` [rows, nodes - 1] are candidates in level order; candidate c hangs under entry c // topk of `parents`.
    """
    if mode != _ONLY_QUERIES:
        raise NotImplementedError(f"tree mask mode {mode}; the shim knows {_ONLY_QUERIES}")
    mask = mask.view(-1)[: lengths.numel() * nodes * nodes].view(-1, nodes, nodes)
    for row, length in enumerate(lengths.tolist()):
        chosen = selected[row].tolist()
        above = [0] * nodes
        for node in range(nodes - 1, 0, -1):  # backwards, so that a parent's first child is its best
            group = chosen[node - 1] // topk
            above[node] = chosen.index(int(parents[row, group])) + 1 if group else 0
            next_sibling[row, node] = first_child[row, above[node]]
            first_child[row, above[node]] = node
        mask[row] = False
        for node in range(nodes):
            ancestor, depth = node, 0
            while ancestor:
                mask[row, node, ancestor] = True
                ancestor, depth = above[ancestor], depth + 1
            mask[row, node, 0] = True
            positions[row * nodes + node] = length + depth
            index[row, node] = row * nodes + node


def verify_tree_greedy_cpu(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walks down from each root while some child is the target's choice."""
    for row in range(candidates.shape[0]):
        node, accepted = 0, 0
        accept_index[row, 0] = retrive_index[row, 0]
        while True:
            choice = int(target_predict[row, node])
            predicts[int(retrive_index[row, node])] = choice
            child = int(retrive_next_token[row, node]) if accepted + 1 < accept_index.shape[1] else -1
            while child != -1 and int(candidates[row, child]) != choice:
                child = int(retrive_next_sibling[row, child])
            if child == -1:
                break
            accepted += 1
            accept_index[row, accepted] = retrive_index[row, child]
            node = child
        accept_token_num[row] = accepted
