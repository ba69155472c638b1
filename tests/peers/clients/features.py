"""The features of a client library: run each against a server, and print the results as JSON.

A result has `calls`, the names and arguments of calls; `text`, the final answer; `parsed`, the
fields of an object of the library; or `error`.
"""

import asyncio
import inspect
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, Field

QUESTION = "What is the weather in Paris?"
REPORT = "sunny, 21 C"
SENTENCE = (
    "Anna is 34 years old and lives in Oslo. Answer with a JSON object with the keys name and age."
)
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {
    "name": "get_weather",
    "description": "Get the current weather in a city.",
    "parameters": PARAMETERS,
}
TOOL = {"type": "function", "function": FUNCTION}
KEY = "secret"
LIMIT = 200
"""Tokens of an answer; those asked for need fewer than 40."""

Result = dict[str, Any]
CALLED: list[tuple[str, dict[str, Any]]] = []
"""The calls of `get_weather` by a library."""


class Person(BaseModel):
    """A person."""

    name: str
    age: int


class GetWeather(BaseModel):
    """Get the current weather in a city."""

    city: str = Field(description="The name of the city.")


class Weather(BaseModel):
    """The weather in a city."""

    sky: Literal["cloudy", "rainy", "sunny"]


def get_weather(city: str) -> str:
    """Get the current weather in a city."""
    CALLED.append(("get_weather", {"city": city}))
    return REPORT


def answered(text: object) -> Result:
    """The result of a library that calls `get_weather` itself."""
    return {"calls": list(CALLED), "text": str(text)}


def parsed(value: object) -> Result:
    """The result of an object; anything but one of a type above is an error."""
    if not isinstance(value, (Person, GetWeather, Weather)):
        raise TypeError(f"{value!r} is no Person, GetWeather or Weather")
    return {"parsed": value.model_dump(), "type": type(value).__name__}


def answered_with(value: object) -> Result:
    """The result of a library that calls `get_weather` itself and parses the last answer."""
    return {"calls": list(CALLED), **parsed(value)}


def run_all(features: dict[str, Callable[[str], Any]]) -> None:
    """Run each feature, or those named on the command line, and print the results."""
    url, *names = sys.argv[1:]
    results: dict[str, Result] = {}
    for name, feature in features.items():
        if names and name not in names:
            continue
        CALLED.clear()
        start = time.monotonic()
        try:
            found = feature(url)
            results[name] = asyncio.run(found) if inspect.iscoroutine(found) else found
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}", "calls": list(CALLED)}
        results[name]["seconds"] = round(time.monotonic() - start, 1)
    print(json.dumps(results))
