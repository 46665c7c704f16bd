"""Each rule drops what it names and nothing else, and the manifest says how many."""

import json
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForTokenClassification, BertTokenizerFast

from aerie.contracts.errors import AerieError
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.lines import read_own
from aerie.train.pipeline.filter import evaluation_prompts, filter_prompts, weighed
from aerie.train.pipeline.filters.near_duplicates import NearDuplicates, Overlap, normalized
from aerie.train.pipeline.filters.personal import finders, has_account, has_card, has_phone, names_finder
from aerie.train.pipeline.folder import discard
from aerie.train.pipeline.prompts import make_prompts
from tests.train.pipeline.tiny import changed, tree_bytes

LONG = "The quick brown fox jumps over the lazy dog while the other animals of the farm look on and say nothing at all"

PERSONAL = {
    "email": ["write to bob.smith+x@mail.example.co.uk now", "émile@exämple.de"],
    "phone": ["call +49 30 123456 today", "ring (415) 555-2671", "415-555-2671"],
    "card": ["card 4111 1111 1111 1111 please", "5500005555555559"],
    "account": ["DE89 3704 0044 0532 0130 00 IS mine", "GB82WEST12345698765432", "ssn 536-22-1234"],
    "address": ["I live at 12 Baker Street, London", "Hauptstraße 5", "he is at 350 Fifth Avenue", "10 rue de Rivoli"],
}
HARMLESS = [
    "In 1999 version 3.14.15 of RFC 2822 had 1234567890 readers and 4111111111111112 pages",
    "Count from 20 to 60 in steps of 2. See os.path and @property, not a@b",
    "Sum 1000 2000 3000 4000 5000, then 2024-01-02 12:30:45 and 192.168.10.20",
    "Chapter 12: the place where streets have no name",
    "uuid 123e4567-e89b-12d3-a456-426614174000, hash 0xdeadbeef, ISBN 978-3-16-148410-0",
]


@pytest.mark.parametrize("kind", PERSONAL)
def test_personal_data_is_found_by_its_kind(kind: str) -> None:
    found = finders(list(PERSONAL))
    for text in PERSONAL[kind]:
        assert found[kind](text), text
    for text in HARMLESS:
        assert not found[kind](text), text


def test_check_digits_are_verified() -> None:
    assert not has_card("4111 1111 1111 1112") and not has_account("DE88370400440532013000")
    assert not has_card("0000 0000 0000 0000") and not has_phone("order 12 34 56")


def test_near_duplicates_are_those_above_the_threshold() -> None:
    near = NearDuplicates(0.7)
    assert near.find("a", LONG) is None
    assert near.find("b", LONG.replace("nothing at all", "nothing at last")) == "a"
    assert near.find("c", LONG.upper() + "!") == "a"
    assert near.find("d", " ".join(reversed(LONG.split()))) is None
    assert near.find("e", "Hi") is None and near.find("f", "Hi") is None
    assert NearDuplicates(1.0).find("a", LONG) is None
    assert normalized("A\n b") == normalized("a B")


def test_overlap_is_a_run_of_words_or_the_whole() -> None:
    overlap = Overlap([LONG, "Say hello"], 13)
    assert overlap.has("so: " + LONG[4:]) and overlap.has("say  HELLO!") and not overlap.has("please say hello")
    assert not overlap.has(" ".join(LONG.split()[:12]))


def test_domains_get_their_shares() -> None:
    records = [
        {"id": f"{domain}{n}", "domain": domain} for domain, most in (("chat", 90), ("code", 20)) for n in range(most)
    ]
    kept = weighed(records, {"chat": 2, "code": 1})
    assert sum(one.startswith("chat") for one in kept) == 40 and sum(one.startswith("code") for one in kept) == 20
    assert kept == weighed(records[::-1], {"chat": 2, "code": 1})
    assert len(weighed(records, {})) == 110
    with pytest.raises(AerieError, match="says nothing of code"):
        weighed(records, {"chat": 1})


def test_the_stage_counts_what_each_rule_dropped(
    pipeline: PipelineConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = [LONG, LONG.upper(), LONG + " and more", "Whom did they call?", "x", "mail a@example.com", "fine words"]
    lines = [json.dumps({"messages": [{"role": "user", "content": text}]}) for text in questions]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    config = changed(pipeline, filter={"shortest": 2, "near_duplicate": 0.7})
    make_prompts(config)
    folder = filter_prompts(config)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["counts"]["dropped"] == {
        "too short": 1,
        "exact duplicate": 1,
        "near duplicate": 1,
        "evaluation overlap": 1,
        "personal: email": 1,
    }
    assert manifest["counts"]["names"] == "not checked" and manifest["counts"]["licenses"] == {"CC0-1.0": 2}
    assert [record["turns"][0]["content"] for record in read_own(folder / "prompts.jsonl")] == [LONG, "fine words"]
    assert json.loads((folder / "samples.json").read_text())["personal: email"] == ["mail a@example.com"]
    reported = capsys.readouterr().err
    assert "2 prompts kept" in reported and '1 dropped by personal: email, as "mail a@example.com"' in reported
    again = changed(config, work=str(tmp_path / "again"))
    make_prompts(again)
    assert tree_bytes(filter_prompts(again)) == tree_bytes(folder)


def test_a_license_may_be_asked_for(pipeline: PipelineConfig) -> None:
    make_prompts(pipeline)
    with pytest.raises(AerieError, match="dropped all 8"):
        filter_prompts(changed(pipeline, filter={"licenses": ["MIT"]}))
    discard(Path(pipeline.work), "filter")
    folder = filter_prompts(changed(pipeline, filter={"licenses": ["CC0-1.0"]}))
    assert json.loads((folder / "manifest.json").read_text())["counts"]["kept"] == 8


def test_a_bad_line_among_held_out_prompts_is_an_error(pipeline: PipelineConfig, tmp_path: Path) -> None:
    with (tmp_path / "held_out.jsonl").open("a") as file:
        file.write("{\n")
    with pytest.raises(AerieError, match=r"held_out.jsonl:3"):
        evaluation_prompts(pipeline)


def test_a_local_model_finds_names(tmp_path: Path) -> None:
    """A classifier whose every token is a person: that it is asked, and that its labels decide."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    labels = {0: "O", 1: "B-PER"}
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = BertForTokenClassification(BertConfig(vocab_size=len(words), id2label=labels, **sizes))
    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([-50.0, 50.0]))
    model.save_pretrained(tmp_path)
    finder = names_finder(str(tmp_path), ["PER"])
    assert finder is not None and finder("hello world")
    with pytest.raises(AerieError, match="names_labels LOC"):
        names_finder(str(tmp_path), ["LOC"])
    with pytest.raises(AerieError, match="no token classifier at nowhere"):
        names_finder("nowhere", ["PER"])
    assert names_finder(None, ["PER"]) is None
