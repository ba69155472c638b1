"""The tool calls of a loaded model: checked once, kept for `GET /ready`, one line of the log."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ostro.core.tool_support import ToolSupport
from ostro.entrypoints.operations.models.service import Service
from ostro.entrypoints.operations.models.tool_checks import check_tools, faults_of, gaps_of

FITS = ToolSupport(notation="hermes", parser="hermes", declares=True, writes=True, reads=True)
MISFIT = replace(
    FITS,
    parser="solar",
    chosen_by="--tool-parser",
    reads=False,
    reason="the parser finds no call in what the chat template writes",
    readers=("hermes", "generic", "smollm3"),
)
SMALL = (
    "a context of 16,383 tokens: coding agents send prompts of 10,000 tokens and more; "
    "raise --context if the model and the memory allow it"
)


def service_of(support: Any, context: int = 32_768) -> Service:
    """A service with the model "m", whose pipeline returns a result or raises it."""

    def tool_support() -> Any:
        if isinstance(support, Exception):
            raise support
        return support

    service = Service(SimpleNamespace(), "m")  # type: ignore[arg-type]
    pipeline: Any = SimpleNamespace(tool_support=tool_support)
    served: Any = SimpleNamespace(context=context)
    service.models["m"], service.served["m"] = {"text": pipeline}, served
    return service


def logged(caplog: pytest.LogCaptureFixture, service: Service) -> tuple[str, str]:
    """The level and the text of the only line that a check logs."""
    with caplog.at_level(logging.INFO):
        asyncio.run(check_tools(service, "m"))
    (record,) = caplog.records
    return record.levelname, record.getMessage()


@pytest.mark.parametrize(
    ("support", "context", "level", "line"),
    [
        (FITS, 32_768, "INFO", "parser hermes (chat template)"),
        (FITS, 16_384, "INFO", "parser hermes (chat template)"),
        (FITS, 16_383, "INFO", f"parser hermes (chat template); {SMALL}"),
        (
            replace(FITS, notation=None, parser="generic"),
            32_768,
            "INFO",
            "parser generic (chat template; no parser matches it)",
        ),
        (
            MISFIT,
            32_768,
            "WARNING",
            "parser solar (--tool-parser); the parser finds no call in what the chat template "
            "writes; set --tool-parser hermes or generic",
        ),
        (
            replace(MISFIT, error="boom", readers=()),
            16_383,
            "WARNING",
            "parser solar (--tool-parser); the parser finds no call in what the chat template "
            "writes; no parser that is installed reads it, so calls may stay in the text; "
            f"{SMALL} (boom)",
        ),
        (
            replace(FITS, reads_reasoning=False),
            32_768,
            "WARNING",
            "parser hermes (chat template); the parser does not read reasoning as the chat "
            "template writes it; set --reasoning-parser",
        ),
        (
            replace(FITS, declares=False),
            32_768,
            "INFO",
            "parser hermes (chat template); the chat template shows no tools to the model: "
            "requests with tools are refused",
        ),
        (
            replace(FITS, writes=False, reads=None, reason="the chat template leaves out a call"),
            32_768,
            "INFO",
            "parser hermes (chat template); the chat template leaves out a call",
        ),
        (
            replace(FITS, parser=None, reads=None, reason="--tool-parser none"),
            32_768,
            "INFO",
            "no parser; --tool-parser none",
        ),
        (
            ToolSupport(reason="the model has no chat template"),
            32_768,
            "INFO",
            "no parser; the model has no chat template: requests with tools are refused",
        ),
    ],
)
def test_one_line_states_what_is_wrong_and_lacking(
    caplog: pytest.LogCaptureFixture, support: ToolSupport, context: int, level: str, line: str
) -> None:
    service = service_of(support, context)
    assert logged(caplog, service) == (level, f"m: tool calls: {line}")
    assert service.tool_support == {"m": support}
    notes = [*faults_of(support), *gaps_of(support, context)]
    assert all(note in line for note in notes) and "boom" not in str(notes)


@pytest.mark.parametrize(
    ("result", "reason"),
    [(ValueError("boom"), "boom"), (None, "tool_support returned NoneType, not ToolSupport")],
)
def test_a_check_that_fails_is_logged(
    caplog: pytest.LogCaptureFixture, result: Any, reason: str
) -> None:
    service = service_of(result)
    service.tool_support["m"] = FITS  # of the model before it was loaded again
    line = f"m: tool calls: the check failed: {reason}"
    assert logged(caplog, service) == ("WARNING", line)
    assert service.tool_support == {}


def test_pipelines_without_the_check(caplog: pytest.LogCaptureFixture) -> None:
    for pipelines in ({}, {"embed": SimpleNamespace()}, {"text": SimpleNamespace()}):
        service = service_of(FITS)
        found: Any = pipelines
        service.models["m"] = found
        asyncio.run(check_tools(service, "m"))
        assert service.tool_support == {}
    assert not caplog.records


def test_a_model_that_is_unloaded_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    service = service_of(FITS)
    pipeline: Any = service.models["m"]["text"]

    def unload() -> ToolSupport:
        del service.models["m"]
        return FITS

    pipeline.tool_support = unload
    asyncio.run(check_tools(service, "m"))
    assert service.tool_support == {} and not caplog.records
