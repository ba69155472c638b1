"""`GET /metrics`: metrics that Prometheus' own parser reads, before, during and after requests."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from echo.server import PATIENCE, Running, Start, wait_until
from prometheus_client import generate_latest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

import ostro
from ostro.core.errors import EngineDied
from ostro.core.ipc import client
from ostro.core.messages.outputs import JobOutput, Stats, TokenOutput
from ostro.core.messages.requests import PoolingRequest, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import API
from ostro.entrypoints.http import measurement, metrics
from ostro.entrypoints.http.measurement import RequestMetrics
from ostro.entrypoints.operations.documents.state import open_state

LOAD = "/v1/load_lora_adapter"
COMPLETIONS = {"model_name": "echo", "route": "/v1/completions", "key": ""}
Samples = Callable[..., float | None]


def scrape(server: Any, **headers: str) -> Samples:
    """A function that returns the value of a sample by its name and some of its labels."""
    answer = server.http.get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return reader(text_string_to_metric_families(answer.text))


def reader(families: Any) -> Samples:
    samples = [sample for family in families for sample in family.samples]

    def value(name: str, **labels: str) -> float | None:
        found = [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]
        assert len(found) < 2, (name, found)
        return found[0] if found else None

    return value


def test_requests_are_counted_by_model_route_and_finish_reason(start: Any) -> None:
    server = start()
    assert server.complete("hello", max_tokens=3).status_code == 200
    assert server.complete("hello", max_tokens=20, n=2).status_code == 200
    assert server.complete("hello", stop="l").json()["choices"][0]["finish_reason"] == "stop"
    value = scrape(server)
    success = "vllm:request_success_total"
    assert value(success, **COMPLETIONS, finished_reason="length") == 1
    assert value(success, **COMPLETIONS, finished_reason="stop") == 2
    assert value(success, **COMPLETIONS, finished_reason="abort") is None
    assert value("vllm:prompt_tokens_total", **COMPLETIONS) == 15
    assert value("vllm:prefix_cache_queries_total", **COMPLETIONS) == 15
    assert value("vllm:prefix_cache_hits_total", **COMPLETIONS) == 6
    generated = value("vllm:generation_tokens_total", **COMPLETIONS)
    assert generated is not None and generated >= 3 + 10 + 3
    labels = {"model_name": "echo", "route": "/v1/completions"}
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert value(f"vllm:{name}_seconds_count", **labels) == 3, name
    assert value("vllm:inter_token_latency_seconds_count", **labels) >= 2 + 8 + 2  # type: ignore[operator]


def test_http_responses_are_counted_without_words_of_clients(start: Any) -> None:
    server = start()
    server.complete("a")
    server.complete(3.5)
    server.http.get("/v1/models/echo")
    server.http.get("/secret-path?key=secret")
    server.http.request("SECRET", "/v1/completions")
    server.complete("a", model="secret-model")
    text = server.http.get("/metrics").text
    value = reader(text_string_to_metric_families(text))
    count = "ostro_http_requests_total"
    assert value(count, method="POST", route="/v1/completions", status="200") == 1
    assert value(count, method="POST", route="/v1/completions", status="400") == 1
    assert value(count, method="GET", route="/v1/models/{id:path}", status="200") == 1
    assert value(count, method="GET", route="other", status="404") == 1
    assert "secret" not in text.lower()


def test_a_client_that_leaves_counts_as_aborted(start: Any) -> None:
    server = start()
    server.echo.step_seconds = 0.01
    body = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
    wait_until(lambda: not server.service.engine.requests)
    value = scrape(server)
    assert value("vllm:request_success_total", **COMPLETIONS, finished_reason="abort") == 1


def wait_for_heartbeats(server: Running, condition: Callable[[], object]) -> None:
    """Wait until a condition holds, while the engine is asked for its state again and again."""
    wait_until(lambda: server.loop.advance(client.HEARTBEAT) or condition())


def test_gauges_of_each_model_come_from_the_heartbeat(start: Start) -> None:
    server = start()
    first = Stats(running=2, steps=10, blocks_used=2, blocks_total=8, preemptions=1)
    server.echo.counters = Stats(models={"one": first, "two": Stats(waiting=5)})
    wait_for_heartbeats(
        server, lambda: scrape(server)("vllm:num_requests_waiting", model_name="two") == 5
    )
    value = scrape(server)
    assert value("vllm:num_requests_running", model_name="one") == 2
    assert value("vllm:kv_cache_usage_perc", model_name="one") == 0.25
    assert value("vllm:num_preemptions_total", model_name="one") == 1
    assert value("ostro_ready") == 1


def test_counters_of_a_restarted_engine_continue() -> None:
    metrics = RequestMetrics("m")
    for steps in (10, 15, 4, 6):
        metrics.update(Stats(steps=steps))
    assert metrics.registry.get_sample_value("ostro_steps_total", {"model_name": "m"}) == 21


def test_other_requests_are_counted() -> None:
    metrics = RequestMetrics("m")
    metrics.begin(PoolingRequest(id="a", model="e", inputs=[[1, 2], [3]]))
    metrics.receive(JobOutput(id="a", done=1, total=2))
    metrics.receive(JobOutput(id="a", done=2, total=2, finish="stop"))
    metrics.end("a", None)
    value, labels = metrics.registry.get_sample_value, {"model_name": "e", "route": "other"}
    assert value("vllm:prompt_tokens_total", {**labels, "key": ""}) == 3
    assert value("vllm:e2e_request_latency_seconds_count", labels) == 1
    reason = {"key": "", "finished_reason": "stop"}
    assert value("vllm:request_success_total", {**labels, **reason}) == 1


def test_times_are_those_of_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads slowly does not change the latencies."""
    times = iter((100.0, 103.0, 103.5, 104.0, 900.0))
    monkeypatch.setattr(measurement, "monotonic", lambda: next(times))
    metrics = RequestMetrics("m")
    metrics.begin(TokenRequest(id="a", tokens=[1]))
    for output in (
        TokenOutput(id="a", tokens=[1], prompt_tokens=1, queued=1.0),
        TokenOutput(id="a", tokens=[2]),
        TokenOutput(id="a", tokens=[3], finish="length"),
    ):
        metrics.receive(output)
    metrics.end("a", None)
    sums = {
        name: metrics.registry.get_sample_value(
            f"vllm:{name}_seconds_sum", {"model_name": "m", "route": "other"}
        )
        for name in (
            "time_to_first_token",
            "inter_token_latency",
            "request_queue_time",
            "request_prefill_time",
            "e2e_request_latency",
        )
    }
    assert [*sums.values()] == [3.0, 1.0, 1.0, 2.0, 4.0], sums


