"""Nonsense at the door: each a clear error with the limit and the value, while a running request notices nothing."""

import io
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from openai import OpenAI
from safetensors.torch import load_file, save_file

from aerie.contracts.errors import ConfigError
from aerie.resolve import resolve_config, with_local_model
from aerie.spec.build import build_worker
from tests.e2e.conftest import HOME, QUESTION, Server
from tests.patience import PATIENCE

CHAT = {"model": "aerie-demo", "messages": QUESTION, "max_tokens": 4}
NONSENSE: list[tuple[str, Any, int, str]] = [
    ("unknown model", CHAT | {"model": "gpt-x"}, 404, "gpt-x"),
    ("malformed", b'{"model": "aerie-demo", "messages": [', 400, "JSON"),
    ("NaN", json.dumps(CHAT | {"temperature": float("nan")}).encode(), 400, "temperature is NaN"),
    ("choices", CHAT | {"n": 10**6}, 400, "n is 1000000; at most 16"),
    ("stops", CHAT | {"stop": ["x" * 3] * 5 + [str(i) for i in range(10**5)]}, 400, "100001 strings; at most 16"),
    ("type", CHAT | {"max_tokens": "16"}, 400, "max_tokens"),
    ("nothing", CHAT | {"messages": []}, 400, "messages"),
    ("prompt", CHAT | {"messages": [{"role": "user", "content": "x y " * 9000}]}, 400, "2048"),
    ("body", b'{"model": "' + b"x" * (50 << 20) + b'"}', 413, "4194304"),
]


async def post(url: str, body: Any) -> tuple[int, str]:
    data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
    headers = {"content-type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", data=data, headers=headers) as answer,
    ):
        return answer.status, (await answer.json())["error"]["message"]


async def test_nonsense_is_named_and_nobody_else_notices(server: Server, client: OpenAI) -> None:
    calm: list[str] = []
    fields: dict[str, Any] = CHAT | {"max_tokens": 160, "temperature": 0.8, "seed": 3}

    def ask() -> None:
        calm.append(
            client.chat.completions.create(**fields, extra_body={"ignore_eos": True}).choices[0].message.content
        )

    ask()
    running = threading.Thread(target=ask)
    running.start()
    for name, body, status, said in NONSENSE:
        answered, message = await post(server.url, body)
        assert (answered, said in message) == (status, True), f"{name}: {answered} {message[:200]}"
    running.join(PATIENCE)
    assert len(calm) == 2 and calm[0] == calm[1]


def test_a_busy_port_is_named(refused: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"{port}" in (said := refused(f"server.port={port}")) and "server.port" in said


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("spec.dept=3", "did you mean 'spec.depth'"),
        ("--tensor-parallel-sise=1", "did you mean --tensor-parallel-size"),
        ("spec.nodes=65", "spec.nodes"),
        ("model.path=models/nowhere", "models/nowhere"),
        ("spec.head=models/nowhere", "models/nowhere"),
        ("engine.device=cuda", "engine.device"),
    ],
)
def test_a_wrong_setting_is_named(refused: Callable[..., str], setting: str, said: str) -> None:
    assert said in refused(setting)


def _copied(folder: Path, source: str) -> dict[str, Any]:
    """The demo's `source` in `folder`, for damage; returns its config."""
    folder.mkdir()
    for file in (HOME / "models/demo" / source).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return json.loads((folder / "config.json").read_text())


def refusal(setting: str) -> str:
    """What the lane's process says, in this one: seven seconds sooner."""
    config = resolve_config(str(HOME / "configs/serve/demo.yaml"), ["engine.kv_tokens=4096", setting])
    with pytest.raises(ConfigError) as refused:
        build_worker(with_local_model(config))
    return refused.value.message


@pytest.mark.parametrize(
    ("damage", "said"),
    [("hidden_size", "128"), ("vocab_size", "5000"), ("taps", "tap"), ("tensor", "midlayer.self_attn.q_proj.weight")],
)
def test_a_head_that_does_not_fit_is_refused(tmp_path: Path, damage: str, said: str) -> None:
    config = _copied(tmp_path / "head", "head")
    if damage == "tensor":
        weights = load_file(tmp_path / "head/model.safetensors")
        del weights[said]
        save_file(weights, tmp_path / "head/model.safetensors")
    elif damage == "taps":
        config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 5]
    elif damage == "hidden_size":
        config |= {"hidden_size": 128, "target_hidden_size": 128}
    else:
        config["vocab_size"] = 5000
    (tmp_path / "head/config.json").write_text(json.dumps(config))
    assert said.removeprefix("midlayer.") in refusal(f"spec.head={tmp_path / 'head'}")


def test_what_the_lane_refuses_ends_the_server(tmp_path: Path, refused: Callable[..., str]) -> None:
    _copied(tmp_path / "target", "target")
    weights = load_file(tmp_path / "target/model.safetensors")
    del weights["model.layers.3.mlp.up_proj.weight"]
    save_file(weights | {"model.surprise": torch.zeros(1)}, tmp_path / "target/model.safetensors")
    setting = f"model.path={tmp_path / 'target'}"
    assert "model.layers.3.mlp.up_proj.weight" in refusal(setting)
    assert "model.layers.3.mlp.up_proj.weight" in refused(setting)
