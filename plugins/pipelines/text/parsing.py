"""Selects the parser of an output: that of the chat template, or of the settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from msgspec.structs import replace

from ostro import OutputParserClass, Parser, Settings, resolve
from ostro.errors import OstroError, PluginError, RequestError, Unsupported, UsageError
from ostro.pipelines import ChatTemplate, OutputEvent, OutputParser, Piece, Tool
from ostro.plugins.pipelines.text.tools import CallRules

FALLBACK = "generic"
"""The parser of templates that no parser matches."""
NONE = "none"


@dataclass(frozen=True, kw_only=True)
class OutputFormat:
    """How outputs of a chat template are parsed. calls: whether tool calls are found in them.

    reasons: whether the template reads or writes reasoning, so that a model may begin with it.
    """

    kind: OutputParserClass
    calls: bool = True
    reasons: bool = True

    def parser(self, prompt_end: str, tools: Sequence[Tool], controls: Set[str]) -> OutputParser:
        """A parser for one output; `controls` are the control tokens of the vocabulary."""
        offered = tools if self.calls else ()
        return cast(OutputParser, CheckedParser(self.kind, prompt_end, offered, controls))

    def grammar(
        self,
        answer: Mapping[str, Any] | None,
        prompt_end: str,
        rules: CallRules,
        controls: Mapping[str, int],
        reasons: bool = True,
    ) -> dict[str, Any]:
        """The parameter of the logits processor "grammar" for an output.

        answer: the parameter that constrains the text, None if nothing does. Reasoning that the
        prompt begins is free; with `reasons` that of the model, too. Calls follow the notation. An
        answer that has to be a call has no text. A notation without a grammar leaves the parameter
        as it is. Raises Unsupported if calls have to be constrained and cannot be.
        """
        if rules.field and not self.calls:
            raise Unsupported(
                f"{rules.field}: --tool-parser none leaves calls in the text", param=rules.field
            )
        markers = self.kind.reasoning
        opened = markers is not None and ends_with(prompt_end, markers[0])
        closed = markers is not None and ends_with(prompt_end, markers[1])
        # Reasoning that the prompt begins ends before the grammar does: there is no other.
        reasons = reasons and self.reasons and not opened and not closed
        kind = self.kind if reasons else with_reasoning(self.kind, None)
        tools = rules.tools if self.calls else ()
        with ParserErrors(self.kind), format_errors(tools, rules.field):
            if answer is None or rules.choice != "auto":
                lark = write(kind, tools, rules, controls)
                found = {"lark": lark, "field": rules.field}
            else:
                try:
                    lark = write(kind, tools, rules, controls, answer=True)
                    found = {**answer, "outer": lark}
                except Unsupported:
                    if rules.field:
                        raise
                    found = dict(answer)
        if markers and opened:
            return {**found, "after": markers[1].strip(), "space": True}
        return found


class CheckedParser:
    """A parser of a plugin: an error in it ends the request, and names the class."""

    def __init__(self, kind: OutputParserClass, *arguments: Any) -> None:
        self.kind, self.reasoning, self.errors = kind, kind.reasoning, ParserErrors(kind)
        with self.errors:
            self.parser = kind(*arguments)

    def add(self, piece: Piece) -> list[OutputEvent]:
        """See `OutputParser`."""
        with self.errors:
            return self.checked("add", self.parser.add(piece))

    def finish(self) -> list[OutputEvent]:
        """See `OutputParser`."""
        with self.errors:
            return self.checked("finish", self.parser.finish())

    def checked(self, method: str, events: Any) -> list[OutputEvent]:
        """The events that a method has returned. Raises PluginError for other values."""
        if isinstance(events, list) and all(isinstance(event, OutputEvent) for event in events):
            return events
        found = type(events).__name__
        if isinstance(events, list):
            found += f" of {', '.join(sorted({type(event).__name__ for event in events}))}"
        kind: Any = self.kind
        raise PluginError(
            f"the parser {kind.__module__}:{kind.__qualname__} returned {found} from {method}, "
            "expected a list of events; select another one with --tool-parser"
        )


class ParserErrors:
    """Converts what a class of parsers raises to a PluginError; a block costs little time."""

    def __init__(self, kind: OutputParserClass) -> None:
        self.kind = kind

    def __enter__(self) -> None:
        return

    def __exit__(self, cls: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, OstroError | KeyboardInterrupt):
            kind: Any = self.kind
            raise PluginError(
                f"the parser {kind.__module__}:{kind.__qualname__} raised "
                f"{type(error).__name__}: {error}; select another one with --tool-parser"
            ) from error


@contextmanager
def format_errors(tools: Sequence[Tool], field: str) -> Iterator[None]:
    """Names the field in errors of the formats of tools."""
    try:
        yield
    except (RequestError, Unsupported) as error:
        if any(tool.format is not None for tool in tools):
            error.args, error.param = (f"{field}: {error}",), field
        raise


def output_format(
    template: ChatTemplate, settings: Settings, parsers: Mapping[str, Parser]
) -> OutputFormat | None:
    """The format of outputs of a chat template; None if nothing is parsed in them.

    Raises UsageError for an unknown parser in the settings, and for a template that several match.
    """
    tools, reasoning = settings.tool_parser, settings.reasoning_parser
    if not parsers or (tools == NONE and reasoning == NONE):
        return None
    own = matching(template, parsers) if tools is None or tools == NONE else tools
    kind = parser_class(own, parsers)
    if reasoning is not None:
        markers = None if reasoning == NONE else parser_class(reasoning, parsers).reasoning
        kind = with_reasoning(kind, markers)
    reasons = any(marker.strip() in template.source for marker in kind.reasoning or ())
    return OutputFormat(kind=kind, calls=tools != NONE, reasons=reasons)


def write(
    kind: Any,
    tools: Sequence[Tool],
    rules: CallRules,
    controls: Mapping[str, int],
    *,
    answer: bool = False,
) -> str:
    """The grammar of a notation; see `OutputParser.grammar`.

    Raises Unsupported if it does not depend on the formats of tools: parsers of other plugins may
    not know them.
    """
    options = {"answer": True} if answer else {}
    lark: str = kind.grammar(tools, rules.choice, rules.parallel, controls, **options)
    free = [replace(tool, format=None) for tool in tools]
    if free != [*tools] and lark == kind.grammar(
        free, rules.choice, rules.parallel, controls, **options
    ):
        raise Unsupported(
            "the notation of this model does not constrain the text of calls; use a tool without "
            "a format",
            param="tools",
        )
    return lark


def ends_with(prompt: str, marker: str) -> bool:
    """Whether a prompt ends with a marker; white space around it does not count."""
    return prompt.rstrip().endswith(marker.strip())


def with_reasoning(kind: Any, markers: tuple[str, str] | None) -> OutputParserClass:
    """A class of parsers with other markers of reasoning."""
    fields = {"reasoning": markers, "__module__": kind.__module__}
    return cast(OutputParserClass, type(kind.__name__, (kind,), fields))


def matching(template: ChatTemplate, parsers: Mapping[str, Parser]) -> str:
    """The name of the parser with the highest precedence that matches a template.

    Raises UsageError if there are several.
    """
    matched = {n: x.precedence for n, x in parsers.items() if x.matches(template.source)}
    highest = max(matched.values(), default=0)
    names = [name for name, precedence in matched.items() if precedence == highest]
    if len(names) > 1:
        raise UsageError(
            f"the chat template matches the parsers {', '.join(names)}; set --tool-parser to one"
        )
    return names[0] if names else FALLBACK


def parser_class(name: str, parsers: Mapping[str, Parser]) -> OutputParserClass:
    """The class of a parser. Raises UsageError if there is none of that name."""
    if name not in parsers:
        raise UsageError(
            f"no plugin offers the parser {name!r:.80}; expected {NONE} or one of "
            f"{', '.join(sorted(parsers))}"
        )
    kind: OutputParserClass = resolve(parsers[name].parser)
    return kind
