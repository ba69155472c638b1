"""Tools and schemas in the Anthropic client.

python tools_anthropic.py http://127.0.0.1:8000 [FEATURE ...]
"""

import json
from typing import Any

import anthropic
from features import (
    FUNCTION,
    KEY,
    LIMIT,
    PARAMETERS,
    QUESTION,
    REPORT,
    SENTENCE,
    Person,
    Result,
    answered,
    get_weather,
    parsed,
    run_all,
)

BASE: dict[str, Any] = {
    "model": "default",
    "max_tokens": LIMIT,
    "extra_body": {"temperature": 0},  # the client has no field for it
}
TOOL: Any = {
    "name": FUNCTION["name"],
    "description": FUNCTION["description"],
    "input_schema": PARAMETERS,
}
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
SENTENCES: list[Any] = [{"role": "user", "content": SENTENCE}]


def client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key=KEY, timeout=120, max_retries=0)


def uses(message: Any) -> list[Any]:
    return [block for block in message.content if block.type == "tool_use"]


def calls(message: Any) -> list[tuple[str, Any]]:
    return [(block.name, block.input) for block in uses(message)]


def loop(url: str, first: str = "auto", then: str = "auto") -> Result:
    create = client(url).messages.create
    tools = {**BASE, "tools": [TOOL]}
    message = create(messages=MESSAGES, tool_choice={"type": first}, **tools)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": REPORT}
        for block in uses(message)
    ]
    if not results:
        return {"calls": [], "text": message.content[0].text}
    assert message.stop_reason == "tool_use", message.stop_reason
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    answer = create(messages=turns, tool_choice={"type": then}, **tools)
    text = "".join(block.text for block in answer.content if block.type == "text")
    return {"calls": calls(message), "text": text}


def forced(url: str) -> Result:
    return loop(url, "any", "none")


def named(url: str) -> Result:
    choice: Any = {"type": "tool", "name": "get_weather"}
    return {
        "calls": calls(
            client(url).messages.create(messages=MESSAGES, tools=[TOOL], tool_choice=choice, **BASE)
        )
    }


def stream(url: str) -> Result:
    parts: list[str] = []
    with client(url).messages.stream(
        messages=MESSAGES, tools=[TOOL], tool_choice={"type": "any"}, **BASE
    ) as events:
        for event in events:
            if event.type == "content_block_start" and event.content_block.type == "tool_use":
                parts.append("")
            if event.type == "input_json":
                parts[-1] += event.partial_json
        message = events.get_final_message()
    assert [json.loads(part) for part in parts] == [block.input for block in uses(message)], parts
    return {"calls": calls(message)}


def runner(url: str) -> Result:
    tool = anthropic.beta_tool(get_weather)
    run = client(url).beta.messages.tool_runner(
        messages=MESSAGES, tools=[tool], max_iterations=4, **BASE
    )
    message = run.until_done()
    return answered("".join(block.text for block in message.content if block.type == "text"))


def output_format(url: str) -> Result:
    form: Any = {
        "type": "json_schema",
        "schema": {**Person.model_json_schema(), "additionalProperties": False},
    }
    message = client(url).messages.create(
        messages=SENTENCES, output_config={"format": form}, **BASE
    )
    return parsed(Person.model_validate_json(message.content[0].text))


def parse(url: str) -> Result:
    message = client(url).messages.parse(messages=SENTENCES, output_format=Person, **BASE)
    return parsed(message.parsed_output)


def parse_stream(url: str) -> Result:
    with client(url).messages.stream(messages=SENTENCES, output_format=Person, **BASE) as events:
        return parsed(events.get_final_message().parsed_output)


if __name__ == "__main__":
    run_all(
        {
            "messages, tool loop": loop,
            "messages, required call": forced,
            "messages, named call": named,
            "messages, stream of a call": stream,
            "tool_runner": runner,
            "messages, output_config.format": output_format,
            "messages, parse": parse,
            "messages, stream with a type": parse_stream,
        }
    )