def test_a_request_that_fails_counts_as_an_error() -> None:
    metrics = RequestMetrics("m")
    metrics.begin(TokenRequest(id="a", tokens=[1]))
    metrics.end("a", EngineDied("gone"))
    labels = {"model_name": "m", "route": "other", "key": "", "finished_reason": "error"}
    assert metrics.registry.get_sample_value("vllm:request_success_total", labels) == 1
    assert not metrics.under_way


def test_adapter_metrics_are_labelled_by_generation(start: Any, tmp_path: Path) -> None:
    server, name, generations = start(adapter_root=tmp_path), '"sql" \u00e9', []
    for path in ("one", "two"):
        (tmp_path / path).mkdir()
        answer = server.post(LOAD, lora_name=name, lora_path=path, load_inplace=True)
        assert answer.status_code == 200, answer.text
        generations.append(answer.json()["generation"])
        assert server.complete(adapter=name).status_code == 200
        value = scrape(server)
        labels = {"adapter": name, "generation": generations[-1]}
        assert value("ostro_adapter_requests_total", **labels) == 1
        assert value("ostro_adapter_resident", **labels) is not None
    assert generations[0] != generations[1]
    assert value("ostro_adapter_requests_total", adapter=name) == 1, "the old generation is gone"


def test_openmetrics_are_sent_on_request(start: Any) -> None:
    kind = "application/openmetrics-text; version=1.0.0"
    answer = start().http.get("/metrics", headers={"accept": kind})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert reader(openmetrics.text_string_to_metric_families(answer.text))("ostro_ready") == 1


def test_before_the_engine_is_ready(start: Any) -> None:
    value = scrape(start(loading=True))
    assert value("ostro_ready") == 0
    assert value("vllm:num_requests_running") is None


def test_metrics_require_the_api_key(start: Any) -> None:
    server = start(keys=["secret"])
    assert server.http.get("/metrics").status_code == 401
    assert scrape(server, authorization="Bearer secret")("ostro_ready") == 1


