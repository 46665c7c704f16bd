"""Converts a deployment's settings to arguments of SGLang's engine; does not import SGLang. Called by `process`.

Invariant: every setting that a deployment gives is passed on, rejected by name, or listed as unused. Others keep
SGLang's defaults, except `max_running_requests`, which SGLang would silently set to 48 if a head drafts.
"""

from pathlib import Path
from typing import Any

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.engine.sglang import plugin

_PASSED = {
    "model.dtype": "dtype",
    "model.max_length": "context_length",
    "engine.page_size": "page_size",
    "engine.kv_tokens": "max_total_tokens",
    "scheduler.prefill_chunk": "chunked_prefill_size",
}
_NEGATED = {
    "engine.graphs": "disable_cuda_graph",
    "scheduler.overlap": "disable_overlap_schedule",
    "scheduler.prefix_cache": "disable_radix_cache",
}
_SPREAD = {
    "sglang.tp": "tp_size",
    "sglang.pp": "pp_size",
    "sglang.dp": "dp_size",
    "sglang.ep": "ep_size",
    "sglang.nnodes": "nnodes",
    "sglang.node_rank": "node_rank",
    "sglang.dist_init_addr": "dist_init_addr",
    "sglang.memory": "mem_fraction_static",
}
_OTHERS = {
    "model.path": "model_path",
    "model.weights": "load_format",
    "engine.device": "device",
    "engine.attention": "attention_backend",
    "scheduler.max_running": "max_running_requests",
    "spec.head": "speculative_draft_model_path",
    "spec.depth": "speculative_num_steps",
    "spec.topk": "speculative_eagle_topk",
    "spec.nodes": "speculative_num_draft_tokens",
}
_UNUSED = (
    "engine.edit_slots",
    "engine.kernels",
    "engine.lane",
    "engine.products",
    "engine.threads",
    "engine.memory_share",
    "scheduler.long_prefill_threshold",
    "scheduler.long_prefill_chunk",
    "scheduler.poison",
    "spec.by_load",
    "spec.planner",
    "spec.objective",
    "spec.resting_tokens",
    "spec.draft_temperature",
    "spec.edge_temperatures",
    "spec.confidence_threshold",
    "spec.quantization",
)
"""Settings of Aerie's scheduler, kernels and Gumbel noise. SGLang's memory share, sglang.memory, includes weights."""
_BRIDGE: dict[str, Any] = {"skip_tokenizer_init": True, "stream_interval": 1, "incremental_streaming_output": False}
"""The bridge relies on these: token ids in and out, and an output per step that repeats all earlier tokens."""
_GRAMMARS: dict[str, Any] = {"skip_tokenizer_init": False, "grammar_backend": plugin.NAME}
"""SGLang holds answers to grammars only where it has a tokenizer."""
_ATTENTION_OF_BOTH = ("auto", "flashinfer", "triton")


def server_arguments(config: Config, *, grammars: bool) -> dict[str, Any]:
    """Keyword arguments of `sglang.Engine`, which holds answers to `grammars`. Raises ConfigError with the setting."""
    _check_spread(config)
    arguments = {
        "model_path": config.model.path,
        "max_running_requests": config.scheduler.max_running,
        "log_level": "warning",
        **_BRIDGE,
        **(_GRAMMARS if grammars else {}),
        **{argument: _value(config, key) for key, argument in _PASSED.items() if _is_given(config, key)},
        **{argument: not _value(config, key) for key, argument in _NEGATED.items() if _is_given(config, key)},
        **{argument: _value(config, key) for key, argument in _SPREAD.items() if _value(config, key) is not None},
        **_device(config),
        **_speculation(config),
    }
    if config.model.weights == "dummy":
        arguments |= {"load_format": "dummy"}
        arguments |= {"speculative_draft_load_format": "dummy"} if drafts(config) else {}
    return arguments | _further(config)


def drafts(config: Config) -> bool:
    """Whether a head drafts. `auto` has already been resolved to a folder if the target has a head."""
    return config.spec.head not in ("none", "auto") and config.spec.depth > 0


def unused_settings(config: Config) -> list[str]:
    """Settings that the deployment gives but SGLang's engine does not use."""
    unused = [*_UNUSED] if drafts(config) else [*_UNUSED, "spec.depth", "spec.topk", "spec.nodes"]
    return [key for key in unused if _is_given(config, key)]


