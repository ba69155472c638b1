"""Yacc grammars in Lark's syntax. Precedences and actions do not change the language: ignored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ostro.errors import RequestError
from ostro.plugins.logits.grammar.literal import quote

TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n]*|/\*.*?\*/)"
    r"|(?P<percent>%%|%\w+|%\{.*?%\})"
    r"|(?P<char>'(?:\\.|[^'\\])+')"
    r'|(?P<text>"(?:\\.|[^"\\])*")'
    r"|(?P<regex>/(?:\\.|[^/\\\n])+/)"
    r"|(?P<name>[A-Za-z_][\w.-]*)"
    r"|(?P<number>\d+)"
    r"|(?P<mark>[:|;<>])",
    re.DOTALL,
)
BRACE = re.compile(r"""[{}]|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|/\*.*?\*/|//[^\n]*""", re.DOTALL)
"""The braces of an action, and what may hide them: texts and comments."""
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
SKIPPED = ("%left", "%right", "%precedence", "%type", "%union", "%expect", "%define", "%prec")
Token = tuple[str, str, int]


def yacc_to_lark(text: str) -> str:
    """A Yacc grammar in Lark's syntax.

    A token is a quoted text, or a name with a text or a /pattern/ from `%token NAME "text"`.
    Raises RequestError with the line of a fault.
    """
    tokens = list(read_tokens(text))
    cut = next((i for i, token in enumerate(tokens) if token[1] == "%%"), None)
    if cut is None:
        raise RequestError("yacc: no line `%%` before the rules")
    named, start = read_declarations(tokens[:cut])
    rules = read_rules(tokens[cut + 1 :])
    if not rules:
        raise RequestError("yacc: no rules after `%%`")
    start = start or next(iter(rules))
    names = {name: f"rule_{i}" for i, name in enumerate(rules)}
    if start not in names:
        raise RequestError(f"yacc: %start names {start[:40]!r}, which has no rule")
    lines = [f"start: {names[start]}"]
    for name, branches in rules.items():
        written = [
            " ".join(write_symbol(each, names, named) for each in b) or '""' for b in branches
        ]
        lines.append(f"{names[name]}: {' | '.join(written)}")
    return "\n".join(lines)


def read_tokens(text: str) -> Iterator[Token]:
    """The tokens of a grammar with their kind and line, up to the second `%%`.

    Comments and actions are left out.
    """
    at, line, cuts = 0, 1, 0
    while at < len(text) and cuts < 2:
        if text[at] == "{":
            end = end_of_action(text, at)
            line += text.count("\n", at, end)
            at = end
            continue
        match = TOKEN.match(text, at)
        if match is None:
            raise RequestError(f"yacc, line {line}: unexpected {text[at : at + 20]!r}")
        if match.lastgroup != "space":
            yield str(match.lastgroup), match[0], line
        line += match[0].count("\n")
        at, cuts = match.end(), cuts + (match[0] == "%%")


def end_of_action(text: str, at: int) -> int:
    """Where the action that begins at `at` ends: behind the brace that closes it."""
    depth = 0
    for brace in BRACE.finditer(text, at):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.end()
    line = text.count("\n", 0, at) + 1
    raise RequestError(f"yacc, line {line}: the action does not end")


def read_declarations(tokens: list[Token]) -> tuple[dict[str, Token | None], str | None]:
    """The tokens that `%token` declares, with their texts, and the rule of `%start`."""
    named: dict[str, Token | None] = {}
    start = last = None
    directive = ""
    for kind, text, line in tokens:
        if kind == "percent":
            directive, last = text, None
            if directive not in (*SKIPPED, "%token", "%start") and not text.startswith("%{"):
                raise RequestError(f"yacc, line {line}: {text} is not supported")
        elif directive == "%start" and kind == "name":
            start = text
        elif directive == "%token" and kind == "name":
            named[text], last = None, text
        elif directive == "%token" and kind in ("text", "char", "regex") and last:
            named[last] = (kind, text, line)
    return named, start


def read_rules(tokens: list[Token]) -> dict[str, list[list[Token]]]:
    """The alternatives of each rule, up to `%%` or the end."""
    rules: dict[str, list[list[Token]]] = {}
    at = 0
    while at < len(tokens) and tokens[at][1] != "%%":
        kind, name, line = tokens[at]
        if kind == "mark" and name == ";":
            at += 1
            continue
        if kind != "name" or at + 1 >= len(tokens) or tokens[at + 1][1] != ":":
            raise RequestError(f"yacc, line {line}: expected `name:`, found {name[:20]!r}")
        branches, at = read_branches(tokens, at + 2)
        rules.setdefault(name, []).extend(branches)
    return rules


def read_branches(tokens: list[Token], at: int) -> tuple[list[list[Token]], int]:
    """The alternatives from `at` to the end of the rule, and where that is."""
    branches: list[list[Token]] = [[]]
    while at < len(tokens):
        kind, text, line = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        if (text in (";", "%%") and kind != "text") or (kind == "name" and following == ":"):
            return branches, at
        if text == "|" and kind == "mark":
            branches.append([])
        elif text == "%prec":
            at += 1
        elif text == "error" and kind == "name":
            raise RequestError(f"yacc, line {line}: `error` is not supported; leave it out")
        elif text != "%empty":
            branches[-1].append(tokens[at])
        at += 1
    return branches, at


def write_symbol(token: Token, names: Mapping[str, str], named: Mapping[str, Token | None]) -> str:
    """A symbol of a rule in Lark's syntax."""
    kind, text, line = token
    if kind in ("text", "char"):
        return quote(unescape(text[1:-1]))
    if kind == "regex":
        return text
    if kind == "name" and text in names:
        return names[text]
    if kind == "name" and named.get(text) is not None:
        return write_symbol(named[text] or token, names, named)
    known = "a declared token without a text" if text in named else "neither a rule nor a token"
    raise RequestError(
        f'yacc, line {line}: {text[:40]!r} is {known}; declare it: %token {text[:40]} "text", or '
        f"%token {text[:40]} /pattern/"
    )


def unescape(text: str) -> str:
    """The text of a quoted one."""
    return re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), text, flags=re.DOTALL)
