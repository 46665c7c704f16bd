"""The demo target as GGUF: every tensor, the rotation, the vocabulary."""

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.bench.test_sweep import HOME

gguf = pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def exporter() -> ModuleType:
    spec = importlib.util.spec_from_file_location("export_gguf", HOME / "scripts/peers/export_gguf.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Two layers with the demo target's tokenizer."""
    model = tmp_path / "tiny"
    shutil.copytree(HOME / "models/demo/target", model, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((model / "config.json").read_text())
    config |= {"num_hidden_layers": 2, "hidden_size": 32, "head_dim": 8, "intermediate_size": 48}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    (model / "config.json").write_text(json.dumps(config))
    chosen = np.random.default_rng(0)
    shapes = {"model.embed_tokens": (config["vocab_size"], 32), "model.norm": (32,)}
    for layer in range(2):
        own = {"self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32)}
        own |= {"self_attn.o_proj": (32, 32), "input_layernorm": (32,), "post_attention_layernorm": (32,)}
        own |= {"mlp.gate_proj": (48, 32), "mlp.up_proj": (48, 32), "mlp.down_proj": (32, 48)}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
    save_file(
        {f"{name}.weight": chosen.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()},
        model / "model.safetensors",
    )
    return model


def test_every_tensor_and_the_vocabulary_arrive(exporter: ModuleType, tiny: Path, tmp_path: Path) -> None:
    exporter.export(tiny, tmp_path / "out/tiny.gguf", "f32")
    read = gguf.GGUFReader(tmp_path / "out/tiny.gguf")
    given = load_file(tiny / "model.safetensors")
    found = {tensor.name: tensor.data for tensor in read.tensors}
    assert found.keys() - {"rope_freqs.weight"} == {exporter.tensor_name(name) for name in given}
    assert np.array_equal(found["blk.1.ffn_down.weight"], given["model.layers.1.mlp.down_proj.weight"])
    assert read.get_field("llama.attention.head_count_kv").contents() == 2
    tokens = read.get_field("tokenizer.ggml.tokens").contents()
    tokenizer = json.loads((tiny / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"] | {one["content"]: one["id"] for one in tokenizer["added_tokens"]}
    assert len(tokens) == len(given["model.embed_tokens.weight"])
    assert all(ids[token] == place for place, token in enumerate(tokens))
    kinds = read.get_field("tokenizer.ggml.token_type").contents()
    assert [place for place, kind in enumerate(kinds) if kind == gguf.TokenType.CONTROL] == [0, 1, 2, 3, 4, 5]


def test_marks_are_tokens_and_words_split_otherwise_are_told(
    exporter: ModuleType, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = json.loads((tiny / "tokenizer.json").read_text())
    end = json.loads((tiny / "config.json").read_text())["vocab_size"]
    tokenizer["added_tokens"].append({"id": end, "content": "<mark>", "special": False})
    bytes_alone = {"type": "ByteLevel", "use_regex": False}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "Split"}, bytes_alone]}
    (tiny / "tokenizer.json").write_text(json.dumps(tokenizer))
    exporter.export(tiny, tmp_path / "tiny.gguf", "f32")
    assert "will split words as GPT-2 does, this tokenizer does not" in capsys.readouterr().err
    read = gguf.GGUFReader(tmp_path / "tiny.gguf")
    assert read.get_field("tokenizer.ggml.tokens").contents()[end:] == ["<mark>"]
    assert read.get_field("tokenizer.ggml.token_type").contents()[end] == gguf.TokenType.USER_DEFINED
    tokenizer["pre_tokenizer"]["pretokenizers"][-1] = {"type": "Metaspace"}
    (tiny / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(exporter.NotExported, match="not a byte-level BPE"):
        exporter.export(tiny, tmp_path / "tiny.gguf", "f32")


def test_neighbors_turn_as_halves_did(exporter: ModuleType) -> None:
    """Attention scores are the same: the checkpoint turns (i, i + half), GGUF (2 i, 2 i + 1), each by angle i."""
    chosen = np.random.default_rng(1)
    heads, half, columns = 2, 4, 8
    weight = chosen.standard_normal((heads * 2 * half, columns)).astype(np.float32)
    x = chosen.standard_normal(columns).astype(np.float32)
    angles = chosen.uniform(0, 3, half)
    cos, sin = np.cos(angles), np.sin(angles)
    before = (weight @ x).reshape(heads, 2, half)
    turned = np.stack([before[:, 0] * cos - before[:, 1] * sin, before[:, 1] * cos + before[:, 0] * sin], axis=1)
    after = (exporter.interleaved(weight, heads) @ x).reshape(heads, half, 2)
    neighbors = np.stack([after[..., 0] * cos - after[..., 1] * sin, after[..., 1] * cos + after[..., 0] * sin], axis=2)
    assert np.allclose(neighbors, turned.swapaxes(1, 2), atol=1e-5)
    assert not np.allclose((weight @ x).reshape(heads, half, 2), after), "the order does change"


def test_slow_rotations_arrive(exporter: ModuleType, tiny: Path, tmp_path: Path) -> None:
    """llama.cpp divides by these; transformers' own frequencies are the reference."""
    config = json.loads((tiny / "config.json").read_text())
    scaled = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512}
    config["rope_parameters"] = scaled | {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    (tiny / "config.json").write_text(json.dumps(config))
    exporter.export(tiny, tmp_path / "tiny.gguf", "f32")
    read = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "tiny.gguf").tensors}
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig.from_pretrained(tiny), "cpu")
    plain = 1e4 ** -(np.arange(0, 8, 2) / 8)
    assert np.allclose(plain / read["rope_freqs.weight"], expected.numpy(), rtol=1e-5)
    assert exporter.slower(config | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}) is None


def test_what_has_no_place_is_named(exporter: ModuleType, tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(exporter.NotExported, match="BF16 moves a value of"):
        exporter.export(tiny, tmp_path / "tiny.gguf", "bf16")
    with pytest.raises(exporter.NotExported, match=r"model\.layers\.0\.self_attn\.q_proj\.bias"):
        exporter.tensor_name("model.layers.0.self_attn.q_proj.bias")
    config = json.loads((tiny / "config.json").read_text()) | {"model_type": "qwen3"}
    (tiny / "config.json").write_text(json.dumps(config))
    with pytest.raises(exporter.NotExported, match="qwen3; only llama"):
        exporter.export(tiny, tmp_path / "tiny.gguf")
