"""Schemas in instructor: a Person by a schema of the answer, a GetWeather by a call.

python tools_instructor.py http://127.0.0.1:8000 [FEATURE ...]
"""

from functools import partial
from typing import Any

import anthropic
import instructor
import openai
from features import KEY, LIMIT, QUESTION, SENTENCE, GetWeather, Person, Result, parsed, run_all
from instructor import Mode, Partial

BY_SCHEMA = (Mode.JSON, Mode.JSON_SCHEMA, Mode.ANTHROPIC_JSON)


def fields(mode: Mode, kind: Any = None) -> dict[str, Any]:
    by_schema = mode in BY_SCHEMA
    content = SENTENCE if by_schema else QUESTION
    return {
        "messages": [{"role": "user", "content": content}],
        "response_model": kind or (Person if by_schema else GetWeather),
        "max_tokens": LIMIT,
        "max_retries": 0,
    }


def found(value: Any) -> Result:
    """The result of a subclass that instructor makes of a type."""
    for kind in (Person, GetWeather):
        if isinstance(value, kind) or type(value).__name__.endswith(kind.__name__):
            return parsed(kind(**value.model_dump()))
    raise TypeError(repr(value))


def chats(url: str, mode: Mode) -> Any:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    return instructor.from_openai(client, mode=mode)


def chat(url: str, mode: Mode) -> Result:
    return found(chats(url, mode).create(model="default", temperature=0, **fields(mode)))


def stream(url: str, mode: Mode, kind: Any) -> Result:
    *_, last = chats(url, mode).create(
        model="default", temperature=0, stream=True, **fields(mode, Partial[kind])
    )
    return parsed(kind(**last.model_dump()))


def provider(url: str) -> Result:
    client: Any = instructor.from_provider("openai/default", base_url=f"{url}/v1", api_key=KEY)
    return found(client.create(temperature=0, **fields(Mode.TOOLS)))


def messages(url: str, mode: Mode) -> Result:
    client = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)
    made: Any = instructor.from_anthropic(client, mode=mode)
    return found(made.create(model="default", **fields(mode)))


if __name__ == "__main__":
    modes = [
        Mode.TOOLS,
        Mode.TOOLS_STRICT,
        Mode.JSON,
        Mode.JSON_SCHEMA,
        Mode.RESPONSES_TOOLS,
    ]
    run_all(
        {
            **{f"chat, {mode.name}": partial(chat, mode=mode) for mode in modes},
            "chat, TOOLS, stream": partial(stream, mode=Mode.TOOLS, kind=GetWeather),
            "chat, JSON_SCHEMA, stream": partial(stream, mode=Mode.JSON_SCHEMA, kind=Person),
            "from_provider": provider,
            "messages, ANTHROPIC_TOOLS": partial(messages, mode=Mode.ANTHROPIC_TOOLS),
            "messages, ANTHROPIC_JSON": partial(messages, mode=Mode.ANTHROPIC_JSON),
        }
    )
