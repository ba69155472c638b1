"""The text pipeline between a request and an engine, without a server."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from echo.engine import EchoEngine
from echo.model import END, END_ID, START, START_ID, make_model, served_echo
from echo.thread import ThreadEngine

from ostro.core.chat import ChatTemplate
from ostro.core.errors import ContextLengthExceeded, RequestError, TemplateError, Unsupported
from ostro.core.messages.outputs import TokenLogprobs, TokenOutput
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.messages.text import ChoiceEnd, Event, ToolCallEnd, ToolCallStart
from ostro.core.messages.text import Text as OutputText
from ostro.core.messages.text_requests import ChatRequest, CompletionRequest, Message
from ostro.core.output import Piece
from ostro.core.pipeline import SamplingDefaults, parse_request
from ostro.core.plugins.manager import PluginManager
from ostro.core.tokenizer import Tokenizer, load_tokenizer
from ostro.core.tokenizer.stop import Stop
from ostro.entrypoints.api.openai.bodies import ChatBody, CompletionBody
from ostro.entrypoints.api.openai.messages import Message as BodyMessage
from ostro.entrypoints.operations.tasks.text import ChoiceBuilder
from ostro.entrypoints.operations.tasks.text import CompletionChoice as Joined
from ostro.plugins.pipelines.text.choice import ChoiceState
from ostro.plugins.pipelines.text.conversation import read_conversation
from ostro.plugins.pipelines.text.pipeline import Text
from ostro.plugins.pipelines.text.prepare import Preparer, check_length


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(make_model(tmp_path_factory.mktemp("models") / "echo"))


def with_text(
    tokenizer: Tokenizer, test: Callable[[Text, EchoEngine], Awaitable[None]], **options: Any
) -> None:
    """Run a test with a pipeline before an echo engine."""

    async def main() -> None:
        echo = EchoEngine()
        engine = ThreadEngine(lambda report: echo)
        info = await engine.start()
        text = Text(served_echo(tokenizer, **options).ready(info.first), engine)
        try:
            await test(text, echo)
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def completion(prompt: Any = "hello", **fields: Any) -> CompletionRequest:
    return parse_request({"prompt": prompt, **fields}, CompletionBody).to_request()


def chat(**fields: Any) -> ChatRequest:
    given = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return parse_request(given, ChatBody).to_request()


def test_it_is_the_text_pipeline() -> None:
    plugins = PluginManager()
    plugins.load()
    record = plugins.get("pipelines", "text")
    assert record.task == "text" and record.pipeline.endswith("pipeline:Text")


def test_events_and_usage(tokenizer: Tokenizer) -> None:
    async def test(text: Text, echo: EchoEngine) -> None:
        answer = await text.complete(completion(["héé", "b"], n=2))
        assert answer.choices == 4 and answer.usage.prompt == 6
        found: dict[int, list[Event]] = {}
        async for event in answer:
            found.setdefault(event.index, []).append(event)
        choices = {index: joined(events) for index, events in found.items()}
        texts = {index: choice.text for index, choice in choices.items()}
        assert texts == {0: "héé", 1: "héé", 2: "b", 3: "b"}
        assert all(isinstance(events[-1], ChoiceEnd) for events in found.values())
        assert {choice.finish for choice in choices.values()} == {"stop"}
        assert answer.usage.completion == 12 and answer.usage.cached == 2
        assert len({request.id for request in echo.seen}) == 2

    with_text(tokenizer, test)


def test_closing_an_answer_aborts_all_its_requests(tokenizer: Tokenizer) -> None:
    async def test(text: Text, echo: EchoEngine) -> None:
        answer = await text.complete(completion(["aa", "bb", "cc"], ignore_eos=True))
        async for _ in answer:
            break
        assert text.engine.requests == 3
        await answer.aclose()
        assert text.engine.requests == 0
        await text.engine.stats()
        assert not echo.live

    with_text(tokenizer, test)


def test_a_stop_string_in_one_choice_ends_its_drawing(tokenizer: Tokenizer) -> None:
    async def test(text: Text, echo: EchoEngine) -> None:
        draw, echo.step_seconds = echo.draw, 0.002

        def varied(request: TokenRequest, index: int, count: int) -> TokenOutput:
            output = draw(request, index, count)
            output.tokens = [ord("x") if index == 1 else token for token in output.tokens]
            return output

        echo.draw = varied  # type: ignore[method-assign]
        asked = completion("ab", n=3, stop="xx", ignore_eos=True, max_tokens=200)
        found: dict[int, str] = {}
        answer = await text.complete(asked)
        async for event in answer:
            if isinstance(event, OutputText):
                found[event.index] = found.get(event.index, "") + event.text
        assert found == {0: "ab" * 100, 2: "ab" * 100}
        assert answer.usage.completion == 402
        assert echo.counters.generated_tokens < 500, "without the abort they would be 600"

    with_text(tokenizer, test)


def test_an_error_in_one_prompt_ends_the_others(tokenizer: Tokenizer) -> None:
    async def test(text: Text, echo: EchoEngine) -> None:
        answer = await text.complete(completion(["a", "b"], cache_salt="refuse me"))
        with pytest.raises(RequestError, match="refuses"):
            async for _ in answer:
                pass
        assert text.engine.requests == 0

    with_text(tokenizer, test)


def test_chat_without_a_template(tokenizer: Tokenizer) -> None:
    async def test(text: Text, echo: EchoEngine) -> None:
        with pytest.raises(TemplateError, match="--chat-template"):
            await text.chat(chat())
        assert await text.complete(completion())

    with_text(tokenizer, test, template=None)


def test_suggested_sampling_gives_way(tokenizer: Tokenizer) -> None:
    async def test(text: Text, echo: EchoEngine) -> None:
        for asked in (completion(), completion(temperature=0.9)):
            async for _ in await text.complete(asked):
                pass
        first, second = (request.sampling for request in echo.seen)
        assert (first.temperature, first.top_k) == (0.6, 20)
        assert (second.temperature, second.top_k) == (0.9, 20)

    with_text(tokenizer, test, sampling=SamplingDefaults({"temperature": 0.6, "top_k": 20}))


def test_an_echo_has_the_logprobs_of_its_prompt(tokenizer: Tokenizer) -> None:
    async def test(text: Text, echo: EchoEngine) -> None:
        request = completion("abc", echo=True, prompt_logprobs=0, n=2, max_tokens=1)
        events = [event async for event in await text.complete(request)]
        for index in (0, 1):
            choice = joined(event for event in events if event.index == index)
            assert choice.text == "abca" and choice.logprobs is None
            assert choice.prompt_logprobs is not None
            tokens = [entry and entry.token for entry in choice.prompt_logprobs]
            assert tokens == [None, ord("b"), ord("c")]

    with_text(tokenizer, test)


@pytest.mark.parametrize(
    ("fields", "logprobs"), [({}, 0), ({"logprobs": 0}, 2), ({"prompt_logprobs": 0}, 0)]
)
def test_best_of_drops_empty_texts_without_requested_logprobs(
    tokenizer: Tokenizer, fields: dict[str, Any], logprobs: int
) -> None:
    """The control token has no text: its log probability may come in an empty one."""

    async def test(text: Text, echo: EchoEngine) -> None:
        request = completion([97, START_ID], best_of=2, max_tokens=2, **fields)
        events = [event async for event in await text.complete(request)]
        texts = [event for event in events if isinstance(event, OutputText)]
        assert "".join(event.text for event in texts) == "a"
        assert all(event.text or event.logprobs or event.prompt_logprobs for event in texts)
        assert sum(len(event.logprobs or ()) for event in texts) == logprobs
        assert any(event.prompt_logprobs for event in texts) is ("prompt_logprobs" in fields)
        assert isinstance(events[-1], ChoiceEnd)

    with_text(tokenizer, test)


def joined(events: Iterable[Event]) -> Joined:
    """What the events of one choice add up to."""
    builder = ChoiceBuilder()
    for event in events:
        builder.add(event)
    return builder.build()


def choice_of(tokenizer: Tokenizer, *stops: str, **options: Any) -> ChoiceState:
    return ChoiceState(0, tokenizer.detokenizer(), Stop(stops), **options)


def output_of(text: str) -> TokenOutput:
    """An output of the tokens of a text, with logprobs."""
    ids = list(text.encode())
    return TokenOutput(id="a", tokens=ids, logprobs=[TokenLogprobs(id, -float(id)) for id in ids])


def test_logprobs_come_with_their_text(tokenizer: Tokenizer) -> None:
    choice = choice_of(tokenizer, "xyz", logprobs=True)
    [first], [second] = choice.add(output_of("a")), choice.add(output_of("bx"))
    assert isinstance(first, OutputText) and isinstance(second, OutputText)
    assert (first.text, first.offsets) == ("a", [0]) and (second.text, second.offsets) == ("b", [1])
    assert choice.add(output_of("y")) == []
    [last] = choice.add(output_of("-"))
    assert isinstance(last, OutputText)
    assert (last.text, last.offsets, last.tokens) == ("xy-", [2, 3, 4], list(b"xy-"))


def test_logprobs_of_a_character_in_pieces(tokenizer: Tokenizer) -> None:
    choice = choice_of(tokenizer, logprobs=True)
    first, *rest = output_of("é").tokens
    held = choice.add(TokenOutput(id="a", tokens=[first], logprobs=[TokenLogprobs(first, -1.0)]))
    assert held == []
    [done] = choice.add(TokenOutput(id="a", tokens=rest, logprobs=[TokenLogprobs(rest[0], -2.0)]))
    assert isinstance(done, OutputText)
    assert done.text == "é" and done.offsets == [0, 0] and len(done.logprobs or []) == 2


def test_the_end_flushes(tokenizer: Tokenizer) -> None:
    choice = choice_of(tokenizer, "lone")
    assert choice.add(output_of("hello")) == [OutputText("hel")]
    end = choice.add(TokenOutput(id="a", finish="length"))
    assert (end, choice.done) == ([OutputText("lo"), ChoiceEnd("length")], True)
    cut = choice_of(tokenizer)
    ended = cut.add(TokenOutput(id="a", tokens=[0xC3], finish="length"))
    assert ended == [OutputText("\ufffd"), ChoiceEnd("length")]


def test_a_stop_string_in_the_last_piece(tokenizer: Tokenizer) -> None:
    choice = choice_of(tokenizer, "end")
    output = output_of("the end")
    output.finish = "length"
    assert choice.add(output) == [OutputText("the "), ChoiceEnd("stop", "end")]


@pytest.mark.parametrize(("least", "text"), [(0, "a"), (1, "a"), (2, "aba"), (3, "aba")])
def test_a_stop_string_counts_after_the_least_number_of_tokens(
    tokenizer: Tokenizer, least: int, text: str
) -> None:
    choice = choice_of(tokenizer, "b", min_tokens=least)
    shown = ""
    for letter in "ababab":
        if not choice.done:
            shown += joined(choice.add(output_of(letter))).text
    assert (shown, choice.done) == (text, True)


CONTROLS = {START_ID: START, END_ID: END}


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("stop", [END, f"b{END}", f"{END}{START}", f"b{END}a", "b", "im", END[0]])
def test_a_stop_string_with_a_control_token_stops_as_in_transformers(
    tokenizer: Tokenizer, stop: str, seed: int
) -> None:
    rng = random.Random(seed)
    ids = rng.choices([*b"ab", START_ID, END_ID], [4, 4, 1, 2], k=30)
    parts = {256: "\0", 257: "\1"}  # what a stop string of ordinary text does not match
    whole = "".join(parts.get(id) or chr(id) for id in ids)
    wanted = stop.replace(START, "\0").replace(END, "\1")
    if stop == wanted:  # control tokens inside a text do not matter
        whole = whole.replace("\0", "").replace("\1", "")
    elif START not in stop:
        whole = whole.replace("\0", "")
    cut, found, _ = whole.partition(wanted)
    expected = cut.replace("\0", "").replace("\1", "")
    for size in (1, 7, 30):
        for keep in (False, True):
            choice = ChoiceState(
                0, tokenizer.detokenizer(), Stop([stop], keep=keep, controls=[START, END]),
                logprobs=True, controls=CONTROLS,
            )  # fmt: skip
            events: list[Event] = []
            for start in range(0, 30, size):
                if not choice.done:
                    tokens = ids[start : start + size]
                    known = [TokenLogprobs(id, -1.0) for id in tokens]
                    events += choice.add(TokenOutput(id="a", tokens=tokens, logprobs=known))
            if not choice.done:
                events += choice.add(TokenOutput(id="a", finish="length"))
            made = joined(events)
            assert made.text == expected + stop * (keep and bool(found))
            assert made.finish == ("stop" if found else "length")
            assert made.stopped_by == (stop if found else None)
            if not keep:
                assert bytes(id for id in made.tokens if id < 256).decode() == made.text


def test_a_control_token_that_stops_keeps_what_precedes_it(tokenizer: Tokenizer) -> None:
    def choice() -> ChoiceState:
        stop = Stop([END, f"x{END}"], controls=[END])
        return ChoiceState(0, tokenizer.detokenizer(), stop, controls=CONTROLS)

    half = choice()
    output = TokenOutput(id="a", tokens=[0xC3, END_ID, ord("b")])
    assert joined(half.add(output)).text == "\ufffd"
    assert half.done
    ended = choice().add(TokenOutput(id="a", tokens=[*b"ax"], finish="stop", stopped_by=END_ID))
    assert ended == [OutputText("a"), ChoiceEnd("stop", END_ID)]


def test_a_control_token_stops_after_the_least_number_of_tokens(tokenizer: Tokenizer) -> None:
    stop = Stop([END], controls=[END])
    choice = ChoiceState(0, tokenizer.detokenizer(), stop, controls=CONTROLS, min_tokens=2)
    events = choice.add(TokenOutput(id="a", tokens=[97, END_ID, 98]))
    events += choice.add(TokenOutput(id="a", tokens=[END_ID, 99]))
    assert events == [OutputText("ab"), ChoiceEnd("stop", END)]


class Unclosed:
    """A parser that holds all text back until the end."""

    reasoning = None

    def __init__(self) -> None:
        self.held = ""

    def add(self, piece: Piece) -> list[Any]:
        self.held += piece.text
        return []

    def finish(self) -> list[Any]:
        return [OutputText(self.held)]


def test_a_control_token_that_stops_ends_the_parser(tokenizer: Tokenizer) -> None:
    parser: Any = Unclosed()
    stop = Stop([END], controls=[END])
    choice = ChoiceState(0, tokenizer.detokenizer(), stop, parser=parser, controls=CONTROLS)
    events = choice.add(TokenOutput(id="a", tokens=[97, 98, END_ID, 99]))
    assert events == [OutputText("ab"), ChoiceEnd("stop", END)]


def test_stop_strings_of_requests_match_control_tokens(tokenizer: Tokenizer) -> None:
    async def test(text: Text, echo: EchoEngine) -> None:
        for extra in ({}, {"include_stop_str_in_output": True}):
            asked = completion([97, 98, START_ID, 99], n=2, stop=START, **extra)
            found: dict[int, list[Event]] = {0: [], 1: []}
            answer = await text.complete(asked)
            async for event in answer:
                found[event.index].append(event)
            for made in map(joined, found.values()):
                assert made.text == "ab" + START * bool(extra)
                assert (made.finish, made.stopped_by) == ("stop", START)
            assert answer.usage.completion == 6

    with_text(tokenizer, test)


class Calls:
    """A parser to which every token is a call."""

    reasoning = None

    def add(self, piece: Piece) -> list[Any]:
        return [ToolCallStart(0, "id", piece.text), ToolCallEnd(0)]

    def finish(self) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("finish", "expected"), [("stop", "tool_calls"), ("length", "length"), (None, None)]
)
def test_only_an_answer_that_is_not_cut_off_ends_with_calls(
    tokenizer: Tokenizer, finish: Any, expected: str | None
) -> None:
    calls: Any = Calls()
    choice = choice_of(tokenizer, parser=calls)
    output = output_of("f")
    output.finish = finish
    assert joined(choice.add(output)).finish == expected


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        ({}, RequestError, "prompt"),
        ({"prompt": "a", "temprature": 1}, RequestError, "temprature"),
        ({"prompt": "a", "max_tokens": "5"}, RequestError, "max_tokens"),
        ({"prompt": "a", "logit_bias": {"1": "x"}}, RequestError, "logit_bias[...]"),
        ({"prompt": "a", "guided_json": 1}, RequestError, "guided_json"),
        ({"prompt": "a", "mm_processor_kwargs": {}}, Unsupported, "mm_processor_kwargs"),
        ({"prompt": "a", "store": True}, Unsupported, "store"),
    ],
)
def test_malformed_requests_are_rejected(
    body: dict[str, Any], kind: type[Exception], param: str
) -> None:
    with pytest.raises(kind) as raised:
        parse_request(body, CompletionBody)
    assert getattr(raised.value, "param", None) == param


@pytest.mark.parametrize(
    ("prompt", "wanted", "param"),
    [(6, 4, ""), (6, 5, ""), (9, None, ""), (10, None, "prompt"), (10, 0, ""),
     (11, 0, "prompt"), (9, 1, ""), (10, 1, "prompt")],
)  # fmt: skip
def test_a_prompt_leaves_room_in_the_context_for_a_token(
    prompt: int, wanted: int | None, param: str
) -> None:
    sampling = Sampling(max_tokens=wanted)
    if not param:
        return check_length(sampling, prompt, 10)
    with pytest.raises(ContextLengthExceeded) as raised:
        check_length(sampling, prompt, 10)
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("prompt", "own", "words"),
    [
        (6, False, "in 6 tokens, and at least 5 must be generated; shorten it, or lower min_tok"),
        (6, True, "(the request limits its context); shorten it, or lower min_tokens, or allow"),
        (10, False, "in 10 tokens, and at least 5 must be generated; shorten it, or load with"),
        (11, True, "in 11 tokens (the request limits its context); shorten it, or allow the"),
    ],
)
def test_the_fewest_tokens_need_room(prompt: int, own: bool, words: str) -> None:
    sampling = Sampling(min_tokens=5, max_tokens=9)
    check_length(sampling, 5, 10, own=own)
    with pytest.raises(ContextLengthExceeded) as raised:
        check_length(sampling, prompt, 10, own=own)
    assert words in str(raised.value)
    assert raised.value.param == ("min_tokens" if prompt < 10 else "prompt")
    with pytest.raises(ContextLengthExceeded, match=f"at least {prompt} tokens"):
        check_length(sampling, prompt, 10, counted=False)


def test_more_messages_than_tokens_are_refused_before_they_are_read() -> None:
    messages = [Message(role="user", content="") for _ in range(9)]
    read, _ = read_conversation(ChatRequest(messages=messages), 9)
    assert len(read) == 9
    with pytest.raises(ContextLengthExceeded, match="10 messages") as raised:
        read_conversation(ChatRequest(messages=[*messages, Message(role="nobody")]), 9)
    assert raised.value.param == "messages"


@pytest.mark.parametrize("key", ["a", "-1", "1.0", "", "\u0663", "\u00b2", "1" * 12])
def test_keys_of_a_logit_bias_are_token_ids(key: str) -> None:
    assert completion(logit_bias={"7": 1.5, "07": 2.0}).logit_bias == {7: 2.0}
    with pytest.raises(RequestError, match="is not a token id") as raised:
        completion(logit_bias={key: 1.0})
    assert raised.value.param == "logit_bias"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "thinking"])
@pytest.mark.parametrize("given", ["reasoning", "reasoning_content"])
def test_a_template_gets_reasoning_by_the_name_that_it_reads(
    tokenizer: Tokenizer, given: str, name: str
) -> None:
    """Solar Open's template reads `reasoning`, that of gpt-oss `thinking`."""
    source = (
        "{% for message in messages %}{% if message.NAME %}{{ message.NAME }}{% endif %}"
        "{{ message.content }}{% endfor %}"
    )
    template = ChatTemplate(source.replace("NAME", name), tokens={})
    user = {"role": "user", "content": "."}
    answer = {"role": "assistant", "content": "b", given: "a"}
    request = chat(messages=[user, answer, user])
    assert Preparer(served_echo(tokenizer, template=template)).render_chat(request) == ".ab."


