"""Every notation of a grammar: what it allows, and what it refuses by name."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tiny.grammars import Walker, vocabulary

from ostro.core.errors import RequestError
from ostro.plugins.logits.grammar.processor import GrammarProcessor
from ostro.plugins.logits.grammar.yacc import yacc_to_lark

SUM = {
    "lark": 'start: sum\nsum: sum "+" product | product\nproduct: product "*" atom | atom\n'
    'atom: /[0-9]+/ | "(" sum ")"',
    "gbnf": "root ::= sum\nsum ::= sum [+] product | product\nproduct ::= product [*] atom | atom\n"
    'atom ::= [0-9]+ | "(" sum ")"',
    "yacc": "%token NUM /[0-9]+/ /* digits */\n%left '+'\n%start sum\n%%\n"
    "sum : sum '+' product { $$ = $1 + $3; /* } */ } | product ;\n"
    'product : product "*" atom { puts("}"); } | atom ;\n'
    "atom : NUM | '(' sum ')' ;\n%%\nint main() {}",
}
"""One language in three notations, with left recursion."""

TAG = {"begin": "<function=f>", "schema": {"type": "integer"}, "end": "</function>"}
TAGS = {"type": "structural_tag", "structures": [TAG], "triggers": ["<function="]}
"""vLLM's older form."""


def tag(**fields: Any) -> dict[str, Any]:
    """A tag of vLLM's newer form."""
    content = {"type": "json_schema", "json_schema": {"type": "integer"}}
    return {"type": "tag", "begin": "<f>", "content": content, "end": "</f>", **fields}


def newer(format: dict[str, Any]) -> dict[str, Any]:
    return {"structural_tag": {"type": "structural_tag", "format": format}}


@pytest.mark.parametrize("kind", SUM)
def test_left_recursion_reads_from_the_left(kind: str) -> None:
    walker = Walker({kind: SUM[kind]}, vocabulary())
    for text in ("1", "1+2", "12*3+4*(5+6)", "((7))", "+".join("1" * 20)):
        assert walker.accepts(text), text
    for text in ("", "+", "1+", "(1", "1 + 2", "a", "()"):
        assert not walker.accepts(text), text


ENDLESS = {
    "lark": "start: start",
    "gbnf": 'root ::= a\na ::= b "x"\nb ::= a "y"',
    "yacc": "%%\na : b 'x' ;\nb : a 'y' ;",
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_recursion_without_an_end_is_refused(kind: str) -> None:
    with pytest.raises(RequestError, match="no output satisfies"):
        GrammarProcessor.prepare({kind: ENDLESS[kind]}, vocabulary())


@pytest.mark.parametrize(
    "enclosing",
    [{"outer": 'start: ("(" /[a-z]+/ ")")? @answer'}, {"after": "</think>"}],
    ids=["outer", "after"],
)
def test_a_grammar_without_an_end_is_refused_behind_other_output(enclosing: dict[str, Any]) -> None:
    """What precedes it would be generated first."""
    with pytest.raises(RequestError, match="no output satisfies"):
        GrammarProcessor.prepare({"lark": "start: start", **enclosing}, vocabulary())
    assert Walker({"choice": ["a"], "outer": "start: @answer"}, vocabulary()).accepts("a")


@pytest.mark.parametrize("pattern", ["\\", "a\\", "\\/\\", "a\\\\\\"])
@pytest.mark.parametrize("kind", ["regex", "json_schema", "property", "structural_tag"])
def test_a_pattern_that_ends_within_an_escape_is_refused(kind: str, pattern: str) -> None:
    """It is invalid in each dialect; llguidance leaves the backslash out."""
    parameters: dict[str, Any] = {
        "regex": pattern,
        "json_schema": {"items": {"type": "string", "pattern": pattern}},
        "property": {"type": "object", "patternProperties": {pattern: True}},
        "structural_tag": {"format": {"type": "regex", "pattern": pattern}},
    }
    parameter = {"json_schema" if kind == "property" else kind: parameters[kind]}
    with pytest.raises(RequestError, match="backslash at its end"):
        GrammarProcessor.prepare(parameter, vocabulary())
    assert Walker({"regex": r"a\\\\"}, vocabulary()).accepts("a\\\\")


CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"regex": "[a-f]{2,3}x?"}, ["ab", "fffx"], ["a", "abcd", "abxx"]),
    ({"regex": "^(yes|no)$"}, ["yes", "no"], ["yesno", ""]),
    ({"regex": "(a+)+b"}, ["b" * 0 + "ab", "aaaab"], ["b", "aa"]),
    ({"regex": 'a/b"c'}, ['a/b"c'], ["a"]),
    ({"regex": "日本|naïve"}, ["日本", "naïve"], ["日", "naive"]),
    ({"choice": ["a", "ab", 'q"\\\n', "é"]}, ["a", "ab", 'q"\\\n', "é"], ["", "b", "abc", "a "]),
    ({"choice": ["", "x"]}, ["", "x"], ["xx"]),
    ({"json_object": True}, ["{}", '{"a": [1, {"b": null}]}'], ["[]", "1", "{", '{"a"}']),
    ({"gbnf": 'root ::= "a" [^b-c]{2} # comment\n'}, ["axy"], ["ab", "abx"]),
    ({"structural_tag": TAGS}, ["", "hi <b>", "x<function=f>12</function>y"], []),
    ({"structural_tag": TAGS}, [], ["<function=g>1</function>", "<function=f>x", "<function=f>1"]),
    (newer(tag()), ["<f>1</f>"], ["1", "<f>1", "a<f>1</f>"]),
    (newer(tag(content={"type": "any_text"})), ["<f>a</ f></f>"], ["<f>a", "<f></f>b"]),
    (
        newer(
            {
                "type": "sequence",
                "elements": [
                    {"type": "const_string", "value": "go "},
                    {"type": "or", "elements": [{"type": "regex", "pattern": "[0-9]"}, tag()]},
                ],
            }
        ),
        ["go 1", "go <f>1</f>"],
        ["go ", "1", "go x"],
    ),
    (
        newer(
            {
                "type": "triggered_tags",
                "triggers": ["<f"],
                "tags": [tag(), tag(begin="<f2>")],
                "at_least_one": True,
            }
        ),
        ["<f>1</f>", "a<f2>1</f> b <f>2</f>"],
        ["", "a", "<f3>1</f>"],
    ),
    (
        newer(
            {
                "type": "triggered_tags",
                "triggers": ["<f>"],
                "tags": [tag()],
                "stop_after_first": True,
            }
        ),
        ["no call", "a<f>1</f>"],
        ["<f>1</f>b", "<f>1</f><f>1</f>"],
    ),
]


