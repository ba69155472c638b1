"""The ASGI application, and the example that deploys it on Ray Serve."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest
from tiny.model import make_model

from ostro.core.errors import UsageError
from ostro.core.settings import Settings
from ostro.http import Application

ROOT = Path(__file__).resolve().parents[3]
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@asynccontextmanager
async def alive(app: Application) -> AsyncIterator[httpx.AsyncClient]:
    """Run the lifespan of an application as an ASGI server does. Raises its error."""
    inbox: asyncio.Queue[Any] = asyncio.Queue()
    outbox: asyncio.Queue[Any] = asyncio.Queue()
    living = asyncio.ensure_future(app({"type": "lifespan"}, inbox.get, outbox.put))
    await inbox.put({"type": "lifespan.startup"})
    message = await outbox.get()
    if message["type"] != "lifespan.startup.complete":
        await living
        raise RuntimeError(message["message"])
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await inbox.put({"type": "lifespan.shutdown"})
    assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
    await living


@pytest.mark.process
def test_the_lifespan_starts_and_ends_the_engine(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "tiny")

    async def main() -> None:
        app = Application([Settings(reference=str(folder), max_seqs=2)], api_keys=["secret"])
        with pytest.raises(RuntimeError, match="lifespan"):
            await app({"type": "http"}, asyncio.Queue().get, asyncio.Queue().put)
        async with alive(app) as client:
            ready = (await client.get("/ready")).json()
            assert (ready["status"], ready["model"]) == ("ready", "tiny")
            assert (await client.post("/v1/chat/completions", json=HELLO)).status_code == 401
            headers = {"authorization": "Bearer secret"}
            answer = await client.post("/v1/chat/completions", json=HELLO, headers=headers)
            assert answer.status_code == 200 and answer.json()["choices"][0]["message"]
        assert (await client_of(app, "/ready")).status_code == 503

    asyncio.run(main())


async def client_of(app: Application, path: str) -> httpx.Response:
    """Send GET to an application whose lifespan may be over."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://localhost"
    ) as client:
        return await client.get(path)


def test_a_model_that_does_not_load_fails_the_startup(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="nothing"):
            async with alive(Application([Settings(reference=str(tmp_path / "nothing"))])):
                raise AssertionError("it has started")

    asyncio.run(main())


def test_names_and_options_are_checked_at_once() -> None:
    with pytest.raises(UsageError, match="same"):
        Application([Settings(reference="a", name="same"), Settings(reference="b", name="same")])
    with pytest.raises(TypeError, match="unknown"):
        Application([Settings(reference="a")], unknown=1)


def read_example() -> ModuleType:
    """Import the example of Ray Serve."""
    spec = importlib.util.spec_from_file_location(
        "ray_serve_example", ROOT / "docs" / "examples" / "ray_serve.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.process
def test_the_example_of_ray_builds_an_application(monkeypatch: pytest.MonkeyPatch) -> None:
    builders: list[Callable[[], Application]] = []

    def ingress(builder: Callable[[], Application]) -> Callable[[type], type]:
        builders.append(builder)
        return lambda kind: kind

    def deployment(**options: Any) -> Callable[[type], Any]:
        assert options["graceful_shutdown_timeout_s"] > 30, "the drain timeout"
        return lambda kind: SimpleNamespace(bind=kind)

    ray = SimpleNamespace(serve=SimpleNamespace(ingress=ingress, deployment=deployment))
    monkeypatch.setitem(sys.modules, "ray", ray)
    read_example()

    async def main() -> None:
        async with alive(builders[0]()) as client:
            answer = await client.post("/v1/chat/completions", json=HELLO)
            assert answer.status_code == 200 and answer.json()["model"] == "starter"

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_the_example_runs_on_ray() -> None:
    ray, serve = pytest.importorskip("ray"), pytest.importorskip("ray.serve")
    serve.run(read_example().deployment)
    try:
        with httpx.Client(base_url="http://localhost:8000", timeout=120) as client:
            answer = client.post("/v1/chat/completions", json=HELLO)
            assert answer.status_code == 200 and answer.json()["model"] == "starter"
            with client.stream(
                "POST", "/v1/chat/completions", json={**HELLO, "stream": True}
            ) as stream:
                assert list(stream.iter_lines())[-2] == "data: [DONE]"
            assert client.get("/ready").json()["status"] == "ready"
    finally:
        serve.shutdown()
        ray.shutdown()
