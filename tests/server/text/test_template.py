"""Chat templates render what `transformers` renders, and refuse what they refuse."""

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from aerie.contracts.errors import BadRequest, ConfigError
from aerie.server.text.template import ChatTemplate
from aerie.server.text.tokenizer import Tokenizer
from tests.server.conftest import TEMPLATE

CHATML = """{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
    {%- endif %}
    {%- set content = message.content | trim %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}
"""
LLAMA = """{{- bos_token }}
{%- set ns = namespace(system='none') %}
{%- for message in messages if message['role'] == 'system' %}{% set ns.system = message['content'] %}{% endfor %}
    {% if tools is not none %}tools{% endif %}
system: {{ ns.system }}
{% for message in messages %}
  {% if message.role == 'tool' %}{% continue %}{% endif %}
  {% generation %}
  {{ message | tojson }} {{ {'b': [1, 2], 'a': 'é<'} | tojson(indent=2) }}
  {% endgeneration %}
{% endfor %}
{{ eos_token }}{{ unknown_token }}{% if thinking is defined %}{{ thinking }}{% endif %}"""
CHATS = [
    [{"role": "user", "content": "Hi <b> & 'you' é 🦅 {{ 7 * 7 }}"}],
    [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "a\nb"}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two", "name": "x"},
        {"role": "user", "content": "three"},
    ],
]


@pytest.mark.parametrize("source", [TEMPLATE, CHATML, LLAMA])
@pytest.mark.parametrize("chat", CHATS)
def test_equals_transformers(source: str, chat: list[dict[str, str]], folder: Path) -> None:
    other = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<|bos|>", eos_token="<|end|>"
    )
    expected = other.apply_chat_template(chat, chat_template=source, tokenize=False, add_generation_prompt=True)
    ours = ChatTemplate(source, {"bos_token": "<|bos|>", "eos_token": "<|end|>"})
    assert ours.render(chat, {}) == expected


@pytest.mark.parametrize("chat", CHATS)
async def test_ids_equal_transformers(chat: list[dict[str, str]], folder: Path, tokenizer: Tokenizer) -> None:
    other = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<|bos|>", eos_token="<|end|>"
    )
    expected = other.apply_chat_template(chat, chat_template=TEMPLATE, add_generation_prompt=True, return_dict=False)
    assert await tokenizer.encode_chat(chat, {}) == expected


def test_a_refusal_is_the_callers_error() -> None:
    with pytest.raises(BadRequest, match="unknown role: tool"):
        ChatTemplate(TEMPLATE, {}).render([{"role": "tool", "content": "x"}], {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ range(10**9) | list }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_hostile_template_is_contained(source: str) -> None:
    with pytest.raises(BadRequest):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}], {})


def test_variables_reach_the_template_whether_it_knows_them_or_not() -> None:
    template = ChatTemplate(LLAMA, {"bos_token": "<s>", "eos_token": "</s>"})
    assert template.render(CHATS[0], {"thinking": "deeply"}).endswith("deeply")
    for unknown in ({"enable_thinking": False}, {"a-b": [1, {"c": None}]}, {"self": 1}, {"loop": 1}):
        assert template.render(CHATS[0], unknown) == template.render(CHATS[0], {})
    for name in ("messages", "bos_token", "tokenize", "chat_template", "raise_exception", "tools", "range"):
        with pytest.raises(BadRequest, match=f"chat_template_kwargs names {name}, which the server sets itself"):
            template.render(CHATS[0], {name: "x"})


def test_a_developer_speaks_as_the_system_where_the_template_knows_none() -> None:
    chat = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    as_system = [chat[0] | {"role": "system"}, chat[1]]
    for source in (TEMPLATE, CHATML):
        assert ChatTemplate(source, {}).render(chat, {}) == ChatTemplate(source, {}).render(as_system, {})
    knowing = "{% for m in messages %}{% if m.role in ['developer', 'user'] %}{{ m.role }} {% endif %}{% endfor %}"
    assert ChatTemplate(knowing, {}).render(chat, {}) == "developer user "
    assert chat[0]["role"] == "developer"


def test_broken_jinja_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="not valid Jinja"):
        ChatTemplate("{% for %}", {})


def test_a_template_is_found_where_models_keep_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    assert Tokenizer(tmp_path).template is None
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "listed"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert _render(Tokenizer(tmp_path)) == "listed"
    (tmp_path / "chat_template.jinja").write_text("beside")
    assert _render(Tokenizer(tmp_path)) == "beside"
    (tmp_path / "mine.jinja").write_text("mine")
    assert _render(Tokenizer(tmp_path, tmp_path / "mine.jinja")) == "mine"
    with pytest.raises(ConfigError, match="no chat template at"):
        Tokenizer(tmp_path, tmp_path / "none.jinja")


def test_a_folder_without_a_tokenizer_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        Tokenizer(tmp_path)


def _render(tokenizer: Tokenizer) -> str:
    assert tokenizer.template is not None
    return tokenizer.template.render([], {})
