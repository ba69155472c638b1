"""The conformance report: a table with a row per check and a column per architecture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console
from rich.table import Table

SIGNS = {"passed": "[green]passed[/]", "failed": "[red]failed[/]"}


@dataclass(frozen=True)
class Outcome:
    """The result of one check of one architecture: passed, failed or skipped."""

    status: str
    reason: str = ""
    seconds: float = 0.0


class ReportCollector:
    """A pytest plugin that collects the outcomes of a test run."""

    def __init__(self) -> None:
        self.outcomes: dict[str, dict[str, Outcome]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Tag each check with its architecture and name; user properties reach xdist's main
        process.
        """
        for item in items:
            params = getattr(getattr(item, "callspec", None), "params", {})
            name = params.get("tiny") or getattr(getattr(item, "cls", None), "name", None)
            if isinstance(name, str) and "check" in params:
                item.user_properties.append(("ostro", [name, params["check"]]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for key, value in report.user_properties:
            if key == "ostro" and (report.when == "call" or not report.passed):
                outcome = Outcome(report.outcome, reason(report), round(report.duration, 3))
                architecture, check = map(str, cast(list[str], value))
                self.outcomes.setdefault(architecture, {})[check] = outcome

    def table(self) -> str:
        """The outcomes as text, followed by the reasons of skipped checks."""
        checks = dict.fromkeys(check for found in self.outcomes.values() for check in found)
        table = Table("check", *self.outcomes, title="ostro conformance")
        for check in checks:
            cells = [found.get(check, Outcome("-")).status for found in self.outcomes.values()]
            table.add_row(check, *(SIGNS.get(cell, f"[dim]{cell}[/]") for cell in cells))
        console = Console(width=max(100, 44 + 16 * len(self.outcomes)))
        with console.capture() as text:
            console.print(table)
            for name, found in self.outcomes.items():
                for check, outcome in found.items():
                    if outcome.status == "skipped":
                        console.print(f"{name}: {check}: {outcome.reason}", style="dim")
        return text.get()

    def write(self, file: str | Path) -> None:
        """Write JSON: {architecture: {check: {status, reason, seconds}}}."""
        found: Mapping[str, object] = {
            name: {check: asdict(outcome) for check, outcome in checks.items()}
            for name, checks in self.outcomes.items()
        }
        Path(file).write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def reason(report: pytest.TestReport) -> str:
    """The reason of a skip, or the message of a failure."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr)
