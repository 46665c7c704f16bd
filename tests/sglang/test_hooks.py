"""The contract with SGLang is checked against the installed release, and a hook that moved is named."""

from dataclasses import replace

import pytest

from aerie.contracts.errors import ConfigError
from aerie.engine.sglang.hooks import HOOKS, TAP_HOOKS, Hook, complaints, require_hooks
from tests.sglang.forked import run_forked


def test_the_installed_release_has_every_hook() -> None:
    run_forked(lambda: require_hooks(taps=True))


@pytest.mark.parametrize("hook", [*HOOKS, *TAP_HOOKS], ids=lambda hook: hook.path)
def test_every_hook_is_missed(hook: Hook) -> None:
    """A release in which just this one moved."""
    renamed = replace(hook, path=hook.path + "Renamed")
    assert list(complaints([renamed])) == [f"{renamed.path.replace(':', '.')} is gone"]


def test_a_moved_hook_is_named_and_a_way_on_is_offered() -> None:
    def body() -> None:
        fewer = Hook("sglang.srt.model_executor.model_runner:ModelRunner.forward", ("forward_batch", "mode"))
        with pytest.raises(ConfigError, match=r"ModelRunner\.forward takes no mode.*engine\.kind=native") as error:
            require_hooks(taps=False, hooks=[fewer])
        assert error.value.param == "engine.kind"
        lost = Hook("sglang.srt.models.llama:LlamaForCausalLM", attributes=("set_taps",))
        with pytest.raises(ConfigError, match=r"LlamaForCausalLM has no set_taps.*spec\.head=none to decode plainly"):
            require_hooks(taps=True, tap_hooks=[lost])
        require_hooks(taps=False, tap_hooks=[lost])
        batch = "sglang.srt.model_executor.forward_batch_info:ForwardBatch"
        assert list(complaints([Hook(batch, fields=("input_ids", "prompt_ids"))])) == [
            f"{batch.replace(':', '.')} has no field prompt_ids"
        ]

    run_forked(body)
