"""`GET /metrics`: what Prometheus' own parser finds there, before and after requests."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from ostro.entrypoints.http import metrics

LOAD = "/v1/load_lora_adapter"
Found = dict[tuple[str, str, str], float]


def scrape(server: Any, **headers: str) -> Found:
    """Values by the name of the metric, and by adapter and generation where it has these."""
    answer = server.http.get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return values(text_string_to_metric_families(answer.text))


def values(families: Any) -> Found:
    return {
        (s.name, s.labels.get("adapter", ""), s.labels.get("generation", "")): s.value
        for family in families
        for s in family.samples
    }


def test_what_the_engine_counts_grows(start: Any) -> None:
    server = start()
    server.echo.counters.generated_tokens, server.echo.counters.blocks_total = 7, 8
    server.echo.counters.blocks_used = 2
    found = scrape(server)
    assert found["ostro_ready", "", ""] == 1
    assert found["ostro_generated_tokens_total", "", ""] == 7
    assert found["ostro_kv_usage_ratio", "", ""] == 0.25
    server.echo.counters.generated_tokens += 5
    assert scrape(server)["ostro_generated_tokens_total", "", ""] == 12
    assert not any(adapter for _, adapter, _ in found)


def test_adapter_metrics_are_labelled_by_generation(start: Any, tmp_path: Path) -> None:
    server, name, generations = start(adapter_root=tmp_path), '"sql" \u00e9', []
    for path in ("one", "two"):
        (tmp_path / path).mkdir()
        answer = server.post(LOAD, lora_name=name, lora_path=path, load_inplace=True)
        assert answer.status_code == 200, answer.text
        generations.append(answer.json()["generation"])
        assert server.complete(adapter=name).status_code == 200
        found = scrape(server)
        asked = {key[1:]: n for key, n in found.items() if key[0] == "ostro_adapter_requests_total"}
        assert asked == {(name, generations[-1]): 1}
        assert ("ostro_adapter_resident", name, generations[-1]) in found
    assert generations[0] != generations[1]


def test_whoever_asks_for_openmetrics_gets_it(start: Any) -> None:
    kind = "application/openmetrics-text; version=1.0.0"
    answer = start().http.get("/metrics", headers={"accept": kind})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    found = values(openmetrics.text_string_to_metric_families(answer.text))
    assert found["ostro_ready", "", ""] == 1


def test_before_the_engine_is_ready(start: Any) -> None:
    assert scrape(start(loading=True)) == {("ostro_ready", "", ""): 0}


def test_metrics_require_the_api_key(start: Any) -> None:
    server = start(keys=["secret"])
    assert server.http.get("/metrics").status_code == 401
    assert scrape(server, authorization="Bearer secret")["ostro_ready", "", ""] == 1


def test_a_busy_engine_does_not_block_the_scrape(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "SECONDS", 0.3)
    server, release = start(), threading.Event()
    step = server.echo.step
    server.echo.step = lambda: (release.wait(20), step())[1]
    asking = threading.Thread(target=server.complete, args=("abc",))
    asking.start()
    try:
        while not server.service.engine.requests:
            time.sleep(0.01)
        time.sleep(0.2)
        begun = time.monotonic()
        assert scrape(server) == {("ostro_ready", "", ""): 1.0}
        assert time.monotonic() - begun < 5
    finally:
        release.set()
        asking.join()
    assert ("ostro_steps_total", "", "") in scrape(server)
