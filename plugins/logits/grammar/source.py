"""Grammars in all notations, written in llguidance's own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from ostro.errors import RequestError
from ostro.plugins.logits.grammar.lark import read_lark, read_regex
from ostro.plugins.logits.grammar.literal import quote
from ostro.plugins.logits.grammar.schema import WHITESPACE, read_schema
from ostro.plugins.logits.grammar.tags import tags_to_lark
from ostro.plugins.logits.grammar.yacc import yacc_to_lark

OBJECT = {"type": "object"}
SPACE = r"(/[ \n]{1,2}/)?"
"""White space that models write behind reasoning."""


@dataclass(frozen=True)
class SpecialTokens:
    """What a grammar refers to of a vocabulary: control tokens by spelling, and ends of answers."""

    special: Mapping[str, int]
    ends: Iterable[int]


def write_source(parameter: Mapping[str, Any], tokens: SpecialTokens) -> str:
    """The grammar of a checked parameter as JSON that llguidance reads.

    Raises RequestError for what the notation does not allow.
    """
    grammars = write_grammars(parameter, tokens)
    if (outer := parameter.get("outer")) is not None:
        grammars = enclose("answer", grammars, read_lark(outer))
    if (marker := parameter.get("after")) is not None:
        space = SPACE if parameter.get("space") else ""
        grammars = enclose("rest", grammars, delay(marker, space, tokens))
    return json.dumps({"grammars": grammars})


def enclose(name: str, grammars: list[dict[str, Any]], lark: str) -> list[dict[str, Any]]:
    """Grammars that begin with one in Lark, which refers to the first of the others as `@name`."""
    first, *others = grammars
    return [{"lark_grammar": lark}, {**first, "name": name}, *others]


def write_grammars(parameter: Mapping[str, Any], tokens: SpecialTokens) -> list[dict[str, Any]]:
    """The grammars of llguidance for a parameter, the first of which begins."""
    if "json_schema" in parameter or "json_object" in parameter:
        return [schema_grammar(parameter.get("json_schema", OBJECT))]
    if "regex" in parameter:
        return [{"lark_grammar": read_regex(parameter["regex"])}]
    if "choice" in parameter:
        return [{"lark_grammar": choice_to_lark(parameter["choice"])}]
    if "structural_tag" in parameter:
        return tags_to_lark(parameter["structural_tag"], tokens.special, schema_grammar)
    if "lark" in parameter:
        return [{"lark_grammar": read_lark(parameter["lark"])}]
    if "yacc" in parameter:
        return [{"lark_grammar": yacc_to_lark(parameter["yacc"])}]
    return [{"lark_grammar": gbnf_lark(parameter["gbnf"])}]


def schema_grammar(schema: Any) -> dict[str, Any]:
    """The grammar of JSON texts that satisfy a schema."""
    checked = read_schema(schema)
    if checked is True:
        checked = {}
    options: Any = {"whitespace_pattern": WHITESPACE}
    try:
        text = json.dumps(checked, allow_nan=False)
    except ValueError as error:
        raise RequestError(f"the schema is not valid JSON: {error}") from None
    return grammars_in(LLMatcher.grammar_from_json_schema(text, overrides=options))[0]


def grammars_in(source: str) -> list[dict[str, Any]]:
    """The list of grammars in what llguidance wrote."""
    found: list[dict[str, Any]] = json.loads(source)["grammars"]
    return found


def choice_to_lark(choices: Iterable[str]) -> str:
    """One of several texts. A terminal, not a rule: llguidance limits the branches of a rule."""
    unique = dict.fromkeys(choices)
    texts = [quote(each) for each in unique if each]
    # An empty terminal is never read, so the empty text is a rule without terminals.
    start = "start: CHOICE" if "" not in unique else "start: CHOICE?"
    return f"{start}\nCHOICE: {' | '.join(texts)}" if texts else 'start: ""'


def gbnf_lark(text: str) -> str:
    """A GBNF grammar in Lark's syntax, converted by llguidance."""
    try:
        return gbnf_to_lark(text)
    except RecursionError:
        raise RequestError("gbnf: the grammar nests too deeply; name its inner parts") from None
    except Exception as error:  # the converter raises bare exceptions for unknown rules
        raise RequestError(f"gbnf: {error}") from None


def delay(marker: str, space: str, tokens: SpecialTokens) -> str:
    """A grammar of free output up to a marker, and of `space` and the grammar `rest` after it.

    The free part may contain any token but those that end an answer. A marker that is no control
    token is found in the text, wherever the tokens are cut.
    """
    if marker in tokens.special:
        id = tokens.special[marker]
        excluded = ",".join(map(str, sorted({id, *tokens.ends})))
        return f"start: <[^{excluded}]>* <[{id}]> {space} @rest"
    return f"start: free {space} @rest\nfree[lazy]: /(?s:.*)/ {quote(marker)}"
