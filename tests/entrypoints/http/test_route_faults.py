"""Faults of a plugin's route end its request alone, with 500 and the plugin in the log."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from echo.server import Running, Start
from starlette.responses import Response, StreamingResponse
from starlette.testclient import TestClient

from ostro import Route, hookimpl
from ostro.core.errors import InvalidTensor, OstroError
from ostro.core.failure import described
from ostro.core.messages.outputs import TokenOutput
from ostro.core.plugins.manager import PluginManager
from ostro.core.plugins.task_errors import task_errors
from ostro.core.routes import Content, RequestBody
from ostro.entrypoints.http.app import make_app
from ostro.entrypoints.http.options import Options
from ostro.entrypoints.http.stream import EventStream
from ostro.entrypoints.operations.requests.event_formats import JSON_LINES

FAULTS: dict[str, Callable[[], BaseException]] = {
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "closed": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "base": lambda: BaseException("base"),
    "value": lambda: ValueError("value"),
    "os": lambda: FileNotFoundError("no such file"),
    "timeout": TimeoutError,
}


def fault(name: str) -> BaseException:
    return FAULTS[name]()


def errors(status: int, message: str, code: str | None, param: str | None) -> dict[str, Any]:
    return {"own": [status, message, code, param]}


def broken_errors(status: int, message: str, code: str | None, param: str | None) -> Any:
    raise SystemExit(4)


async def whole(operations: Any, caller: Any, request: Any, *, name: str) -> Any:
    await asyncio.sleep(0)
    raise fault(name)


def plain(operations: Any, caller: Any, request: Any, *, name: str) -> Any:
    raise fault(name)


def returns_plain(*_: Any) -> Any:
    return {"a": 1}


async def returns_none(*_: Any) -> None:
    await asyncio.sleep(0)


async def returns_object(*_: Any) -> Any:
    return object()


async def returns_text_content(*_: Any) -> Any:
    return Content(data="text")  # type: ignore[arg-type]


async def early(operations: Any, caller: Any, request: Any, *, name: str) -> Any:
    async def events() -> AsyncIterator[Any]:
        raise fault(name)
        yield

    return events()


async def late(operations: Any, caller: Any, request: Any, *, name: str) -> Any:
    async def events() -> AsyncIterator[Any]:
        yield {"event": 1}
        await asyncio.sleep(0)
        raise fault(name)

    return events()


async def parts(operations: Any, caller: Any, request: Any, *, name: str) -> Any:
    async def data() -> AsyncIterator[bytes]:
        yield b"begun"
        raise fault(name)

    return Content(data=data(), media_type="text/plain")


async def endpoint(request: Any) -> Any:
    raise fault(request.path_params["name"])


async def response(request: Any) -> Any:
    async def data() -> AsyncIterator[bytes]:
        yield b"begun"
        raise fault(request.path_params["name"])

    return StreamingResponse(data(), media_type="text/plain")


class Faulty(Response):
    """A response of a plugin that raises while it is sent."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    async def __call__(self, *_: Any) -> None:
        raise fault(self.name)


async def sent(request: Any) -> Any:
    return Faulty(request.path_params["name"])


async def good(*_: Any) -> Any:
    return {"good": True}


def exits(*_: Any) -> Any:
    raise SystemExit(5)


