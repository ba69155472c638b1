"""`ostro serve --workers 4`: all workers answer alike, and the limits hold for all together."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from echo.model import make_model

from ostro.entrypoints.operations.access.keys import sha256_of

from .test_server import Process, check_gone

WORKERS, LIMIT = 4, 60
COMPLETIONS = "/v1/completions"
ENDLESS = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "stream": True}
SAMPLE = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.MULTILINE)


def write_keys(file: Path, **keys: str) -> None:
    """Write a keys file; the values are TOML besides the name, which is the key too."""
    tables = (
        f"[[keys]]\nname='{n}'\nsha256='{sha256_of(n)}'\n{more}\n" for n, more in keys.items()
    )
    file.touch(mode=0o600)
    file.write_text("".join(tables))


KEYS = {
    "ann": "",
    "root": 'scopes=["infer", "admin", "metrics"]',
    "minute": f"requests_per_minute={LIMIT}",
    "tokens": "tokens_per_minute=50",
}


class Served:
    """A server with workers."""

    def __init__(self, process: Process, keys: Path) -> None:
        self.process, self.keys = process, keys

    @property
    def workers(self) -> list[int]:
        """The process ids of the workers."""
        found = []
        for pid in self.process.children():
            if b"workers.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        return found

    def send(self, path: str, key: str = "ann", **body: Any) -> httpx.Response:
        """Send a request on a new connection: GET without a body."""
        method, headers = "POST" if body else "GET", {"x-api-key": key}
        url = self.process.url + path
        # Without TLS: a context of certificates takes longer than the request.
        with httpx.Client(verify=False, headers=headers, timeout=120) as client:
            return client.request(method, url, json=body or None)

    def complete(self, key: str = "ann", **body: Any) -> httpx.Response:
        return self.send(COMPLETIONS, key, **{"prompt": "hello", "max_tokens": 5, **body})

    @contextmanager
    def only(self, pid: int) -> Iterator[None]:
        """Let only one worker answer: the others are stopped."""
        others = [each for each in self.workers if each != pid]
        for each in others:
            os.kill(each, signal.SIGSTOP)
        try:
            yield
        finally:
            for each in others:
                os.kill(each, signal.SIGCONT)

    def of_each(self, ask: Callable[[], httpx.Response]) -> list[httpx.Response]:
        """The response of each worker."""
        found = []
        for pid in self.workers:
            with self.only(pid):
                found.append(ask())
        return found

    def statuses(self, ask: Callable[[], httpx.Response]) -> set[int]:
        """The statuses of the responses of all workers."""
        return {response.status_code for response in self.of_each(ask)}

    def metrics(self) -> Mapping[tuple[str, str], float]:
        """The metrics with labels, by name and labels."""
        found = SAMPLE.findall(self.send("/metrics", "root").text)
        return {(name, labels): float(value) for name, labels, value in found}

    def until(self, holds: Callable[[], bool], seconds: float = 30.0) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, self.send("/load").text
            time.sleep(0.05)


@contextmanager
def launch(
    folder: Path, *, step: float = 0.001, count: int = WORKERS, **options: Any
) -> Iterator[Served]:
    """Start a server. It is killed unless the block ends it."""
    model, keys = make_model(folder / "echo"), folder / "keys.toml"
    for name in ("pirate", "other"):
        (folder / "root" / name).mkdir(parents=True)
        (folder / "root" / name / "adapter_config.json").write_text("{}")
    make_model(folder / "root" / "second")
    write_keys(keys, **KEYS)
    process = Process(
        model,
        {"ECHO_STEP": str(step)},
        workers=count,
        keys=str(keys),
        model_root=str(folder / "root"),
        **{"store": "none", **options},
    )
    try:
        process.wait()
        assert process.url, process.end()
        served = Served(process, keys)
        assert len(served.workers) == count
        yield served
    finally:
        if process.process.poll() is None:
            process.process.kill()
            process.process.communicate()


def end(served: Served) -> None:
    """End a server."""
    served.process.process.terminate()
    code, _, err = served.process.end()
    assert code == 0 and "Traceback" not in err, err


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with launch(tmp_path_factory.mktemp("workers")) as found:
        yield found
        end(found)


pytestmark = pytest.mark.slow


def test_all_workers_answer_alike(served: Served) -> None:
    found = [response.json()["choices"] for response in served.of_each(served.complete)]
    assert len(found) == WORKERS and found[0][0]["text"] == "hello"
    assert all(each == found[0] for each in found)


def test_a_key_sends_no_more_requests_to_all_workers_than_to_one(served: Served) -> None:
    with ThreadPoolExecutor(16) as threads:
        responses = [*threads.map(lambda _: served.complete("minute"), range(LIMIT + 20))]
    assert Counter(each.status_code for each in responses) == {200: LIMIT, 429: 20}
    for response in served.of_each(lambda: served.complete("minute")):
        assert response.status_code == 429 and 0 < int(response.headers["retry-after"]) <= 60
    assert served.statuses(served.complete) == {200}, "other keys have their own limits"


def test_tokens_per_minute_hold_for_all_workers(served: Served) -> None:
    # 5 tokens of the prompt and 5 new ones.
    found = served.of_each(lambda: served.complete("tokens"))
    assert [each.headers["x-ratelimit-remaining-tokens"] for each in found] == [
        "40",
        "30",
        "20",
        "10",
    ]
    assert served.complete("tokens").status_code == 200
    assert served.statuses(lambda: served.complete("tokens")) == {429}


def test_metrics_are_the_sum_of_all_workers(served: Served) -> None:
    http = ("ostro_http_requests_total", f'method="POST",route="{COMPLETIONS}",status="200"')
    tokens = "vllm:generation_tokens_total"

    def read() -> tuple[float, float, float]:
        found = served.metrics()
        generated = sum(value for (name, _), value in found.items() if name in tokens)
        return found[http], found["ostro_key_requests_total", 'key="ann"'], generated

    served.complete()
    before = read()
    assert served.statuses(served.complete) == {200}
    after = read()
    assert [b - a for a, b in zip(before, after, strict=True)][:2] == [WORKERS, WORKERS]
    for response in served.of_each(lambda: served.send("/metrics", "root")):
        labels = f"{http[0]}{{{http[1]}}}"
        assert f"{labels} {after[0]}" in response.text


def test_a_request_that_the_server_handles_counts_once(served: Served) -> None:
    labels = 'method="POST",route="/v1/models/unload",status="404"'
    http, key = ("ostro_http_requests_total", labels), ("ostro_key_requests_total", 'key="root"')

    def unload() -> httpx.Response:
        return served.send("/v1/models/unload", "root", model="none")

    unload()
    before = served.metrics()
    assert served.statuses(unload) == {404}
    after = served.metrics()
    assert after[http] - before[http] == WORKERS
    assert after[key] - before[key] == WORKERS + 1  # and one for the figures


def test_a_model_that_is_loaded_is_served_by_all_workers(served: Served) -> None:
    def ask() -> httpx.Response:
        return served.complete(model="second")

    assert served.statuses(ask) == {404}
    body = {"model": "second", "reference": "second"}
    assert served.send("/v1/models/load", "ann", **body).status_code == 403
    assert served.send("/v1/models/load", "root", **body).status_code == 200
    assert served.statuses(ask) == {200}
    names = served.of_each(lambda: served.send("/v1/models"))
    assert all("second" in each.text for each in names)
    assert served.send("/v1/models/unload", "root", model="second").status_code == 200
    assert served.statuses(ask) == {503}


def test_another_worker_replaces_one_that_is_killed(served: Served) -> None:
    before = served.metrics()
    headers, url = {"x-api-key": "ann"}, served.process.url + COMPLETIONS
    with (
        httpx.Client(verify=False, headers=headers, timeout=120) as client,
        client.stream("POST", url, json=ENDLESS) as stream,
    ):
        lines = stream.iter_lines()
        while not next(lines).startswith("data: "):
            pass
        # The worker of the stream is the one with a connection.
        [victim] = [pid for pid in served.workers if connections(pid)]
        assert served.send("/load").json()["queued"] == 1
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in lines:
                pass
    for figure in ("queued", "running", "kv_cache_usage"):
        served.until(lambda figure=figure: served.send("/load").json()[figure] == 0)
    served.until(lambda: len(served.workers) == WORKERS and victim not in served.workers)
    served.until(lambda: served.statuses(served.complete) == {200})
    after = served.metrics()
    assert after["ostro_key_running", 'key="ann"'] == 0
    for (name, labels), value in before.items():
        if name == "ostro_http_requests_total":
            assert after[name, labels] >= value, "the requests of the killed worker still count"


def connections(pid: int) -> int:
    """The number of established TCP connections of a process."""
    links = (os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir())
    sockets = {link.removeprefix("socket:[").rstrip("]") for link in links}
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return sum(row[3] == "01" and row[9] in sockets for row in rows)


def test_all_workers_recover_from_the_death_of_the_engine(served: Served) -> None:
    os.kill(served.process.engine(), signal.SIGKILL)
    # It is noticed by the first response at the latest.
    served.until(lambda: served.complete().status_code == 503, 5)
    served.until(lambda: served.send("/ready").status_code == 200)
    assert served.statuses(served.complete) == {200}


def test_all_workers_use_the_keys_that_were_read_again(served: Served) -> None:
    write_keys(served.keys, **KEYS, bob="")
    assert served.statuses(lambda: served.complete("bob")) == {401}
    served.process.process.send_signal(signal.SIGHUP)
    served.until(lambda: served.statuses(lambda: served.complete("bob")) == {200})
    write_keys(served.keys, **KEYS)
    served.process.process.send_signal(signal.SIGHUP)
    served.until(lambda: served.statuses(lambda: served.complete("bob")) == {401})


@pytest.mark.parametrize(("how", "tokens"), [("terminate", 250), ("kill", 4000)])
def test_no_process_outlives_the_server(tmp_path: Path, how: str, tokens: int) -> None:
    store = str(tmp_path / "store")
    with (
        launch(tmp_path, step=0.02, count=2, store=store) as served,
        ThreadPoolExecutor(4) as threads,
    ):
        children, server = served.process.children(), served.process.process
        running = [
            threads.submit(served.complete, max_tokens=tokens, ignore_eos=True) for _ in range(4)
        ]
        # On a busy machine some clients connect after others have their response.
        served.until(lambda: served.send("/load").json()["queued"] > 0)
        server.terminate() if how == "terminate" else server.kill()
        statuses = [0 if each.exception() else each.result().status_code for each in running]
        assert {200, 503, 0}.issuperset(statuses) and (200 in statuses) == (how == "terminate")
        code, _, err = served.process.end()
    assert code == (0 if how == "terminate" else -signal.SIGKILL) and "Traceback" not in err, err
    check_gone(children)


def test_batches_and_background_responses_run_in_the_server(tmp_path: Path) -> None:
    with launch(tmp_path, count=2, store=str(tmp_path / "store")) as served:
        line = {"custom_id": "1", "method": "POST", "url": COMPLETIONS, "body": {"prompt": "hello"}}
        with httpx.Client(verify=False, headers={"x-api-key": "ann"}, timeout=120) as client:
            form = {"purpose": (None, "batch"), "file": ("lines.jsonl", json.dumps(line))}
            file = client.post(f"{served.process.url}/v1/files", files=form).json()
        wanted = dict(input_file_id=file["id"], endpoint=COMPLETIONS, completion_window="24h")
        batch = served.send("/v1/batches", **wanted).json()
        response = served.send("/v1/responses", input="hello", background=True).json()
        for path in (f"/v1/batches/{batch['id']}", f"/v1/responses/{response['id']}"):
            served.until(lambda path=path: served.send(path).json()["status"] == "completed")
            answers = served.of_each(lambda path=path: served.send(path))
            assert all(each.text == answers[0].text for each in answers)
        end(served)
