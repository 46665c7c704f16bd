"""The playground's files and the door they leave shut; what the page does is tested in tests/browser."""

import json
from pathlib import Path

import aiohttp
import pytest

from aerie.server import playground
from tests.server.conftest import Start

KINDS = (".html", ".css", ".js", ".json")
FILES = sorted(path for path in Path(playground.__file__).parent.iterdir() if path.suffix in KINDS)
KNOWN = {"name", "task", "says", "returns", "tools", "schema", "max_tokens"}


async def test_its_files_are_served_under_a_strict_policy(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(None, {"server": {"playground": True}}) as live:
        for file in FILES:
            path = "/" if file.name == "index.html" else f"/playground/{file.name}"
            async with http.get(live.url + path) as answer:
                assert answer.status == 200 and await answer.text() == file.read_text()
                policy = answer.headers["content-security-policy"]
                assert "default-src 'none'" in policy and "unsafe" not in policy
        for path in ("/playground/", "/playground/__init__.py", "/playground/%2e%2e/app.py"):
            async with http.get(live.url + path) as answer:
                assert answer.status == 404


async def test_it_can_be_left_out(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(None, {"server": {"playground": False}}) as live:
        for path in ("/", "/playground/page.js"):
            async with http.get(live.url + path) as answer:
                assert answer.status == 404


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_is_loaded_from_elsewhere_and_no_markup_is_made_of_text(file: Path) -> None:
    text = file.read_text()
    assert "https://" not in text and "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert not any(way in text for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("))


def test_every_example_has_messages_and_results_only_beside_tools() -> None:
    examples = json.loads((Path(playground.__file__).parent / "examples.json").read_text())
    assert len({example["name"] for example in examples}) == len(examples) > 1
    for example in examples:
        assert example["says"] and all(example["says"]) and example.keys() <= KNOWN
        assert len(example.get("returns", [])) <= len(example["says"]) * bool(example.get("tools"))
