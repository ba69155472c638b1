"""The page of metrics, the dashboard and the alert rules name the metrics that the server has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[3] / "docs"
NAME = re.compile(r"\b(?:vllm:|ostro_|process_)[a-z0-9_]+")
ROW = re.compile(r"^\| `([a-z0-9_:]+)` \| ((?:`[a-z_]+`(?:, )?)*) ?\| (\w+)", re.MULTILINE)
ENGINE = {"ostro_engine_process_resident_memory_bytes"}
"""Metrics of an engine in its own process, which the echo engine is not."""
LABELS = {"le", "instance", "job"}
"""Labels of Prometheus itself."""


@pytest.fixture(scope="module")
def families(start: Any) -> dict[str, Any]:
    """The metric families of a server by name, counters with their suffix."""
    server = start()
    assert server.complete("hello").status_code == 200
    assert server.complete(3).status_code == 400
    assert server.http.get("/metrics").status_code == 200  # it counts the documents
    registry = server.service.engine.observer.registry
    suffix = {"counter": "_total"}
    return {family.name + suffix.get(family.type, ""): family for family in registry.collect()}


def test_the_page_lists_all_metrics(families: dict[str, Any]) -> None:
    rows = {name: labels for name, labels, _ in ROW.findall((DOCS / "monitoring.md").read_text())}
    own = {name for name in families if not name.startswith(("process_", "python_"))}
    assert rows.keys() == own
    for name in own:
        for sample in families[name].samples:
            listed = set(re.findall(r"[a-z_]+", rows[name]))
            assert sample.labels.keys() - LABELS == listed, name


def expressions() -> list[tuple[str, str]]:
    """The queries of the dashboard and of the alert rules."""
    dashboard = json.loads((DOCS / "monitoring/dashboard.json").read_text())
    found = [
        (f"dashboard: {panel['title']}", target["expr"])
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]
    rules = (DOCS / "monitoring/alerts.yml").read_text().split("- alert: ")[1:]
    return found + [(rule.split()[0], rule.split("annotations:")[0]) for rule in rules]


@pytest.mark.parametrize(("where", "query"), expressions())
def test_queries_name_metrics_that_exist(families: dict[str, Any], where: str, query: str) -> None:
    samples = set(families) | ENGINE
    samples |= {f"{name}_bucket" for name, each in families.items() if each.type == "histogram"}
    names = NAME.findall(query)
    assert names and set(names) <= samples, where
    for grouping in re.findall(r"by \(([^)]*)\)", query):
        labels = {label.strip() for label in grouping.split(",")} - LABELS
        found = families[names[0].removesuffix("_bucket")].samples
        assert not found or labels <= found[0].labels.keys(), where
