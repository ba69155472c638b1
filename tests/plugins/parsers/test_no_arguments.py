"""Calls without arguments, in the forms that models write besides that of their template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from tiny.notations import BEGIN, END, OUTPUTS, SEP
from tiny.turns import CONTROL, TOOLS, Output, cuts, parse, spelled

from ostro.core.output import Tool
from ostro.core.records import Parser, resolve

NOW = Tool("now", {"type": "object", "properties": {}})


def objects(name: str = "name", arguments: str = "arguments") -> list[str]:
    """Objects without arguments, with none, and with an empty text."""
    values = ("{}", "null", '""', '"{}"', '" "')
    return [f'{{"{name}": "now"}}'] + [
        f'{{"{name}": "now", "{arguments}": {value}}}' for value in values
    ]


def around(before: str, insides: Iterable[str], behind: str) -> list[str]:
    return [f"{before}{inside}{behind}" for inside in insides]


CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
OBJECTS = objects()
HERMES = around("<tool_call>\n", OBJECTS, "\n</tool_call>")
LINES = ("\n", "")
CASES: Mapping[str, list[str]] = {
    "apriel": around("<tool_calls>[", OBJECTS, "]</tool_calls>"),
    "command_r": around("Action:\n```json\n[", objects("tool_name", "parameters"), "]```"),
    "command_r7b": around(
        "<|START_ACTION|>[", objects("tool_name", "parameters"), "]<|END_ACTION|>"
    ),
    "deepseek_v3": around(
        f"{CALLS_BEGIN}{BEGIN}function{SEP}now",
        ("\n```json\n{}\n```", "\n```json\n\n```", "\n```json\n```", "\n", ""),
        f"{END}{CALLS_END}",
    ),
    "deepseek_v31": around(
        f"{CALLS_BEGIN}{BEGIN}now", (f"{SEP}{{}}", SEP, ""), f"{END}{CALLS_END}"
    ),
    "deepseek_v32": around(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="now">',
        LINES,
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
    "function_gemma": around(
        "<start_function_call>call:now", ("{}", "{ }", ""), "<end_function_call>"
    ),
    "gemma4": around("<|tool_call>call:now", ("{}", "{ }", ""), "<tool_call|>"),
    "generic": [*HERMES, *OBJECTS],
    "glm4": around("<tool_call>now", LINES, "</tool_call>"),
    "granite": around("<|tool_call|>[", OBJECTS, "]"),
    "harmony": around(
        "<|channel|>commentary to=functions.now <|constrain|>json<|message|>",
        ("{}", "", " "),
        "<|call|>",
    ),
    "hermes": HERMES,
    "hunyuan3": around(
        "<tool_calls:opensource>\n<tool_call:opensource>now",
        ("<tool_sep:opensource>\n", "<tool_sep:opensource>", ""),
        "</tool_call:opensource>\n</tool_calls:opensource>",
    ),
    "kimi_k2": around(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0",
        ("<|tool_call_argument_begin|>{}", "<|tool_call_argument_begin|>", ""),
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "lfm2": ["<|tool_call_start|>[now()]<|tool_call_end|>"],
    "llama3": [
        *around("<|python_tag|>", objects(arguments="parameters"), ""),
        *objects(arguments="parameters"),
    ],
    "llama4": ["<|python_start|>[now()]<|python_end|>", "[now()]"],
    "minimax_m1": around("<tool_calls>\n", OBJECTS, "\n</tool_calls>"),
    "minimax_m2": around(
        '<minimax:tool_call>\n<invoke name="now">', LINES, "</invoke>\n</minimax:tool_call>"
    ),
    "mistral": around("[TOOL_CALLS][", OBJECTS, "]"),
    "mistral_named": ["[TOOL_CALLS]now[ARGS]{}"],
    "nemotron": around("<TOOLCALL>[", OBJECTS, "]</TOOLCALL>"),
    "phi4": around("<|tool_call|>[", OBJECTS, "]<|/tool_call|>"),
    "qwen3_coder": around(
        "<tool_call>\n<function=now>", ("\n", "", "\n\n"), "</function>\n</tool_call>"
    ),
    "seed_oss": around("<seed:tool_call>\n<function=now>", LINES, "</function>\n</seed:tool_call>"),
    "smollm3": ["<code>[now()]</code>"],
    "solar": around(
        "<|begin|>assistant<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>now",
        ("<|tool_call:args|>{}", "<|tool_call:args|>", ""),
        "<|tool_call:end|><|calls|>",
    ),
}


def written(name: str, text: str, controls: bool) -> tuple[Output, frozenset[str]]:
    """An output, its special tokens as control tokens or as text."""
    tokens = frozenset(CONTROL.findall(OUTPUTS[name] + text)) if controls else frozenset()
    return Output("<|start|>assistant" if name == "harmony" else "", spelled(text, tokens)), tokens


@pytest.mark.parametrize("controls", [True, False])
@pytest.mark.parametrize("name", OUTPUTS)
def test_a_call_without_arguments_has_an_empty_object(
    parsers: Mapping[str, Parser], name: str, controls: bool
) -> None:
    kind = resolve(parsers[name].parser)
    for text in CASES[name]:
        output, tokens = written(name, text, controls)
        for cut in (output, *cuts(output)) if controls else (output,):
            result = parse(kind, cut, [NOW, *TOOLS], controls=tokens)
            assert [tuple(call) for call in result.calls] == [("now", "{}")], text
            assert result.ended == [0] and not result.text, text


@pytest.mark.parametrize(
    ("name", "before", "behind"),
    [
        ("mistral_named", "[TOOL_CALLS]now[ARGS]", "[TOOL_CALLS]get_time[ARGS]{}"),
        ("mistral_named", "[TOOL_CALLS]now", "[TOOL_CALLS]get_time[ARGS]{}"),
        (
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_end|>",
            "<|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{}"
            "<|tool_call_end|><|tool_calls_section_end|>",
        ),
    ],
)
def test_another_call_may_follow(
    parsers: Mapping[str, Parser], name: str, before: str, behind: str
) -> None:
    output, tokens = written(name, before + behind, True)
    kind: Any = resolve(parsers[name].parser)
    result = parse(kind, output, [NOW, *TOOLS], controls=tokens)
    assert [tuple(call) for call in result.calls] == [("now", "{}"), ("get_time", "{}")]
    assert result.ended == [0, 1] and not result.text


@pytest.mark.parametrize("name", ["deepseek_v31", "gemma4", "kimi_k2", "solar"])
def test_a_name_alone_is_text_unless_a_tool_has_it(
    parsers: Mapping[str, Parser], name: str
) -> None:
    kind, text = resolve(parsers[name].parser), CASES[name][-1]
    for tools in (TOOLS, [Tool("now", NOW.parameters, True)]):
        result = parse(kind, written(name, text, False)[0], tools)
        assert not result.calls and "now" in result.text
