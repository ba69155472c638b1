"""Requests of batches: the handlers of their routes, with the rights and limits of their key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest

from ostro.core.errors import Overloaded, StepFailed, Unsupported
from ostro.core.routes import FORM, Content, RequestBody, Route
from ostro.entrypoints.operations.access.admission import CLAIM
from ostro.entrypoints.operations.access.caller import Caller, Forbidden
from ostro.entrypoints.operations.access.keys import KeyRing, sha256_of
from ostro.entrypoints.operations.access.quotas import Quotas
from ostro.entrypoints.operations.documents.batch_runner import Busy
from ostro.entrypoints.operations.executor import LOW_PRIORITY, make_acting, make_executor
from ostro.entrypoints.operations.requests.event_formats import JSON_LINES, NAMED_EVENTS
from ostro.entrypoints.operations.requests.request_context import request_id


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request of the tested route."""

    text: str = ""


class Failure(msgspec.Struct, tag="failure"):
    """An error in the form of a family."""

    status: int
    code: str | None


def form(status: int, message: str, code: str | None, param: str | None) -> Failure:
    return Failure(status, code)


def run(
    handler: Any, given: dict[str, Any], *, ring: KeyRing | None = None, key: str = "", **route: Any
) -> tuple[int, Any]:
    """The status and the JSON of the response of a batch's request."""
    service = SimpleNamespace(takes_media=True, max_context=None)
    operations: Any = SimpleNamespace(service=service, strict_fields=True)
    routes = [Route(name="POST /x", handler=handler, request=Request, **route)]
    execute = make_executor(routes, operations, ring or KeyRing(), Quotas())
    status, data = asyncio.run(execute("/x", msgspec.json.encode(given), key))
    return status, json.loads(data)


async def echo(operations: Any, caller: Caller, request: Request) -> Any:
    return {"text": request.text, "priority": caller.priority, "id": request_id()}


def failing(error: BaseException) -> Any:
    async def handler(operations: Any, caller: Caller, request: Request) -> Any:
        raise error

    return handler


def test_a_request_is_decoded_and_handled_at_low_priority() -> None:
    status, answer = run(echo, {"text": "hé"})
    assert status == 200 and answer["text"] == "hé" and answer["priority"] == LOW_PRIORITY
    assert answer["id"] != run(echo, {})[1]["id"] and not request_id()
    status, answer = run(echo, {"txt": "a"})
    assert status == 400 and answer["error"]["param"] == "txt"


