"""Tools and schemas in pydantic-ai.

python tools_pydantic_ai.py http://127.0.0.1:8000 [FEATURE ...]
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from features import (
    KEY,
    LIMIT,
    QUESTION,
    SENTENCE,
    GetWeather,
    Person,
    Result,
    Weather,
    answered,
    answered_with,
    get_weather,
    parsed,
    run_all,
)
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

SETTINGS: Any = {"temperature": 0, "max_tokens": LIMIT}


def chats(url: str) -> Model:
    return OpenAIChatModel("default", provider=OpenAIProvider(base_url=f"{url}/v1", api_key=KEY))


def responses(url: str) -> Model:
    return OpenAIResponsesModel(
        "default", provider=OpenAIProvider(base_url=f"{url}/v1", api_key=KEY)
    )


def tool(model: Callable[[str], Model], url: str) -> Result:
    agent = Agent(model(url), tools=[get_weather], model_settings=SETTINGS)
    return answered(agent.run_sync(QUESTION).output)


async def stream(model: Callable[[str], Model], url: str) -> Result:
    agent = Agent(model(url), tools=[get_weather], model_settings=SETTINGS)
    async with agent.run_stream(QUESTION) as run:
        return answered(await run.get_output())


def output_by_tool(model: Callable[[str], Model], url: str) -> Result:
    kind = ToolOutput(GetWeather, name="get_weather")
    agent = Agent(model(url), output_type=kind, model_settings=SETTINGS)
    return parsed(agent.run_sync(QUESTION).output)


def output(model: Callable[[str], Model], url: str, kind: Any) -> Result:
    agent = Agent(model(url), output_type=kind(Person), model_settings=SETTINGS)
    return parsed(agent.run_sync(SENTENCE).output)


def tool_and_native(model: Callable[[str], Model], url: str) -> Result:
    agent = Agent(
        model(url),
        tools=[get_weather],
        output_type=NativeOutput(Person),
        model_settings=SETTINGS,
    )
    return parsed(agent.run_sync(SENTENCE).output)


def tool_then_native(model: Callable[[str], Model], url: str) -> Result:
    kind = NativeOutput(Weather)
    agent = Agent(model(url), tools=[get_weather], output_type=kind, model_settings=SETTINGS)
    return answered_with(agent.run_sync(QUESTION).output)


def features() -> dict[str, Callable[[str], Any]]:
    found: dict[str, Callable[[str], Any]] = {}
    for model in (chats, responses):
        name = model.__name__
        found[f"{name}, tool"] = partial(tool, model)
        found[f"{name}, tool, run_stream"] = partial(stream, model)
        found[f"{name}, ToolOutput"] = partial(output_by_tool, model)
        for kind in (NativeOutput, PromptedOutput):
            found[f"{name}, {kind.__name__}"] = partial(output, model, kind=kind)
        found[f"{name}, NativeOutput and a tool"] = partial(tool_and_native, model)
        found[f"{name}, a tool, then NativeOutput"] = partial(tool_then_native, model)
    return found


if __name__ == "__main__":
    run_all(features())
