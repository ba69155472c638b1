"""The pytest plugin of the conformance kit:

    pytest --ostro-arch NAME [--ostro-plugin PATH] [--ostro-report FILE.json] --pyargs ostro.testing

Every pytest run with ostro installed loads this module, so it imports nothing heavy.
"""

from __future__ import annotations

from typing import Any

import pytest

for name in ("outputs", "decoder", "encoder", "media", "package", "kernel_parity"):
    pytest.register_assert_rewrite(f"ostro.plugins.conformance.{name}")

REPORT = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ostro", "ostro's conformance kit")
    group.addoption(
        "--ostro-arch",
        action="append",
        default=[],
        metavar="NAME",
        help="test this architecture, with --pyargs ostro.testing; may be repeated",
    )
    group.addoption(
        "--ostro-plugin",
        action="append",
        default=[],
        metavar="PATH",
        help="load a plugin that is not installed: a folder, or a .py file; may be repeated",
    )
    group.addoption(
        "--ostro-report",
        metavar="FILE",
        help="write the outcome of each check to this file, as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Enable Triton's interpreter without a GPU, before anything imports triton."""
    if config.getoption("ostro_arch") or config.getoption("ostro_report"):
        from ostro.plugins.conformance.kernels import interpret
        from ostro.plugins.conformance.report import ReportCollector

        interpret()
        config.stash[REPORT] = ReportCollector()
        config.pluginmanager.register(config.stash[REPORT])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the table of `--ostro-arch`, and write the file of `--ostro-report`."""
    report = config.stash.get(REPORT, None)
    if report is None or not report.outcomes:
        return
    if config.getoption("ostro_arch"):
        terminalreporter.write(report.table())
    if file := config.getoption("ostro_report"):
        report.write(file)
