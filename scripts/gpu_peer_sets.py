"""What scripts/gpu_peers.py brings of vLLM and SGLang, and what it runs there."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peer:
    module: str
    pins: tuple[str, ...]
    """Its wheel, and what it imports at once and machines with PyTorch and transformers lack."""
    dropped: tuple[str, ...]
    """Patterns of files that stay behind."""
    left_out: str
    """What that costs, for reports."""
    stubs: tuple[str, ...] = ()
    """Modules that are imported and that nothing measured here uses: files that take their place."""
    engine: str = "*"
    """Of its module, what answers requests: its import finds what is missing."""


PEERS = {
    "vllm": Peer(
        "vllm",
        (
            *("vllm==0.25.1", "openai-harmony", "cbor2", "cachetools", "pybase64", "partial-json-parser"),
            *("watchfiles", "model-hosting-container-standards"),
        ),
        ("vllm/vllm_flash_attn/_vllm_fa2_C*", "vllm/vllm-rs", "vllm/*tests/*"),
        "FlashAttention 2, grammars; FlashAttention 3 serves this GPU",
        ("xgrammar/__init__.py",),
        "LLM",
    ),
    "sglang": Peer(
        "sglang",
        (
            *("sglang==0.5.17", "sglang-kernel==0.4.5", "transformers==5.12.1", "tokenizers==0.22.2"),
            *("pybase64", "partial-json-parser", "dill", "orjson", "soundfile", "cffi", "setproctitle", "gguf"),
            *("compressed-tensors", "loguru"),
        ),
        (
            *("sgl_kernel/sm[!9]*", "sgl_kernel/sm100*", "sgl_kernel/flash_ops*", "sgl_kernel/spatial*"),
            *("sgl_kernel/flashmla_ops*", "sgl_kernel/infllm_ops*"),
        ),
        "FlashAttention 3, its default on this GPU, and grammars: attention is FlashInfer's or Triton's",
        ("xgrammar/__init__.py", "IPython/__init__.py", "IPython/display.py"),
        "Engine",
    ),
}

STUB = '''"""Stands for a package that is not here: each of its names is an empty class, for pydantic too."""


def _any_schema(cls, source, handler):
    from pydantic_core import core_schema

    return core_schema.any_schema()


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {"__get_pydantic_core_schema__": classmethod(_any_schema)})
'''
DECODING = """
import json, time
from {module} import {engine} as Engine
engine = Engine({arguments})
rows = []
for batch in {batches}:
    prompts = [[(7 * row + place) % 4000 + 2 for place in range({prompt})] for row in range(batch)]
    taken = []
    for count in ({few}, {many}):
        {answer}
        began = time.perf_counter()
        {answer}
        taken.append(time.perf_counter() - began)
    rows.append((batch, (taken[1] - taken[0]) / ({many} - {few})))
print("CELLS " + json.dumps(rows))
"""
ENGINES = {
    "vllm": (
        "model='{shape}', load_format='dummy', skip_tokenizer_init=True, max_model_len=2048, "
        "enable_prefix_caching=False",
        "engine.generate([dict(prompt_token_ids=ids) for ids in prompts], __import__('vllm').SamplingParams("
        "temperature=0, max_tokens=count, ignore_eos=True, detokenize=False), use_tqdm=False)",
    ),
    "sglang": (
        "model_path='{shape}', load_format='dummy', skip_tokenizer_init=True, context_length=2048, "
        "disable_radix_cache=True, attention_backend='flashinfer'",
        "engine.generate(input_ids=prompts, sampling_params=dict(temperature=0, max_new_tokens=count, "
        "ignore_eos=True))",
    ),
}
