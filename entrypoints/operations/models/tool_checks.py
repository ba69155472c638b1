"""Whether a loaded model can call tools: checked once, for the log and `GET /ready`."""

from __future__ import annotations

import asyncio
import logging

from ostro.core.tool_support import ToolSupport
from ostro.entrypoints.operations.models.service import Service

log = logging.getLogger(__name__)

NO_READER = "no parser that is installed reads it, so calls may stay in the text"
AGENT_CONTEXT = 16_384
"""Tokens of context below which coding agents fail: their prompts leave no room for an answer."""


async def check_tools(service: Service, name: str) -> None:
    """Check the tool calls of a loaded model, keep the result in the service, and log it.

    A pipeline without `tool_support` is not checked. One that raises is logged, and serves.
    """
    pipelines = service.models.get(name, {})
    check = getattr(pipelines.get("text"), "tool_support", None)
    service.tool_support.pop(name, None)
    if check is None:
        return
    try:
        support = await asyncio.to_thread(check)
        if not isinstance(support, ToolSupport):
            raise TypeError(f"tool_support returned {type(support).__name__}, not ToolSupport")
    except Exception as error:  # of a plugin
        log.warning("%s: tool calls: the check failed: %s", name, error)
        return
    if service.models.get(name) is not pipelines:  # unloaded meanwhile
        return
    service.tool_support[name] = support
    notes = [*faults_of(support), *gaps_of(support, service.served[name].context)]
    level = logging.WARNING if faults_of(support) else logging.INFO
    details = f" ({support.error})" if support.error else ""
    log.log(level, "%s: tool calls: %s%s", name, "; ".join([summary(support), *notes]), details)


def summary(support: ToolSupport) -> str:
    """The parser of a model, and what chose it."""
    if support.parser is None:
        return "no parser"
    if support.chosen_by != "chat template":
        return f"parser {support.parser} ({support.chosen_by})"
    matched = "" if support.notation else "; no parser matches it"
    return f"parser {support.parser} (chat template{matched})"


def faults_of(support: ToolSupport) -> list[str]:
    """What is wrong with the parser of a model, and what to do."""
    faults = []
    if support.reads is False:
        fault = support.reason
        known = " or ".join(support.readers[:2])
        faults.append(f"{fault}; " + (f"set --tool-parser {known}" if known else NO_READER))
    elif support.reads_reasoning is False:  # else another parser may read both
        faults.append(
            "the parser does not read reasoning as the chat template writes it; set "
            "--reasoning-parser"
        )
    return faults


def gaps_of(support: ToolSupport, context: int) -> list[str]:
    """What a model lacks for coding agents."""
    gaps = []
    if not support.declares:
        reason = support.reason or "the chat template shows no tools to the model"
        gaps.append(f"{reason}: requests with tools are refused")
    elif support.parser is None or not support.writes:
        gaps.append(support.reason)
    if context < AGENT_CONTEXT:
        gaps.append(
            f"a context of {context:,} tokens: coding agents send prompts of 10,000 tokens and "
            "more; raise --context if the model and the memory allow it"
        )
    return gaps
