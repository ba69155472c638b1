"""Tools and schemas in the OpenAI Agents SDK.

python tools_openai_agents.py http://127.0.0.1:8000 [FEATURE ...]
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import openai
from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from features import (
    KEY,
    LIMIT,
    QUESTION,
    SENTENCE,
    Person,
    Result,
    Weather,
    answered,
    answered_with,
    get_weather,
    parsed,
    run_all,
)

MODELS: tuple[Callable[..., Model], ...] = (OpenAIChatCompletionsModel, OpenAIResponsesModel)


def agent(made: Callable[..., Model], url: str, choice: str | None, **fields: Any) -> Agent[None]:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    settings = ModelSettings(temperature=0, max_tokens=LIMIT, tool_choice=choice)
    model = made(model="default", openai_client=client)
    return Agent(name="a", model=model, model_settings=settings, **fields)


def with_tool(made: Callable[..., Model], url: str, choice: str | None) -> Agent[None]:
    return agent(made, url, choice, tools=[function_tool(get_weather)])


async def tool(made: Callable[..., Model], url: str, choice: str | None = None) -> Result:
    run = await Runner.run(with_tool(made, url, choice), QUESTION, max_turns=4)
    return answered(run.final_output)


async def stream(made: Callable[..., Model], url: str) -> Result:
    run = Runner.run_streamed(with_tool(made, url, None), QUESTION, max_turns=4)
    async for _ in run.stream_events():
        pass
    return answered(run.final_output)


async def output(made: Callable[..., Model], url: str) -> Result:
    run = await Runner.run(agent(made, url, None, output_type=Person), SENTENCE, max_turns=4)
    return parsed(run.final_output)


async def tool_and_output(made: Callable[..., Model], url: str) -> Result:
    with_both = agent(made, url, None, tools=[function_tool(get_weather)], output_type=Person)
    return parsed((await Runner.run(with_both, SENTENCE, max_turns=4)).final_output)


async def tool_then_output(made: Callable[..., Model], url: str) -> Result:
    with_both = agent(made, url, None, tools=[function_tool(get_weather)], output_type=Weather)
    return answered_with((await Runner.run(with_both, QUESTION, max_turns=4)).final_output)


def features() -> dict[str, Callable[[str], Any]]:
    found: dict[str, Callable[[str], Any]] = {}
    for made in MODELS:
        name = made.__name__
        found[f"{name}, function_tool"] = partial(tool, made)
        found[f"{name}, function_tool, required"] = partial(tool, made, choice="required")
        found[f"{name}, function_tool, run_streamed"] = partial(stream, made)
        found[f"{name}, output_type"] = partial(output, made)
        found[f"{name}, output_type and a tool"] = partial(tool_and_output, made)
        found[f"{name}, a tool, then output_type"] = partial(tool_then_output, made)
    return found


if __name__ == "__main__":
    set_tracing_disabled(True)
    run_all(features())
