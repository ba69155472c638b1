"""Custom tools: the input of a call is a text. The model knows them as functions of one text."""

from __future__ import annotations

from typing import Literal

import msgspec

from ostro.core.messages.text_requests import Grammar, Regex, Tool

Syntax = Literal["lark", "regex"]
"""How the grammar of an input is written: in Lark, or as a regular expression of Rust."""


class AnyInput(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"
):
    """The input of a custom tool may be any text."""


class InputGrammar(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The grammar of an input."""

    syntax: Syntax
    definition: str


class NestedGrammar(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="grammar"
):
    """The input of a custom tool of a chat follows a grammar."""

    grammar: InputGrammar


class CustomFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The field `custom` of a tool of a chat."""

    name: str
    description: str | None = None
    format: AnyInput | NestedGrammar | None = None

    @property
    def tool(self) -> Tool:
        """The function that the model knows the tool as."""
        match self.format:
            case NestedGrammar(grammar=grammar):
                return custom_tool(self.name, self.description, grammar.syntax, grammar.definition)
        return custom_tool(self.name, self.description)


class CustomArguments(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a call of a custom tool, as the model writes them."""

    input: str


ARGUMENTS = msgspec.json.Decoder(CustomArguments)


def custom_tool(
    name: str, description: str | None, syntax: Syntax | None = None, grammar: str = ""
) -> Tool:
    """Return the function that a model knows a custom tool as.

    Its parameters are those of `CustomArguments`. The model reads the grammar that the text has
    to follow; syntax: None for any text.
    """
    text = {"type": "string"}
    form: Regex | Grammar | None = None
    match syntax:
        case "regex":
            text["description"] = f"A text that matches the regular expression {grammar}"
            form = Regex(grammar)
        case "lark":
            text["description"] = f"A text of this grammar in Lark:\n{grammar}"
            form = Grammar("lark", grammar)
    parameters = {
        "type": "object",
        "properties": {"input": text},
        "required": ["input"],
        "additionalProperties": False,
    }
    return Tool(name, parameters, description=description, format=form)


def arguments_of(input: str) -> str:
    """Return the arguments of a call of a custom tool, in JSON."""
    return msgspec.json.encode(CustomArguments(input=input)).decode()


def input_of(arguments: str) -> str:
    """Return the input of a call of a custom tool; arguments of another form as they are."""
    try:
        return ARGUMENTS.decode(arguments).input
    except msgspec.DecodeError:
        return arguments
