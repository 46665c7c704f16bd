"""What requests may ask of SGLang's engine, in its words."""

from typing import Any

import pytest

from aerie.bridge.parameters import check_parameters, sampling_words
from aerie.contracts.errors import BadRequest
from aerie.contracts.messages import Generate
from aerie.contracts.sampling import COLUMNS, SamplingParams, SpeculationParams


def check(
    *,
    drafts: bool = True,
    greedy_only: bool = False,
    salts: bool = True,
    speculation: SpeculationParams = SpeculationParams(),  # noqa: B008 - it is frozen
    cache_salt: str = "",
    **sampling: Any,
) -> None:
    request = Generate(
        id="a", prompt=[1], sampling=SamplingParams(**sampling), speculation=speculation, cache_salt=cache_salt
    )
    check_parameters(request, drafts=drafts, greedy_only=greedy_only, salts=salts)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"min_p": 0.1}, "min_p is 0.1; SGLang's engine does not apply it where a head drafts"),
        ({"min_tokens": 3}, "min_tokens is 3"),
        ({"temperature": 0.7, "greedy_only": True}, "temperature is 0.7; on a CPU"),
        ({"cache_salt": "x", "salts": False}, "cache_salt is set"),
        ({"speculation": SpeculationParams(enabled=False)}, "speculation.enabled"),
        ({"speculation": SpeculationParams(max_draft_tokens=2)}, "speculation.max_draft_tokens"),
        ({"speculation": SpeculationParams(trees=True)}, "speculation.trees"),
        ({"allowed_token_ids": (3,)}, "allowed_token_ids is set; SGLang's engine has no such parameter"),
        ({"banned_token_ids": (3,)}, "bad_words is set; SGLang's engine has no such parameter"),
        ({"repetition_penalty": 2.5}, "repetition_penalty is 2.5; SGLang's engine takes at most 2.0"),
    ],
)
def test_what_would_be_ignored_is_refused_by_name(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        check(**parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"temperature": 0.0, "greedy_only": True},
        {"min_p": 0.1, "drafts": False},
        {"speculation": SpeculationParams(enabled=False), "drafts": False},
        {"cache_salt": "x"},
        {"repetition_penalty": 2.0, "frequency_penalty": -1.0, "logit_bias": {3: 1.0}},
    ],
)
def test_what_it_does_passes(parameters: dict[str, Any]) -> None:
    check(**parameters)


def test_sampling_in_its_words() -> None:
    words = sampling_words(
        SamplingParams(
            temperature=0.7, top_k=0, top_p=0.9, max_tokens=5, stop_token_ids=(7, 8), ignore_eos=True, seed=3
        )
    )
    assert words == {field.sglang: field.neutral for field in COLUMNS.values()} | {
        "max_new_tokens": 5,
        "temperature": 0.7,
        "top_k": -1,
        "top_p": 0.9,
        "min_p": 0.0,
        "ignore_eos": True,
        "sampling_seed": 3,
        "stop_token_ids": [7, 8],
    }
    assert sampling_words(SamplingParams(temperature=1e-9, top_k=5))["temperature"] == 0.0
    assert not {"stop_token_ids", "logit_bias"} & sampling_words(SamplingParams()).keys()
    edits = sampling_words(SamplingParams(presence_penalty=-1.5, repetition_penalty=1.25, logit_bias={7: -2.5}))
    assert (edits["presence_penalty"], edits["repetition_penalty"], edits["logit_bias"]) == (-1.5, 1.25, {"7": -2.5})
