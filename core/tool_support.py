"""What a model offers for tool calls: its chat template, and the parser of its outputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ToolSupport:
    """Tool calls of a text model: what its chat template writes, and what its parser reads.

    notation         the name of the parser that matches the chat template; None if none does
    parser           the name of the parser of its outputs; None: calls are left in the text
    chosen_by        what chose it: "chat template" or "--tool-parser"
    declares         whether the chat template shows tools to the model
    writes           whether it writes the calls of earlier answers
    reads            whether the parser reads these calls; None if that is unknown
    reads_reasoning  whether the parser reads reasoning as the template writes it; None: unknown
    reason           why `reads` is not true, or `declares` is not, for clients; "" without one
    error            what the parser or the template raised, for logs; "" if nothing
    readers          the parsers that read these calls if `parser` does not, `notation` first
    """

    notation: str | None = None
    parser: str | None = None
    chosen_by: str = "chat template"
    declares: bool = False
    writes: bool = False
    reads: bool | None = None
    reads_reasoning: bool | None = None
    reason: str = ""
    error: str = ""
    readers: tuple[str, ...] = ()
