"""Routes that load and unload models: with an echo engine in its own process."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from echo.model import make_model
from tiny.model_routes import (
    admin,
    complete,
    models,
    options,
    server_of,
    states,
    status,
    wait_until,
)

from ostro.core.settings import Settings
from ostro.entrypoints.operations.access.keys import sha256_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models by name of their folders; "large" ones fit alone, "broken" ones cannot be loaded."""
    root = tmp_path_factory.mktemp("models")
    for name in ("one", "two", "large-a", "large-b", "broken"):
        make_model(root / name)
    return root


def test_a_model_is_unloaded_and_loaded(folder: Path) -> None:
    with server_of(models(folder, "one", "two")) as server:
        assert complete(server, "two").json()["model"] == "two"
        found = status(server, "two")
        assert found["state"] == "loaded" and found["load"] == "start" and not found["default"]
        assert found["context"] == 4096 and found["idle_seconds"] >= 0
        assert admin(server, "/v1/models/unload", model="two").json()["state"] == "unloaded"
        refused = complete(server, "two")
        assert refused.status_code == 503 and "'two' is unloaded" in refused.text
        assert complete(server, "one").status_code == complete(server).status_code == 200
        assert states(server) == {"one": "loaded", "two": "unloaded"}
        again = admin(server, "/v1/models/unload", model="two")
        assert again.status_code == 404 and "is unloaded, not loaded" in again.text
        loaded = admin(server, "/v1/models/load", model="two").json()
        assert loaded["state"] == "loaded" and loaded["explain"]
        assert complete(server, "two").status_code == 200
        assert admin(server, "/v1/models/reload", model="default").json()["model"] == "one"
        assert admin(server, "/v1/models/load", model="three").status_code == 404
        assert server.post("/v1/models/one").status_code in (404, 405)


@pytest.mark.process
def test_the_default_model_may_be_unloaded(folder: Path) -> None:
    with server_of(models(folder, "one", "two")) as server:
        admin(server, "/v1/models/unload", model="one")
        assert complete(server, "one").status_code == 503
        assert complete(server).json()["model"] == "two"
        admin(server, "/v1/models/unload", model="two")
        assert complete(server).status_code == 503
        assert server.get("/ready").status_code == 200


@pytest.mark.process
def test_requantize(folder: Path) -> None:
    with server_of(models(folder, "one", "two")) as server:
        done = admin(server, "/v1/models/two/requantize", quant="q4k")
        assert done.status_code == 200 and done.json()["explain"]
        settings = server.server.manager.models["two"].options.settings
        assert settings.quant == "q4k"
        assert admin(server, "/re_isq", ggml_type="q8_0").json()["model"] == "one"
        assert admin(server, "/re_isq").status_code == 400


@pytest.mark.process
def test_only_admins_may_change_models(folder: Path) -> None:
    bodies = {"load": "one", "unload": "one", "reload": "one"}
    with server_of(models(folder, "one"), api_keys=["user"]) as server:
        for headers, code in (({}, 401), ({"Authorization": "Bearer user"}, 403)):
            for route, name in bodies.items():
                url = f"{server.url}/v1/models/{route}"
                assert httpx.post(url, json={"model": name}, headers=headers).status_code == code
            for path in ("/v1/models/one/requantize", "/re_isq"):
                assert httpx.post(server.url + path, json={}, headers=headers).status_code == code
            found = httpx.get(f"{server.url}/v1/models/one/status", headers=headers)
            assert found.status_code == code
    with server_of(models(folder, "one"), admin_key=None) as server:
        refused = server.post("/v1/models/unload", model="one")
        assert refused.status_code == 404 and "--model-root or --admin-key" in refused.text


