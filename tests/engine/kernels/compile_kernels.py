"""Compiles every Triton kernel for a GPU that need not be there; tests/engine/kernels/test_triton_compile.py runs it.

A process of its own, since Triton decides on import whether it interprets. Arguments: the architecture, as in 90.
"""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from aerie.engine.kernels import attention, choose, edits, ending, floors, layer, noise, products, streamed
from aerie.spec.kernels import compact, trees

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


def with_wide_strides(made: ASTSource) -> ASTSource:
    """The same kernel for pools whose strides do not fit 32 bits, as those of a large GPU do not."""
    signature = {name: "i64" if name.endswith("stride") else kind for name, kind in made.signature.items()}
    return ASTSource(fn=made.fn, signature=signature, constexprs=made.constants)


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
    best = {"best_values": "*fp32", "best_tokens": "*i32", "logits": "*fp32", "rows": "*i64", "positions": "*i64"}
    rest = {"noise_keys": "*i64", "temperatures": "*fp32", "floors": "*i32", "vocabulary": "i32", "chunks": "i32"}
    ends = {"chosen": "*i64", "values": "*fp32", "tokens": "*i32", "chunks": "i32"}
    return [
        attend("*bf16", tree=True, splits=4),
        attend("*fp16", tree=False, splits=1),
        attend("*fp32", tree=True, splits=1),
        source(attention.merge_splits, merged, {"splits": 4, "block_splits": 4, **BLOCKS}),
        *floor_sources(),
        *edit_sources(),
        source(
            choose.find_best,
            {**best, **rest},
            {"noise": True, "greedy_below": 1e-5, "most_noise": 22.875, "chunk": 8192, "block": 1024},
        ),
        source(choose.best_of_chunks, ends, {"block": 16}),
        *product_sources(),
    ]


def floor_sources() -> list[ASTSource]:
    searched = {"floors": "*i32", "sums": "*fp32", "prefixes": "*i64", "masses": "*fp32"}
    read = {"logits": "*fp32", "rows": "*i64", "temperatures": "*fp32"}
    blocks = {"chunk": 8192, "block": 1024, "greedy_below": 1e-5}
    whole = {"block_chunks": 16, "greedy_below": 1e-5}
    starts = {"floors": "*i32", "peaks": "*fp32", "rows": "*i64", "temperatures": "*fp32", "min_ps": "*fp32"}
    made = [
        source(floors.find_peaks, {"peaks": "*fp32", **read, "vocabulary": "i32", "chunks": "i32"}, blocks),
        source(floors.start_floors, {**starts, "chunks": "i32"}, whole),
    ]
    for by_mass, limits in ((False, "*i32"), (True, "*fp32")):
        counts = {"count": "i32", "chunks": "i32", "level": "i32"}
        sizes = {"limits": limits, "vocabulary": "i32", **counts}
        weighed = {**searched, "peaks": "*fp32", **read, **sizes}
        ends = {**searched, "rows": "*i64", "temperatures": "*fp32", "limits": limits} | counts
        made += [
            source(floors.weigh_parts, weighed, {"by_mass": by_mass, **blocks, "block_chunks": 16}),
            source(floors.raise_floors, ends, {"by_mass": by_mass, **whole}),
        ]
    return made


def edit_sources() -> list[ASTSource]:
    logits = {"out": "*fp32", "logits": "*fp32"}
    tables = {"rows": "*i64", "slots": "*i64", "counts": "*i32", "biases": "*fp32"}
    penalties = dict.fromkeys(("repetitions", "frequencies", "presences"), "*fp32")
    sizes = {"no_slot": "i32", "vocabulary": "i32"}
    return [
        source(edits.edit_by_counts, {**logits, **tables, **penalties, **sizes}, {"most": 1e30, "block": 1024}),
        source(
            edits.edit_drafted,
            {**logits, "path": "*i64", **tables, **penalties, **sizes, "width": "i32"},
            {"most": 1e30, "block": 64},
        ),
    ]


def product_sources() -> list[ASTSource]:
    counts = {"tokens": "i32", "width": "i32", "outputs": "i32", "each": "i32"}
    blocks = {"block_outputs": 64, "block_width": 128}
    made = []
    for scaled, weights, tokens in ((False, "*bf16", 64), (True, "*i8", 16)):
        read = {"x": "*bf16", "weight": weights, "scales": "*fp32" if scaled else "*bf16", **counts}
        ending = {"scaled": scaled, "added": True}
        added = {"out": "*bf16", "sums": "*fp32", "scales": read["scales"], "tokens": "i32", "outputs": "i32"}
        made += [
            source(
                products.multiply_tiles,
                {"target": "*bf16" if whole else "*fp32", **read},
                {"whole": whole, **ending, "block_tokens": tokens, **blocks},
            )
            for whole in (True, False)
        ]
        made.append(source(products.add_parts, {**added, "parts": "i32"}, {**ending, "block": 1024}))
    return [*made, *streamed_sources()]


