"""Whether the parser of a model reads the tool calls that its chat template writes.

The template renders a conversation with a call, as an earlier answer. Models are trained to write
calls in the form in which their template shows them, so the parser gets that turn as an output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import msgspec

from ostro import Parser, Settings
from ostro.errors import OstroError
from ostro.pipelines import (
    ChatTemplate,
    OutputEvent,
    Piece,
    Reasoning,
    Tokenizer,
    Tool,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolSupport,
)
from ostro.plugins.pipelines.text.parsing import (
    FALLBACK,
    NONE,
    OutputFormat,
    matching,
    output_format,
    parser_class,
)
from ostro.plugins.pipelines.text.tools import declarations

NAME, TEXT, THOUGHT = "ostro_probe", "ostro_text", "ostro_reasoning"
"""The name of the tool, and the texts of its call and of the reasoning before it."""
ARGUMENTS = {"text": TEXT, "number": 7}
TOOL = Tool(
    NAME,
    description="d",
    parameters={
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "e"},
            "number": {"type": "integer", "description": "f"},
        },
        "required": ["text", "number"],
    },
)
USER = {"role": "user", "content": "a"}
IDS = ("abcdefghi", f"functions.{NAME}:0")
"""Ids of calls: templates of Mistral refuse others than the first, Kimi's write the name in it."""
PROMPT_END = 64
"""Characters at the end of a prompt that may contain the text that begins reasoning."""
OPEN_TAG = re.compile(r"[<\[][^<>\[\]]*$")
"""The beginning of a tag at the end of a text."""


@dataclass(frozen=True)
class WrittenTurn:
    """An answer with a call as a chat template writes it, and the end of the prompt before it."""

    prompt_end: str
    text: str


@dataclass
class Reading:
    """What a parser reads in a turn. error: what it raised."""

    turn: WrittenTurn
    names: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    ended: int = 0
    reasoning: str = ""
    error: str = ""

    def add(self, event: OutputEvent) -> None:
        """Add an event of the parser."""
        match event:
            case ToolCallStart():
                self.names.append(event.name)
                self.arguments.append("")
            case ToolCallArguments() if self.arguments:
                self.arguments[-1] += event.text
            case ToolCallEnd():
                self.ended += 1
            case Reasoning():
                self.reasoning += event.text

    @property
    def fault(self) -> str:
        """How the calls differ from that of the turn; "" if they do not."""
        if self.error:
            return "the parser fails on the calls that the chat template writes"
        if not self.names:
            return "the parser finds no call in what the chat template writes"
        if self.names != [NAME] or self.ended != 1:
            return "the parser reads other calls than the chat template writes"
        if not self.has_arguments:
            return "the parser reads other arguments than the chat template writes"
        return ""

    @property
    def has_arguments(self) -> bool:
        """Whether the arguments are those of the turn."""
        try:
            given = msgspec.json.decode(self.arguments[0])
        except msgspec.DecodeError:
            return False
        # Some templates, such as one for Llama 4, quote all values.
        as_text = {name: str(value) for name, value in ARGUMENTS.items()}
        return given == ARGUMENTS or (given == as_text and '"7"' in self.turn.text)


def tool_support(
    template: ChatTemplate | None,
    settings: Settings,
    parsers: Mapping[str, Parser],
    tokenizer: Tokenizer,
) -> ToolSupport:
    """Check the parser of a chat template with a call that the template writes.

    Renders the template a few times. Raises UsageError as `output_format`.
    """
    if template is None:
        return ToolSupport(reason="the model has no chat template")
    template = template.for_tools([TOOL])
    form = output_format(template, settings, parsers)
    option, notation = settings.tool_parser, notation_of(template, parsers)
    support = ToolSupport(
        notation=notation,
        parser=None if form is None or not form.calls else option or notation or FALLBACK,
        chosen_by="chat template" if option is None else "--tool-parser",
        declares="tools" in template.features.variables,
    )
    try:
        prompt = template.render([USER], tools=declarations([TOOL]))
    except OstroError as error:
        reason = "the chat template refuses tools"
        return replace(support, declares=False, reason=reason, error=str(error))
    turns, refusal = written_turns(template, prompt)
    support = replace(support, writes=bool(turns), error=refusal, reason=unread(support, refusal))
    if not turns or form is None:
        return support
    reading = read_best(turns, form, tokenizer)
    if THOUGHT in reading.turn.text and settings.reasoning_parser != NONE:
        support = replace(support, reads_reasoning=THOUGHT in reading.reasoning)
    if support.parser is None:
        return support
    if not reading.fault:
        return replace(support, reads=True, reason="")
    readers = tuple(readers_of(turns, parsers, tokenizer, notation))
    return replace(support, reads=False, reason=reading.fault, error=reading.error, readers=readers)