@pytest.mark.parametrize(
    "content", [{}, {"content": None}, {"content": ""}, {"content": []}], ids=str
)
@pytest.mark.parametrize("reasoning", ["a", ""])
def test_a_turn_may_have_reasoning_alone(
    tokenizer: Tokenizer, content: dict[str, Any], reasoning: str
) -> None:
    source = "{% for m in messages %}<{{ m.reasoning_content }}>{{ m.content + '.' }}{% endfor %}"
    preparer = Preparer(served_echo(tokenizer, template=ChatTemplate(source, tokens={})))
    user = {"role": "user", "content": "b"}
    answer = {"role": "assistant", "reasoning": reasoning, **content}
    request = chat(messages=[user, answer, user])
    assert preparer.render_chat(request) == f"<>b.<{reasoning}>.<>b."


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": []}], ids=str)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_turn_of_nothing_is_refused(
    tokenizer: Tokenizer, content: dict[str, Any], role: str
) -> None:
    user = {"role": "user", "content": "b"}
    request = chat(messages=[user, {"role": role, **content}, user])
    with pytest.raises(RequestError, match=r"messages\[1\]\.content is (missing|an empty list)"):
        Preparer(served_echo(tokenizer)).render_chat(request)


def test_parse_takes_what_clients_send() -> None:
    request = parse_request(
        {
            "messages": [{"role": "assistant", "content": None, "refusal": None, "audio": None}],
            "user": "u",
            "store": False,
            "guided_json": None,
            "temperature": 1,
            "stop": None,
        },
        ChatBody,
    )
    assert request.messages == [BodyMessage(role="assistant")] and request.temperature == 1.0


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, ostro.plugins.pipelines.text.pipeline, ostro.entrypoints.http.server\n"
        "sys.exit(' '.join({'torch', 'transformers'} & set(sys.modules)) or 0)"
    )
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
