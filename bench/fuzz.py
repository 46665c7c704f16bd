"""Sends many hostile requests to a server and looks what becomes of it.

A server does well if it answers each request, or refuses it with 400 and the field that is wrong; if it still answers
at the end; and if its memory stays where it was after the first tenth.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from aerie.bench.config import SweepError, Target
from aerie.bench.loads.hostile import Hostile
from aerie.bench.targets import Server

AT_ONCE = 8
GROWTH_MIB = 128.0
"""How much more memory the server may have later than after the first tenth of the requests."""
_SECONDS = 120.0
_EXAMPLES = 8


@dataclass
class Outcome:
    requests: int = 0
    answered: int = 0
    refused: int = 0
    """With 400 and `param`."""
    params: Counter[str] = field(default_factory=Counter)
    """Fields that refusals named."""
    faults: list[str] = field(default_factory=list)
    """What became of the others, the first of them."""
    faulty: int = 0
    resident_mib: list[float] = field(default_factory=list)
    """Of the server's processes: after each tenth of the requests. Empty if they cannot be seen."""

    @property
    def growth_mib(self) -> float:
        """From the first tenth to the largest after it."""
        return max(self.resident_mib, default=0.0) - (self.resident_mib[0] if self.resident_mib else 0.0)

    @property
    def good(self) -> bool:
        return not self.faulty and self.growth_mib <= GROWTH_MIB


def fuzz_server(kind: str, command: str, count: int, seed: int, logs: Path) -> tuple[Outcome, dict[str, Any]]:
    """Starts the server, sends it `count` requests, stops it; also returns where the figures come from. Raises
    SweepError if there are no requests of this kind, or the server does not start.
    """
    kinds = sorted(Hostile(0).make)
    if kind not in kinds:
        raise SweepError(f"there are no hostile {kind[:40]!r}; known are {', '.join(kinds)}")
    with Server(Target(name=f"fuzzed with {kind}", command=command), logs) as server:
        group = server.group
        outcome = asyncio.run(
            fuzz(server.url, kind, count, seed, lambda: None if group is None else resident_mib(group))
        )
        return outcome, server.provenance()


async def fuzz(url: str, kind: str, count: int, seed: int, resident: Callable[[], float | None]) -> Outcome:
    """`resident` is the memory of the server's processes in MiB."""
    outcome, bodies = Outcome(), _bodies(kind, count, seed)
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    async with aiohttp.ClientSession(url, timeout=timeout) as session:

        async def send_some() -> None:
            for place, path, body in bodies:
                await _send(session, path, body, outcome)
                if (place + 1) % max(count // 10, 1) == 0 and (mib := resident()) is not None:
                    outcome.resident_mib.append(round(mib, 1))

        await asyncio.gather(*(send_some() for _ in range(AT_ONCE)))
        try:
            async with session.get("/health") as answer:
                health = str(answer.status)
        except (aiohttp.ClientError, TimeoutError) as error:
            health = type(error).__name__
    if health != "200":
        _note(outcome, f"/health is {health} at the end")
    return outcome


def resident_mib(group: int) -> float | None:
    """Memory of the processes of a group; None where there is no /proc."""
    pages = 0
    try:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if int((entry / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                        pages += int((entry / "statm").read_text().split()[1])
                except (FileNotFoundError, ProcessLookupError):
                    continue
    except FileNotFoundError:
        return None
    return pages * 4096 / 2**20 if pages else None


def _bodies(kind: str, count: int, seed: int) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Their places, routes and bodies: every fourth asks for a stream, every fifth is a response."""
    make = Hostile(seed).make[kind]
    for place in range(count):
        body = make() | ({"stream": True} if place % 4 == 3 else {})
        responds = place % 5 == 4
        yield (place, "/v1/responses", _as_response(body)) if responds else (place, "/v1/chat/completions", body)


def _as_response(body: dict[str, Any]) -> dict[str, Any]:
    """The same request in the words of responses, as far as they have them."""
    rest = {name: value for name, value in body.items() if name not in ("messages", "max_tokens", "response_format")}
    tools = rest.get("tools")
    if isinstance(tools, list):
        rest["tools"] = [_flat(tool) for tool in tools]
    choice = rest.get("tool_choice")
    if isinstance(choice, dict):
        rest["tool_choice"] = _flat(choice)
    wanted = body.get("response_format")
    if isinstance(wanted, dict) and isinstance(wanted.get("json_schema"), dict):
        rest["text"] = {"format": {"type": wanted.get("type"), **wanted["json_schema"]}}
    return {**rest, "input": "How is it?", "max_output_tokens": body["max_tokens"]}


def _flat(tool: Any) -> Any:
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
        return tool
    return {name: value for name, value in tool.items() if name != "function"} | tool["function"]


async def _send(session: aiohttp.ClientSession, path: str, body: dict[str, Any], outcome: Outcome) -> None:
    outcome.requests += 1
    try:
        async with session.post(path, json=body) as answer:
            status, text = answer.status, await answer.text()
    except (aiohttp.ClientError, TimeoutError) as error:
        return _note(outcome, f"{type(error).__name__} for {path} {json.dumps(body)[:600]}")
    if status == 200 and '"error":{' not in text:
        outcome.answered += 1
        return None
    param = _param(text) if status == 400 else None
    if param is None:
        return _note(outcome, f"{status} {text[-300:]} for {path} {json.dumps(body)[:600]}")
    outcome.refused += 1
    outcome.params[param.partition("[")[0].partition(".")[0]] += 1
    return None


def _param(text: str) -> str | None:
    try:
        param = json.loads(text)["error"]["param"]
    except (ValueError, KeyError, TypeError):
        return None
    return param if isinstance(param, str) else None


def _note(outcome: Outcome, fault: str) -> None:
    outcome.faulty += 1
    if len(outcome.faults) < _EXAMPLES:
        outcome.faults.append(fault)