class Plugin:
    """A plugin whose routes have faults."""

    @hookimpl
    def ostro_routes(self) -> Any:
        yield Route(name="GET /whole/{name}", handler=whole, errors=errors)
        yield Route(name="GET /kept/{name}", handler=whole, cancel_on_disconnect=False)
        yield Route(name="GET /plain/{name}", handler=plain)  # type: ignore[arg-type]
        yield Route(name="GET /early/{name}", handler=early, errors=errors)
        yield Route(name="GET /late/{name}", handler=late, errors=errors, event_format=JSON_LINES)
        yield Route(name="GET /openai/{name}", handler=late)
        yield Route(name="GET /parts/{name}", handler=parts)
        yield Route(name="GET /endpoint/{name}", endpoint=endpoint)
        yield Route(name="GET /response/{name}", endpoint=response)
        yield Route(name="GET /sent/{name}", endpoint=sent)
        yield Route(name="GET /good", handler=good)
        yield Route(name="GET /returns_plain", handler=returns_plain)
        yield Route(name="GET /returns_none", handler=returns_none)
        yield Route(name="GET /returns_object", handler=returns_object)
        yield Route(name="GET /returns_text", handler=returns_text_content)
        yield Route(name="GET /requires", handler=good, requires=exits)
        yield Route(name="GET /errors/{name}", handler=whole, errors=broken_errors)
        check = RequestBody(kind=dict[str, int], check=exits)
        yield Route(name="POST /check", handler=good, body=check)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    return start(plugin=Plugin())


@pytest.fixture(autouse=True)
def serves_others(server: Running) -> Any:
    """After each test another route answers: the event loop still runs."""
    yield
    assert server.http.get("/good").json() == {"good": True}


def check_log(caplog: pytest.LogCaptureFixture, route: str) -> None:
    """The log names the route, its plugin, and the line that raised."""
    text = "\n".join(map(logging.Formatter().format, caplog.records))
    assert f"the route {route!r} of plugin tested" in text
    assert "test_route_faults.py" in text or "handlers.py" in text


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("path", ["whole", "kept", "plain", "early", "endpoint"])
def test_an_error_is_a_response(
    server: Running, caplog: pytest.LogCaptureFixture, path: str, name: str
) -> None:
    answer = server.http.get(f"/{path}/{name}")
    assert answer.status_code == 500
    id, body = answer.headers["x-request-id"], answer.json()
    message = body["own"][1] if path in ("whole", "early") else body["error"]["message"]
    assert id in message and "internal error" in message
    check_log(caplog, f"GET /{path}/{{name}}")


@pytest.mark.parametrize("name", FAULTS)
def test_an_error_of_a_response_ends_its_request(
    server: Running, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    answer = server.http.get(f"/sent/{name}")
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal"
    assert "test_route_faults.py" in "\n".join(map(logging.Formatter().format, caplog.records))


@pytest.mark.parametrize("name", FAULTS)
def test_an_error_is_the_last_event(
    server: Running, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    answer = server.http.get(f"/late/{name}")
    first, last = map(json.loads, answer.text.splitlines())
    assert (answer.status_code, first) == (200, {"event": 1})
    assert last["own"][0] == 500 and answer.headers["x-request-id"] in last["own"][1]
    check_log(caplog, "GET /late/{name}")
    events = server.http.get(f"/openai/{name}").text.split("\n\n")
    assert json.loads(events[1].removeprefix("data: "))["error"]["code"] == "internal"
    assert events[2] == "data: [DONE]"


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("path", ["parts", "response"])
def test_other_content_breaks_off(
    server: Running, caplog: pytest.LogCaptureFixture, path: str, name: str
) -> None:
    """Bytes of any form have no place for an error: the connection ends, as HTTP requires."""
    with pytest.raises(Exception, match="incomplete chunked read"):
        server.http.get(f"/{path}/{name}")
    check_log(caplog, f"GET /{path}/{{name}}")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("returns_plain", "returned dict, expected an awaitable"),
        ("returns_none", "the handler returned None"),
        ("returns_object", "Encoding objects of type object is unsupported"),
        ("returns_text", "Content.data is str"),
        ("requires", "it called sys.exit(5)"),
    ],
)
def test_a_wrong_result_is_named(
    server: Running, caplog: pytest.LogCaptureFixture, path: str, text: str
) -> None:
    answer = server.http.get(f"/{path}")
    assert answer.status_code == 500
    assert answer.headers["x-request-id"] in answer.json()["error"]["message"]
    check_log(caplog, f"GET /{path}")
    assert text in "\n".join(map(logging.Formatter().format, caplog.records))


