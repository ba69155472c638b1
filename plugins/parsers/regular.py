"""Regular expressions of grammars in Lark whose rules are not recursive."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from ostro.errors import RequestError, Unsupported

MAX_LENGTH = 1 << 16
"""The most characters of all expressions: each use of a rule repeats that of the rule."""
MAX_DEPTH = 50
"""The most parentheses within each other, and rules that use each other."""
COMMON: Mapping[str, str] = {
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "CPP_COMMENT": r"\/\/[^\n]*",
    "CR": r"\r",
    "C_COMMENT": r"\/\*(?:[^*]|\*+[^*\/])*\*+\/",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "DIGIT": "[0-9]",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
    "FLOAT": r"(?:[0-9]+[eE][+\-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+\-]?[0-9]+)?)",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "LCASE_LETTER": "[a-z]",
    "LETTER": "[A-Za-z]",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+\-]?[0-9]+)?",
    "SH_COMMENT": r"#[^\n]*",
    "SIGNED_INT": r"[+\-]?[0-9]+",
    "SIGNED_NUMBER": r"[+\-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+\-]?[0-9]+)?",
    "SQL_COMMENT": r"--[^\n]*",
    "UCASE_LETTER": "[A-Z]",
    "WORD": "[A-Za-z]+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
}
"""The terminals of Lark's library. Source: lark/grammars/common.lark"""
STRING = r'"(?:\\.|[^"\\\n])*"'
TOKEN = re.compile(
    r"(?P<space>\s+|(?://|\#)[^\n]*|->\s*\w+)"
    rf"|(?P<first>{STRING})\s*\.\.\s*(?P<last>{STRING})"
    rf"|(?P<text>{STRING})(?P<any_case>i?)"
    r"|/(?P<pattern>(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+)/(?P<flags>[a-z]*)"
    r"|~\s*(?P<least>\d+)(?:\s*\.\.\s*(?P<most>\d+))?|(?P<repeat>[?*+]|\{\d*,?\d*\})"
    r"|(?P<name>\w+)|(?P<sign>[()\[\]|])|(?P<other>.)"
)
RULE = re.compile(r"^[ \t]*[?!]*(\w+)[ \t]*:", re.MULTILINE)
"""The beginning of a rule: its name."""
DIRECTIVE = re.compile(r"^[ \t]*(%\w+)[^\n]*", re.MULTILINE)
IMPORT = re.compile(
    r"%import\s+common(?:\.(\w+)(?:\s*->\s*(\w+))?|\s*\(([\w\s,]*)\))\s*(?:(?://|#).*)?"
)


def expression_of(grammar: str) -> str:
    """A regular expression, in the syntax of Rust, of the texts of a grammar in Lark.

    Raises Unsupported for a recursive grammar, RequestError for a malformed one.
    """
    imported = dict[str, str]()
    for directive in DIRECTIVE.finditer(grammar):
        imported |= read_import(directive[0].strip())
    head, *parts = RULE.split(DIRECTIVE.sub("", grammar))
    if other := next((x for x in TOKEN.finditer(head) if not x["space"]), None):
        raise RequestError(f"lark: {other[0][:40]!r} is in no rule")
    rules = dict(zip(parts[::2], parts[1::2], strict=True))
    return Expressions(rules, imported).of_rule("start", 0)


def read_import(directive: str) -> dict[str, str]:
    """The expressions of the terminals that a directive imports, by their names in the grammar."""
    match = IMPORT.fullmatch(directive)
    if match is None:
        raise Unsupported(f"lark: {directive[:40]!r} is not supported")
    one, alias, several = match.groups()
    names = [one] if one else [name.strip() for name in several.split(",")]
    if unknown := next((name for name in names if name not in COMMON), None):
        raise RequestError(f"lark: Lark's library has no terminal {unknown[:40]!r}")
    return {alias or name: COMMON[name] for name in names}


class Expressions:
    """The expressions of rules, by name."""

    def __init__(self, rules: Mapping[str, str], imported: Mapping[str, str]) -> None:
        self.rules, self.known, self.open = rules, dict(imported), set[str]()
        self.length = 0

    def of_rule(self, name: str, depth: int) -> str:
        """The expression of a rule or terminal."""
        if name in self.open:
            raise Unsupported(f"lark: the rule {name[:40]} is recursive")
        if name not in self.known:
            if name not in self.rules:
                raise RequestError(f"lark: there is no rule {name[:40]}")
            self.open.add(name)
            tokens = (x for x in TOKEN.finditer(self.rules[name]) if not x["space"])
            self.known[name] = self.of_alternatives(tokens, "", depth)
            self.open.remove(name)
        return self.known[name]

    def of_alternatives(self, tokens: Iterator[re.Match[str]], end: str, depth: int) -> str:
        """The expression of what precedes a bracket, or the end of a rule."""
        if depth > MAX_DEPTH:
            raise RequestError(f"lark: rules and parentheses nest more than {MAX_DEPTH} levels")
        items = list[str]()
        for token in tokens:
            if token["sign"] and token["sign"] == end:
                return "".join(items)
            if token["sign"] == "|":
                items.append("|")
            elif token["repeat"] or token["least"]:
                if not items or items[-1] == "|":
                    raise RequestError(f"lark: {token[0]!r} repeats nothing")
                items[-1] = f"(?:{items[-1]}){repetition(token)}"
            else:
                items.append(self.of_item(token, tokens, depth + 1))
            self.length += len(items[-1])
            if self.length > MAX_LENGTH:
                raise Unsupported(f"lark: more than {MAX_LENGTH} characters as one expression")
        if end:
            raise RequestError(f"lark: {end!r} is missing")
        return "".join(items)

    def of_item(self, token: re.Match[str], tokens: Iterator[re.Match[str]], depth: int) -> str:
        """The expression of one item of a rule."""
        if token["sign"] == "(":
            return f"(?:{self.of_alternatives(tokens, ')', depth)})"
        if token["sign"] == "[":
            return f"(?:{self.of_alternatives(tokens, ']', depth)})?"
        if token["name"]:
            return f"(?:{self.of_rule(token['name'], depth)})"
        if token["pattern"]:
            modes = f"?{token['flags']}" if token["flags"] else "?"
            return f"({modes}:{token['pattern']})"
        if token["first"]:
            return f"[{unquoted(token['first'])}-{unquoted(token['last'])}]"
        if token["text"]:
            modes = "?i" if token["any_case"] else "?"
            return f"({modes}:{unquoted(token['text'])})"
        raise Unsupported(f"lark: {token[0]!r} is not supported")


def in_slashes(pattern: str) -> str:
    """A regular expression as a terminal of Lark has it between slashes."""
    own = {"/": r"\/", "\n": r"\n"}
    return re.sub(r"\\.|/|\n", lambda part: own.get(part[0], part[0]), pattern, flags=re.DOTALL)


def repetition(token: re.Match[str]) -> str:
    """How often an item may occur."""
    if token["repeat"]:
        return token["repeat"]
    return f"{{{token['least']},{token['most'] or token['least']}}}"


def unquoted(text: str) -> str:
    """The expression of a text in quotes."""
    try:
        return code(json.loads(text))
    except ValueError:
        raise Unsupported(f"lark: {text[:40]} has an escape that JSON lacks") from None


def code(text: str) -> str:
    """The expression of a text."""
    return "".join(x if x.isalnum() or x in " _" else f"\\x{{{ord(x):x}}}" for x in text)
