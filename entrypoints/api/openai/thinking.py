"""How a chat reasons: OpenAI's field, and those of other servers and routers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec

from ostro.core.errors import RequestError
from ostro.core.messages.text_requests import ReasoningEffort

if TYPE_CHECKING:
    from ostro.entrypoints.api.openai.bodies import ChatBody

Level = Literal["low", "medium", "high"]
"""A degree of reasoning in Ollama's field `think`."""
SWITCHES = {"enable_thinking": True, "thinking": True}
"""The options of chat templates that enable reasoning; a template reads one of them, or none."""


class ReasoningConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The reasoning of a chat in OpenRouter's form.

    `exclude` leaves its text out of the answer.
    """

    effort: ReasoningEffort | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    enabled: bool | None = None
    exclude: bool | None = None


class Thinking(NamedTuple):
    """The fields of a `ChatRequest` on reasoning; `options` are those of the chat template."""

    effort: ReasoningEffort | None
    budget: int | None
    options: dict[str, Any]


def read_thinking(body: ChatBody) -> Thinking:
    """Return how the model reasons. Raises RequestError for fields that contradict each other."""
    config, think = body.reasoning or ReasoningConfig(), body.think
    budget = agreed(
        ("thinking_budget", body.thinking_budget),
        ("thinking_token_budget", body.thinking_token_budget),
        ("thinking_budget_tokens", body.thinking_budget_tokens),
        ("reasoning.max_tokens", config.max_tokens),
    )
    switch = agreed(
        ("enable_thinking", body.enable_thinking),
        ("think", think if isinstance(think, bool) else None),
        ("reasoning.enabled", config.enabled),
    )
    effort: ReasoningEffort | None = agreed(
        ("reasoning_effort", body.reasoning_effort),
        ("reasoning.effort", config.effort),
        ("think", None if isinstance(think, bool) else think),
        ("enable_thinking", "none" if switch is False else None),
    )
    if switch and effort == "none":
        raise RequestError(
            "enable_thinking and reasoning_effort differ; use reasoning_effort",
            param="reasoning_effort",
        )
    options = SWITCHES if switch else {}
    return Thinking(effort, budget, {**options, **(body.chat_template_kwargs or {})})


def agreed(*fields: tuple[str, Any]) -> Any:
    """Return the value of fields with one meaning. Raises RequestError if they differ."""
    given = {name: value for name, value in fields if value is not None}
    first = next(iter(given.values()), None)
    if any(value != first for value in given.values()):
        raise RequestError(f"{' and '.join(given)} differ; use {fields[0][0]}", param=fields[0][0])
    return first
