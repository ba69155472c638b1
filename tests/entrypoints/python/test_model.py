"""`import ostro`: load, generate, stream, look at logits, and errors that name the argument."""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny.model import CONFIG, TEMPLATE, change_weights, make_gguf, make_model, make_weights

import ostro
from ostro.core.deprecated import RemovedInOstro1
from ostro.core.errors import (
    ContextLengthExceeded,
    OstroError,
    RequestError,
    TokenizerError,
    Unsupported,
    UsageError,
)
from ostro.core.messages.outputs import TokenOutput
from ostro.core.messages.requests import TokenRequest
from ostro.core.messages.text import ChoiceEnd, Event, Text, text_of
from ostro.core.messages.text_requests import ChatRequest, CompletionRequest, Message
from ostro.core.pipeline import parse_request
from ostro.core.settings import Settings
from ostro.entrypoints.api.openai.bodies import ChatBody
from ostro.entrypoints.python.load import load_text
from ostro.entrypoints.python.model import LocalModel
from ostro.entrypoints.python.requests import make_request, types_of
from ostro.plugins.conformance.parity import BAR, deviation

GREEDY = {"temperature": 0, "max_tokens": 12}
HELLO = [{"role": "user", "content": "hello"}]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def model(tiny: Path) -> Iterator[LocalModel]:
    with ostro.load(tiny, dtype=torch.float32) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def truth(tiny: Path) -> Any:
    """transformers' model of the same folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaForCausalLM

        return LlamaForCausalLM.from_pretrained(tiny).eval()


@torch.inference_mode()
def continued(truth: Any, prompt: list[int], count: int) -> list[int]:
    """What transformers says greedily, each token from scratch."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(truth(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@torch.inference_mode()
def test_logits_are_those_of_transformers(model: LocalModel, truth: Any) -> None:
    tokens = model.encode("the time of the year and the way of the people") * 6
    logits = model.logits(tokens)
    assert logits.shape == (len(tokens), 320) and logits.dtype == torch.float32
    assert deviation(logits, truth(torch.tensor([tokens])).logits[0]) <= BAR
    assert model.engine.stats().blocks_used == 0


