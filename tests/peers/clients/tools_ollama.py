"""Tools and schemas in the Ollama client.

python tools_ollama.py http://127.0.0.1:8000 [FEATURE ...]
"""

from typing import Any

import ollama
from features import (
    KEY,
    LIMIT,
    QUESTION,
    SENTENCE,
    Person,
    Result,
    answered,
    get_weather,
    parsed,
    run_all,
)

OPTIONS = {"temperature": 0, "num_predict": LIMIT}
SENTENCES = [{"role": "user", "content": SENTENCE}]


def client(url: str) -> ollama.Client:
    return ollama.Client(url, headers={"Authorization": f"Bearer {KEY}"}, timeout=120)


def chat(url: str, **fields: Any) -> Any:
    return client(url).chat(model="default", options=OPTIONS, **fields)


def loop(url: str) -> Result:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    message = chat(url, messages=messages, tools=[get_weather]).message
    messages.append(message)
    for call in message.tool_calls or []:
        output = get_weather(**call.function.arguments)
        messages.append({"role": "tool", "content": output, "tool_name": call.function.name})
    return answered(chat(url, messages=messages, tools=[get_weather]).message.content)


def stream(url: str) -> Result:
    messages = [{"role": "user", "content": QUESTION}]
    found = [
        (call.function.name, dict(call.function.arguments))
        for part in chat(url, messages=messages, tools=[get_weather], stream=True)
        for call in part.message.tool_calls or []
    ]
    return {"calls": found}


def form(url: str) -> Result:
    made = chat(url, messages=SENTENCES, format=Person.model_json_schema())
    return parsed(Person.model_validate_json(made.message.content))


def form_stream(url: str) -> Result:
    parts = chat(url, messages=SENTENCES, format=Person.model_json_schema(), stream=True)
    return parsed(Person.model_validate_json("".join(part.message.content for part in parts)))


def generate(url: str) -> Result:
    made = client(url).generate(
        model="default", prompt=SENTENCE, format=Person.model_json_schema(), options=OPTIONS
    )
    return parsed(Person.model_validate_json(made.response))


if __name__ == "__main__":
    run_all(
        {
            "chat, tool loop": loop,
            "chat, stream of a call": stream,
            "chat, format": form,
            "chat, stream with a format": form_stream,
            "generate, format": generate,
        }
    )
