"""Bodies that are costly to read: bounded time, no stalls of other requests, bounded memory."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ostro.core.errors import RequestError, Unsupported, nearest
from ostro.core.pipeline import parse_request
from ostro.entrypoints.api.openai.bodies import CompletionBody
from ostro.entrypoints.http import body as bodies
from ostro.entrypoints.http import budget
from ostro.entrypoints.http.errors import HANDLERS
from ostro.entrypoints.operations.models.service import Service
from ostro.entrypoints.operations.requests import decoding, json_scanner
from ostro.entrypoints.operations.requests.decoding import decode, decode_object
from ostro.plugins.pipelines.text.pipeline import size_of_prompt


def keys(number: int, *more: str) -> bytes:
    return ("{" + ",".join([*(f'"{i:x}":0' for i in range(number)), *more]) + "}").encode()


def longest_pause(work: Callable[[], Any]) -> float:
    """Seconds for which `work`, done in a thread, keeps this one from running. The best of three
    times, since the machine may pause either.
    """

    def once() -> float:
        thread = threading.Thread(target=work)
        times = [time.monotonic()]
        thread.start()
        while thread.is_alive():
            time.sleep(0.001)
            times.append(time.monotonic())
        thread.join()
        return max(b - a for a, b in pairwise(times))

    return min(once() for _ in range(3))


def refused(data: bytes) -> str:
    with pytest.raises(RequestError) as caught:
        decode_object(data)
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 1}',
        '{"a": 1, "\\u0061": 2}',
        '{"b": {"a": {}, "c": [], "a": {}}}',
        '{"b": [1, {"a": 1, "b": 2, "a": 3}]}',
        '{"a": {"x": 1, "y": {"z": 2}}, "a": 5}',
        r'{"a": "\\", "b": "\"", "a": 1}',
        '{"a": ":", "a" : ":"}',
    ],
)
def test_equal_names_are_refused(text: str) -> None:
    assert "two members named 'a'" in refused(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 1}]}',
        r'{"a\"": ":{[,", "a\\": "\\\"{:", "a\\\"": "\\\\", ":": "\\", ",": 1}',
        '{"a": "a", "A": "a", "": ":", " ": [":", "\\":", "x\\\\\\\\"]}',
        '{"\u00e9": "\u00e9:", "e\u0301": "\U0001f600"}',
    ],
)
def test_different_names_are_accepted(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (json_scanner.PIECE, 1, 2, 3, 7):
        monkeypatch.setattr(json_scanner, "PIECE", size)
        assert decode_object(text.encode()) == json.loads(text)


def test_equal_names_are_found_as_a_parser_finds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(0)

    def text() -> str:
        content = "".join(chance.choices('ab":,[]{}\\\n\u00e9', k=chance.randrange(3)))
        return json.dumps(content, ensure_ascii=chance.random() < 0.5)

    def value(depth: int) -> str:
        kind = chance.randrange(5 if depth else 3)
        space = " " * chance.randrange(2)
        if kind == 3:
            return f"[{','.join(value(depth - 1) for _ in range(chance.randrange(4)))}]{space}"
        if kind == 4:
            members = (f"{text()}{space}:{value(depth - 1)}" for _ in range(chance.randrange(6)))
            return f"{{{','.join(members)}}}"
        return (text(), "1.5", "null")[kind]

    def differ(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError
        return dict(pairs)

    ambiguous = 0
    for _ in range(600):
        monkeypatch.setattr(json_scanner, "PIECE", chance.randrange(1, 20))
        whole = f'{{"":{value(4)}}}'
        try:
            expected = json.loads(whole, object_pairs_hook=differ)
        except ValueError:
            ambiguous += 1
            assert "two members named" in refused(whole.encode())
        else:
            assert decode_object(whole.encode()) == expected
    assert 50 < ambiguous < 550


def test_long_names_are_refused() -> None:
    assert "a member's name exceeds 65536 bytes" in refused(LARGE["one long name"]())


@pytest.mark.process
def test_a_repeated_name_is_found_in_linear_time() -> None:
    start = time.process_time()
    assert "'3e7f'" in refused(keys(16_000, '"3e7f":0'))
    assert "'1b57'" in refused(keys(7000, '"1b57":0'))
    assert time.process_time() - start < 5


def test_too_many_values_are_refused() -> None:
    for data in (
        b'{"a":[' + b",".join([keys(9)] * 20_000) + b"]}",
        b'{"a":[' + b",".join([b"[]"] * 1_000_000) + b"]}",
        b'{"a":[' + b",".join([b"1"] * 3_000_000) + b"]}",
    ):
        assert "the body has more than" in refused(data)
    assert len(decode_object(b'{"a":[' + b",".join([b"1"] * (1 << 20)) + b"]}")["a"]) == 1 << 20


def test_an_object_of_too_many_members_is_refused() -> None:
    for data in (keys(16_385), b'{"a":[{"b":' + keys(16_385) + b"}]}"):
        assert "an object of more than 16384 members" in refused(data)
    assert len(decode_object(keys(16_384))) == 16_384


LARGE: dict[str, Callable[[], bytes]] = {
    "a million names": lambda: keys(1_000_000),
    "one long name": lambda: b'{"' + b"a" * (40 << 20) + b'":1}',
    "token ids": lambda: b'{"prompt":[' + b",".join([b"100"] * 12_000_000) + b"]}",
    "texts": lambda: b'{"prompt":[' + b",".join([b'"a"'] * 12_000_000) + b"]}",
}


@pytest.mark.process
@pytest.mark.parametrize("kind", LARGE)
def test_other_threads_run_while_a_body_is_parsed(kind: str) -> None:
    data = LARGE[kind]()

    def work() -> None:
        try:
            decode(data, CompletionBody)
        except RequestError:
            pass

    assert longest_pause(work) < 0.4


@pytest.mark.process
def test_nearest_of_a_long_name_takes_no_time() -> None:
    start = time.process_time()
    assert nearest("temperatur" + "e" * (16 << 20), ["temperature"]) == ""
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ('{"prompt": "a", "temperatur": 1}', "temperatur"),
        ('{"prompt": "a", "mm_processor_kwargs": {}}', "mm_processor_kwargs"),
        ('{"prompt": "a", "top_k": 1.5}', "top_k"),
        ('{"prompt": {}}', "prompt"),
        ('{"prompt": null}', "prompt"),
        ('{"n": 1}', "prompt"),
        ('{"prompt": "a", "stream_options": {"x": 1}}', "stream_options.x"),
        ('{"prompt": "a", "adapter": {"scale": "x"}}', "adapter.scale"),
        ('[{"prompt": "a"}]', None),
    ],
)
def test_errors_of_fields(body: str, param: str | None) -> None:
    with pytest.raises((RequestError, Unsupported)) as caught:
        decode(body.encode(), CompletionBody)
    assert caught.value.param == param


def test_an_accepted_body_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "decode_members", None)
    given = r'{"prompt": [1, 2], "t\u006fp_k": 5, "n": null, "adapters": ["a", {"name": "b"}]}'
    request = decode(given.encode(), CompletionBody)
    assert (request.prompt, request.top_k, request.n) == ([1, 2], 5, None)


def test_the_json_of_a_rejected_body_is_checked() -> None:
    seen: list[Any] = []
    decode(b'{"prompt": "a"}', CompletionBody, check=seen.append)
    assert not seen
    with pytest.raises(RequestError):
        decode(b'{"prompt": 1}', CompletionBody, check=seen.append)
    assert seen == [{"prompt": 1}]


@pytest.mark.parametrize(
    "prompt", ["a" * 9000, ["a" * 9000] * 3, [[1500] * 900] * 3, [1500] * 9000]
)
def test_the_size_of_a_prompt_is_about_that_of_its_json(prompt: Any) -> None:
    prompts = parse_request({"prompt": prompt}, CompletionBody).to_request().prompts
    assert 0.5 < sum(map(size_of_prompt, prompts)) / len(json.dumps(prompt)) < 2


class Exchange:
    """One request of an ASGI application, whose body is sent in steps."""

    def __init__(self, app: Any, kind: str = "application/json") -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.status = 0
        self.done = asyncio.ensure_future(
            app(
                {
                    "type": "http",
                    "method": "POST",
                    "path": "/",
                    "query_string": b"",
                    "headers": [(b"content-type", kind.encode())],
                },
                self.messages.get,
                self.send,
            )
        )

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = dict(message["headers"])

    async def give(self, data: bytes, more: bool = True) -> None:
        self.messages.put_nowait({"type": "http.request", "body": data, "more_body": more})
        for _ in range(20):
            await asyncio.sleep(0)


def test_the_bytes_of_all_bodies_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_HELD", 1000)
    monkeypatch.setattr(budget, "SMALL", 100)
    released = asyncio.Event()

    async def route(request: Request) -> Response:
        if request.headers["content-type"] != "application/json":
            async with bodies.read_form(request):
                return Response()
        await bodies.read_json(request, 5000)
        await released.wait()
        return Response()

    app = Starlette(
        routes=[Route("/", route, methods=["POST"])],
        middleware=[Middleware(budget.BodyBudget)],
        exception_handlers=HANDLERS,
    )

    async def main() -> None:
        first, second = Exchange(app), Exchange(app)
        form = Exchange(app, "multipart/form-data; boundary=x")
        await first.give(b'{"a": "' + b"x" * 900)
        await second.give(b'{"a": "' + b"x" * 200 + b'"}', more=False)
        await form.give(b"x" * 200)
        assert (first.status, second.status, form.status) == (0, 503, 503)
        assert second.headers[b"retry-after"] and second.headers[b"connection"] == b"close"
        await first.give(b'"}', more=False)
        small, third = Exchange(app), Exchange(app)
        await small.give(b'{"a": "' + b"x" * 80 + b'"}', more=False)
        await third.give(b'{"a": "' + b"x" * 200 + b'"}', more=False)
        # The bytes of the first count as long as its response is not sent.
        assert (first.status, small.status, third.status) == (0, 0, 503)
        released.set()
        await asyncio.gather(first.done, small.done)
        assert (first.status, small.status) == (200, 200)
        fourth = Exchange(app)
        await fourth.give(b'{"a": "' + b"x" * 900 + b'"}', more=False)
        await fourth.done
        assert fourth.status == 200

    asyncio.run(main())


def test_a_restarted_engine_keeps_the_body_limit_of_media() -> None:
    class Engine:
        info = None

        async def adapt(self, command: Any) -> list[Any]:
            return []

    service: Any = Service(Engine(), "model")  # type: ignore[arg-type]
    service.takes_media = True
    asyncio.run(service.restore())
    assert service.takes_media and not service.behind