@pytest.mark.parametrize(("parameter", "good", "bad"), CASES, ids=map(str, range(len(CASES))))
def test_answers(parameter: dict[str, Any], good: list[str], bad: list[str]) -> None:
    walker = Walker(parameter, vocabulary())
    assert [text for text in good if not walker.accepts(text)] == []
    assert [text for text in bad if walker.accepts(text)] == []


def test_control_tokens_in_tags_are_ids() -> None:
    """A model writes `<|im_start|>` as one id, and no text that spells it begins the tag."""
    known = vocabulary()
    start = known.special["<|im_start|>"]
    begin = "<|im_start|>call "
    format = {"type": "triggered_tags", "triggers": ["<|im_start|>"], "tags": [tag(begin=begin)]}
    walker = Walker(newer(format), known)
    walker.new = known.encode("hi ")
    assert start in walker.next()
    walker.new = [start]
    assert {known.pieces[id][:1] for id in walker.next()} == {b"c"}
    assert walker.accepts("a text <|im_start|>anything")


def test_a_lark_grammar_names_control_tokens() -> None:
    walker = Walker({"lark": 'start: <|im_start|> "go" | "no"'}, vocabulary())
    assert walker.accepts("go", [walker.vocabulary.special["<|im_start|>"]])
    assert walker.accepts("no") and not walker.accepts("go")


REFUSED: list[tuple[Any, str]] = [
    (None, "null; expected an object with one of"),
    ({}, "found nothing"),
    ({"regex": "a", "choice": ["a"]}, "found regex, choice"),
    ({"rgex": "a"}, "found rgex"),
    ({"regex": 1}, "regex is a number; expected a regular expression"),
    ({"json_object": False}, "json_object is a boolean; expected true"),
    ({"json_schema": "{}"}, "json_schema is a text; expected a JSON schema"),
    ({"choice": []}, "choice has 0 alternatives"),
    ({"choice": ["a", 1]}, "choice contains a number"),
    ({"choice": ["a"] * 10_001}, "10001 alternatives"),
    ({"lark": " "}, "lark is empty"),
    ({"regex": "a", "after": ""}, "after is a text; expected a text of 1..256"),
    ({"regex": "a", "outer": 7}, "outer is a number; expected a grammar in the syntax of Lark"),
    ({"regex": "a", "outer": "start: /a/"}, "whose rules refer to @answer"),
    ({"regex": "a", "outer": "start: @answer" + "x" * (1 << 18)}, "outer has 262158 characters"),
    ({"regex": "a" * (1 << 18) + "b"}, "at most 262144"),
]