def streamed_sources() -> list[ASTSource]:
    read = {"out": "*bf16", "x": "*bf16", "weight": "*bf16", "scales": "*bf16", "gain": "*fp32", "floor": "*fp32"}
    sizes = {"tokens": "i32", "outputs": "i32", "width": "i32"}
    forms = [
        {"normed": True, "gated": True, "scaled": False, "added": False, "even": True, "block_outputs": 8},
        {"normed": False, "gated": False, "scaled": False, "added": True, "even": False, "block_outputs": 16},
    ]
    blocks = {"block_tokens": 4, "block_width": 256}
    scaled = {"weight": "*i8", "scales": "*fp32"}
    return [
        *(source(streamed.stream_rows, {**read, **sizes}, {**form, **blocks}) for form in forms),
        source(streamed.stream_rows, {**read, **scaled, **sizes}, {**forms[1], **blocks, "scaled": True}),
    ]


def small_sources() -> list[ASTSource]:
    """Of Llama-3.1-8B's sizes, bf16, and trees of 64 nodes out of 512 candidates."""
    rows = {"lengths": "*i64", "done": "*i1", "rows": "*i64", "stop_ids": "*i64", "limits": "*i32", "width": "i32"}
    codes = {"stop_id": 1, "length": 2, "still_open": 0}
    drafted = {"drafted": "*i64", "scores": "*fp32", "drafted_parents": "*i64", "drafted_depths": "*i64"}
    tree = dict.fromkeys(("tokens", "depths", "parents", "words"), "*i64")
    walked = {"counts": "*i64", "path": "*i64", "path_tokens": "*i64", **tree, "choices": "*i64", "nodes": "*i64"}
    sizes = {"token_stride": "i32", "widest": "i32", "width": "i32"}
    moved = {"pool": "*bf16", "path": "*i64", "owners": "*i64", "lengths": "*i64", "pages": "*i32", "width": "i32"}
    return [
        source(
            noise.write_noise,
            {"noise": "*fp32", "keys": "*i64", "positions": "*i64", "tokens": "*i64", "width": "i32"},
            {"block": 1024},
        ),
        source(
            ending.find_ends,
            {"kept": "*i64", "endings": "*i64", "tokens": "*i64", "counts": "*i64", **rows},
            {"stops": 16, "block": 8, **codes},
        ),
        source(
            layer.norm_rows,
            {"out": "*bf16", "x": "*bf16", "gain": "*fp32", "floor": "*fp32", "stride": "i32", "each": "i32"}
            | {"size": "i32"},
            {"block": 4096},
        ),
        source(
            layer.rotate_heads,
            {"merged": "*bf16", "pool": "*bf16", "rotations": "*fp32", "slots": "*i64", "slot_stride": "i32"},
            {"heads": 32, "every": 48, "half": 64, "block": 64},
        ),
        source(layer.gate_rows, {"out": "*bf16", "both": "*bf16", "inner": "i32"}, {"block": 1024}),
        source(
            trees.choose_nodes,
            {**tree, **drafted, "counts": "*i64", "total": "i32", "widest": "i32"},
            {"climbs": 3, "doublings": 3, "block": 64, "block_candidates": 512},
        ),
        *(
            source(trees.walk, {**walked, **sizes}, {"is_tree": is_tree, "block": 64, "block_depths": 8})
            for is_tree in (True, False)
        ),
        source(
            compact.move_path,
            {**moved, "layer_stride": "i32", "row_stride": "i32"},
            {"page_size": 16, "numbers": 2048, "block": 2048},
        ),
    ]


if __name__ == "__main__":
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    narrow = [*sources(), *small_sources()]
    wide = [with_wide_strides(each) for each in narrow if any(name.endswith("stride") for name in each.signature)]
    for each in [*narrow, *wide][int(sys.argv[2]) if len(sys.argv) > 2 else 0 :]:
        compiled = triton.compile(each, target=target)
        print(each.name, len(compiled.asm["cubin"]), compiled.metadata.shared)