@pytest.mark.process
def test_models_below_the_root_only(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(folder / "one", root / "new")
    (root / "link").symlink_to(folder / "two")
    with server_of(models(folder, "one"), model_root=str(root)) as server:

        def load(reference: str, **more: Any) -> httpx.Response:
            return admin(server, "/v1/models/load", model="new", reference=reference, **more)

        assert load("missing").status_code == 404
        for path in (str(folder / "two"), "../../x", "link", "..", "/etc"):
            refused = load(path)
            assert refused.status_code == 403 and "outside of --model-root" in refused.text, path
        assert "new" not in states(server)
        given = {"quant": "q8_0", "max_seqs": 2, "memory": "1GB", "dtype": "float32"}
        given |= {"kv_dtype": "int8", "topology": "lm_head = float"}
        assert load("new", context=64, **given).json()["state"] == "loaded"
        settings = server.server.manager.models["new"].options.settings
        assert settings.context == 64
        assert {name: getattr(settings, name) for name in given} == given
        assert complete(server, "new").json()["model"] == "new"
        wrong = admin(server, "/v1/models/load", model="new", quant="q8_0")
        assert wrong.status_code == 400 and "options require a reference" in wrong.text
        for name in ("", " a", "x" * 200, "default", "a\nb"):
            bad = admin(server, "/v1/models/load", model=name, reference="new")
            assert bad.status_code == 400, name
    with server_of(models(folder, "one")) as server:
        closed = admin(server, "/v1/models/load", model="new", reference="new")
        assert closed.status_code == 404 and "--model-root" in closed.text


@pytest.mark.process
def test_a_bad_model_then_a_good_one(folder: Path, tmp_path: Path) -> None:
    for name in ("one", "broken"):
        shutil.copytree(folder / name, tmp_path / name)
    with server_of(models(folder, "two"), model_root=str(tmp_path)) as server:
        bad = admin(server, "/v1/models/load", model="new", reference="broken")
        assert bad.status_code >= 400 and "is damaged" in bad.text
        assert states(server) == {"two": "loaded"}
        good = admin(server, "/v1/models/load", model="new", reference="one")
        assert good.status_code == 200 and complete(server, "new").status_code == 200
        worse = admin(server, "/v1/models/load", model="new", reference="broken")
        assert "is damaged" in worse.text
        found = status(server, "new")
        assert found["state"] == "loaded" and "is damaged" in found["error"]
        assert complete(server, "new").status_code == 200


# On demand


@pytest.mark.process
def test_a_request_loads_a_model(folder: Path) -> None:
    configured = [options(folder, "one", "on demand"), options(folder, "two", "on demand")]
    with server_of(configured) as server:
        assert server.get("/ready").status_code == 200
        assert states(server) == {"one": "unloaded", "two": "unloaded"}
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: complete(server, "two").status_code, range(8)))
        assert answers == [200] * 8
        assert states(server) == {"one": "unloaded", "two": "loaded"}
        assert complete(server).json()["model"] == "one"
        admin(server, "/v1/models/unload", model="two")
        assert complete(server, "two").status_code == 200


@pytest.mark.process
def test_the_least_recently_used_model_makes_room(folder: Path) -> None:
    names = ("large-a", "two", "large-b")
    with server_of(models(folder, *names, load="on demand")) as server:
        assert complete(server, "two").status_code == 200
        assert complete(server, "large-a").status_code == 200
        assert states(server) == {"large-a": "loaded", "two": "unloaded", "large-b": "unloaded"}
        assert complete(server, "large-b").status_code == 200
        assert states(server)["large-a"] == "unloaded"


@pytest.mark.process
def test_a_model_in_use_is_not_unloaded_for_another(folder: Path) -> None:
    environment = {"ECHO_STEP": "0.01"}
    os.environ.update(environment)
    try:
        with server_of(models(folder, "one", "large-a", load="on demand")) as server:
            with ThreadPoolExecutor(1) as pool:
                long = pool.submit(
                    complete, server, "one", prompt="x", max_tokens=200, ignore_eos=True
                )
                wait_until(server, "one", "loaded")
                refused = complete(server, "large-a")
                assert refused.status_code == 503 and "does not fit beside" in refused.text
                assert "retry-after" in refused.headers
                assert not long.done() and long.result(60).status_code == 200
            assert complete(server, "large-a").status_code == 200
            assert states(server) == {"one": "unloaded", "large-a": "loaded"}
    finally:
        for name in environment:
            del os.environ[name]


@pytest.mark.process
def test_a_model_of_the_start_is_never_unloaded_for_another(folder: Path) -> None:
    configured = [options(folder, "one"), options(folder, "large-a", "on demand")]
    with server_of(configured) as server:
        assert complete(server, "large-a").status_code == 503
        assert states(server) == {"one": "loaded", "large-a": "failed"}
        found = status(server, "large-a")
        assert "2 bytes are needed and 1 is free" in found["error"]


