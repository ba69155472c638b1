"""A chat request as one model understands it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ostro.pipelines import ChatRequest, ChatTemplate, Tool
from ostro.plugins.pipelines.text.conversation import END, budget_of, options_of
from ostro.plugins.pipelines.text.parsing import OutputFormat
from ostro.plugins.pipelines.text.tools import CallRules


@dataclass(frozen=True, kw_only=True)
class Chat:
    """A request, and what follows from it for a model.

    tools         those that the prompt declares
    declarations  these in the form that chat templates read; None without any
    rules         the calls that the answer may have
    template      the chat template that renders the messages; None without one
    format        the format of its outputs; None if nothing is parsed in them
    """

    request: ChatRequest
    tools: Sequence[Tool]
    declarations: Sequence[Mapping[str, Any]] | None
    rules: CallRules
    template: ChatTemplate | None
    format: OutputFormat | None

    @property
    def options(self) -> dict[str, Any]:
        """The variables of the template. Raises as `options_of`."""
        return options_of(self.request, self.template)

    @cached_property
    def budget(self) -> int | None:
        """The most tokens of reasoning, None without a limit. Raises as `budget_of`."""
        reasons = self.format is not None and self.format.reasons
        return budget_of(self.request, self.template, reasons)

    @property
    def adds_prompt(self) -> bool:
        """Whether the prompt ends with the start of an answer."""
        request = self.request
        return request.add_generation_prompt is not False and not request.continue_final_message

    @property
    def until(self) -> str | None:
        """The text that ends the prompt, None for one that is rendered to its end."""
        return END if self.request.continue_final_message else None
