"""What the chat template of a model can do: tools, and control of the reasoning."""

from __future__ import annotations

from collections.abc import Sequence

from ostro.errors import RequestError, Unsupported
from ostro.http import ModelEntry
from ostro.pipelines import ChatRequest, ChatTemplate, ReasoningEffort, Tool
from ostro.plugins.apis.ollama.options import ignore_option
from ostro.plugins.apis.ollama.schema import OllamaGeneration

SWITCHES = frozenset({"enable_thinking", "thinking"})
"""Options of templates that enable or disable reasoning."""
EFFORT = "reasoning_effort"
"""The option of templates that states the effort."""
END = "</think>"
"""End of the reasoning in the templates of most models."""


def known_template(entry: ModelEntry) -> ChatTemplate | None:
    """Return the chat template of a model.

    None while the model is loading, for a model without a template, and for an adapter, which may
    have its own.
    """
    return None if entry.served is None or entry.parent else entry.served.template


def takes_tools(template: ChatTemplate) -> bool:
    """Whether a template renders tools."""
    return "tools" in (template.tool_use or template).features.variables


def reasons(template: ChatTemplate) -> bool:
    """Whether a model with this template reasons before it answers."""
    return bool(template.features.variables & (SWITCHES | {EFFORT})) or END in template.source


def check_tools(tools: Sequence[Tool], entry: ModelEntry) -> None:
    """Raise Unsupported for tools that the template would leave out."""
    template = known_template(entry)
    if tools and template is not None and not takes_tools(template):
        raise Unsupported(
            f"{entry.id} does not support tools: its chat template does not read them",
            param="tools",
        )


def set_reasoning(request: ChatRequest, body: OllamaGeneration, entry: ModelEntry) -> None:
    """Set the reasoning of a chat request, whose tools choose the template.

    `think` precedes the option `reasoning_effort`. Raises RequestError for an unknown effort,
    Unsupported for what the template cannot do.
    """
    think = body.think
    match think:
        case None:
            return set_effort(request, body.options.reasoning_effort, entry)
        case "low" | "medium" | "high":
            request.reasoning_effort = think
        case str():
            raise RequestError(
                f"think={think!r:.40} is not a boolean or one of low, medium, high", param="think"
            )
    switches, template = SWITCHES, known_template(entry)
    if template is not None:
        template = template.for_tools(request.tools)
        check_think(think, template, entry.id)
        switches &= template.features.variables
    if not think and not switches:
        request.reasoning_effort = "none"  # reasoning ends at once
    request.chat_template_kwargs = dict.fromkeys(sorted(switches), bool(think))


def set_effort(request: ChatRequest, effort: ReasoningEffort | None, entry: ModelEntry) -> None:
    """Set the effort of a chat request; ignore it if the template reads neither it nor a switch.

    Raises as `ignore_effort`.
    """
    template = known_template(entry)
    if effort not in (None, "none") and template is not None:
        template = template.for_tools(request.tools)
        if not template.features.variables & (SWITCHES | {EFFORT}):
            reason = f"the chat template of {entry.id} reads no effort or switch"
            return ignore_effort(effort, reason)
    request.reasoning_effort = effort


def ignore_effort(effort: str, reason: str) -> None:
    """Ignore the option `reasoning_effort` by name. Raises Unsupported as `ignore_option`."""
    ignore_option(EFFORT, effort, "reasoning effort", f"{reason}; leave it out")


def check_think(think: bool | str, template: ChatTemplate, model: str) -> None:
    """Raise Unsupported for a value of `think` that the template cannot honour."""
    variables, able = template.features.variables, reasons(template)
    if think and not able:
        raise Unsupported(f"{model} does not support thinking", param="think")
    if isinstance(think, str) and EFFORT not in variables:
        raise Unsupported(
            f"think={think!r}: the chat template of {model} reads no effort; use true or false",
            param="think",
        )