def _check_spread(config: Config) -> None:
    spread = config.sglang
    if spread.pp > 1 and drafts(config):
        raise ConfigError(
            f"sglang.pp is {spread.pp} and spec.head is set: SGLang does not run EAGLE-3 with pipeline parallelism, "
            "where the head would need taps of other ranks; set sglang.pp=1 and spread by sglang.tp, or spec.head=none",
            param="sglang.pp",
        )
    if spread.node_rank >= spread.nnodes:
        raise ConfigError(
            f"sglang.node_rank is {spread.node_rank}; with sglang.nnodes {spread.nnodes} it is at most "
            f"{spread.nnodes - 1}",
            param="sglang.node_rank",
        )
    if spread.nnodes > 1 and spread.dist_init_addr is None:
        raise ConfigError(
            f"sglang.nnodes is {spread.nnodes} and sglang.dist_init_addr is not set; give the HOST:PORT of machine 0 "
            "where all of them meet",
            param="sglang.dist_init_addr",
        )


def _device(config: Config) -> dict[str, Any]:
    device, attention = config.engine.device, config.engine.attention
    if attention not in _ATTENTION_OF_BOTH:
        raise ConfigError(
            f"engine.attention {attention} is Aerie's own; with engine.kind sglang use flashinfer, triton or auto, or "
            "name another of SGLang's backends as sglang.arguments.attention_backend",
            param="engine.attention",
        )
    chosen = {} if device == "auto" else {"device": device}
    return chosen if attention == "auto" else chosen | {"attention_backend": attention}


def _speculation(config: Config) -> dict[str, Any]:
    spec = config.spec
    if spec.simulate_acceptance is not None:
        raise ConfigError(
            f"spec.simulate_acceptance is {spec.simulate_acceptance:g}; only Aerie's own engine simulates by it: leave "
            "it out (SGLang reads SGLANG_SIMULATE_ACC_LEN in its environment)",
            param="spec.simulate_acceptance",
        )
    if spec.require_provenance:
        raise ConfigError(
            "spec.require_provenance is true; only Aerie's own engine reads the cards of heads: leave it out, or "
            "choose another engine.kind",
            param="spec.require_provenance",
        )
    if not drafts(config):
        return {}
    _check_trees(config)
    nodes = spec.nodes
    if spec.topk == 1 and nodes != spec.depth + 1:
        if _is_given(config, "spec.nodes"):
            raise ConfigError(
                f"spec.nodes is {nodes}; a chain of spec.depth {spec.depth} has {spec.depth + 1} nodes in SGLang's "
                "engine, root included; leave spec.nodes out",
                param="spec.nodes",
            )
        nodes = spec.depth + 1
    return {
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": spec.head,
        "speculative_num_steps": spec.depth,
        "speculative_eagle_topk": spec.topk,
        "speculative_num_draft_tokens": nodes,
    }


def _check_trees(config: Config) -> None:
    """SGLang hides what lies before a window by slot, and siblings of a tree have one position but several slots: nodes
    see too few tokens, and the text is wrong (issue 39287 of SGLang, open up to the newest release that is served).
    """
    folder = Path(config.model.path)
    if config.spec.topk == 1 or not (folder / "config.json").is_file():
        return
    from aerie.engine.sglang.shapes import text_config, window_of

    window = window_of(text_config(folder))
    if window is not None:
        raise ConfigError(
            f"spec.topk is {config.spec.topk}, and {folder} has layers with a sliding window of {window}: SGLang's "
            "engine verifies trees wrongly there; set spec.topk=1, which drafts chains",
            param="spec.topk",
        )


def _further(config: Config) -> dict[str, Any]:
    """`sglang.arguments`, none of which may repeat or contradict a setting or an argument of the bridge."""
    further = config.sglang.arguments
    settings = {argument: key for key, argument in (_PASSED | _NEGATED | _SPREAD | _OTHERS).items()}
    for argument in further:
        where = f"sglang.arguments.{argument}"
        if argument in _BRIDGE or argument in _GRAMMARS:
            raise ConfigError(f"{where} cannot be set: the front end needs it as it is", param=where)
        if argument == "attention_backend" and config.engine.attention == "auto":
            continue  # SGLang has more backends than engine.attention names
        if argument in settings:
            raise ConfigError(f"{where} is a setting of Aerie's: say {settings[argument]}", param=where)
    if further.get("enable_custom_logit_processor") and drafts(config):
        raise ConfigError(
            "sglang.arguments.enable_custom_logit_processor is set, and SGLang does not apply such processors while a "
            "head drafts; leave it out, or set spec.head=none",
            param="sglang.arguments.enable_custom_logit_processor",
        )
    return dict(further)


def _is_given(config: Config, key: str) -> bool:
    section, _, name = key.partition(".")
    return name in getattr(config, section).model_fields_set


def _value(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)
