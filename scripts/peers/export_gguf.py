"""Writes a Llama checkpoint with a byte-level BPE tokenizer as GGUF, so that llama.cpp can serve the demo target.

    python scripts/peers/export_gguf.py models/demo/target build/peers/demo-bf16.gguf

Called by scripts/peers/llama_cpp.sh. bf16 and f32 keep every weight of a bf16 checkpoint; f16 may move one by ROUNDING,
which is what it does to tiny ones. Every tensor of the checkpoint is written; one that has no name in GGUF is an error.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from aerie.engine.model.config import Rope, read_rope
from aerie.engine.model.config_numbers import ConfigNumbers
from aerie.engine.model.rope import frequencies

KINDS = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
}
ROUNDING = 2**-25
"""Half of the gap between the smallest f16 numbers."""
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


class NotExported(Exception):
    """What in the checkpoint GGUF cannot represent."""


def export(model: Path, out: Path, kind: str = "bf16") -> None:
    """Writes `out`; matrices of `kind` (of `KINDS`), vectors of f32. Raises NotExported."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama":
        raise NotExported(f"{model} is a {config['model_type']}; only llama is written")
    writer = gguf.GGUFWriter(out, "llama")
    describe(writer, config, model.name, KINDS[kind])
    _add_vocabulary(writer, config, model)
    with safe_open(model / "model.safetensors", framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118  not a dictionary
            data = tensors.get_tensor(name).float().numpy()
            _add_tensor(writer, config, name, data, KINDS[kind])
    if (factors := slower(config)) is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    out.parent.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleaved(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of each head in the order of GGUF's RoPE, which rotates neighbors; the checkpoint's rotates halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tensor_name(name: str) -> str:
    """GGUF's name of a checkpoint tensor. Raises NotExported."""
    stem, _, last = name.rpartition(".")
    if stem in _WHOLE and last == "weight":
        return f"{_WHOLE[stem]}.weight"
    words = stem.split(".", 3)
    if words[:2] == ["model", "layers"] and len(words) == 4 and words[3] in _PARTS and last == "weight":
        return f"blk.{words[2]}.{_PARTS[words[3]]}.weight"
    raise NotExported(f"no name in GGUF for the tensor {name}")


def _add_tensor(
    writer: gguf.GGUFWriter,
    config: dict[str, Any],
    name: str,
    data: NDArray[np.float32],
    kind: gguf.GGMLQuantizationType,
) -> None:
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if heads is not None:
        data = interleaved(data, config[heads])
    if data.ndim == 1:
        writer.add_tensor(tensor_name(name), data)
        return
    stored = gguf.quants.quantize(data, kind)
    moved = float(np.abs(gguf.quants.dequantize(stored, kind) - data).max())
    if not moved <= ROUNDING:
        raise NotExported(f"{kind.name} moves a value of {name} by {moved:.2g}, more than {ROUNDING}; take f32")
    writer.add_tensor(tensor_name(name), stored, raw_dtype=kind)


def describe(writer: gguf.GGUFWriter, config: dict[str, Any], name: str, kind: gguf.GGMLQuantizationType) -> None:
    """Writes the sizes of a config.json. Raises NotExported."""
    writer.add_name(name)
    writer.add_file_type(getattr(gguf.LlamaFileType, {"F32": "ALL_F32"}.get(kind.name, f"MOSTLY_{kind.name}")))
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(_rope(config).theta)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def slower(config: dict[str, Any]) -> NDArray[np.float32] | None:
    """How many times more slowly each pair of a head's components turns than the base alone says; None without such a
    scaling.
    """
    rope, width = _rope(config), config["head_dim"]
    if rope.kind == "default":
        return None
    return (frequencies(Rope(rope.theta), width) / frequencies(rope, width)).numpy()


def _rope(config: dict[str, Any]) -> Rope:
    """Raises ConfigError."""
    return read_rope(ConfigNumbers(config, "config.json", "model"))


def _add_vocabulary(writer: gguf.GGUFWriter, config: dict[str, Any], model: Path) -> None:
    tokenizer_json = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    _check_splits(tokenizer_json)
    ids = tokenizer_json["model"]["vocab"] | {one["content"]: one["id"] for one in tokenizer_json["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = {
        one["content"]: gguf.TokenType.CONTROL if one["special"] else gguf.TokenType.USER_DEFINED
        for one in tokenizer_json["added_tokens"]
    }
    merges = [one if isinstance(one, str) else " ".join(one) for one in tokenizer_json["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(token, gguf.TokenType.NORMAL) for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)  # the template writes it
    writer.add_chat_template((model / "chat_template.jinja").read_text(encoding="utf-8"))


def _check_splits(tokenizer_json: dict[str, Any]) -> None:
    """Raises NotExported unless it is a byte-level BPE. GGUF has no place for a regex that splits words: llama.cpp
    knows those of some models by name, and reads other ids of the same text where a tokenizer has its own.
    """
    before = tokenizer_json["pre_tokenizer"]
    *splits, last = before["pretokenizers"] if before["type"] == "Sequence" else [before]
    if tokenizer_json["model"]["type"] != "BPE" or last["type"] != "ByteLevel":
        raise NotExported("the tokenizer is not a byte-level BPE")
    if splits or not last["use_regex"]:
        print("export_gguf: llama.cpp will split words as GPT-2 does, this tokenizer does not", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of the checkpoint")
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--kind", choices=KINDS, default="bf16", help="of matrices")
    given = parser.parse_args()
    try:
        export(given.model, given.out, given.kind)
    except NotExported as error:
        print(f"export_gguf: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
