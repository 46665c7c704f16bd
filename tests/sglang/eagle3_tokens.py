"""A program: SGLang's own engine with its EAGLE-3 worker on a CPU, asked for greedy tokens; run with the shim first.

stdin is JSON, `{"target": FOLDER, "head": FOLDER, "prompts": [[id, ..], ..], "tokens": N, "shapes": [[steps, topk,
nodes], ..]}`; the last line of stdout is one `[{"ids": .., "passes": ..}, ..]` for each shape. Its processes are
forks, so that SGLang is imported once.
"""

import json
import multiprocessing
import sys
from typing import Any

import tests.sglang.pools  # noqa: F401


def main() -> None:
    import sglang
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler
    import sglang.srt.speculative.eagle_worker_v2

    assert sys.modules["sgl_kernel"].__version__ == "shim"
    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *_, **__: None  # type: ignore[assignment, method-assign]
    asked = json.load(sys.stdin)
    print(json.dumps([answers(sglang, asked, *shape) for shape in asked["shapes"]]), flush=True)


def answers(sglang: Any, asked: dict[str, Any], steps: int, topk: int, nodes: int) -> list[dict[str, Any]]:
    """Token ids of every prompt, and how many verifying passes they took."""
    engine = sglang.Engine(
        model_path=asked["target"],
        device="cpu",
        dtype="float32",
        attention_backend="tree_on_cpu",
        sampling_backend="pytorch",
        speculative_algorithm="EAGLE3",
        speculative_draft_model_path=asked["head"],
        speculative_num_steps=steps,
        speculative_eagle_topk=topk,
        speculative_num_draft_tokens=nodes,
        max_total_tokens=4096,
        max_running_requests=8,
        context_length=512,
        skip_server_warmup=True,
        log_level="error",
    )
    try:
        found = engine.generate(
            input_ids=asked["prompts"],
            sampling_params={"temperature": 0, "max_new_tokens": asked["tokens"], "ignore_eos": True},
        )
    finally:
        engine.shutdown()
    return [{"ids": one["output_ids"], "passes": one["meta_info"]["spec_verify_ct"]} for one in found]


if __name__ == "__main__":
    main()
