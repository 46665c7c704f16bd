"""Dense, slow, obvious restatements: the head without a KV cache or merged weights, trees by search, drafting by
rollout.

`dense_head` restates (F0)..(F8) on tensors in the checkpoint's own names and layout; it shares no line with `spec/`.
"""

import itertools
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.spec.models import HEAD_DIM, HEADS, KV_HEADS


@dataclass
class DenseHead:
    """Tensors in canonical names; switches as HeadConfig has them."""

    tensors: dict[str, Tensor]
    embeddings: Tensor
    layers: int = 1
    eps: float = 1e-5
    theta: float = 10000.0
    pre_norm: str = "none"
    norm_before_residual: bool = False
    norm_output: bool = False

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.tensors[f"{name}.weight"]

    def project(self, x: Tensor, name: str) -> Tensor:
        out = x @ self.tensors[f"{name}.weight"].T
        bias = self.tensors.get(f"{name}.bias")
        return out if bias is None else out + bias

    def fuse(self, taps: Tensor) -> Tensor:
        if self.pre_norm == "concat":
            taps = self.norm(taps, "input_norm")
        if self.pre_norm == "per_tap":
            parts = taps.chunk(3, -1)
            taps = torch.cat([self.norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)], -1)
        return self.project(taps, "fc")

    def forward(self, tokens: Tensor, hidden: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """All at once: tokens [T], hidden [T, H], mask [T, T] bool (who sees whom) -> pre-norm outputs [T, H]."""
        for layer in range(self.layers):
            p = f"layers.{layer}"
            if layer == 0:
                h = self.norm(hidden, f"{p}.hidden_norm")
                z = torch.cat([self.norm(self.embeddings[tokens], f"{p}.input_layernorm"), h], -1)
                residual = h if self.norm_before_residual else hidden
            else:
                name = "input_layernorm" if f"{p}.input_layernorm.weight" in self.tensors else "hidden_norm"
                z, residual = self.norm(hidden, f"{p}.{name}"), hidden
            b = residual + self.attend(z, f"{p}.self_attn", positions, mask)
            x = self.norm(b, f"{p}.post_attention_layernorm")
            gate = self.project(x, f"{p}.mlp.gate_proj")
            hidden = b + self.project(
                gate * torch.sigmoid(gate) * self.project(x, f"{p}.mlp.up_proj"), f"{p}.mlp.down_proj"
            )
        return hidden

    def attend(self, z: Tensor, p: str, positions: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            self.project(z, f"{p}.{n}_proj").view(len(z), count, HEAD_DIM)
            for n, count in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        )
        if f"{p}.q_norm.weight" in self.tensors:
            q, k = self.norm(q, f"{p}.q_norm"), self.norm(k, f"{p}.k_norm")
        q, k = self.rope(q, positions), self.rope(k, positions)
        groups = HEADS // KV_HEADS
        out = torch.empty_like(q)
        for head in range(HEADS):
            scores = q[:, head] @ k[:, head // groups].T / math.sqrt(HEAD_DIM)
            out[:, head] = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v[:, head // groups]
        return self.project(out.flatten(1), f"{p}.o_proj")

    def rope(self, x: Tensor, positions: Tensor) -> Tensor:
        half = HEAD_DIM // 2
        angles = positions[:, None].float() * self.theta ** (-torch.arange(half).float() / half)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def logits(self, output: Tensor) -> Tensor:
        return self.norm(output, "norm") @ self.tensors["lm_head.weight"].T

    def feedback(self, output: Tensor) -> Tensor:
        return self.norm(output, "norm") if self.norm_output else output


@dataclass
class Node:
    """A drafted node of the rollout."""

    token: int
    parent: "Node | None"
    score: float
    order: int
    children: list["Node"] = field(default_factory=list)

    @property
    def path(self) -> list["Node"]:
        return [] if self.parent is None else [*self.parent.path, self]

    @property
    def depth(self) -> int:
        return len(self.path)


def rollout(
    head: DenseHead,
    tokens: list[int],
    taps: Tensor,
    *,
    depth: int,
    topk: int,
    nodes: int,
    target_ids: Tensor,
    z_of: "list[tuple[float, Tensor]] | None" = None,
    taus: tuple[float, ...] = (),
) -> list[Node]:
    """Grows a tree below the root `tokens[-1]`, recomputing the whole sequence of pairs for every node.

    tokens x_0 .. x_n, taps a_0 .. a_(n-1). `z_of[level - 1]` is (scale, noise [Vd]) of that level: z = scale * log q +
    noise. Returns the chosen nodes, the root first, in the order they were drafted.
    """
    pairs = len(tokens) - 1
    root = Node(tokens[-1], None, 0.0, 0)
    everything, frontier, counter = [root], [root], itertools.count(1)
    for level in range(1, depth + 1):
        level_nodes = []
        for node in frontier:
            logits = head.logits(dense_output(head, tokens, taps, node))
            log_q = logits.log_softmax(-1)
            scale, noise = z_of[level - 1] if z_of else (1.0, torch.zeros_like(log_q))
            z = scale * log_q + noise
            tau = taus[level - 1] if level <= len(taus) else 1.0
            edges = (z / tau).log_softmax(-1)
            for draft_id in z.topk(topk).indices.tolist():
                child = Node(int(target_ids[draft_id]), node, node.score + float(edges[draft_id]), next(counter))
                node.children.append(child)
                level_nodes.append(child)
        everything += level_nodes
        frontier = sorted(sorted(level_nodes, key=lambda n: -n.score)[:topk], key=lambda n: n.order)
        frontier = sorted(frontier, key=lambda n: -n.score)
    assert pairs == len(taps)
    best = sorted(everything, key=lambda n: (-n.score, n.order))[:nodes]
    return sorted(best, key=lambda n: n.order)


def dense_output(head: DenseHead, tokens: list[int], taps: Tensor, node: Node) -> Tensor:
    """The head's output at a node: all pairs, then the path to it, each fed its predecessor's feedback."""
    pairs = len(taps)
    inputs, hidden = list(tokens[1:]), list(head.fuse(taps))
    output = _last(head, inputs, hidden, pairs)
    for step in node.path:
        inputs.append(step.token)
        hidden.append(head.feedback(output))
        output = _last(head, inputs, hidden, pairs)
    return output


def _last(head: DenseHead, inputs: list[int], hidden: list[Tensor], pairs: int) -> Tensor:
    """Pairs are causal; so is the path after them, since each node sees its ancestors and no others are here."""
    count = len(inputs)
    mask = torch.ones(count, count, dtype=torch.bool).tril()
    return head.forward(torch.tensor(inputs), torch.stack(hidden), torch.arange(count), mask)[-1]


def brute_force_words(parents: list[int]) -> list[int]:
    """Ancestors of every node by walking to the root, as signed 64-bit words."""
    words = []
    for node in range(len(parents)):
        word, at = 1 << node, node
        while at:
            at = parents[at]
            word |= 1 << at
        words.append(word - (1 << 64) if word >> 63 else word)
    return words