def test_the_key_needs_the_scope_of_the_route(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.touch(mode=0o600)
    file.write_text(f'[[keys]]\nname = "a"\nsha256 = "{sha256_of("k")}"\nscopes = ["metrics"]\n')
    ring = KeyRing(file=file)
    status, answer = run(echo, {}, ring=ring, key="a")
    assert status == 403 and "infer" in answer["error"]["message"]
    assert run(echo, {}, ring=ring, key="b")[0] == 401
    assert run(echo, {}, ring=ring, key="")[0] == 401
    assert ring.knows("a") and not ring.knows("b") and not ring.knows("")


def test_a_server_without_keys_does_not_act_for_a_key() -> None:
    """It may share a store with servers that have keys."""
    ring = KeyRing.of(admin_key="admin")
    assert run(echo, {}, ring=ring)[0] == 200 and ring.knows("")
    assert run(echo, {}, ring=ring, key="a")[0] == 401 and not ring.knows("a")
    with pytest.raises(Forbidden), make_acting(ring, Quotas(), "/v1/x")("a"):
        pass


def test_responses_in_the_background_have_a_low_priority() -> None:
    with make_acting(KeyRing(), Quotas(), "/v1/x")("") as caller:
        own = CLAIM.get()
        assert caller.priority == LOW_PRIORITY
        assert own is not None and own.caller == caller  # which requests of the engine follow


def test_a_body_may_not_exceed_the_limit_of_the_route() -> None:
    text = "a" * 40
    size = len(msgspec.json.encode({"text": text}))
    assert run(echo, {"text": text}, body=RequestBody(max_bytes=size))[0] == 200
    status, answer = run(echo, {"text": text}, body=RequestBody(max_bytes=size - 1))
    assert status == 413 and answer["error"]["code"] == "request_too_large"


def test_a_batch_contains_no_forms() -> None:
    class Form(Request):
        media_type: ClassVar[str] = FORM

    handled = Route(name="POST /x", handler=echo, request=Request)
    form = Route(name="POST /x", handler=echo, request=Form)
    service = SimpleNamespace(takes_media=True, max_context=None)
    operations: Any = SimpleNamespace(service=service, strict_fields=True)
    for route, status in ((handled, 200), (form, 404)):
        execute = make_executor([route], operations, KeyRing(), Quotas())
        assert asyncio.run(execute("/x", b"{}", ""))[0] == status


def test_errors_have_the_form_of_the_route() -> None:
    def requires(operations: Any) -> None:
        raise Unsupported("no store")

    assert run(failing(StepFailed("out of memory")), {})[0] == 503
    status, answer = run(failing(KeyError("secret")), {})
    assert status == 500 and "secret" not in answer["error"]["message"]
    status, answer = run(echo, {}, errors=form, statuses={400: 422}, requires=requires)
    assert (status, answer) == (422, {"type": "failure", "status": 422, "code": "unsupported"})


FAULTS = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]


@pytest.mark.parametrize("error", FAULTS, ids=repr)
def test_no_error_of_a_handler_ends_the_batches(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    async def stream(operations: Any, caller: Caller, request: Request) -> Any:
        async def events() -> AsyncGenerator[int, None]:
            raise error
            yield 1

        return events()

    for handler in (failing(error), fails, stream):
        status, answer = run(handler, {})
        assert status == 500 and answer["error"]["code"] == "internal"
    for route in ({"requires": fails}, {"body": RequestBody(check=fails)}):
        assert run(echo, {"absent": 1}, **route)[0] == 500
    assert caplog.text.count("the route 'POST /x'") == 5


@pytest.mark.parametrize("error", FAULTS, ids=repr)
def test_the_form_of_errors_cannot_fail(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def errors(*_: Any) -> Any:
        raise error

    status, answer = run(failing(KeyError("secret")), {}, errors=errors)
    assert status == 500 and answer["error"]["code"] == "internal"
    assert "`errors` of the route 'POST /x' has failed" in caplog.text


def test_a_handler_without_a_result_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def nothing(operations: Any, caller: Caller, request: Request) -> None:
        return

    assert run(nothing, {})[0] == 500 and "the handler returned None" in caplog.text
    assert run(lambda *_: {"a": 1}, {})[0] == 500 and "write it as `async def`" in caplog.text


def test_a_server_without_room_repeats_the_request() -> None:
    with pytest.raises(Busy):
        run(failing(Overloaded("later")), {})


def test_a_stream_is_closed_and_refused() -> None:
    closed = []

    async def stream(operations: Any, caller: Caller, request: Request) -> Any:
        async def events() -> AsyncGenerator[int, None]:
            try:
                yield 1
                yield 2
            finally:
                closed.append(True)

        return events()

    async def content(operations: Any, caller: Caller, request: Request) -> Any:
        return Content(data=b"", media_type="audio/wav")

    for handler in (stream, content):
        status, answer = run(handler, {})
        assert status == 400 and answer["error"]["param"] == "stream"
    assert closed == [True]


def test_events_are_named_by_their_tags() -> None:
    event = Failure(1, None)
    assert NAMED_EVENTS.encode(event).startswith(b'event: failure\ndata: {"type":"failure"')
    assert NAMED_EVENTS.encode(Request()) == b'data: {"text":""}\n\n'
    assert JSON_LINES.encode(Request()) == b'{"text":""}\n'
