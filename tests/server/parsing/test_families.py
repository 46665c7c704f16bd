"""Families are found by what their chat templates hold; names are those that vLLM gives its parsers."""

import pytest

from aerie.contracts.errors import ConfigError
from aerie.contracts.server_section import ServerConfig
from aerie.server.parsing.families import reasoning_families, served_families, tool_families

TEMPLATES = {
    "hermes": 'return a json object within <tool_call></tool_call> tags:\n<tool_call>\n{"name": <function-name>',
    "qwen3_coder": "<tool_call>\n<function=example>\n<parameter=one>\nvalue\n</parameter>\n</function>\n</tool_call>",
    "llama3_json": 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its '
    "value}. <|python_tag|>",
    "pythonic": "You SHOULD put it in the format of [func_name1(params_name1=params_value1), func_name2(params)]",
    "mistral": '{{- "[TOOL_CALLS] [" }}',
    "mistral_named": '{{- "[TOOL_CALLS]" + name + "[ARGS]" + arguments }}',
}
THINKING = {
    "qwen3": "{%- set content = content.split('</think>')[-1] %}<|im_start|>assistant\n<think>\n\n</think>",
    "deepseek_r1": "{% set content = content.split('</think>')[-1] %}<\uff5cAssistant\uff5c><think>\n",
    "mistral": "[THINK]your thoughts[/THINK]",
}


def test_a_family_is_found_by_the_template() -> None:
    assert set(TEMPLATES) == {one.name for one in tool_families()}
    assert set(THINKING) == {one.name for one in reasoning_families()}
    for name, template in TEMPLATES.items():
        found = served_families(template, ServerConfig())
        assert found.tools is not None and (found.tools.name, found.reasoning) == (name, None)
    for name, template in THINKING.items():
        found = served_families(template, ServerConfig())
        assert found.reasoning is not None and (found.reasoning.name, found.tools) == (name, None)
    both = served_families(TEMPLATES["hermes"] + THINKING["qwen3"], ServerConfig())
    assert both.tools is not None and both.reasoning is not None


GPT_OSS = '{{- "<|start|>assistant to=functions." + name + "<|channel|>commentary json<|message|>" }}'


@pytest.mark.parametrize("settings", [{}, {"tool_call_parser": "openai"}, {"reasoning_parser": "gpt-oss"}])
def test_channels_stand_in_place_of_both(settings: dict[str, str]) -> None:
    found = served_families(None if settings else GPT_OSS, ServerConfig(**settings))
    assert found.channels is not None and found.channels.name == "gpt_oss" and found.parses_calls
    assert (found.tools, found.reasoning) == (None, None)


def test_a_template_of_no_family_has_none() -> None:
    for template in (None, "{{ messages }}"):
        found = served_families(template, ServerConfig())
        assert (found.tools, found.reasoning) == (None, None)
    found = served_families(TEMPLATES["hermes"], ServerConfig(tool_call_parser="none"))
    assert found.tools is None


@pytest.mark.parametrize(("name", "family"), [("llama3_json", "llama3_json"), ("qwen25", "hermes")])
def test_a_family_may_be_named(name: str, family: str) -> None:
    found = served_families(None, ServerConfig(tool_call_parser=name))
    assert found.tools is not None and found.tools.name == family


def test_a_wrong_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="hermes, llama3_json, mistral") as error:
        served_families(None, ServerConfig(tool_call_parser="llama"))
    assert error.value.param == "server.tool_call_parser"
    with pytest.raises(ConfigError, match="deepseek_r1, gpt_oss, mistral, qwen3"):
        served_families(None, ServerConfig(reasoning_parser="think"))


def test_no_marker_begins_another() -> None:
    for family in tool_families():
        for marker in family.opens:
            assert not any(other.startswith(marker) for other in family.opens if other != marker)
