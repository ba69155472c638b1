"""Turns of assistants as chat templates write them, cut into pieces as models generate them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from ostro.core.chat import ChatTemplate
from ostro.core.chat.worker import render
from ostro.core.errors import TemplateError
from ostro.core.messages.text import (
    OutputEvent,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from ostro.core.output import Piece, Tool

TEMPLATES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "templates"
FILES = sorted(TEMPLATES.glob("*.jinja")) if TEMPLATES.is_dir() else []
"""Templates of published models, if they are beside the checkout."""

CONTROL = re.compile(
    r"<\|[^|<>\s]+\|>|<｜[^｜<>]+｜>|\[/?[A-Z_]{3,}\]|</?s>|<\|\w+>|<\w+\|>|<\|\"\|>|<SPECIAL_\d+>"
    r"|<(?:end|beginning)_of_sentence>|\[e~\[|\]~b\]|<(?:start|end)_of_turn>"
)
"""Control tokens of vocabularies, by their spelling."""
HIDDEN = "\ue000"
"""Stands for the first character of a marker that a turn only spells."""
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "d"},
        "days": {"type": "integer", "description": "d"},
        "more": {
            "type": "object",
            "description": "d",
            "properties": {},
            "additionalProperties": {"type": "string"},
        },
    },
    "required": ["city"],
}
TOOLS = [Tool("weather", PARAMETERS), Tool("get_time", PARAMETERS)]
GIVEN = [
    {
        "type": "function",
        "function": {"name": tool.name, "description": "d", "parameters": PARAMETERS},
    }
    for tool in TOOLS
]
USER = {"role": "user", "content": "Is it warm?"}
OPTIONS: Sequence[dict[str, Any]] = (
    {},
    {"enable_thinking": True, "thinking": True},
    {"enable_thinking": False, "thinking": False},
    {"reasoning_effort": "high"},
)
COMMAND = "<|CHATBOT_TOKEN|>"
BEGINS = (("", ""), ("<think>", "</think>"), ("<think>\n", ""), ("<think>\n</think>", ""))
"""What a prompt may end with that the turn begins with, and what the turn then begins with."""
EOS = (
    "<|END_OF_TURN_TOKEN|> <|START_OF_TURN_TOKEN|> <|im_end|> <｜end▁of▁sentence｜> </s> "
    "<|eot_id|> <|end_of_text|> [e~[ "
    "<SPECIAL_12> <turn|> <end_of_turn> <end_of_sentence> <|return|> <|tool_response> "
    "<|observation|> <｜hy_eos:opensource｜> <|user|> <｜tool▁outputs▁begin｜> <|begin|>tool "
    "<|call|>"
).split()
"""Tokens that end a turn, and what templates write behind one."""


@dataclass(frozen=True)
class Turn:
    """A turn; `calls` are names and arguments."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        """The message of a request."""
        found: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            found["reasoning_content"] = self.reasoning
        if self.calls:
            found["tool_calls"] = [
                {
                    "id": f"abcdefgh{i}",
                    "type": "function",
                    "function": {"name": name, "arguments": copy.deepcopy(arguments)},
                }
                for i, (name, arguments) in enumerate(self.calls)
            ]
        return found


@dataclass(frozen=True)
class Output:
    """What a model writes: the end of the prompt, and pieces."""

    prompt_end: str
    pieces: tuple[Piece, ...]


@dataclass
class Parsed:
    """What the events of an output add up to; arguments are text. `ended` are complete calls."""

    text: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    @property
    def turn(self) -> Turn:
        """The turn, all calls complete."""
        assert self.ended == list(range(len(self.calls)))
        calls = tuple((name, json.loads(text)) for name, text in self.calls)
        return Turn(self.text, self.reasoning, calls)


def read(events: Iterable[OutputEvent]) -> Parsed:
    """Add up events, and check their order."""
    found = Parsed()
    for event in events:
        match event:
            case Text(text):
                found.text += text
            case Reasoning(text):
                found.reasoning += text
            case ToolCallStart(index, id, name):
                assert index == len(found.calls)
                found.calls.append([name, ""])
                found.ids.append(id)
            case ToolCallArguments(index, text):
                assert index not in found.ended
                found.calls[index][1] += text
            case ToolCallEnd(index):
                found.ended.append(index)
    return found


def parse(kind: Any, output: Output, tools: Sequence[Tool] = TOOLS, **how: Any) -> Parsed:
    """Parse the pieces of an output."""
    parser = kind(output.prompt_end, tools, **how)
    events: list[OutputEvent] = []
    for piece in output.pieces:
        events += parser.add(piece)
    return read([*events, *parser.finish()])


def write(template: ChatTemplate, turn: Turn) -> tuple[str, str] | None:
    """The prompt before a turn, and the turn as the template writes it; None if it refuses it.

    A prompt may begin reasoning that the turn does not have.
    """
    results = [
        {"role": "tool", "tool_call_id": f"abcdefgh{i}", "name": name, "content": "sunny"}
        for i, (name, _) in enumerate(turn.calls)
    ]
    turns = [USER, turn.message, *results]
    for tools, options in product((GIVEN, None), OPTIONS):
        try:
            prompt = template.render([USER], tools=tools, **options)
            whole = template.render(turns, tools=tools, add_generation_prompt=False, **options)
        except TemplateError:
            continue
        for begin, cut in BEGINS:
            shorter = prompt.removesuffix(begin)
            rest = whole[len(shorter) :]
            if whole.startswith(shorter) and rest.startswith(cut):
                thinks = shorter.rstrip().endswith("<think>") or rest.startswith("<think>")
                if thinks and "</think>" not in rest:
                    continue
                return prompt if cut else shorter, ends(rest)
        if COMMAND in whole:  # instructions follow the conversation
            before, _, rest = whole.partition(USER["content"])[2].partition(COMMAND)
            return before + COMMAND, ends(rest)
    return None


def ends(text: str) -> str:
    """A turn up to the token that ends it."""
    if "<|begin|>" not in text and "<|start|>" not in text:
        text = text.partition("<|end|>")[0]
    return min((text.partition(eos)[0] for eos in EOS if eos in text), key=len, default=text)


def pieces(text: str) -> Iterator[Piece]:
    """Text and control tokens; hidden markers are text."""
    end = 0
    for match in CONTROL.finditer(text):
        yield Piece(text[end : match.start()].replace(HIDDEN, "<"))
        yield Piece(control=match[0])
        end = match.end()
    yield Piece(text[end:].replace(HIDDEN, "<"))


def cuts(output: Output) -> Iterator[Output]:
    """The output in single characters, and cut once at every position of a text."""
    characters = [
        part
        for piece in output.pieces
        for part in ([Piece(character) for character in piece.text] or [piece])
    ]
    yield Output(output.prompt_end, tuple(characters))
    for i, piece in enumerate(output.pieces):
        before, after = output.pieces[:i], output.pieces[i + 1 :]
        for at in range(1, len(piece.text)):
            parts = (Piece(piece.text[:at]), Piece(piece.text[at:]))
            yield Output(output.prompt_end, (*before, *parts, *after))


def spelled(output: str, controls: frozenset[str]) -> tuple[Piece, ...]:
    """The pieces of an output in which only these tokens are control tokens."""
    parts = [each for each in pieces(output) if each.text or each.control]
    return tuple(
        each if not each.control or each.control in controls else Piece(each.control)
        for each in parts
    )


class DirectRenderer:
    """Renders templates in this process."""

    def render(self, source: str, context: dict[str, Any], limit: int) -> str:
        """Render a template. Raises TemplateError."""
        try:
            return render(source, context, limit)
        except Exception as error:
            raise TemplateError(str(error)) from error


OWN = {
    "own-hermes": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n"
        "{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content or '' }}"
        '{% for c in m.tool_calls or [] %}\n<tool_call>\n{"name": "{{ c.function.name }}", '
        '"arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n'
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        "{{ tools and '' }}"
    ),
    "own-mistral": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
        "[INST]{{ m.content }}[/INST]"
        "{% elif m.role == 'assistant' %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        "[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]"
        "{{ c.function.arguments | tojson }}"
        "{% endfor %}{{ eos_token }}{% endif %}{% endfor %}{{ tools and '' }}"
    ),
    "own-glm": (
        "{% for m in messages %}<|{{ m.role }}|>\n{% if m.reasoning_content %}<think>"
        "{{ m.reasoning_content }}</think>\n{% endif %}{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}\n<tool_call>{{ c.function.name }}"
        "{% for k, v in c.function.arguments.items() %}\n<arg_key>{{ k }}</arg_key>\n<arg_value>"
        "{{ v if v is string else v | tojson }}</arg_value>{% endfor %}\n</tool_call>{% endfor %}"
        "{% if m.role == 'assistant' %}<|observation|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}{{ tools and '' }}"
    ),
}
"""Templates in three notations."""
