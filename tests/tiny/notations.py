"""An output in each notation, written by hand, with the same turn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tiny.turns import Turn

VALUES: dict[str, Any] = {"a": [1, None, True], "日本": ""}
ARGUMENTS: dict[str, Any] = {"city": 'Zür"ich', "days": -3, "more": VALUES}
TURN = Turn("Let me see.", "Hm.", (("weather", ARGUMENTS), ("get_time", {"city": "Bonn"})))
JSON = json.dumps(ARGUMENTS, ensure_ascii=False)
MORE = json.dumps(VALUES, ensure_ascii=False)
BONN = '{"city": "Bonn"}'
THINK = "<think>\nHm.\n</think>\n\n"


def objects(name: str = "name", arguments: str = "arguments") -> list[str]:
    """The calls as JSON."""
    calls = (("weather", JSON), ("get_time", BONN))
    return [f'{{"{name}": "{call}", "{arguments}": {text}}}' for call, text in calls]


def listed(name: str = "name", arguments: str = "arguments") -> str:
    return f"[{', '.join(objects(name, arguments))}]"


def tagged(first: str, last: str, opens: str, ends: str, line: str = "") -> str:
    """The calls with a tag per parameter; `{}` in the first tags stands for the name."""
    values = {"city": 'Zür"ich', "days": "-3", "more": MORE}

    def parameters(given: Mapping[str, str]) -> str:
        return "".join(
            f"{opens.format(name)}{line}{value}{line}{ends}\n" for name, value in given.items()
        )

    calls = (("weather", values), ("get_time", {"city": "Bonn"}))
    return "\n".join(f"{first.format(name)}\n{parameters(given)}{last}" for name, given in calls)


HERMES = "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects())
PYTHON = (
    "[weather(city='Zür\"ich', days=-3, more={'a': [1, None, True], '日本': ''}), "
    'get_time(city="Bonn")]'
)
QUOTED = '{city:<Q>Zür"ich<Q>,days:-3,more:{a:[1,null,true],<Q>日本<Q>:<Q><Q>}}'
BEGIN, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
CALLED = "<|start|>assistant<|channel|>commentary to=functions."
OUTPUTS: Mapping[str, str] = {
    "apriel": f"<thinking>Hm.</thinking>[BEGIN FINAL RESPONSE]Let me see.\n"
    f"<tool_calls>{listed()}</tool_calls>[END FINAL RESPONSE]",
    "command_r": f"Let me see.\nAction:\n```json\n{listed('tool_name', 'parameters')}```",
    "command_r7b": "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Let me see."
    f"<|END_RESPONSE|><|START_ACTION|>{listed('tool_name', 'parameters')}<|END_ACTION|>",
    "deepseek_v3": f"{THINK}Let me see.<｜tool▁calls▁begin｜>{BEGIN}function{SEP}weather\n"
    f"```json\n{JSON}\n```{END}\n{BEGIN}function{SEP}get_time\n"
    f"```json\n{BONN}\n```{END}<｜tool▁calls▁end｜>",
    "deepseek_v31": f"{THINK}Let me see.<｜tool▁calls▁begin｜>{BEGIN}weather{SEP}{JSON}{END}"
    f"{BEGIN}get_time{SEP}{BONN}{END}<｜tool▁calls▁end｜>",
    "deepseek_v32": f"{THINK}Let me see.\n\n<｜DSML｜function_calls>\n"
    + tagged(
        '<｜DSML｜invoke name="{}">',
        "</｜DSML｜invoke>",
        '<｜DSML｜parameter name="{}" string="true">',
        "</｜DSML｜parameter>",
    )
    .replace('"days" string="true"', '"days" string="false"')
    .replace('"more" string="true"', '"more" string="false"')
    + "\n</｜DSML｜function_calls>",
    "function_gemma": "Let me see.<start_function_call>call:weather"
    + QUOTED.replace("<Q>", "<escape>")
    + "<end_function_call><start_function_call>call:get_time{city:<escape>Bonn<escape>}"
    "<end_function_call>",
    "gemma4": "<|channel>thought\nHm.<channel|>Let me see.<|tool_call>call:weather"
    + QUOTED.replace("<Q>", '<|"|>')
    + '<tool_call|><|tool_call>call:get_time{city:<|"|>Bonn<|"|>}<tool_call|>',
    "generic": f"{THINK}Let me see.\n{HERMES}",
    "glm4": f"{THINK}Let me see.\n"
    + tagged("<tool_call>{}", "</tool_call>", "<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>"),
    "granite": f"{THINK}<response>Let me see.</response><|tool_call|>{listed()}",
    "harmony": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary"
    f"<|message|>Let me see.<|end|>{CALLED}weather <|constrain|>json<|message|>{JSON}<|call|>"
    f"<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{BONN}<|call|>",
    "hermes": f"{THINK}Let me see.\n{HERMES}",
    "hunyuan3": "<think:opensource>Hm.</think:opensource>Let me see.<tool_calls:opensource>\n"
    + tagged(
        "<tool_call:opensource>{}<tool_sep:opensource>",
        "</tool_call:opensource>",
        "<arg_key:opensource>{}</arg_key:opensource>\n<arg_value:opensource>",
        "</arg_value:opensource>",
    )
    + "\n</tool_calls:opensource>",
    "kimi_k2": f"{THINK}Let me see.<|tool_calls_section_begin|><|tool_call_begin|>"
    f"functions.weather:0<|tool_call_argument_begin|>{JSON}<|tool_call_end|><|tool_call_begin|>"
    f"functions.get_time:1<|tool_call_argument_begin|>{BONN}<|tool_call_end|>"
    "<|tool_calls_section_end|>",
    "lfm2": f"{THINK}Let me see.<|tool_call_start|>{PYTHON}<|tool_call_end|>",
    "llama3": f"Let me see.<|python_tag|>{'; '.join(objects(arguments='parameters'))}",
    "llama4": f"Let me see.<|python_start|>{PYTHON}<|python_end|>",
    "minimax_m1": f"{THINK}Let me see.\n<tool_calls>\n" + "\n".join(objects()) + "\n</tool_calls>",
    "minimax_m2": f"{THINK}Let me see.\n<minimax:tool_call>\n"
    + tagged('<invoke name="{}">', "</invoke>", '<parameter name="{}">', "</parameter>")
    + "\n</minimax:tool_call>",
    "mistral": f"[THINK]Hm.[/THINK]Let me see.[TOOL_CALLS]{listed()}",
    "mistral_named": "[THINK]Hm.[/THINK]Let me see.[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]"
    f"{JSON}[TOOL_CALLS]get_time[ARGS]{BONN}",
    "nemotron": f"{THINK}Let me see.\n<TOOLCALL>{listed()}</TOOLCALL>",
    "phi4": f"{THINK}Let me see.<|tool_call|>{listed()}<|/tool_call|>",
    "qwen3_coder": f"{THINK}Let me see.\n"
    + tagged(
        "<tool_call>\n<function={}>",
        "</function>\n</tool_call>",
        "<parameter={}>",
        "</parameter>",
        "\n",
    ),
    "seed_oss": "<seed:think>Hm.</seed:think>Let me see.\n"
    + tagged(
        "<seed:tool_call>\n<function={}>",
        "</function>\n</seed:tool_call>",
        "<parameter={}>",
        "</parameter>",
    ),
    "smollm3": f"{THINK}Let me see.\n<code>{PYTHON}</code>",
    "solar": "<|think|>Hm.<|end|><|begin|>assistant<|content|>Let me see.<|end|><|begin|>assistant"
    f"<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>weather<|tool_call:args|>{JSON}"
    "<|tool_call:end|><|tool_call:begin|>a2<|tool_call:name|>get_time<|tool_call:args|>"
    f"{BONN}<|tool_call:end|><|calls|>",
}
WITHOUT_REASONING = ("command_r", "function_gemma", "llama3", "llama4")
IDS = {
    "kimi_k2": ["functions.weather:0", "functions.get_time:1"],
    "mistral_named": ["abcdefghi"],
    "solar": ["a1", "a2"],
}
"""Ids that the notations write."""


def expected(name: str) -> Turn:
    """The turn of the output of a notation."""
    return Turn(TURN.text, "" if name in WITHOUT_REASONING else TURN.reasoning, TURN.calls)
