"""A plugin of SGLang that lets its EAGLE-3 tree worker run on a CPU, on the operators of the shim.

SGLang finds it by the entry point beside this file, in every process that it starts. It registers an attention backend
`tree_on_cpu` for target and draft, and puts torch in the place of two Triton kernels and a refusal of overlap.
"""

from typing import Any

from torch import Tensor


def register() -> None:
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.layers.attention.intel_amx_backend import IntelAMXAttnBackend, IntelAMXMultiStepDraftBackend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    register_attention_backend("tree_on_cpu")(IntelAMXAttnBackend)

    def draft_decode(_original: Any, factory: Any) -> Any:
        if factory.speculative_num_steps <= 1:
            return None
        return IntelAMXMultiStepDraftBackend(factory.draft_model_runner, factory.topk, factory.speculative_num_steps)

    def draft_extend(_original: Any, factory: Any) -> Any:
        return IntelAMXAttnBackend(factory.draft_model_runner)

    def gloo_group(original: Any, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "use_pynccl": False, "use_custom_allreduce": False})

    drafting = "sglang.srt.speculative.draft_utils.DraftBackendFactory"
    HookRegistry.register(f"{drafting}.create_decode_backend", draft_decode, HookType.AROUND)
    HookRegistry.register(f"{drafting}.create_draft_extend_backend", draft_extend, HookType.AROUND)
    HookRegistry.register(
        "sglang.srt.distributed.parallel_state.init_model_parallel_group", gloo_group, HookType.AROUND
    )
    HookRegistry.register("sglang.srt.managers.overlap_utils.gather_spec_extras", _gather_spec_extras, HookType.REPLACE)
    HookRegistry.register(
        "sglang.srt.arg_groups.speculative_hook._disable_overlap_schedule_for_cpu", _keep_overlap, HookType.REPLACE
    )


def _gather_spec_extras(
    rows: Tensor, scores: Tensor, ids: Tensor, tokens: Tensor, hidden: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    return scores[rows], ids[rows], tokens[rows], None if hidden is None else hidden[rows]


def _keep_overlap(_server_args: Any) -> None:
    return None
