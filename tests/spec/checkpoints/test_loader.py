"""Checkpoints of both layouts give the same logits, and whatever does not fit is refused by name and value."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from aerie.contracts.config import parse_config
from aerie.contracts.errors import ConfigError
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.memory import Sizes
from aerie.engine.model.config import read_model_config
from aerie.spec.checkpoints.loader import open_head
from aerie.spec.drafters.drafter import Deployment
from aerie.spec.drafters.head_drafter import HeadDrafter
from aerie.spec.drafters.registry import kind_of
from aerie.spec.heads.head import Head
from tests.spec import models


class Lent:
    """A target's tensors, as far as a head borrows them."""

    def __init__(self, folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        self.embeddings = tensors["model.embed_tokens.weight"]
        self.output_weight = tensors["lm_head.weight"]


def load_drafter(folder: Path, target: Path, kernels: Kernels = REFERENCES) -> HeadDrafter:
    settings = {"engine": {"attention": "reference"}, "spec": {"quantization": "none"}}
    cpu, float32 = torch.device("cpu"), torch.float32
    deployment = Deployment(parse_config(settings), read_model_config(target), float32, cpu, kernels)
    lent: Any = Lent(target)
    sizes = Sizes(float32, cpu, max_length=63, pages=9, page_size=4, rows=1, reserve=0)
    drafter = kind_of(folder).open(folder, deployment).load(lent, sizes)
    assert isinstance(drafter, HeadDrafter)
    return drafter


def load(folder: Path, target: Path, kernels: Kernels = REFERENCES) -> Head:
    return load_drafter(folder, target, kernels).head


def outputs(head: Head) -> Tensor:
    """Logits of three pairs through every weight."""
    from tests.spec.heads.test_head import run_pairs

    torch.manual_seed(5)
    taps = torch.randn(3, 3 * models.HIDDEN)
    return head.read(run_pairs(head, torch.tensor([3, 1, 60]), taps)).logits


def test_both_layouts_give_identical_logits(tmp_path: Path, target_folder: Path) -> None:
    plain = models.head_tensors(draft_vocabulary=32)
    maps = models.draft_maps(32)
    named = models.safeailab_names(plain)
    forms: dict[str, tuple[dict[str, Any], dict[str, Tensor]]] = {
        "safeailab": (models.head_config(draft_vocabulary=32), named | maps),
        "specforge": (models.specforge_config(draft_vocabulary=32), named | maps),
        "layers.0": (models.specforge_config(draft_vocabulary=32), plain | maps),
        "prefixed": (
            models.specforge_config(draft_vocabulary=32),
            {f"draft_model.{k}": v for k, v in (plain | maps).items()},
        ),
        "no t2d, half precision maps": (models.head_config(draft_vocabulary=32), named | {"d2t": maps["d2t"].int()}),
        "uint8 t2d, inv_freq": (
            models.head_config(draft_vocabulary=32),
            named
            | {"d2t": maps["d2t"], "t2d": maps["t2d"].byte(), "midlayer.self_attn.rotary_emb.inv_freq": torch.ones(4)},
        ),
    }
    seen = {}
    for name, (config, tensors) in forms.items():
        head = load(models.write(tmp_path / name, config, tensors), target_folder)
        assert head.config.taps == (2, 4, 5)
        assert head.config.source == ("safeailab" if "eagle_config" not in config else "specforge")
        assert head.target_ids(torch.arange(32)).tolist() == list(range(1, 64, 2))
        seen[name] = outputs(head)
    for name, logits in seen.items():
        assert torch.equal(logits, seen["safeailab"]), name


def test_an_unsorted_map_is_kept_as_it_is(tmp_path: Path, target_folder: Path) -> None:
    maps = models.draft_maps(32, ordered=False)
    tensors = models.head_tensors(draft_vocabulary=32) | {"d2t": maps["d2t"]}
    head = load(models.write(tmp_path, models.head_config(draft_vocabulary=32), tensors), target_folder)
    ids = head.target_ids(torch.arange(32))
    assert ids.tolist() == (maps["d2t"] + torch.arange(32)).tolist()
    assert ids.tolist() != sorted(ids.tolist())


@pytest.mark.parametrize("maps", ["none", "zeros"])
def test_a_whole_vocabulary_needs_no_map(tmp_path: Path, target_folder: Path, maps: str) -> None:
    extra = (
        {} if maps == "none" else {"d2t": torch.zeros(64, dtype=torch.int64), "t2d": torch.zeros(64, dtype=torch.bool)}
    )
    head = load(models.write(tmp_path, models.head_config(), models.head_tensors() | extra), target_folder)
    assert head.weights.draft_to_target is None
    assert head.target_ids(torch.tensor([5])).tolist() == [5]


def test_embedding_and_output_are_borrowed_unless_the_head_has_its_own(tmp_path: Path, target_folder: Path) -> None:
    lent = Lent(target_folder)
    tensors = models.head_tensors(draft_vocabulary=32) | models.draft_maps(32)
    shared = load(models.write(tmp_path / "a", models.head_config(draft_vocabulary=32), tensors), target_folder)
    assert torch.equal(shared.weights.embeddings, lent.embeddings)
    own = torch.randn(64, models.HIDDEN)
    with_own = models.write(
        tmp_path / "b", models.head_config(draft_vocabulary=32), tensors | {"embed_tokens.weight": own}
    )
    assert torch.equal(load(with_own, target_folder).weights.embeddings, own)
    del tensors["lm_head.weight"]
    reduced = load(models.write(tmp_path / "c", models.head_config(draft_vocabulary=32), tensors), target_folder)
    assert torch.equal(reduced.weights.output.weight, lent.output_weight[1::2])
    whole = models.head_tensors()
    del whole["lm_head.weight"]
    borrowed = load(models.write(tmp_path / "d", models.head_config(), whole), target_folder)
    assert torch.equal(borrowed.weights.output.weight, lent.output_weight)
    assert borrowed.weights.bytes == sum(t.numel() * 4 for t in whole.values())


def test_taps_are_stored_as_boundaries(tmp_path: Path, target_folder: Path) -> None:
    def taps(config: dict[str, Any]) -> tuple[int, ...]:
        folder = models.write(tmp_path / str(len(list(tmp_path.iterdir()))), config, models.head_tensors())
        return open_head(folder, read_model_config(target_folder), torch.float32).config.taps

    assert taps(models.head_config()) == (2, 4, 5)
    assert taps(models.specforge_config((1, 3, 7))) == (1, 3, 7)
    assert taps(models.head_config(eagle_aux_hidden_state_layer_ids=[0, 2, 6])) == (1, 3, 7)


def test_a_speculators_config_is_laid_out_as_the_others(tmp_path: Path, target_folder: Path) -> None:
    """Sizes one level down, taps as boundaries, and a residual that is normed unless the file says otherwise."""
    folder = models.write(tmp_path / "a", models.speculators_config(), models.head_tensors())
    read = open_head(folder, read_model_config(target_folder), torch.float32).config
    assert (read.source, read.taps, read.norm_before_residual, read.rope.theta) == ("speculators", (2, 4, 5), True, 5e5)
    plain = models.write(tmp_path / "b", models.speculators_config(norm_before_residual=False), models.head_tensors())
    assert not open_head(plain, read_model_config(target_folder), torch.float32).config.norm_before_residual
    assert load(folder, target_folder).target_ids(torch.tensor([5])).tolist() == [5]


def test_rope_is_the_heads_own(tmp_path: Path, target_folder: Path) -> None:
    def theta(name: str, **changes: Any) -> float:
        folder = models.write(tmp_path / name, models.head_config(**changes), models.head_tensors())
        return open_head(folder, read_model_config(target_folder), torch.float32).config.rope.theta

    assert theta("silent") == 10000
    assert theta("top", rope_theta=5e5) == 5e5
    assert theta("parameters", rope_theta=1.0, rope_parameters={"rope_theta": 7e4, "rope_type": "default"}) == 7e4


def broken(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:  # noqa: PLR0915  a table of faults
    """A checkpoint with one fault."""
    config, tensors = models.specforge_config(draft_vocabulary=32), models.head_tensors(draft_vocabulary=32)
    maps = models.draft_maps(32)
    tensors |= maps
    match name:
        case "missing tensor":
            del tensors["layers.0.mlp.up_proj.weight"]
        case "unexpected tensor":
            tensors["layers.0.gate.weight"] = torch.zeros(2)
        case "doubled tensor":
            tensors["midlayer.mlp.up_proj.weight"] = tensors["layers.0.mlp.up_proj.weight"].clone()
        case "wrong shape":
            tensors["norm.weight"] = torch.ones(7)
        case "no d2t":
            del tensors["d2t"]
        case "d2t beyond":
            tensors["d2t"] = maps["d2t"] + 3
        case "d2t repeated":
            tensors["d2t"] = -torch.arange(32)
        case "t2d disagrees":
            tensors["t2d"] = ~maps["t2d"]
        case "speculators":
            config["speculators_model_type"] = "dflash"
        case "speculators without sizes":
            config["speculators_model_type"] = "eagle3"
        case "p-eagle by config":
            config["ptd_token_id"] = 5
        case "p-eagle by tensor" | "p-eagle's embedding":
            tensors["mask_hidden"] = torch.zeros(1, 1, 96)
            config |= {"ptd_token_id": 64 if name == "p-eagle by tensor" else 63}
        case "mla":
            tensors["layers.0.self_attn.q_a_proj.weight"] = torch.zeros(2, 2)
        case "eagle-2":
            del tensors["layers.0.hidden_norm.weight"]
        case "medusa":
            config["medusa_num_heads"] = 3
        case "nothing known":
            del tensors["fc.weight"]
        case "no taps":
            config["eagle_config"]["use_aux_hidden_state"] = False
        case "yarn":
            config["rope_scaling"] = {"rope_type": "yarn", "factor": 4.0}
        case "gelu":
            config["hidden_act"] = "gelu"
        case "hidden size":
            config["target_hidden_size"] = 48
            tensors["fc.weight"] = torch.zeros(32, 144)
        case "vocabulary":
            config["vocab_size"] = 128
        case "tap count":
            config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 3]
        case "declared taps":
            config["num_aux_hidden_states"] = 2
        case "taps beyond":
            config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 3, 31]
        case "taps no list":
            config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = "1, 3, 5"
        case "eagle_config no object":
            config["eagle_config"] = "x"
        case "taps unordered":
            config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [3, 1, 4]
        case "fc_norm missing":
            config["fc_norm"] = True
        case "input_norm missing":
            config["norm_before_fc"] = True
        case "two norms":
            tensors |= {"input_norm.weight": torch.ones(96)} | {f"fc_norm.{i}.weight": torch.ones(32) for i in range(3)}
        case "no size":
            del config["hidden_size"]
    return config, tensors


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing tensor", "layers.0.mlp.up_proj.weight"),
        ("unexpected tensor", "layers.0.gate.weight"),
        ("doubled tensor", "twice"),
        ("wrong shape", r"'norm.weight'.*\(7,\).*\(32,\)"),
        ("no d2t", "drafts 32 of 64"),
        ("d2t beyond", r"4 \.\. 66; the target has 0 \.\. 63"),
        ("d2t repeated", "32 draft ids to 1 target"),
        ("t2d disagrees", "t2d"),
        ("speculators", "'dflash'.*eagle3 and peagle"),
        ("speculators without sizes", "no transformer_layer_config"),
        ("p-eagle by config", "without mask_hidden"),
        ("p-eagle by tensor", r"mask token is 64.*ptd_token_id.*0 \.\. 63"),
        ("p-eagle's embedding", "no embed_tokens.weight"),
        ("mla", "MLA"),
        ("eagle-2", "EAGLE-1 or EAGLE-2"),
        ("medusa", "Medusa"),
        ("nothing known", "no fc.weight"),
        ("no taps", "use_aux_hidden_state"),
        ("yarn", "yarn"),
        ("gelu", "gelu"),
        ("hidden size", "hidden size 48, the target has 32"),
        ("vocabulary", "vocabulary 128, the target has 64"),
        ("tap count", "takes 96 values, and 2 taps of hidden size 32 give 64"),
        ("declared taps", "declares num_aux_hidden_states 2 and names 3"),
        ("taps beyond", r"\[2, 4, 32\].*\[32\].*8 layers"),
        ("taps no list", "'1, 3, 5'; a list of layers"),
        ("eagle_config no object", "eagle_config is 'x'"),
        ("taps unordered", r"\[4, 2, 5\]"),
        ("fc_norm missing", "fc_norm.0.weight is missing"),
        ("input_norm missing", "input_norm.weight is missing"),
        ("two norms", "both fc_norm and input_norm"),
        ("no size", "hidden_size None"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, target_folder: Path, name: str, says: str) -> None:
    folder = models.write(tmp_path, *broken(name))
    with pytest.raises(ConfigError, match=says):
        load(folder, target_folder)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rope_theta": -1}, "rope_theta -1; a finite number of at least 1"),
        ({"rope_scaling": {"rope_theta": float("nan")}}, "rope_theta nan"),
        ({"rms_norm_eps": 0.0}, r"rms_norm_eps 0\.0; a finite number above 0"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps 'x'"),
        ({"num_attention_heads": 0}, "num_attention_heads 0"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3; a divisor of the 4"),
        ({"num_hidden_layers": -1}, "num_hidden_layers -1"),
        ({"head_dim": 7}, "head_dim 7; RoPE"),
        ({"vocab_size": 0}, "vocab_size 0"),
        ({"draft_vocab_size": -3}, "draft_vocab_size -3"),
        ({"draft_vocab_size": 65}, "draft_vocab_size 65; at most the target's 64 ids"),
        ({"target_hidden_size": 2.5}, r"target_hidden_size 2\.5"),
    ],
)
def test_nonsense_in_a_config_is_refused(
    tmp_path: Path, target_folder: Path, changes: dict[str, Any], says: str
) -> None:
    config, tensors = broken("none of these")
    folder = models.write(tmp_path, config | changes, tensors)
    with pytest.raises(ConfigError, match=says):
        load(folder, target_folder)


def test_a_pickle_is_refused_with_advice(tmp_path: Path, target_folder: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"never read")
    with pytest.raises(ConfigError, match=r"pickled.*convert"):
        load(tmp_path, target_folder)


def test_an_embedding_of_another_width_cannot_be_shared(tmp_path: Path) -> None:
    target = models.write_target(tmp_path / "target", hidden=48)
    config = models.head_config(target_hidden_size=48)
    tensors = models.head_tensors() | {"fc.weight": torch.zeros(32, 144)}
    with pytest.raises(ConfigError, match=r"hidden size 32.*hidden size 48 and cannot be shared"):
        load(models.write(tmp_path / "head", config, tensors), target)


def test_default_taps_need_a_deep_target(tmp_path: Path) -> None:
    target = models.write_target(tmp_path / "target", layers=6)
    folder = models.write(tmp_path / "head", models.head_config(), models.head_tensors())
    with pytest.raises(ConfigError, match="6 layers is too shallow"):
        load(folder, target)