@pytest.mark.parametrize(("parameter", "message"), REFUSED, ids=map(str, range(len(REFUSED))))
def test_the_shape_of_a_parameter_is_checked_at_once(parameter: Any, message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        GrammarProcessor.check(parameter, 100)
    GrammarProcessor.check({"regex": "a"}, 100)


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"regex": "(?=a)b"}, "look-around"),
    ({"regex": "("}, "unclosed group"),
    ({"regex": "a{3,2}"}, "invalid repetition"),
    ({"lark": "start: x"}, 'unknown name: "x"'),
    ({"lark": "rule: /a/"}, "no start rule"),
    ({"lark": "start: <|nope|>"}, "unknown special token"),
    ({"lark": 'start[stop="x"]: /a*/'}, "the option 'stop' is not supported; its text"),
    ({"lark": "start[capture, max_tokens=3]: /a*/"}, "the option 'max_tokens' is not supported"),
    ({"regex": "a", "outer": "start: @answer y"}, 'unknown name: "y"'),
    ({"regex": "a", "outer": "start[max_tokens=3]: @answer"}, "option 'max_tokens' is not"),
    ({"gbnf": "root ::= x"}, "gbnf: Rule 'x' not found"),
    ({"gbnf": 'start ::= "x"'}, "gbnf: No 'root' rule found"),
    ({"gbnf": 'root ::= "x'}, "gbnf: Unexpected end of input"),
    ({"yacc": "a: 'x';"}, "no line `%%`"),
    ({"yacc": "%%\n"}, "no rules"),
    ({"yacc": "%%\na : b ;"}, "line 2: 'b' is neither a rule nor a token"),
    ({"yacc": "%token B\n%%\na : B ;"}, "line 3: 'B' is a declared token without a text"),
    ({"yacc": "%%\na : error ;"}, "`error` is not supported"),
    ({"yacc": "%glr\n%%\na : 'x' ;"}, "line 1: %glr is not supported"),
    ({"yacc": "%start z\n%%\na : 'x' ;"}, "%start names 'z'"),
    ({"yacc": "%%\na : 'x' { if (1) { ;\n"}, "line 2: the action does not end"),
    ({"structural_tag": {"structures": [TAG]}}, "triggers: expected a list"),
    ({"structural_tag": {**TAGS, "triggers": ["<g"]}}, "no trigger is the start of its begin"),
    ({"structural_tag": {**TAGS, "more": 1}}, "unknown key 'more'"),
    (newer({"type": "qwen_xml_parameter"}), "format: the format 'qwen_xml_parameter' is not"),
    (newer(tag(end=None)), "format.end: null; expected a text"),
    (newer(tag(content={"type": "json_schema", "json_schema": 1})), "format.content: the schema"),
]


@pytest.mark.parametrize(("parameter", "message"), FAULTS, ids=map(str, range(len(FAULTS))))
def test_a_fault_is_named_and_the_next_grammar_compiles(
    parameter: dict[str, Any], message: str
) -> None:
    GrammarProcessor.check(parameter, 100)
    with pytest.raises(RequestError, match=re.escape(message)) as caught:
        GrammarProcessor.prepare({**parameter, "field": "response_format"}, vocabulary())
    assert caught.value.param == "response_format"
    assert str(caught.value).startswith("response_format: ")
    assert Walker({"regex": "a"}, vocabulary()).accepts("a")


def test_options_of_lark_in_texts_and_comments_are_no_options() -> None:
    text = 'start: "[stop=1]" /[a-z=][max_tokens=]/ // [temperature=2]\n'
    assert Walker({"lark": text}, vocabulary()).accepts("[stop=1]am")


def test_yacc_in_lark() -> None:
    assert yacc_to_lark('%%\na : | a "\\"b" ;') == 'start: rule_0\nrule_0: "" | rule_0 "\\"b"'


CALL = 'start: "call " part // %json {"not": 1}\npart: %json '


def test_the_schemas_of_lark_are_those_of_json_schema() -> None:
    """Properties that are listed, white space that ends, faults by their path."""
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    walker = Walker({"lark": CALL + schema + '\nother: "%json {"'}, vocabulary())
    for text in ('call {"a":1}', 'call { "a": 1 }', 'call {\n  "a": 1\n}'):
        assert walker.accepts(text), text
    for text in ('call {"a":1,"b":2}', 'call {  "a":1}', "call {}", 'call {"a":"1"}'):
        assert not walker.accepts(text), text
    with pytest.raises(RequestError, match=re.escape("#/not: the keyword 'not' is not supported")):
        GrammarProcessor.prepare({"lark": CALL + '{"not": {}}'}, vocabulary())
    loose = '{"x-guidance": {"lenient": true}, "not": {}, "type": "string", "format": "color"}'
    assert Walker({"lark": CALL + loose}, vocabulary()).accepts('call "x"')
    other = loose.replace("true", "false")
    with pytest.raises(RequestError, match="the keyword 'x-guidance' is not supported"):
        GrammarProcessor.prepare({"lark": CALL + other}, vocabulary())
    assert Walker({"lark": CALL + "true"}, vocabulary()).accepts('call [1, "x"]')
    with pytest.raises(RequestError):
        GrammarProcessor.prepare({"lark": CALL + '{"type": '}, vocabulary())
