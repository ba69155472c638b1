"""Outputs that are drawn from the grammars of notations of tool calls."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest

from ostro.core.output import Piece, Tool
from ostro.core.records import Parser, resolve
from tiny.notations import OUTPUTS
from tiny.turns import CONTROL

llguidance = pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Bonn", "Zürich"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 3},
        "on": {"type": "boolean"},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [Tool("weather", SCHEMA, True), Tool("get_time", SCHEMA, True), Tool("stop", {}, True)]
LOOSE = ("gemma4", "function_gemma")
"""Notations whose values do not follow schemas."""
BARE = ("generic", "llama3", "llama4")
"""Notations whose calls need no marker."""
EOS = 256


class Bytes:
    """A vocabulary of bytes, the end of text, and control tokens."""

    eos_token_id, bos_token_id = EOS, None

    def __init__(self, controls: Sequence[str]) -> None:
        self.tokens = [bytes([i]) for i in range(256)] + [b"</eos>", *map(str.encode, controls)]
        self.special_token_ids = [*range(256, len(self.tokens))]

    def __call__(self, text: Any) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def controls_of(name: str) -> dict[str, int]:
    """The control tokens of a notation."""
    extra = "[TOOL_CALLS][ARGS]<|tool_calls|>" if name in ("solar", "mistral_named") else ""
    found = sorted({*CONTROL.findall(OUTPUTS[name] + extra), "<escape>"})
    return {text: EOS + 1 + i for i, text in enumerate(found)}


@cache
def tokenizer(name: str, special: bool) -> Any:
    controls = list(controls_of(name)) if special else []
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes(controls)))


class Drawing:
    """An output that is drawn from a grammar."""

    def __init__(
        self,
        name: str,
        kind: Any,
        special: bool,
        choice: Any,
        parallel: bool,
        answer: str | None = None,
        tools: Sequence[Tool] = TOOLS,
    ) -> None:
        """`answer` is the grammar of the text, as a regular expression."""
        self.controls = controls_of(name) if special else {}
        if name in LOOSE:
            tools = [Tool(x.name, x.parameters, format=x.format) for x in tools]
        if answer is None:
            grammar = kind.grammar(tools, choice, parallel, self.controls)
            lark = llguidance.LLMatcher.grammar_from_lark(grammar)
        else:
            grammar = kind.grammar(tools, choice, parallel, self.controls, answer=True)
            text = {"lark_grammar": f"start: /{answer}/", "name": "answer"}
            lark = json.dumps({"grammars": [{"lark_grammar": grammar}, text]})
        self.matcher = llguidance.LLMatcher(tokenizer(name, special), lark)
        assert not self.matcher.is_error(), self.matcher.get_error()
        self.spelling = {id: text for text, id in self.controls.items()}
        self.ids: list[int] = []

    def feed(self, ids: Sequence[int]) -> None:
        """Append tokens that the grammar allows."""
        assert self.matcher.try_consume_tokens(list(ids)) == len(ids), bytes(self.ids[:256])
        self.ids += ids

    def ids_of(self, text: str) -> list[int]:
        """The tokens of a text with control tokens."""
        found: list[int] = []
        end = 0
        for match in CONTROL.finditer(text):
            if match[0] in self.controls:
                found += [*text[end : match.start()].encode(), self.controls[match[0]]]
                end = match.end()
        return [*found, *text[end:].encode()]

    def draw(self, seed: int, most: int = 600) -> None:
        """Draw tokens until the output may end."""
        choose = random.Random(seed)
        while not (self.matcher.is_accepting() and choose.random() < 0.7):
            mask = self.matcher.compute_bitmask()
            size = EOS + 1 + len(self.controls)
            allowed = [i for i in range(size) if mask[i // 8] >> i % 8 & 1 and i != EOS]
            if not allowed:
                return
            plain = [i for i in allowed if i not in (9, 10, 13, 32)]  # white space between JSON
            self.feed([choose.choice(plain or allowed)])
            assert len(self.ids) < most

    def pieces(self) -> tuple[Piece, ...]:
        """The output as a parser gets it."""
        found, held = [], b""
        for id in self.ids:
            if id < 256:
                held += bytes([id])
            else:
                found += [Piece(held.decode()), Piece(control=self.spelling[id])]
                held = b""
        return (*found, Piece(held.decode()))


def without_reasoning(name: str, parsers: Mapping[str, Parser]) -> Any:
    """The class of a notation; texts that are drawn at random would never end reasoning."""
    kind = resolve(parsers[name].parser)
    return type("Plain", (kind,), {"reasoning": None}) if name != "harmony" else kind


def begin(name: str, kind: Any, choice: Any) -> str:
    """What an output begins with so that the next is a call."""
    if name == "harmony":
        return "<|channel|>commentary to=functions."
    if choice != "auto":
        return ""
    return kind.answer[0] + "Hi. " + "".join(kind.answer[1:]) + kind.begins[0]
