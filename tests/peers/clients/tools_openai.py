"""Tools and schemas in the OpenAI client.

python tools_openai.py http://127.0.0.1:8000 [FEATURE ...]
"""

import json
from typing import Any

import openai
from features import (
    FUNCTION,
    KEY,
    LIMIT,
    QUESTION,
    REPORT,
    SENTENCE,
    TOOL,
    GetWeather,
    Person,
    Result,
    parsed,
    run_all,
)

MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
SENTENCES: list[Any] = [{"role": "user", "content": SENTENCE}]
CHAT: dict[str, Any] = {"model": "default", "temperature": 0, "max_tokens": LIMIT}
RESPONSE: dict[str, Any] = {"model": "default", "temperature": 0, "max_output_tokens": LIMIT}
FLAT: dict[str, Any] = {"type": "function", **FUNCTION}


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, timeout=120, max_retries=0)


def chat_calls(message: Any) -> list[tuple[str, Any]]:
    return [
        (call.function.name, json.loads(call.function.arguments))
        for call in message.tool_calls or []
    ]


def chat_loop(url: str, first: str = "auto", then: str = "auto") -> Result:
    messages = [*MESSAGES]
    tools = {**CHAT, "tools": [TOOL]}
    create = client(url).chat.completions.create
    message = create(messages=messages, tool_choice=first, **tools).choices[0].message
    if not message.tool_calls:
        return {"calls": [], "text": message.content}
    messages.append(message)
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": REPORT} for call in message.tool_calls
    ]
    answer = create(messages=messages, tool_choice=then, **tools).choices[0].message
    return {"calls": chat_calls(message), "text": answer.content}


def chat_forced(url: str) -> Result:
    return chat_loop(url, "required", "none")


def chat_named(url: str) -> Result:
    choice: Any = {"type": "function", "function": {"name": "get_weather"}}
    made = client(url).chat.completions.create(
        messages=MESSAGES, tools=[TOOL], tool_choice=choice, **CHAT
    )
    return {"calls": chat_calls(made.choices[0].message)}


def chat_strict(url: str) -> Result:
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    made = client(url).chat.completions.parse(
        messages=MESSAGES, tools=[tool], tool_choice="required", **CHAT
    )
    calls = made.choices[0].message.tool_calls or []
    return {
        "calls": [
            (call.function.name, call.function.parsed_arguments.model_dump()) for call in calls
        ]
    }


def chat_stream(url: str) -> Result:
    calls: dict[int, list[str]] = {}
    finish = None
    for chunk in client(url).chat.completions.create(
        messages=MESSAGES, tools=[TOOL], tool_choice="required", stream=True, **CHAT
    ):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                name, arguments = calls.get(call.index, ["", ""])
                name += call.function.name or ""
                calls[call.index] = [name, arguments + (call.function.arguments or "")]
    assert finish == "tool_calls", finish
    return {"calls": [(name, json.loads(text)) for name, text in calls.values()]}


def chat_stream_helper(url: str) -> Result:
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    with client(url).chat.completions.stream(
        messages=MESSAGES, tools=[tool], tool_choice="required", **CHAT
    ) as stream:
        done = [
            (event.name, event.parsed_arguments.model_dump())
            for event in stream
            if event.type == "tool_calls.function.arguments.done"
        ]
        final = chat_calls(stream.get_final_completion().choices[0].message)
    assert done == final, (done, final)
    return {"calls": final}


def chat_parse(url: str) -> Result:
    made = client(url).chat.completions.parse(messages=SENTENCES, response_format=Person, **CHAT)
    return parsed(made.choices[0].message.parsed)


def chat_parse_stream(url: str) -> Result:
    with client(url).chat.completions.stream(
        messages=SENTENCES, response_format=Person, **CHAT
    ) as stream:
        for _ in stream:
            pass
        return parsed(stream.get_final_completion().choices[0].message.parsed)


def chat_json(url: str) -> Result:
    made = client(url).chat.completions.create(
        messages=SENTENCES, response_format={"type": "json_object"}, **CHAT
    )
    return {"object": json.loads(made.choices[0].message.content or "")}


def response_calls(response: Any) -> list[Any]:
    return [item for item in response.output if item.type == "function_call"]


def flat_calls(response: Any) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in response_calls(response)]


def outputs_of(response: Any) -> Any:
    return [
        {"type": "function_call_output", "call_id": call.call_id, "output": REPORT}
        for call in response_calls(response)
    ]


def responses_loop(url: str, first: str = "auto", then: str = "auto") -> Result:
    context: list[Any] = [*MESSAGES]
    create = client(url).responses.create
    tools = {**RESPONSE, "tools": [FLAT]}
    response = create(input=context, tool_choice=first, **tools)
    if not response_calls(response):
        return {"calls": [], "text": response.output_text}
    context += response.output
    context += outputs_of(response)
    answer = create(input=context, tool_choice=then, **tools)
    return {"calls": flat_calls(response), "text": answer.output_text}


def responses_forced(url: str) -> Result:
    return responses_loop(url, "required", "none")


def responses_stored(url: str) -> Result:
    """The second turn names the first one instead of repeating it."""
    create = client(url).responses.create
    tools = {**RESPONSE, "tools": [FLAT]}
    first = create(input=QUESTION, tool_choice="required", **tools)
    outputs = outputs_of(first)
    answer = create(input=outputs, previous_response_id=first.id, tool_choice="none", **tools)
    return {"calls": flat_calls(first), "text": answer.output_text}


def responses_stream(url: str) -> Result:
    with client(url).responses.stream(
        input=QUESTION, tools=[FLAT], tool_choice="required", **RESPONSE
    ) as stream:
        done = [
            json.loads(event.arguments)
            for event in stream
            if event.type == "response.function_call_arguments.done"
        ]
        calls = flat_calls(stream.get_final_response())
    assert done == [arguments for _, arguments in calls], done
    return {"calls": calls}


def responses_parse(url: str) -> Result:
    made = client(url).responses.parse(input=SENTENCE, text_format=Person, **RESPONSE)
    return parsed(made.output_parsed)


def responses_parse_stream(url: str) -> Result:
    with client(url).responses.stream(input=SENTENCE, text_format=Person, **RESPONSE) as stream:
        for _ in stream:
            pass
        return parsed(stream.get_final_response().output_parsed)


if __name__ == "__main__":
    run_all(
        {
            "chat, tool loop": chat_loop,
            "chat, required call": chat_forced,
            "chat, named call": chat_named,
            "chat, strict tool of pydantic": chat_strict,
            "chat, stream of a call": chat_stream,
            "chat, stream helper with a tool": chat_stream_helper,
            "chat, parse": chat_parse,
            "chat, stream helper with a type": chat_parse_stream,
            "chat, json_object": chat_json,
            "responses, tool loop": responses_loop,
            "responses, required call": responses_forced,
            "responses, previous_response_id": responses_stored,
            "responses, stream of a call": responses_stream,
            "responses, parse": responses_parse,
            "responses, stream with a type": responses_parse_stream,
        }
    )