def unread(support: ToolSupport, refusal: str) -> str:
    """Why no call is read. refusal: the error of a template that refuses earlier calls."""
    if support.parser is None:
        is_off = support.chosen_by == "--tool-parser"
        return "--tool-parser none leaves calls in the text" if is_off else "no parser is installed"
    if not support.declares:
        return "the chat template shows no tools to the model"
    return f"the chat template {'refuses' if refusal else 'leaves out'} earlier calls"


def notation_of(template: ChatTemplate, parsers: Mapping[str, Parser]) -> str | None:
    """The parser that matches a chat template; None for none, several, or one that fails."""
    with suppress(Exception, SystemExit):  # of a plugin
        name = matching(template, parsers)
        return name if parsers[name].matches(template.source) else None
    return None


def written_turns(template: ChatTemplate, prompt: str) -> tuple[list[WrittenTurn], str]:
    """The turns of a call that a template writes, and the first error if it refuses all of them.

    prompt: that for an answer. There is at most one turn for each form of an id: templates may
    refuse reasoning, and a call without its result.
    """
    turns, errors, tried = list[WrittenTurn](), list[str](), 0
    for id in IDS:
        for thinks, ends in product((True, False), (True, False)):
            tried += 1
            messages = [USER, *messages_of(id, thinks, ends)]
            try:
                whole = template.render(
                    messages, tools=declarations([TOOL]), add_generation_prompt=False
                )
            except OstroError as error:
                errors.append(str(error))
                continue
            start = start_of_answer(prompt, whole)
            if TEXT in whole[start:]:
                turns.append(WrittenTurn(whole[:start][-PROMPT_END:], whole[start:]))
                break
    return turns, errors[0] if len(errors) == tried else ""


def messages_of(id: str, thinks: bool, ends: bool) -> Iterator[dict[str, Any]]:
    """An answer with a call. thinks: with reasoning. ends: without the result of the tool."""
    call = {"id": id, "type": "function", "function": {"name": NAME, "arguments": ARGUMENTS}}
    thought = {"reasoning_content": THOUGHT} if thinks else {}
    yield {"role": "assistant", **thought, "tool_calls": [call]}
    if not ends:
        yield {"role": "tool", "tool_call_id": id, "name": NAME, "content": "b"}


def start_of_answer(prompt: str, whole: str) -> int:
    """Where an answer begins in a conversation, given the prompt for an answer.

    The prompt may end with reasoning that it begins, or with instructions behind the conversation.
    """
    differs = (i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b)
    same = prompt[: next(differs, min(len(prompt), len(whole)))]
    return len(same) if same == prompt else len(OPEN_TAG.sub("", same))


def pieces_of(text: str, tokenizer: Tokenizer) -> Iterator[Piece]:
    """The pieces of an output, up to the token that ends it."""
    for part in tokenizer.split(text):
        if isinstance(part, str):
            yield Piece(part)
        elif part in tokenizer.eos_ids:
            return
        else:
            yield Piece(control=tokenizer.token(part))


def read(turn: WrittenTurn, form: OutputFormat, tokenizer: Tokenizer) -> Reading:
    """Read a turn with the parser of a format."""
    reading = Reading(turn)
    try:
        parser = form.parser(turn.prompt_end, [TOOL], tokenizer.controls)
        for piece in pieces_of(turn.text, tokenizer):
            for event in parser.add(piece):
                reading.add(event)
        for event in parser.finish():
            reading.add(event)
    except OstroError as error:
        reading.error = str(error)
    return reading


def read_best(turns: Sequence[WrittenTurn], form: OutputFormat, tokenizer: Tokenizer) -> Reading:
    """What a parser reads in the first turn that it reads as it is, or else in the first one."""
    readings = [read(turns[0], form, tokenizer)]
    for turn in turns[1:]:
        if not readings[-1].fault:
            break
        readings.append(read(turn, form, tokenizer))
    return readings[0] if readings[-1].fault else readings[-1]


def readers_of(
    turns: Sequence[WrittenTurn],
    parsers: Mapping[str, Parser],
    tokenizer: Tokenizer,
    notation: str | None,
) -> Iterator[str]:
    """The parsers that read the calls of a template, that of its notation first."""
    for name in sorted(parsers, key=lambda each: (each != notation, each)):
        with suppress(OstroError):
            form = OutputFormat(kind=parser_class(name, parsers))
            if not read_best(turns, form, tokenizer).fault:
                yield name
