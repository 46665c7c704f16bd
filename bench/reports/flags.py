"""Report lines about targets: every command as it was started, and the settings that were tried for it."""

import json
from typing import Any


def flags_of(sweep: dict[str, Any], cells: list[dict[str, Any]]) -> list[str]:
    """One line for each way in which a target was started or called, with the loads that it served."""
    notes = []
    for target in sweep["targets"]:
        loads: dict[str, list[str]] = {}
        for line in cells:
            if line["target"] == target["name"] and line["status"] == "ok":
                loads.setdefault(_started(line["server"]), []).append(f"{line['mode']} {line['load']:g}")
        for way, own in loads.items():
            at = f" ({', '.join(dict.fromkeys(own))})" if len(loads) > 1 else ""
            fields = f", every request with {json.dumps(target['fields'])}" if target["fields"] else ""
            notes.append(f"{target['name']}{at}: {way}{fields}")
        if not loads:
            notes.append(f"{target['name']}: not measured; {target['command'] or target['url']}")
    return notes


def _started(server: dict[str, Any]) -> str:
    """The environment and the command, or the URL; and the version if the server reports it."""
    variables = "".join(f"{name}={value} " for name, value in (server.get("environment") or {}).items())
    version = (server.get("version") or {}).get("version") if isinstance(server.get("version"), dict) else None
    said = f" [version {version}]" if version else ""
    return f"{variables}{server['command']}{said}" if server["command"] else f"{server['url']}{said}"


def trials_of(tried: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heading and lines of the table of trials: one line per setting, one column per load."""
    loads = sorted({(line["mode"], line["load"]) for line in tried})
    found: dict[tuple[str, str], dict[tuple[str, float], str]] = {}
    for line in tried:
        setting = ", ".join(f"{word} {value}" for word, value in line["setting"].items() if value != "")
        cell = f"{line['output_tokens_per_s']:.0f}" if line["status"] == "ok" else "failed"
        found.setdefault((line["target"], setting), {})[line["mode"], line["load"]] = cell
    heads = ["target", "setting", *(f"{mode} {load:g}" for mode, load in loads)]
    return heads, [[*key, *(own.get(load, "-") for load in loads)] for key, own in found.items()]
