"""Fetches models by their hub id: downloads them with progress, or finds them in the local cache. Every error says what
to do.

Called by `resolve` before any process starts. Fetches only safetensors weights, configs, tokenizers and templates: no
pickles, no code. huggingface_hub reads `HF_TOKEN`, `HF_HOME`, `HF_ENDPOINT` and `HF_HUB_OFFLINE`.
"""

import re
import sys
from pathlib import Path

from aerie.contracts.errors import ConfigError

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "README.md")


def is_hub_id(name: str) -> bool:
    return _HUB_ID.fullmatch(name) is not None


def fetch(name: str, revision: str | None, *, offline: bool, param: str) -> Path:
    """The local folder of a hub id at a revision (branch, tag or commit). Raises ConfigError about the setting `param`
    if the hub does not provide the model or the model has no safetensors.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE

    offline = offline or HF_HUB_OFFLINE
    where = f"{name} at {revision}" if revision else name
    if not offline:
        print(f"aerie: fetching {where}", file=sys.stderr, flush=True)
    try:
        folder = snapshot_download(name, revision=revision, allow_patterns=list(_WANTED), local_files_only=offline)
    except OSError as error:  # errors of huggingface_hub, network and disk are all OSErrors
        raise ConfigError(_reason(where, error, offline=offline), param=param) from None
    if not any(Path(folder).glob("*.safetensors")):
        raise ConfigError(
            f"{where} has no safetensors, and pickles are not loaded; docs/models.md says how to convert them",
            param=param,
        )
    return Path(folder)


def _reason(where: str, error: OSError, *, offline: bool) -> str:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return f"{where} is gated: accept its terms on the hub, then set HF_TOKEN to a token that may read it"
    if isinstance(error, RepositoryNotFoundError):
        return f"the hub has no {where}, or it is private: check the id, or set HF_TOKEN; or serve a local folder"
    if isinstance(error, RevisionNotFoundError):
        return f"the hub has no such revision: {where}; name a branch, a tag or a commit of it"
    if offline:
        return (
            f"{where} is not in the local cache, and the network is not asked (model.offline or HF_HUB_OFFLINE); "
            "fetch it once with network, or serve a local folder"
        )
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return (
        f"{where} is not a folder here, and the hub did not give it ({said}); without network, "
        "serve a local folder, or fetch it once elsewhere and copy the cache (HF_HOME)"
    )
