"""Tools and schemas in LangChain's clients.

python tools_langchain.py http://127.0.0.1:8000 [FEATURE ...]
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
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI

Chat = Callable[[str], BaseChatModel]


def chat_openai(url: str, **fields: Any) -> BaseChatModel:
    return ChatOpenAI(
        base_url=f"{url}/v1",
        api_key=KEY,
        model="default",
        temperature=0,
        max_tokens=LIMIT,
        max_retries=0,
        **fields,
    )


def chat_anthropic(url: str) -> BaseChatModel:
    return ChatAnthropic(
        base_url=url, api_key=KEY, model="default", temperature=0, max_tokens=LIMIT, max_retries=0
    )


def called(message: Any) -> Result:
    return {"calls": [(call["name"], call["args"]) for call in message.tool_calls]}


def bind_tools(chat: Chat, url: str) -> Result:
    return called(chat(url).bind_tools([get_weather]).invoke(QUESTION))


def bind_forced(chat: Chat, url: str) -> Result:
    return called(chat(url).bind_tools([get_weather], tool_choice="any").invoke(QUESTION))


def bind_named(chat: Chat, url: str) -> Result:
    return called(chat(url).bind_tools([get_weather], tool_choice="get_weather").invoke(QUESTION))


def bind_strict(chat: Chat, url: str) -> Result:
    model = chat(url).bind_tools([get_weather], tool_choice="any", strict=True)
    return called(model.invoke(QUESTION))


def stream(chat: Chat, url: str) -> Result:
    model = chat(url).bind_tools([get_weather], tool_choice="any")
    first, *others = model.stream(QUESTION)
    return called(sum(others, first))


def structured(chat: Chat, url: str, method: str) -> Result:
    return parsed(chat(url).with_structured_output(Person, method=method).invoke(SENTENCE))


def structured_call(chat: Chat, url: str, **fields: Any) -> Result:
    model = chat(url).with_structured_output(GetWeather, method="function_calling", **fields)
    return parsed(model.invoke(QUESTION))


def agent(chat: Chat, url: str) -> Result:
    made = create_agent(chat(url), tools=[get_weather])
    state = made.invoke({"messages": [("user", QUESTION)]}, {"recursion_limit": 8})
    return answered(state["messages"][-1].text)


def agent_schema(chat: Chat, url: str) -> Result:
    made = create_agent(chat(url), tools=[], response_format=ProviderStrategy(Person))
    state = made.invoke({"messages": [("user", SENTENCE)]}, {"recursion_limit": 8})
    return parsed(state["structured_response"])


def agent_call(chat: Chat, url: str) -> Result:
    made = create_agent(chat(url), tools=[], response_format=ToolStrategy(GetWeather))
    state = made.invoke({"messages": [("user", QUESTION)]}, {"recursion_limit": 8})
    return parsed(state["structured_response"])


def agent_tool_and_schema(chat: Chat, url: str) -> Result:
    made = create_agent(chat(url), tools=[get_weather], response_format=ProviderStrategy(Person))
    state = made.invoke({"messages": [("user", SENTENCE)]}, {"recursion_limit": 8})
    return parsed(state["structured_response"])


def agent_tool_then_schema(chat: Chat, url: str) -> Result:
    form = ProviderStrategy(Weather)
    made = create_agent(chat(url), tools=[get_weather], response_format=form)
    state = made.invoke({"messages": [("user", QUESTION)]}, {"recursion_limit": 8})
    return answered_with(state["structured_response"])


CHATS: dict[str, Chat] = {
    "ChatOpenAI": chat_openai,
    "ChatOpenAI, responses": partial(chat_openai, use_responses_api=True),
    "ChatAnthropic": chat_anthropic,
}
METHODS = {
    "ChatOpenAI": ("json_schema", "json_mode"),
    "ChatOpenAI, responses": ("json_schema", "json_mode"),
    "ChatAnthropic": ("json_schema",),
}


def features() -> dict[str, Callable[[str], Any]]:
    found: dict[str, Callable[[str], Any]] = {}
    for name, chat in CHATS.items():
        found[f"{name}, bind_tools"] = partial(bind_tools, chat)
        found[f"{name}, bind_tools, any"] = partial(bind_forced, chat)
        found[f"{name}, bind_tools, named"] = partial(bind_named, chat)
        found[f"{name}, bind_tools, strict"] = partial(bind_strict, chat)
        found[f"{name}, stream of a call"] = partial(stream, chat)
        for method in METHODS[name]:
            found[f"{name}, with_structured_output, {method}"] = partial(
                structured, chat, method=method
            )
        found[f"{name}, with_structured_output, function_calling"] = partial(structured_call, chat)
        found[f"{name}, with_structured_output, function_calling, strict"] = partial(
            structured_call, chat, strict=True
        )
        found[f"{name}, create_agent"] = partial(agent, chat)
        found[f"{name}, create_agent, ProviderStrategy"] = partial(agent_schema, chat)
        found[f"{name}, create_agent, ToolStrategy"] = partial(agent_call, chat)
        found[f"{name}, create_agent, ProviderStrategy and a tool"] = partial(
            agent_tool_and_schema, chat
        )
        found[f"{name}, create_agent, a tool, then ProviderStrategy"] = partial(
            agent_tool_then_schema, chat
        )
    return found


if __name__ == "__main__":
    run_all(features())
