"""One smoke test for each framework that people put before a server like this."""

from typing import Any

import pytest

from tests.clients.conftest import MODEL, MOST, QUESTION, Answer, Place


def look(place: Place) -> str:
    """Looks at the sky of a place."""
    return f"blue {place}"


def test_langchain(url: str) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    settings: dict[str, Any] = {"model": MODEL, "base_url": url, "api_key": "none", "max_tokens": MOST}
    model = ChatOpenAI(temperature=1, **settings)
    for method in ("json_schema", "function_calling"):
        assert isinstance(model.with_structured_output(Answer, method=method).invoke(QUESTION), Answer)
    called = model.bind_tools([tool(look)], tool_choice="look").invoke(QUESTION)
    assert called.tool_calls[0]["args"]["place"] in ("here", "there")
    turn: list[Any] = [HumanMessage(QUESTION), called]
    turn += [ToolMessage("blue", tool_call_id=call["id"]) for call in called.tool_calls]
    assert model.invoke(turn).content
    over_responses = ChatOpenAI(use_responses_api=True, **settings)
    assert over_responses.invoke(QUESTION).text
    assert "".join(chunk.text for chunk in over_responses.stream(QUESTION))


def test_pydantic_ai(url: str) -> None:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=url, api_key="none")
    settings: Any = {"max_tokens": MOST}
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        model = kind(MODEL, provider=provider)
        for form in (Answer, NativeOutput(Answer)):
            agent: Any = Agent(model, output_type=form, model_settings=settings)
            assert isinstance(agent.run_sync(QUESTION).output, Answer)


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_the_agents_sdk(url: str, api: str) -> None:
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    kind: Any = OpenAIResponsesModel if api == "responses" else OpenAIChatCompletionsModel
    model = kind(model=MODEL, openai_client=client)
    looked: list[str] = []

    @function_tool
    def look(place: Place) -> str:
        """Looks at the sky of a place."""
        looked.append(place)
        return "blue"

    ends = {"stop": ["b", "d", "f", "i"]}  # letters that no call has, so that only text ends with them
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False, max_tokens=MOST, extra_body=ends)
    result = Runner.run_sync(Agent(name="a", model=model, tools=[look], model_settings=settings), QUESTION, max_turns=6)
    assert looked and result.final_output
    assert result.context_wrapper.usage.output_tokens > 0
    structured = Agent(name="b", model=model, output_type=Answer, model_settings=ModelSettings(max_tokens=MOST))
    assert isinstance(Runner.run_sync(structured, QUESTION).final_output, Answer)


def test_instructor(url: str) -> None:
    import instructor
    from openai import OpenAI

    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(OpenAI(base_url=url, api_key="none"), mode=mode)
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": QUESTION}],
            response_model=Answer,
            max_retries=0,
            max_tokens=MOST,
        )
        assert isinstance(answer, Answer)


def test_litellm(url: str) -> None:
    import litellm

    where: Any = {"model": f"openai/{MODEL}", "api_base": url, "api_key": "none"}
    chat: Any = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": MOST}
    answer = litellm.completion(**where, **chat, response_format=Answer)
    Answer.model_validate_json(answer.choices[0].message.content)
    pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**where, **chat, stream=True)]
    assert "".join(pieces)
    assert litellm.responses(**where, input=QUESTION, max_output_tokens=16).output