@pytest.mark.process
def test_a_model_that_cannot_be_loaded_on_demand(folder: Path) -> None:
    configured = [options(folder, "one"), options(folder, "broken", "on demand")]
    with server_of(configured) as server:
        refused = complete(server, "broken")
        assert refused.status_code == 503 and "could not be loaded" in refused.text
        assert str(folder) not in refused.text
        assert states(server) == {"one": "loaded", "broken": "failed"}
        assert complete(server, "one").status_code == 200


@pytest.mark.process
def test_a_request_waits_no_longer_than_max_wait(folder: Path) -> None:
    with server_of(models(folder, "one", "two", load="on demand"), max_wait=0.2) as server:
        manager, gate = server.server.manager, threading.Event()
        find = manager.find

        async def slow(settings: Settings) -> Any:
            while not gate.is_set():
                await asyncio.sleep(0.01)
            return await find(settings)

        manager.find = slow
        refused = complete(server, "two")
        assert refused.status_code == 503 and "is being loaded" in refused.text
        assert states(server)["two"] == "loading"
        gate.set()
        wait_until(server, "two", "loaded")


# Aliases


@pytest.mark.process
def test_aliases(folder: Path) -> None:
    configured = [options(folder, "one", "start", "gpt"), options(folder, "two", "start", "*")]
    with server_of(configured) as server:
        for name, model in (("gpt", "one"), ("default", "one"), ("anything", "two")):
            assert complete(server, name).json()["model"] == model
        assert list(states(server)) == ["one", "two"]
        assert status(server, "gpt")["aliases"] == ["gpt"]


@pytest.mark.process
def test_the_models_of_a_key_hold_for_aliases(folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[keys]]\nname = "u"\nsha256 = "{sha256_of("user")}"\nmodels = ["two"]\n')
    configured = [options(folder, "one", "start", "gpt"), options(folder, "two", "start", "alt")]
    with server_of(configured, keys=str(keys)) as server:

        def code(name: str) -> int:
            body = {"prompt": "a", "model": name}
            headers = {"Authorization": "Bearer user"}
            url = f"{server.url}/v1/completions"
            return httpx.post(url, json=body, headers=headers, timeout=120).status_code

        assert [code(name) for name in ("two", "alt", "one", "gpt")] == [200, 200, 403, 403]


# Faults


@pytest.mark.process
def test_a_restarted_engine_has_the_models_that_were_loaded(folder: Path) -> None:
    configured = [*models(folder, "one", "two"), options(folder, "broken", "on demand")]
    configured.append(options(folder, "large-a", "on demand"))
    with server_of(configured) as server:
        admin(server, "/v1/models/unload", model="two")
        before = server.server.engine.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        deadline = time.monotonic() + 120
        while server.server.engine.pid == before or server.get("/ready").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        expected = {"one": "loaded", "two": "unloaded", "broken": "unloaded"}
        assert states(server) == expected | {"large-a": "unloaded"}
        assert complete(server, "one").status_code == 200
        assert admin(server, "/v1/models/load", model="two").status_code == 200
        assert complete(server, "two").status_code == 200


@pytest.mark.process
def test_two_loads_of_one_model_at_once(folder: Path) -> None:
    with server_of(models(folder, "one", "two")) as server:

        def load(_: int) -> int:
            return admin(server, "/v1/models/load", model="two").status_code

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(load, range(6))) == [200] * 6
        assert states(server) == {"one": "loaded", "two": "loaded"}


@pytest.mark.process
def test_loads_and_unloads_at_once(folder: Path) -> None:
    """Whatever their order, the server and its engine agree at the end."""
    with server_of(models(folder, "one", "two", load="on demand")) as server:

        def change(number: int) -> int:
            if number % 3 == 0:
                return complete(server, "two").status_code
            route = "load" if number % 3 == 1 else "unload"
            return admin(server, f"/v1/models/{route}", model="two").status_code

        with ThreadPoolExecutor(6) as pool:
            codes = set(pool.map(change, range(18)))
        assert codes <= {200, 404, 503}, codes
        assert complete(server, "two").status_code == 200
