"""Each Triton kernel against its torch reference, on a model's sizes: the largest difference, then both times.

A part of `aerie probe gpu-bench`, in the dtype that a GPU serves. A kernel that is faster in every case, or `choose` of
one kind of rows, may be added to spec/kernels/table.py, with the file of these cells committed beside it. If no kernel
can run, only the references are timed.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from aerie.contracts.config import Config
from aerie.engine.device import device_name, resolve_device, resolve_dtype
from aerie.engine.device_time import microseconds
from aerie.engine.model.config import ModelConfig, read_model_config
from aerie.engine.model.layer import gated, rotated
from aerie.engine.model.norm import normed
from aerie.engine.sampling.choose import FILTER_COLUMNS, Needs, choose, filtered
from aerie.engine.sampling.ending import cut
from aerie.engine.sampling.noise import gumbel
from aerie.engine.state.kv_pool import KVPool
from aerie.engine.state.row_tables import RowTables
from aerie.spec.kernels.table import triton_kernels
from aerie.spec.round.compact import compact
from aerie.spec.trees.accept import accept
from aerie.spec.trees.tree import Candidates, candidate_count, select

Cell = dict[str, Any]
ROWS = (1, 8, 64)
_TOPK, _DEPTH, _NODES = 8, 6, 32


@dataclass(frozen=True, slots=True)
class Case:
    reference: Callable[..., Any]
    kind: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


def measure_fused(
    config: Config, *, rows: Sequence[int] = ROWS, repeats: int = 20, say: Callable[[str], None] = lambda _: None
) -> Iterator[Cell]:
    """Needs no weights."""
    device, model = resolve_device(config), read_model_config(Path(config.model.path))
    dtype = served_dtype(config, model, device)
    runs = importlib.util.find_spec("triton") is not None and (
        device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    )
    for count in rows:
        with torch.inference_mode():
            cases = list(cases_of(model, count, device, dtype))
        for case in cases:
            with torch.inference_mode():
                cell = _cell(case, count, device, repeats, runs)
            yield cell
        say(f"kernels beside their references, {count} rows")


def served_dtype(config: Config, model: ModelConfig, device: torch.device) -> torch.dtype:
    """What a layer's kernels compute with on a GPU. Triton's interpreter, which runs on a CPU, lacks bfloat16."""
    return resolve_dtype(config, model.dtype, device) if device.type == "cuda" else torch.float32


def _cell(case: Case, rows: int, device: torch.device, repeats: int, runs: bool) -> Cell:
    name = case.reference.__name__
    alone = microseconds(lambda: case.reference(*case.arguments, **case.keywords), device, repeats)
    cell: Cell = {
        "device": device_name(device),
        "kernel": name,
        "case": case.kind,
        "rows": rows,
        "reference_microseconds": alone,
        "kernel_microseconds": None,
        "gain": None,
        "largest_difference": None,
    }
    if not runs:
        return cell
    kernel = triton_kernels()[case.reference]
    compared = 1 if name == "accept" else None  # its counts: path entries past them are undefined
    try:
        ours, theirs = (_tensors(call(*case.arguments, **case.keywords)) for call in (kernel, case.reference))
        taken = microseconds(lambda: kernel(*case.arguments, **case.keywords), device, repeats)
    except Exception as error:  # noqa: BLE001  Triton's are of any kind; the other kernels are still measured
        return cell | {"failed": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}
    return cell | {
        "kernel_microseconds": taken,
        "gain": alone / taken,
        "largest_difference": max(map(_difference, ours[:compared], theirs[:compared]), default=0.0),
    }


def cases_of(model: ModelConfig, rows: int, device: torch.device, dtype: torch.dtype) -> Iterator[Case]:
    """Cases of `rows` rows whose trees have about thirty nodes; `dtype` is that of layers and pools."""
    generator = torch.Generator(device).manual_seed(rows)
    tables = RowTables(rows, 1, 16, device)
    tables.noise_keys.random_(generator=generator)
    for name, value in {"temperature": 0.8, "top_k": 50, "top_p": 0.9}.items():
        tables.sampling[name].fill_(value)
    owners = torch.arange(rows, device=device)
    lengths = owners * 37 + 100
    logits = 4 * torch.randn(rows, model.vocabulary, generator=generator, device=device)
    yield Case(gumbel, "", (tables.noise_keys[:rows], lengths, torch.arange(model.vocabulary, device=device)), {})
    for kind, needs in {
        "greedy": Needs(noise=False, filters=False, bans=False),
        "sampled": Needs(noise=True, filters=False, bans=False),
        "filtered": Needs(noise=True, filters=True, bans=False),
    }.items():
        yield Case(choose, kind, (logits, owners, lengths, tables, needs), {})
    yield Case(filtered, "", (logits, *(tables.sampling[name][:rows] for name in FILTER_COLUMNS)), {})
    yield from _layer_cases(model, rows, generator, dtype)
    candidates, counts = _candidates(rows, generator), torch.full((rows,), _NODES, device=device)
    yield Case(select, "", (candidates, counts, _NODES), {})
    tree = select(candidates, counts, _NODES)
    choices = torch.randint(0, 4, tree.tokens.shape, generator=generator, device=device)
    yield Case(accept, "", (tree, choices, counts, _DEPTH), {})
    done = torch.zeros(rows, dtype=torch.bool, device=device)
    kept = torch.full((rows,), 3, device=device)
    yield _compact_case(model, rows, device, dtype)
    yield Case(cut, "", (choices[:, : _DEPTH + 1].contiguous(), kept, lengths, done, owners, tables), {})


def _layer_cases(model: ModelConfig, rows: int, generator: torch.Generator, dtype: torch.dtype) -> Iterator[Case]:
    """Cases of a layer's pass over `rows` tokens."""
    device, heads, kv_heads = generator.device, model.heads, model.kv_heads

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    x = drawn(rows, model.hidden_size)
    yield Case(normed, "", (x, torch.ones(model.hidden_size, device=device), torch.tensor(1e-3, device=device)), {})
    yield Case(gated, "", (drawn(rows, 2 * model.intermediate_size),), {})
    pool = KVPool(
        layers=1, pages=rows, page_size=1, kv_heads=kv_heads, head_dim=model.head_dim, dtype=dtype, device=device
    )
    merged = drawn(rows, heads + 2 * kv_heads, model.head_dim)
    angles = torch.rand(rows, 1, model.head_dim // 2, generator=generator, device=device)
    generations = torch.polar(torch.ones_like(angles), angles)
    yield Case(rotated, "", (merged, heads, generations, pool, 0, torch.arange(rows, device=device)), {})


def _compact_case(model: ModelConfig, rows: int, device: torch.device, dtype: torch.dtype) -> Case:
    """Paths of every second node, through all layers of a pool."""
    tables, owners = RowTables(rows, 2, 16, device), torch.arange(rows, device=device)
    tables.pages[:rows] = torch.arange(2 * rows, device=device).view(rows, 2)
    pool = KVPool(
        layers=model.layers,
        pages=2 * rows,
        page_size=16,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        dtype=dtype,
        device=device,
    )
    state = SimpleNamespace(target=SimpleNamespace(pool=pool), tables=tables)
    lengths = torch.full_like(owners, 3)
    path = 2 * torch.arange(_DEPTH + 1, device=device).expand(rows, -1)
    return Case(compact, "", (state, owners, lengths, path.contiguous()), {})


def _candidates(rows: int, generator: torch.Generator) -> Candidates:
    """Children of the first nodes of the level before; scores fall with the index, so no child beats its parent."""
    total, device = candidate_count(_TOPK, _DEPTH), generator.device
    each = torch.arange(total, device=device)
    levels = torch.div(each - 1 - _TOPK, _TOPK * _TOPK, rounding_mode="floor") + 2
    depths = torch.where(each == 0, 0, torch.where(each <= _TOPK, 1, levels))
    first = torch.where(levels == 2, 1, 1 + _TOPK + (levels - 3) * _TOPK * _TOPK)
    place = torch.div((each - 1 - _TOPK).remainder(_TOPK * _TOPK), _TOPK, rounding_mode="floor")
    parents = torch.where(depths < 2, 0, first + place)
    scores = -torch.rand(rows, total, generator=generator, device=device).cumsum(1)
    scores[:, 0] = 0
    tokens = torch.randint(0, 4, (rows, total), generator=generator, device=device)
    return Candidates(tokens, scores, parents.expand(rows, total).contiguous(), depths, _DEPTH)


def _tensors(answer: Any) -> list[Tensor]:
    if is_dataclass(answer):
        return [part for field in fields(answer) for part in _tensors(getattr(answer, field.name))]
    return [answer] if isinstance(answer, Tensor) else []


def _difference(ours: Tensor, theirs: Tensor) -> float:
    """Equal infinities count as no difference."""
    apart = (ours.double() - theirs.double()).abs().nan_to_num(0.0)
    return float(torch.where(ours == theirs, 0.0, apart).max())
