"""Outputs of gpt-oss: the parser finds what openai-harmony finds; needs its environment."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from environments import default_root, python_of
from tiny.notations import OUTPUTS
from tiny.turns import CONTROL, Output, cuts, parse, spelled

from ostro.plugins.parsers.harmony.parser import HarmonyParser

pytestmark = pytest.mark.peer

TEXTS = ("Hm.", "Two\n\nlines, <b> and {}.", 'Zürich, 日本 "x"', "to=functions.weather")
ARGUMENTS = ("{}", '{"city": "Zür\\"ich"}', '{"a": [1, {"b": null}]}', "{city: 7}")
FUNCTION = (
    "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>",
    " to=functions.get_time<|channel|>commentary json<|message|>",
    "<|channel|>commentary to=functions.weather<|message|>",
)


def outputs(count: int) -> list[str]:
    """Outputs of several messages, drawn at random."""
    choose, found = random.Random(5), [OUTPUTS["harmony"]]
    for _ in range(count):
        messages = [
            f"<|channel|>{choose.choice(('analysis', 'commentary'))}<|message|>"
            f"{choose.choice(TEXTS)}<|end|>"
            for _ in range(choose.randrange(3))
        ]
        last = f"<|channel|>final<|message|>{choose.choice(TEXTS)}<|return|>"
        if choose.random() < 0.6:
            last = f"{choose.choice(FUNCTION)}{choose.choice(ARGUMENTS)}<|call|>"
        found.append("<|start|>assistant".join([*messages, last]))
    return found


def test_messages_are_those_of_openai_harmony() -> None:
    folder = default_root() / "harmony"
    python = python_of(default_root(), "harmony")
    if not (python.exists() and (folder / "node_modules").exists()):
        pytest.skip("run tests/peers/environments.py harmony, with npm")
    texts = outputs(60)
    script = Path(__file__).with_name("harmony.py")
    run = subprocess.run(
        [python, script, folder], input=json.dumps(texts), capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    for text, messages in zip(texts, json.loads(run.stdout), strict=True):
        tokens = frozenset(CONTROL.findall(text))
        output = Output("<|start|>assistant", spelled(text, tokens))
        calls = [
            [recipient.removeprefix("functions."), content]
            for _, recipient, content in messages
            if recipient
        ]
        said = [content for channel, to, content in messages if not to and channel != "analysis"]
        thought = [content for channel, _, content in messages if channel == "analysis"]
        for cut in [output, next(cuts(output))]:
            found = parse(HarmonyParser, cut, controls=tokens)
            assert found.calls == calls, text
            assert found.text == "".join(said) and found.reasoning == "".join(thought)