def test_an_engine_that_does_not_answer_does_not_delay_the_scrape(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    assert server.complete("hello").status_code == 200
    wait_for_heartbeats(
        server, lambda: scrape(server)("ostro_steps_total", model_name="echo") is not None
    )
    monkeypatch.setattr(metrics, "SECONDS", 1000.0)
    with ThreadPoolExecutor(2) as pool, server.paused() as stands:
        pool.submit(server.complete, "abc")
        assert stands.wait(PATIENCE) and server.http.get("/health").status_code == 200
        wait_for_heartbeats(server, lambda: server.service.engine.silence)
        for _ in range(3):
            scraping = pool.submit(scrape, server)
            while not scraping.done():
                server.loop.advance(1000)
        value = scraping.result()
        assert value("vllm:prompt_tokens_total", **COMPLETIONS) == 5
        assert value("vllm:num_requests_running", model_name="echo") is not None
        assert value("ostro_engine_silence_seconds") > 0  # type: ignore[operator]


def test_adapters_in_use_are_reported_to_gateways(start: Any, tmp_path: Path) -> None:
    server = start(adapter_root=tmp_path)
    (tmp_path / "one").mkdir()
    assert server.post(LOAD, lora_name="sql", lora_path="one").status_code == 200
    name = "vllm:lora_requests_info"
    assert scrape(server)(name, running_lora_adapters="", waiting_lora_adapters="") is not None
    server.echo.step_seconds = 0.01
    body = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    begin = time.time()
    with server.http.stream("POST", "/v1/completions", json=body | {"adapter": "sql"}) as response:
        lines = response.iter_lines()  # while it lives, the connection stays open
        next(lines)
        found = scrape(server)(name, running_lora_adapters="sql", waiting_lora_adapters="")
        end = time.time()
    assert found is not None and int(begin) <= found <= end


def test_bytes_disconnects_and_refusals_are_counted(start: Any) -> None:
    server = start(limit=1)
    answer = server.complete("a" * 100, max_tokens=1)
    server.echo.step_seconds = 0.01
    body = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()  # while it lives, the connection stays open
        next(lines)
        value = scrape(server)
        assert value("ostro_queue_sequences") == 1 and value("ostro_queue_tokens") == 3
        assert value("ostro_http_requests_running") == 2, "the stream and the scrape"
        assert value("ostro_http_body_bytes") > 50  # type: ignore[operator]
        assert server.complete("b").status_code == 503
        load = server.http.get("/load").json()
        assert (load["server_load"], load["queued"], load["queue_limit"]) == (1, 1, 1)
    wait_until(lambda: not server.service.engine.requests)
    wait_until(lambda: scrape(server)("ostro_http_requests_running") == 1)
    value, route = scrape(server), "/v1/completions"
    assert value("ostro_queue_refused_total", reason="sequences") == 1
    assert value("ostro_http_errors_total", route=route, code="overloaded") == 1
    assert value("ostro_http_disconnects_total", route=route) == 1
    assert value("ostro_http_body_bytes") == 0
    assert value("ostro_http_request_bytes_total", route=route) > 100  # type: ignore[operator]
    sent = value("ostro_http_response_bytes_total", route=route)
    assert sent is not None and sent > len(answer.content)
    assert value("ostro_event_loop_lag_seconds_count") is not None


def test_documents_are_counted_by_kind(start: Any) -> None:
    server = start(state=open_state("memory", None, loaded_plugins()))
    for name in ("a.jsonl", "b.jsonl"):
        files = {"file": (name, b"12345")}
        answer = server.http.post("/v1/files", data={"purpose": "user_data"}, files=files)
        assert answer.status_code == 200, answer.text
    value = scrape(server)
    assert value("ostro_store_documents", kind="file") == 2
    assert value("ostro_store_bytes", kind="file") >= 10  # type: ignore[operator]


def loaded_plugins() -> PluginManager:
    plugins = PluginManager()
    plugins.load()
    return plugins


def test_series_of_models_that_are_gone_stop() -> None:
    names = ["a", "b"]
    metrics = RequestMetrics("a", lambda: names)
    for model in names:
        metrics.begin(TokenRequest(id=model, tokens=[1], model=model))
        metrics.receive(TokenOutput(id=model, tokens=[1], prompt_tokens=1, finish="length"))
        metrics.end(model, None)
    metrics.update(Stats(models={"a": Stats(steps=3), "b": Stats(steps=5)}))

    def shown(model: str) -> bool:
        text = generate_latest(metrics.registry).decode()
        return f'model_name="{model}"' in text

    assert shown("a") and shown("b")
    names.remove("b")
    metrics.update(Stats(models={"a": Stats(steps=3)}))
    assert shown("a") and not shown("b")
    names.append("b")
    metrics.update(Stats(models={"a": Stats(steps=3), "b": Stats(steps=2)}))
    steps = metrics.registry.get_sample_value("ostro_steps_total", {"model_name": "b"})
    assert shown("b") and steps == 7, "the counters of a model that is loaded again continue"


def test_a_scrape_after_many_requests_does_no_more_work_than_after_a_few() -> None:
    metrics, calls = RequestMetrics("m"), list[int]()
    for count in (40, 4000):
        for number in range(count):
            metrics.begin(TokenRequest(id="a", tokens=[1], model=f"m{number % 4}"))
            metrics.receive(TokenOutput(id="a", tokens=[1], prompt_tokens=1, finish="length"))
            metrics.end("a", None)
        calls.append(calls_of(lambda: generate_latest(metrics.registry)))
    assert calls[1] <= calls[0] < 40_000, calls


def calls_of(work: Callable[[], object]) -> int:
    """The number of calls of functions, also of those in C, in this thread."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_versions_are_those_of_the_installed_packages(server: Any) -> None:
    found = server.http.get("/version").json()
    assert found == {"version": ostro.__version__, "torch": found["torch"], "api": [*API]}
    assert found["torch"].split(".")[0].isdigit()
