"""Hashes that name a target and its template: of what is served, whatever files hold it."""

import hashlib
import json
from pathlib import Path

import pytest

from aerie.contracts.errors import ConfigError
from aerie.contracts.provenance import file_hash, template_hash, template_source, tool_template_source, weights_hash


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_one_file_of_weights_is_its_own_hash_and_several_have_one_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no safetensors"):
        weights_hash(tmp_path)
    (tmp_path / "model-2.safetensors").write_bytes(b"two")
    assert weights_hash(tmp_path) == file_hash(tmp_path / "model-2.safetensors") == sha(b"two")
    (tmp_path / "model-1.safetensors").write_bytes(b"one")
    together = weights_hash(tmp_path)
    assert together == sha(f"model-1.safetensors {sha(b'one')}\nmodel-2.safetensors {sha(b'two')}\n".encode())
    (tmp_path / "model-1.safetensors").write_bytes(b"One")
    assert weights_hash(tmp_path) != together


def test_the_template_is_the_one_that_is_served(tmp_path: Path) -> None:
    assert template_source(tmp_path) is None and template_hash(None) == "none"
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps({"chat_template": [{"name": "default", "template": "named"}]}))
    assert template_source(tmp_path) == "named"
    settings.write_text(json.dumps({"chat_template": "plain"}))
    assert template_source(tmp_path) == "plain"
    (tmp_path / "chat_template.jinja").write_text("beside")
    assert template_source(tmp_path) == "beside"
    (tmp_path / "mine.jinja").write_text("mine")
    assert template_source(tmp_path, tmp_path / "mine.jinja") == "mine"
    assert template_hash("mine") == sha(b"mine")
    with pytest.raises(ConfigError, match=r"no chat template at .*nowhere"):
        template_source(tmp_path, tmp_path / "nowhere")


def test_chats_with_tools_may_have_a_template_of_their_own(tmp_path: Path) -> None:
    assert tool_template_source(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": [{"name": name, "template": name.upper()} for name in ("default", "tool_use")]})
    )
    assert (template_source(tmp_path), tool_template_source(tmp_path)) == ("DEFAULT", "TOOL_USE")
    (tmp_path / "chat_template.jinja").write_text("beside")
    assert (template_source(tmp_path), tool_template_source(tmp_path)) == ("beside", None)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    assert (template_source(tmp_path), tool_template_source(tmp_path)) == ("beside", "with tools")
    (tmp_path / "mine.jinja").write_text("mine")
    assert tool_template_source(tmp_path, tmp_path / "mine.jinja") is None, "it serves all chats"


def test_settings_that_are_no_json_are_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config.json is not JSON"):
        template_source(tmp_path)