def test_a_check_of_the_body_and_the_form_of_errors_may_fail(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    assert server.post("/check", a="text").status_code == 500
    check_log(caplog, "POST /check")
    answer = server.http.get("/errors/value")
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal"
    assert "`errors` of the route 'GET /errors/{name}'" in caplog.text


async def stream(events: Any, blocks: bool = False, **options: Any) -> list[Any]:
    """The messages of a stream whose client leaves after the first event, or while it is sent."""
    sent, left = list[Any](), asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            left.set()
            if blocks:
                await asyncio.Event().wait()

    async def receive() -> Any:
        await left.wait()
        return {"type": "http.disconnect"}

    scope = {"type": "http", "state": {"request_id": "id"}}
    await EventStream(events, place="the route", **options)(scope, receive, send)
    return sent


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("name", ["exit", "interrupt", "base", "value", "os", "timeout"])
def test_an_error_while_a_generator_is_closed_is_logged(
    caplog: pytest.LogCaptureFixture, name: str, blocks: bool
) -> None:
    async def events() -> AsyncIterator[Any]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            raise fault(name)

    sent = asyncio.run(stream(events(), blocks))
    assert sent[1]["body"] == b"data: 1\n\n"
    assert "request id has failed in the route" in caplog.text


def test_a_client_that_leaves_cancels_the_generator(caplog: pytest.LogCaptureFixture) -> None:
    ended = list[type[BaseException]]()

    async def events() -> AsyncIterator[Any]:
        yield 1
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            ended.append(type(error))
            raise

    asyncio.run(stream(events()))
    assert ended == [asyncio.CancelledError] and not caplog.text


def test_an_event_that_cannot_be_written_ends_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    async def events() -> AsyncIterator[Any]:
        yield 1
        yield object()

    def error_json(error: OstroError) -> Any:
        raise SystemExit(6)

    sent = asyncio.run(stream(events(), error_json=error_json))
    assert (sent[-1]["body"], sent[-1]["more_body"]) == (b"data: [DONE]\n\n", False)
    assert "unsupported" in caplog.text and "sys.exit(6)" in caplog.text


def test_the_end_of_a_server_cancels_a_handler() -> None:
    """A cancellation from outside is no error of the plugin."""

    async def wait() -> None:
        with task_errors("the route"):
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        coroutine = wait()
        coroutine.send(None)
        unfinished.append(coroutine)

    unfinished: list[Any] = []
    asyncio.run(main())
    unfinished[0].close()  # as at the end of a process: no error


def test_the_client_reads_the_module_of_a_wrong_shape(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message of an InvalidTensor is that of Python, whole and streamed."""
    error, step = InvalidTensor("expects inputs of width 8, got 4", "model.head"), server.echo.step

    def fail() -> list[TokenOutput]:
        fields = described(error)
        return [TokenOutput(id=output.id, finish="error", **fields) for output in step()]

    monkeypatch.setattr(server.echo, "step", fail)
    answer = server.complete("hello", max_tokens=1)
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "plugin_error"
    assert answer.json()["error"]["message"] == str(error)
    answer = server.complete("hello", max_tokens=1, stream=True)
    assert str(error) in answer.text and answer.status_code == 500


class Same:
    """A plugin with the route of another one."""

    @hookimpl
    def ostro_routes(self) -> Any:
        yield Route(name="GET /same", handler=good)
        yield Route(name=f"GET /own/{id(self)}", handler=good)


def test_a_route_of_two_plugins_is_named_at_start(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    plugins, both = PluginManager(), (Same(), Same())
    plugins.load()
    plugins.register(both[0], "one")
    plugins.register(both[1], "two")
    app = make_app(server.service, plugins, Options())
    with TestClient(app, base_url="http://localhost") as client:
        assert client.get("/same").status_code == 404
        assert all(client.get(f"/own/{id(plugin)}").json() == {"good": True} for plugin in both)
    assert "'GET /same' is claimed by one (registered) and two (registered)" in caplog.text
