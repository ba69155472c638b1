"""Harmony, the notation of gpt-oss: messages in channels, and calls as messages to functions.

Source: https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ostro.pipelines import Tool, ToolChoice
from ostro.plugins.parsers.json_values import JsonReader
from ostro.plugins.parsers.lark import Rules
from ostro.plugins.parsers.turn import CONTROL, OPEN, Reader

BEGINS = ("<|channel|>", "<|start|>", "<|message|>")
ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
RECIPIENT = re.compile(rf"to=([^\s<{OPEN}]+)")
CHANNEL = re.compile(r"\w+")
FUNCTIONS = "functions."
CALL = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>"


class HarmonyParser(JsonReader):
    """The channel `analysis` is reasoning, the others are text unless they call a function.

    A header may name a recipient behind the role or behind the channel. Messages to tools of the
    model itself, such as its browser, are reasoning.
    """

    reasoning = ("<|channel|>analysis<|message|>", "<|end|>")

    @classmethod
    def grammar(
        cls,
        tools: Sequence[Tool],
        choice: ToolChoice,
        parallel: bool,
        controls: Mapping[str, int] | None = None,
        *,
        answer: bool = False,
    ) -> str:
        """The grammar of an output: reasoning, and an answer or a call.

        A call ends the output, so that there is never more than one.
        """
        rules, exact = Rules(controls or {}), choice != "auto"
        chosen = [x for x in tools if isinstance(choice, str) or x.name in choice]
        calls = [
            f"{rules.text(CALL.format(tool.name))} {rules.arguments(tool, exact)}"
            for tool in chosen
        ]
        after = rules.text("<|start|>assistant")
        thought = rules.text("<|channel|>analysis<|message|>"), rules.until("<|end|>"), after
        said = rules.text("<|channel|>commentary<|message|>"), rules.until("<|end|>"), after
        if not exact:
            text = "@answer" if answer else "TEXT"
            calls.append(f"{rules.text('<|channel|>final<|message|>')} {text}")
        return rules.grammar(f"({' '.join(thought)})* ({' '.join(said)})? ({' | '.join(calls)})")

    def read_turn(self, prompt_end: str) -> Reader[None]:
        """Read messages; the prompt contains the first part of the first header."""
        begins, header = self.marks(*BEGINS), prompt_end.rpartition("<|start|>")[2]
        found = yield from self.starts([*begins, "to="])
        while True:
            if not found:
                found = yield from self.until(begins, self.write)
            if not found:
                return
            self._strips = True
            found = yield from self.read_message(found, header)
            header = ""

    def read_message(self, begin: str, header: str) -> Reader[str]:
        """Read the rest of a header and a message. Returns the marker that begins the next."""
        (message,) = self.marks("<|message|>")
        pieces = [header, begin]
        if begin != message:
            found = yield from self.until([message], pieces.append, exact=True)
            if not found:
                self.write("".join(pieces[1:]))
                return ""
        text = "".join(pieces)
        recipient = RECIPIENT.search(text)
        marked = text.rpartition(self.marks("<|channel|>")[0])[2]
        channel = CHANNEL.search(CONTROL.sub("", marked))
        name = recipient[1] if recipient else ""
        begins = self.marks(*BEGINS)
        called = name.startswith(FUNCTIONS)
        if called and self.tools:
            found = yield from self.read_function(name.removeprefix(FUNCTIONS))
        else:
            hidden = name if not called else ""
            hidden = hidden or (channel and channel[0] == "analysis")
            emit = self.think if hidden and self.reasoning else self.write
            found = yield from self.until(self.marks(*ENDS), emit)
        if found not in begins:
            found = yield from self.starts(begins)
        return found

    def read_function(self, name: str) -> Reader[str]:
        """Read the arguments of a call. Returns the marker behind them."""
        ends = self.marks(*ENDS)
        self.start_call(name)
        complete = yield from self.read_arguments(ends)
        self.end_call(complete=complete)
        return (yield from self.starts(ends))
