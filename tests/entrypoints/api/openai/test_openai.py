"""The answers of OpenAI's routes, asked by hand and by OpenAI's own client."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from ostro.core.messages.outputs import TokenLogprobs
from ostro.entrypoints.api.openai.types import named_logprobs

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
HI = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
SAID = "user\nhi\nassistant\n"
"""What the echo engine makes of a chat whose user says "hi": the prompt without control tokens."""


def text_of(events: list[dict[str, Any]], index: int = 0) -> str:
    """The text of one choice of a stream of chats or completions."""
    choices = [c for e in events for c in e["choices"] if c["index"] == index]
    return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)


def test_the_list_of_models_has_no_parameters(server: Any) -> None:
    refused = server.http.get("/v1/models?limit=1")
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "limit"
    assert server.http.get("/v1/models").status_code == 200


def test_chat(server: Any) -> None:
    answer = server.chat("hi").json()
    assert answer["object"] == "chat.completion" and answer["model"] == "echo"
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": SAID, "refusal": None}
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == 257
    length = len(server.echo.seen[-1].tokens)
    assert answer["usage"] == {
        "prompt_tokens": length,
        "completion_tokens": length,
        "total_tokens": 2 * length,
        "prompt_tokens_details": {
            "cached_tokens": length // 2,
            "text_tokens": length,
            "image_tokens": 0,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "text_tokens": length,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def test_completion(server: Any) -> None:
    answer = server.complete("héllo 😀", max_tokens=9).json()
    assert answer["object"] == "text_completion"
    choice = answer["choices"][0]
    assert choice["text"] == "héllo \ufffd" and choice["finish_reason"] == "length"
    assert server.complete("héllo 😀").json()["choices"][0]["text"] == "héllo 😀"


def test_max_completion_tokens(server: Any) -> None:
    assert server.chat(max_completion_tokens=3).json()["usage"]["completion_tokens"] == 3


def test_chat_stream_equals_whole(server: Any) -> None:
    body = {"messages": [{"role": "user", "content": "é😀 ça"}], "n": 2}
    whole = server.post(CHAT, **body).json()["choices"]
    events = server.events(CHAT, **body)
    assert len({event["id"] for event in events}) == 1
    assert all(event["object"] == "chat.completion.chunk" for event in events)
    for index in (0, 1):
        assert text_of(events, index) == whole[index]["message"]["content"]
        deltas = [c for e in events for c in e["choices"] if c["index"] == index]
        assert deltas[0]["delta"]["role"] == "assistant"
        assert all("role" not in c["delta"] for c in deltas[1:])
        assert [c["finish_reason"] for c in deltas if c["finish_reason"]] == ["stop"]
    assert "\ufffd" not in text_of(events)


def test_stream_usage(server: Any) -> None:
    plain = server.events(COMPLETE, prompt="abc")
    assert not any("usage" in event for event in plain)
    options = {"include_usage": True}
    events = server.events(COMPLETE, prompt="abc", stream_options=options)
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 3
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = server.events(COMPLETE, prompt="abc", stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] == 3 and all(counts)


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        ("world", "hello ", "world"),
        (["o w", "ll"], "he", "ll"),
        (["rld", "o wo"], "hell", "o wo"),
        ("held", "hello world", 257),
        (["d!", "xyz"], "hello world", 257),
    ],
)
def test_stop_strings(server: Any, stop: Any, text: str, reason: Any) -> None:
    choice = server.complete("hello world", stop=stop).json()["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == (text, reason)
    assert choice["finish_reason"] == "stop"
    events = server.events(COMPLETE, prompt="hello world", stop=stop)
    assert text_of(events) == text
    deadline = time.monotonic() + 120
    while server.echo.live:
        assert time.monotonic() < deadline, "the engine goes on after the stop string"


def test_include_stop_str_in_output_keeps_the_stop_string(server: Any) -> None:
    answer = server.complete("hello world", stop="wor", include_stop_str_in_output=True).json()
    assert answer["choices"][0]["text"] == "hello wor"


def test_stop_string_waits_for_min_tokens(server: Any) -> None:
    answer = server.complete("abcabcabc", stop="b", min_tokens=4).json()
    assert answer["choices"][0]["text"] == "abca"


def test_stop_token(server: Any) -> None:
    choice = server.complete("hello", stop_token_ids=[ord("o")]).json()["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == ("hell", ord("o"))


def test_chat_logprobs(server: Any) -> None:
    body = {"logprobs": True, "top_logprobs": 2}
    whole = server.chat("hi", **body).json()["choices"][0]
    content = whole["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == HI
    first = content[1]
    assert first["token"] == "u" and first["bytes"] == [ord("u")]
    assert first["logprob"] == pytest.approx(-0.117)
    assert [top["token"] for top in first["top_logprobs"]] == ["u", "v"]
    messages = [{"role": "user", "content": "hi"}]
    events = server.events(CHAT, messages=messages, **body)
    pieces = [c["logprobs"] for e in events for c in e["choices"] if c["logprobs"]]
    assert [entry for piece in pieces for entry in piece["content"]] == content
    assert server.chat("hi").json()["choices"][0]["logprobs"] is None


PARTS = "ok \U0001f600 \u00e9!"
"""Characters of one to four tokens."""


def test_the_bytes_of_tokens_are_those_of_the_text(server: Any) -> None:
    fields = {"logprobs": True, "top_logprobs": 20, "max_tokens": 60}
    answers = [server.chat(PARTS, **fields).json()["choices"][0]]
    messages = [{"role": "user", "content": PARTS}]
    events = server.events(CHAT, messages=messages, **fields)
    choices = [choice for event in events for choice in event["choices"]]
    content = [x for c in choices if c["logprobs"] for x in c["logprobs"]["content"]]
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    answers.append({"message": {"content": text}, "logprobs": {"content": content}})
    for answer in answers:
        entries = [x for x in answer["logprobs"]["content"] if not x["token"].startswith("<|")]
        text = answer["message"]["content"]
        assert PARTS in text and bytes(b for x in entries for b in x["bytes"]) == text.encode()
        for entry in entries:
            tops = [bytes(top["bytes"]) for top in entry["top_logprobs"]]
            assert len({*tops}) == len({top["token"] for top in entry["top_logprobs"]})
            assert "\ufffd".encode() not in tops


def test_names_of_alternatives_are_unique(server: Any) -> None:
    for start in (120, 127, 190, 230, 240):
        prompt = [start, 0xC3, 0xA9]
        for stream in (False, True):
            fields = {"prompt": prompt, "logprobs": 20, "max_tokens": 3}
            answers = [server.post(COMPLETE, **fields).json()]
            if stream:
                answers = server.events(COMPLETE, **fields)
            choices = [choice for answer in answers for choice in answer["choices"]]
            found = [x["logprobs"] for x in choices if x["logprobs"]]
            tops = [top for each in found for top in each["top_logprobs"]]
            assert [len(top) for top in tops] == [20, 20, 20]
            tokens = [token for each in found for token in each["tokens"]]
            assert all(token in top for token, top in zip(tokens, tops, strict=True))


def test_two_tokens_with_one_name() -> None:
    spelled = {1: b"A", 2: b"A", 3: b"\xf0", 4: b"", 5: b""}
    entry = TokenLogprobs(2, -2.0, ((1, -1.0), (3, -1.5), (4, -3.0), (5, -4.0)))
    assert named_logprobs(entry, spelled.__getitem__) == {
        "token_id:1": -1.0, "A": -2.0, r"bytes:\xf0": -1.5, "": -3.0, "token_id:5": -4.0,
    }  # fmt: skip


def test_completion_logprobs(server: Any) -> None:
    found = server.complete("aé", logprobs=1).json()["choices"][0]["logprobs"]
    assert found["tokens"] == ["a", r"bytes:\xc3", r"bytes:\xa9"]
    assert found["text_offset"] == [0, 1, 1]
    assert found["token_logprobs"] == pytest.approx([-0.097, -0.195, -0.169])
    assert found["top_logprobs"][0] == {"a": pytest.approx(-0.097)}


def test_logprobs_end_with_the_text(server: Any) -> None:
    choice = server.complete("hello world", logprobs=0, stop="lo w").json()["choices"][0]
    assert choice["text"] == "hel" and choice["logprobs"]["tokens"] == ["h", "e", "l"]


def test_echo(server: Any) -> None:
    choice = server.complete("abc", echo=True, max_tokens=2, logprobs=0).json()["choices"][0]
    assert choice["text"] == "abcab"
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(
        [-0.098, -0.099, -0.097, -0.098]
    )
    scored = server.complete("abc", echo=True, max_tokens=0, logprobs=1).json()
    assert scored["choices"][0]["text"] == "abc"
    assert len(scored["choices"][0]["logprobs"]["tokens"]) == 3
    assert scored["usage"]["completion_tokens"] == 0
    assert server.complete([97, 98], echo=True, max_tokens=1).json()["choices"][0]["text"] == "aba"


def test_prompt_logprobs(server: Any) -> None:
    answer = server.complete("abc", prompt_logprobs=1).json()["choices"][0]
    assert answer["prompt_logprobs"][0] is None
    assert answer["prompt_logprobs"][1] == {
        "98": {"logprob": pytest.approx(-0.098), "rank": 1, "decoded_token": "b"}
    }
    chat = server.chat("hi", prompt_logprobs=0).json()
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


def test_several_prompts_and_choices(server: Any) -> None:
    answer = server.complete(["abc", "de"], n=2).json()
    assert [c["text"] for c in answer["choices"]] == ["abc", "abc", "de", "de"]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["usage"]["completion_tokens"] == 10
    events = server.events(COMPLETE, prompt=["abc", "de"], n=2)
    assert [text_of(events, index) for index in range(4)] == ["abc", "abc", "de", "de"]


def test_sampling_arrives(server: Any) -> None:
    server.complete(
        "a", temperature=0.5, top_k=4, top_p=0.9, min_p=0.1, typical_p=0.8, seed=7,
        repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.4, min_tokens=1,
        ignore_eos=True, max_tokens=3, stop_token_ids=[9], priority=-2, cache_salt="s",
        dry_multiplier=0.8, dry_base=1.5, dry_allowed_length=3, dry_penalty_last_n=64,
        speculate=False,
    )  # fmt: skip
    request = server.echo.seen[-1]
    rules = request.sampling
    assert (request.priority, request.salt, request.speculate) == (-2, "s", False)
    assert (rules.temperature, rules.top_k, rules.top_p, rules.min_p) == (0.5, 4, 0.9, 0.1)
    assert (rules.typical_p, rules.repetition_penalty) == (0.8, 1.2)
    assert (rules.presence_penalty, rules.frequency_penalty, rules.seed) == (0.3, 0.4, 7)
    assert (rules.min_tokens, rules.max_tokens, rules.ignore_eos) == (1, 3, True)
    assert rules.stop_ids == (9,)
    dry = rules.dry
    assert (dry.multiplier, dry.base, dry.allowed_length, dry.window) == (0.8, 1.5, 3, 64)
    assert dry.breakers == tuple(b'\n:"*')


def test_defaults(server: Any) -> None:
    server.complete("a")
    assert server.echo.seen[-1].speculate
    rules = server.echo.seen[-1].sampling
    assert (rules.temperature, rules.top_p, rules.n, rules.max_tokens) == (1.0, 1.0, 1, 16)
    assert rules.logprobs is None and rules.seed is None


def test_many_at_once(server: Any) -> None:
    words = [f"number {i}" for i in range(40)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda word: server.complete(word).json(), words))
    assert [answer["choices"][0]["text"] for answer in answers] == words


def test_too_many_at_once(start: Any) -> None:
    server = start(limit=2)
    server.echo.step_seconds = 0.02
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: server.complete("some words"), range(6)))
    codes = sorted(answer.status_code for answer in answers)
    assert codes[0] == 200 and codes[-1] == 503
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert refused.json()["error"]["code"] == "overloaded" and refused.headers["retry-after"]
    assert server.complete("again").status_code == 200


def test_models(server: Any) -> None:
    card = server.http.get("/v1/models").json()["data"][0]
    assert card["id"] == "echo" and card["max_model_len"] == 4096
    assert server.http.get("/v1/models/echo").json() == card
    assert server.http.get("/v1/models/default").json() == card


def test_official_client(server: Any) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        answer = client.chat.completions.create(model="echo", messages=messages, logprobs=True)
        assert answer.choices[0].message.content == SAID
        assert answer.choices[0].logprobs and answer.usage
        stream = client.chat.completions.create(
            model="default", messages=messages, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == SAID and chunks[-1].usage
        done = client.completions.create(model="echo", prompt=["a", "bc"], extra_body={"top_k": 3})
        assert [choice.text for choice in done.choices] == ["a", "bc"]
        assert [model.id for model in client.models.list()] == ["echo"]
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="gpt-5", messages=messages)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model="echo", messages=messages, temperature=-1)
        assert bad.value.param == "temperature"