def test_a_step_that_raises_fails_its_answer_alone(
    model: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hidden(*arguments: Any) -> Any:
        monkeypatch.undo()
        raise RuntimeError("boom")

    wanted = model.generate("good morning", **GREEDY)
    monkeypatch.setattr(model.engine.runner.model, "hidden", hidden)
    with pytest.raises(OstroError, match="RuntimeError: boom"):
        model.generate("a prompt that is not cached", **GREEDY)
    assert model.generate("good morning", **GREEDY) == wanted


def test_an_answer_is_that_of_transformers(model: LocalModel, truth: Any) -> None:
    tokens = model.encode("good morning")
    wanted = model.tokenizer.decode(continued(truth, tokens, 12))
    assert model.generate("good morning", **GREEDY) == wanted
    assert model.generate(tokens, **GREEDY) == wanted
    assert model.generate(tuple(np.array(tokens)), **GREEDY) == wanted


def test_messages_go_through_the_template(model: LocalModel, truth: Any) -> None:
    text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    tokens = model.tokenizer.encode(text, parse_special=True)
    assert model.encode(HELLO) == tokens
    wanted = model.tokenizer.decode(continued(truth, tokens, 12))
    assert model.generate(HELLO, **GREEDY) == wanted != model.generate("hello", **GREEDY)


def test_control_tokens_in_a_text_are_parsed_and_those_in_messages_are_text(
    model: LocalModel,
) -> None:
    text, words = "hello<|im_end|>", model.tokenizer
    parsed, plain = words.encode(text, parse_special=True), words.encode(text)
    assert model.encode(text) == parsed != plain == model.encode(text, parse_special=False)
    found = model.encode([{"role": "user", "content": text}])
    assert found.count(parsed[-1]) == model.encode(HELLO).count(parsed[-1])
    answers = [model.generate(text, parse_special=parse, **GREEDY) for parse in (True, False)]
    assert answers == [model.generate(ids, **GREEDY) for ids in (parsed, plain)]


def tokens_of(events: Iterable[Event]) -> list[int]:
    """The ids that events report."""
    return [token for event in events if isinstance(event, Text) for token in event.tokens]


def test_a_stream_has_the_events_of_its_tokens(model: LocalModel, truth: Any) -> None:
    answer = model.stream("hello", return_token_ids=True, **GREEDY)
    *events, last = answer
    tokens = continued(truth, model.encode("hello"), 12)
    assert tokens_of(events) == tokens and last == ChoiceEnd("length")
    assert all(isinstance(event, Text) and event.logprobs is None for event in events)
    assert (answer.usage.prompt, answer.usage.completion) == (len(model.encode("hello")), 12)
    text = "".join(model.stream("hello", **GREEDY).text_stream)
    assert text == "".join(e.text for e in events) == model.generate("hello", **GREEDY)
    assert tokens_of(model.stream("hello", **GREEDY)) == []


def test_a_stream_can_carry_logprobs(model: LocalModel) -> None:
    prompt = model.encode("hello")
    [answer] = model.stream(prompt, logprobs=2, **GREEDY).collect()
    assert answer.logprobs is not None and len(answer.logprobs) == 12
    every = model.logits([*prompt, *answer.tokens]).log_softmax(-1)
    for i, (token, entry) in enumerate(zip(answer.tokens, answer.logprobs, strict=True)):
        row = every[len(prompt) + i - 1]
        assert entry is not None and entry.token == token == entry.top[0][0]
        assert entry.logprob == pytest.approx(float(row[token]), abs=1e-3)
        assert len(entry.top) == 2


def test_leaving_a_stream_frees_its_blocks(model: LocalModel) -> None:
    stream = model.stream("hello", max_tokens=500, ignore_eos=True)
    for _ in range(3):
        next(stream)
    assert model.engine.stats().blocks_used > 0 and model.engine.busy
    stream.close()
    assert model.engine.stats().blocks_used == 0 and not model.engine.live
    for _ in model.stream("hello", max_tokens=500, ignore_eos=True):
        break
    assert not model.engine.live and not model.local.received
    assert model.generate("hello", **GREEDY) == model.generate("hello", **GREEDY)


def test_streams_may_run_at_once(model: LocalModel) -> None:
    prompts = ["hello", "good morning", "the time of the year"]
    alone = [model.generate(prompt, **GREEDY) for prompt in prompts]
    streams = [model.stream(prompt, **GREEDY) for prompt in prompts]
    said = ["", "", ""]
    for events in zip_longest(*streams):
        said = [text + text_of([e]) for text, e in zip(said, events, strict=True)]
    assert said == alone
    first, second = (model.stream(p, return_token_ids=True, **GREEDY) for p in prompts[:2])
    next(first), next(second)
    first.close()
    assert len(tokens_of(second)) == 11


def test_a_stop_string_ends_an_answer_and_stays_out(model: LocalModel) -> None:
    whole = model.generate("hello", **GREEDY)
    stop = whole[5:7]
    for given in (stop, [stop], ("never said", stop)):
        [answer] = model.stream("hello", stop=given, **GREEDY).collect()
        assert answer.text == whole[: whole.index(stop)]
        assert (answer.finish, answer.stopped_by) == ("stop", stop)
    assert not model.engine.live
    least = model.generate("hello", stop=stop, min_tokens=12, **GREEDY)
    assert least == whole, "a stop string counts after min_tokens only"


def test_an_end_of_text_token_is_not_in_the_text(tiny: Path, model: LocalModel) -> None:
    end = tokens_of(model.stream("hello", return_token_ids=True, **GREEDY))[3]
    *events, last = model.stream("hello", stop_token_ids=[end], **GREEDY)
    assert len(events) == 3 and last == ChoiceEnd("stop", end)


def test_sampling_is_refused_by_name(model: LocalModel) -> None:
    good = model.generate("hello", **GREEDY)
    with pytest.raises(UsageError, match="unknown argument heat; expected n, max_tokens, stop"):
        model.generate("hello", heat=1)
    with pytest.raises(UsageError, match=r"temperature"):
        model.generate("hello", temperature="hot")
    with pytest.raises(UsageError, match=r"stop"):
        model.generate("hello", stop=5)
    with pytest.raises(RequestError, match=r"n=0 is not within 1..64"):
        model.generate("hello", n=0)
    with pytest.raises(UsageError, match=r"thinking_budget needs messages as prompt"):
        model.generate("hello", thinking_budget=1)
    with pytest.raises(UsageError, match=r"echo needs a text or token ids as prompt"):
        model.generate(HELLO, echo=True)
    with pytest.raises(UsageError, match="enable_thinking; chat_template_kwargs has variables"):
        model.encode(HELLO, enable_thinking=False)
    with pytest.raises(UsageError, match=r"unknown argument best_of"):
        model.generate("hello", best_of=2)
    for reported in ({"tools": [WEATHER]}, {"logprobs": 1}, {"return_token_ids": True}):
        with pytest.raises(UsageError, match=rf"{min(reported)}: generate\(\) returns text alone"):
            model.generate(HELLO, **reported)
    with pytest.raises(RequestError, match=r"top_p=1.5 is not within 0..1"):
        model.generate("hello", top_p=1.5)
    assert model.generate("hello", **GREEDY) == good


def test_several_answers_come_from_one_prompt(model: LocalModel) -> None:
    rules = {"temperature": 2, "max_tokens": 8, "seed": 5}
    first, second = model.generate("hello", n=2, **rules)
    assert first == model.generate("hello", **rules) != second
    assert second == model.generate("hello", **{**rules, "seed": 6})
    assert model.generate("hello", n=1, **rules) == [first]
    stop = second[3:5]
    events = list(model.stream("hello", n=2, stop=stop, **rules))
    assert text_of(e for e in events if e.index == 1) == second[: second.index(stop)]
    ends = [event for event in events if isinstance(event, ChoiceEnd)]
    assert len(ends) == 2 and {end.index: end.finish for end in ends}[1] == "stop"
    longer = {**rules, "max_tokens": 100, "ignore_eos": True}
    stream = model.stream("hello", n=2, stop=stop, **longer)
    assert any(event == ChoiceEnd("stop", stop, index=1) for event in stream)
    assert model.engine.stats().running == 1, "a choice that has ended is computed no further"
    stream.close()
    assert not model.engine.live


def test_every_argument_reaches_the_request() -> None:
    own: dict[str, Any] = {
        "stop": ["a"],
        "stop_token_ids": [7],
        "logit_bias": {5: 0.5},
        "logits_processors": {"mine": 1},
        "dry_sequence_breakers": ["a"],
        "reasoning_effort": "low",
        "chat_template_kwargs": {"a": 1},
        "cache_salt": "a",
        "suffix": "a",
    }
    for prompt, kind in (("hello", CompletionRequest), (HELLO, ChatRequest)):
        for name in types_of(kind).keys() - {"tools", "tool_choice"}:
            value = own.get(name, True if "bool" in str(types_of(kind)[name]) else 3)
            assert getattr(make_request(prompt, {name: value}), name) == value
    request = make_request(HELLO, {"tools": [WEATHER], "tool_choice": "required"})
    assert isinstance(request, ChatRequest) and request.tool_choice == "required"
    assert [tool.name for tool in request.tools] == ["weather"]


def test_older_names_of_arguments_warn() -> None:
    for old, new, value in (
        ("stop_ids", "stop_token_ids", [5]),
        ("processors", "logits_processors", {"grammar": {"regex": "a"}}),
        ("options", "chat_template_kwargs", {"enable_thinking": False}),
    ):
        with pytest.warns(RemovedInOstro1, match=f"{old} is deprecated; write {new}"):
            assert getattr(make_request(HELLO, {old: value}), new) == value
        with pytest.raises(UsageError, match=f"{old} is the older name of {new}"):
            make_request(HELLO, {old: value, new: value})


def test_an_interrupted_answer_loses_no_text(
    model: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may begin a stop string is withheld until the interrupt."""
    stream = model.stream("hello", n=2, max_tokens=500, ignore_eos=True)
    next(stream)
    ends = [event for event in stream.interrupt() if isinstance(event, ChoiceEnd)]
    assert [(end.index, end.finish) for end in ends] == [(0, "abort"), (1, "abort")]
    assert not model.engine.live and not list(stream)

    def outputs(request: TokenRequest) -> Iterator[TokenOutput]:
        for token in model.tokenizer.encode("hell", special=False):
            yield TokenOutput(id=request.id, tokens=[token])
        raise KeyboardInterrupt

    monkeypatch.setattr(model.local, "generate", outputs)
    stream, events = model.stream("hello", stop="ello"), list[Event]()
    with pytest.raises(KeyboardInterrupt):
        for event in stream:
            events.append(event)
    assert text_of(events) == "h"
    assert stream.interrupt() == [Text("ell"), ChoiceEnd("abort")]


def test_messages_are_those_of_the_server(model: LocalModel) -> None:
    plain = model.chat(HELLO, **GREEDY)
    assert model.chat("hello", **GREEDY) == plain
    assert model.chat([Message(role="user", content="hello")], **GREEDY) == plain
    parts = [{"role": "user", "content": [{"type": "text", "text": "hel"}, "lo"]}]
    assert model.chat(parts, **GREEDY).text
    assert model.chat([*HELLO, {"role": "assistant", "content": "a"}], **GREEDY).text
    data = base64.b64encode(b"hello").decode()
    file = {"type": "file", "file": {"filename": "a.txt", "file_data": data}}
    attached = model.encode([{"role": "user", "content": [file]}])
    assert attached == model.encode([{"role": "user", "content": "File a.txt:\n\nhello"}])
    for messages, words in (
        ([], "messages: got 0"),
        ([{**HELLO[0], "weight": 1}], r"unknown field 'messages\[0\].weight'"),
        ([{**HELLO[0], "role": "critic"}], r"messages\[0\]: unknown role 'critic'"),
        ([{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}], "file_id f:"),
        ([*HELLO, CALLED], "their results are missing"),
        ([{"role": "assistant", "refusal": "no", "content": ["a"]}], "refusal excludes content"),
    ):
        with pytest.raises(RequestError, match=words):
            model.chat(messages)


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ("", RequestError, "the prompt is empty"),
        ([], RequestError, "the prompt is empty"),
        ([1, "a"], UsageError, "text, messages or token ids"),
        ([1, 2.5], UsageError, "text, messages or token ids"),
        (5, UsageError, "text, messages or token ids"),
        ([1, 320], RequestError, r"token id 320 is not within 0\.\.319"),
        ([-1], RequestError, r"token id -1 is not within 0\.\.319"),
        ([5] * 1025, ContextLengthExceeded, "is 1024 tokens.* in 1025 tokens"),
        (["hello", "you"], UsageError, "text, messages or token ids"),
        ([*HELLO, "and you"], RequestError, r"messages\[1\]: Expected `object`, got `str`"),
        ([{"content": "hello"}], RequestError, r"messages\[0\].role"),
        ([{"role": "user", "content": 5}], RequestError, r"messages\[0\].content"),
    ],
)
def test_a_prompt_that_is_none(
    model: LocalModel, prompt: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        model.generate(prompt, **GREEDY)
    if not isinstance(prompt, str | int) and not any(isinstance(x, dict) for x in prompt):
        with pytest.raises(error, match=message):
            model.logits(prompt)
    assert not model.engine.live and model.generate("hello", max_tokens=1) is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"contxt": 5}, "unknown setting contxt; expected reference, arch"),
        ({"context": "long"}, r"`int \| null`, got `str` - at `\$\.context`"),
        ({"context": 0}, "--context 0"),
        ({"max_seqs": 0}, "--max-seqs 0"),
        ({"max_seqs": 10**9}, "--max-seqs 1000000000"),
        ({"threads": 0}, "--threads 0"),
        ({"threads": -2}, "--threads -2 is not within 1..1024"),
        ({"threads": 10**9}, "--threads 1000000000"),
        ({"memory": 5}, r"\$\.memory"),
        ({"allow_config": "rope"}, r"\$\.allow_config"),
        ({"dtype": torch.int8}, "--dtype 'int8'"),
        ({"device": "toaster"}, "--device 'toaster'"),
        ({"plugins": ["/no/such/plugin"]}, "is not a plugin"),
    ],
)
def test_settings_are_refused_by_name(tiny: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ostro.load(tiny, **settings)


def test_a_context_is_filled_to_its_last_token(tiny: Path) -> None:
    with ostro.load(tiny, context=20) as model:
        for length, said in ((16, 4), (19, 1)):
            answer = model.stream([5] * length, max_tokens=said, ignore_eos=True)
            assert answer.collect() and answer.usage.completion == said
            more = model.stream([5] * length, max_tokens=said + 1, ignore_eos=True)
            assert more.collect()[0].finish == "length" and more.usage.completion == said
        with pytest.raises(ContextLengthExceeded, match=r"is 20 tokens.* in 20 tokens, and at"):
            model.generate([5] * 20, max_tokens=1)
        with pytest.raises(ContextLengthExceeded, match=r"and at least 5 must.* lower min_tokens"):
            model.generate([5] * 16, min_tokens=5)
        assert model.logits([5] * 20).shape == (20, 320)
        with pytest.raises(ContextLengthExceeded, match=r"is 20 tokens.* in 21 tokens"):
            model.logits([5] * 21)


def test_the_captured_loop_works_here(model: LocalModel, tiny: Path) -> None:
    with ostro.load(tiny, replay=True, max_seqs=2) as captured:
        assert captured.generate("hello", **GREEDY) == model.generate("hello", **GREEDY)


def test_weights_are_brought_to_other_formats_at_run_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = {"hidden_size": 256, "intermediate_size": 256}
    folder = make_model(tmp_path / "wide", **shape)
    save_file(make_weights({**CONFIG, **shape}), folder / "model.safetensors")
    asked = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    with (
        ostro.load(folder, replay=True) as model,
        ostro.load(folder, quant="q2k") as coarse,
    ):
        whole = model.generate("hello", **asked)
        stream = model.stream("hello", **asked)
        next(stream)
        with pytest.raises(UsageError, match="a stream is open"):
            model.requantize("q2k")
        stream.close()
        with pytest.raises(UsageError, match="unknown format"):
            model.requantize("q2")
        assert model.generate("hello", **asked) == whole
        assert any("Q2_K" in line for line in model.requantize("2"))
        assert model.generate("hello", **asked) == coarse.generate("hello", **asked) != whole
        model.requantize()
        assert model.generate("hello", **asked) == whole


def test_settings_of_load_apply(tiny: Path) -> None:
    with ostro.load(str(tiny), context=100, dtype="bfloat16", device=torch.device("cpu")) as model:
        assert model.engine.context == 100 and model.loaded.dtype == torch.bfloat16
        assert model.name == "tiny"
        assert any("attention" in line for line in model.explain)
        assert model.generate("hello", **GREEDY)


def test_tokenizer_and_template_can_be_replaced(tiny: Path, tmp_path: Path) -> None:
    bare = make_model(tmp_path / "bare", template=None)
    (bare / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match="--tokenizer"):
        ostro.load(bare)
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE.replace("user", "you"))
    with ostro.load(bare, tokenizer=tiny, chat_template=template) as model:
        assert model.tokenizer.encode("hello") and model.encode(HELLO)


def test_a_closed_model_says_so(tiny: Path) -> None:
    model = ostro.load(tiny)
    stream = model.stream("hello", max_tokens=100, ignore_eos=True)
    next(stream)
    model.close()
    model.close()
    assert not model.engine.live
    for call in (lambda: next(stream), lambda: model.generate("x"), lambda: model.logits([1])):
        with pytest.raises(UsageError, match="tiny is closed"):
            call()
    with ostro.load(tiny) as again:
        assert again.logits([1]).isfinite().all()


def test_a_gguf_file_says_the_same(model: LocalModel, tmp_path: Path) -> None:
    with ostro.load(make_gguf(tmp_path / "tiny.gguf"), dtype="float32") as other:
        assert other.generate(HELLO, **GREEDY) == model.generate(HELLO, **GREEDY)
        tokens = model.encode("hello world")
        assert deviation(other.logits(tokens), model.logits(tokens)) < 1e-5


@pytest.mark.parametrize("tied", [False, True])
def test_progress_is_reported_to_the_end(tmp_path: Path, tied: bool) -> None:
    """A head that is tied is not read, though the file holds a copy of the embedding."""
    reports: list[tuple[str, int, int]] = []
    folder = make_model(tmp_path / "m", tie_word_embeddings=tied)
    if tied:
        change_weights(folder, lm_head__weight=make_weights()["model.embed_tokens.weight"])
    load_text(Settings(reference=str(folder)), progress=lambda *news: reports.append(news)).close()
    stages = ["reading weights", "compiling kernels", "warming up"]
    assert list(dict.fromkeys(stage for stage, _, _ in reports)) == stages
    read = [(done, total) for stage, done, total in reports if stage == stages[0]]
    done, totals = [x for x, _ in read], {total for _, total in read}
    assert done == sorted(done) and done[-1] == totals.pop() and not totals
    assert done[-1] == sum(
        w.nbytes for n, w in make_weights().items() if not tied or "head" not in n
    )


def test_a_tokenizer_loads_without_its_model(tiny: Path, tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "tiny.gguf")
    for reference in (tiny, str(tiny), tiny / "tokenizer.json", file):
        words = ostro.tokenizer(reference)
        ids = words.encode("hello <|im_end|> world")
        assert words.decode(ids) == "hello <|im_end|> world"
        assert words.vocab_size == 302 and words.eos_ids
    with pytest.raises(UsageError, match="unknown setting offlin"):
        ostro.tokenizer(tiny, offlin=True)


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
SPOKEN = '<think>\nHm.\n</think>\n\nSo.\n<tool_call>\n{"name": "weather", "arguments": {"a": 1}}\n'
SPOKEN += "</tool_call> end"


def speak(model: LocalModel, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let the engine answer with a text, one token per output."""
    tokens = model.tokenizer.encode(text, special=False)

    def outputs(request: TokenRequest) -> Iterator[TokenOutput]:
        for token in tokens:
            yield TokenOutput(id=request.id, tokens=[token])
        yield TokenOutput(id=request.id, finish="stop")

    monkeypatch.setattr(model.local, "generate", outputs)
    monkeypatch.setattr(model.engine, "abort", lambda *names: [])


CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
STRICT = {**WEATHER, "function": {"name": "weather", "parameters": CITY, "strict": True}}
HOT: dict[str, Any] = {"temperature": 5.0, "max_tokens": 60}


@pytest.fixture(scope="module")
def starter() -> Iterator[LocalModel]:
    with ostro.load(dtype="float32") as made:
        yield made


def test_chats_enforce_strict_tools(starter: LocalModel) -> None:
    """A model this hot writes no valid call by itself."""
    for seed in range(3):
        loose = starter.chat(HELLO, tools=[WEATHER], seed=seed, **HOT)
        assert loose.tool_calls == []
        answer = starter.chat(HELLO, tools=[STRICT], tool_choice="required", seed=seed, **HOT)
        [call] = answer.tool_calls
        assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")
        assert (answer.text, answer.finish) == ("", "tool_calls")


def test_chats_constrain_calls_as_servers_do(starter: LocalModel) -> None:
    """A strict tool alone, a choice, one call at a time: the masks of a request over HTTP."""
    other = {**WEATHER, "function": {"name": "other", "parameters": {"type": "object"}}}
    named = {"type": "function", "function": {"name": "other"}}
    cases: list[dict[str, Any]] = [
        {"tools": [STRICT]},
        {"tools": [WEATHER, other], "tool_choice": named},
        {"tools": [WEATHER, other], "parallel_tool_calls": False},
        {"tools": [WEATHER], "tool_choice": "none"},
        {"tools": [WEATHER]},
    ]
    sent = list[TokenRequest]()
    generate = starter.local.generate
    for case in cases:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(starter.local, "generate", lambda r: sent.append(r) or generate(r))
            starter.chat(HELLO, max_tokens=1, **case)
        request = parse_request({"messages": HELLO, **case}, ChatBody).to_request()
        wanted = starter.text.prepare_chat(request, lambda tokens, media, check: None).request
        assert sent[-1].tokens == wanted.tokens
        assert sent[-1].sampling.processors == wanted.sampling.processors
    assert [bool(request.sampling.processors) for request in sent] == [
        True,
        True,
        True,
        False,
        False,
    ]
    for name, value in (("tool_choice", "required"), ("parallel_tool_calls", False)):
        with pytest.raises(RequestError, match=f"{name} needs tools"):
            starter.chat(HELLO, **{name: value})
    with pytest.raises(RequestError, match=r"tools\[1\]: duplicate name 'weather'"):
        starter.chat(HELLO, tools=[WEATHER, STRICT])
    with pytest.raises(RequestError, match="'absent' is none of the tools"):
        starter.chat(HELLO, tools=[WEATHER], tool_choice={**named, "function": {"name": "absent"}})
    with pytest.raises(RequestError, match="tool_choice: expected auto, none"):
        starter.chat(HELLO, tools=[WEATHER], tool_choice="always")


def test_a_chat_has_reasoning_and_calls(model: LocalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match="the chat template of tiny does not read them"):
        model.chat(HELLO, tools=[WEATHER])
    monkeypatch.setattr(model.text, "check_shows_tools", lambda template: None)
    speak(model, monkeypatch, SPOKEN)
    answer = model.chat(HELLO, tools=[WEATHER])
    assert (answer.reasoning, answer.text, answer.finish) == ("Hm.", "So. end", "tool_calls")
    [call] = answer.tool_calls
    assert (call.name, call.arguments) == ("weather", '{"a": 1}') and call.id
    plain = model.chat(HELLO, stop="</tool_call>")
    assert plain.text.startswith("So.\n<tool_call>") and plain.finish == "stop"
    with pytest.raises(UsageError, match="n: chat"):
        model.chat(HELLO, n=2)
    with pytest.raises(RequestError, match=r"tools\[0\]"):
        model.chat(HELLO, tools=[{"type": "function"}])
