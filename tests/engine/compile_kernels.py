"""Compiles every Triton kernel for a GPU that need not be there; tests/engine/test_triton_compile.py runs it.

A process of its own, since Triton decides on import whether it interprets. Arguments: the architecture, as in 90.
"""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernels import attention, choose

BLOCKS = {"dim": 128, "block_dim": 128}
INTS = {"query_stride": "i32", "slot_stride": "i32", "split_stride": "i32", "page_size": "i32"}
TILES = {
    "words": "*i64",
    "tile_rows": "*i32",
    "tile_firsts": "*i32",
    "qo_indptr": "*i32",
    "kv_indptr": "*i32",
    "kv_indices": "*i32",
    "prefix_lens": "*i64",
    "scale": "fp32",
    **INTS,
}


def attend(kind: str, *, tree: bool, splits: int) -> ASTSource:
    out = kind if splits == 1 else "*fp32"
    pools = {"out": out, "sums": "*fp32", "query": kind, "keys": kind, "values": kind}
    fixed = {
        "tree": tree,
        "splits": splits,
        "heads": 32,
        "groups": 4,
        "block_queries": 64,
        "block_positions": 32 if kind == "*fp32" else 64,
        **BLOCKS,
    }
    return source(attention.attend_tiles, {**pools, **TILES}, fixed)


def source(kernel: object, signature: dict[str, str], fixed: dict[str, object]) -> ASTSource:
    return ASTSource(fn=kernel, signature={**signature, **dict.fromkeys(fixed, "constexpr")}, constexprs=fixed)


def sources() -> list[ASTSource]:
    merged = {"out": "*bf16", "parts": "*fp32", "sums": "*fp32", "split_stride": "i32"}
    tables = {"temperatures": "*fp32", "min_ps": "*fp32", "top_ks": "*i32", "top_ps": "*fp32"}
    best = {"best_values": "*fp32", "best_tokens": "*i32", "logits": "*fp32", "rows": "*i64", "positions": "*i64"}
    rest = {"noise_keys": "*i64", "temperatures": "*fp32", "floors": "*i32", "vocabulary": "i32", "chunks": "i32"}
    ends = {"chosen": "*i64", "values": "*fp32", "tokens": "*i32", "chunks": "i32"}
    return [
        attend("*bf16", tree=True, splits=4),
        attend("*fp16", tree=False, splits=1),
        attend("*fp32", tree=True, splits=1),
        source(attention.merge_splits, merged, {"splits": 4, "block_splits": 4, **BLOCKS}),
        source(
            choose.find_floors,
            {"floors": "*i32", "logits": "*fp32", "rows": "*i64", **tables, "vocabulary": "i32"},
            {"greedy_below": 1e-5, "block": 1024},
        ),
        source(choose.find_best, {**best, **rest}, {"noise": True, "greedy_below": 1e-5, "chunk": 8192, "block": 1024}),
        source(choose.best_of_chunks, ends, {"block": 16}),
    ]


if __name__ == "__main__":
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    for each in sources()[int(sys.argv[2]) if len(sys.argv) > 2 else 0 :]:
        compiled = triton.compile(each, target=target)
        print(each.name, len(compiled.asm["cubin"]), compiled.metadata.shared)
