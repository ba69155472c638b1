"""The two turns of coding agents and chat programs, as their versions send them.

The files beside this one have the shapes of the requests of a program, with texts of our own: its
fields, tools and messages in their order. Most are recorded; `claude-code.json` follows public
descriptions. For a new version, change it in `tests/peers/environments.py` and
`tests/peers/agents_programs.py`, install it, and run

    python tests/peers/agents.py --shapes tests/entrypoints/api/agents PROGRAM

(gptme with `--template tests/echo/templates/xml.jinja`, since it sends thoughts as text). Then read
the difference: no text of a vendor may be in it.

A name in braces stands for what the program sends back of the answer: see `echo.turns.Turn`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from echo.scripted import ScriptedEngine
from echo.server import Running, Start, make_state
from echo.turns import Call, Turn, read_turn

FOLDER = Path(__file__).parent
TEMPLATES = {
    file.stem: file.read_text() for file in FOLDER.parents[2].glob("echo/templates/*.jinja")
}
PROGRAMS = {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))}
CONVERSATIONS = [
    pytest.param(conversation, id=f"{name} {conversation['wire']}")
    for name, program in PROGRAMS.items()
    for conversation in program["conversations"]
]
THOUGHT, ANSWER, TITLE = "The user wants a file.", "The file is there.", "A file"
THOUGHTS = ("{thought}", "{encrypted}")
"""What a program sends back of a thought."""


@dataclass
class Served:
    """A server of a scripted model with a template."""

    running: Running
    template: str

    @property
    def engine(self) -> ScriptedEngine:
        assert isinstance(self.running.echo, ScriptedEngine)
        return self.running.echo


@pytest.fixture(scope="module", params=sorted(TEMPLATES))
def served(start: Start, request: pytest.FixtureRequest) -> Served:
    """A server as `ostro serve` starts it: unknown fields are ignored."""
    template, state = TEMPLATES[request.param], make_state("memory")
    engine = ScriptedEngine
    return Served(
        start(template=template, engine_type=engine, strict_fields=False, state=state), template
    )


def filled(value: Any, values: dict[str, Any]) -> Any:
    """A shape with the values that its names in braces stand for."""
    if isinstance(value, dict):
        return {key: filled(each, values) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, values) for each in value]
    return values[value] if is_name(value) else value


def is_name(value: Any) -> bool:
    """Whether a value of a shape stands for one of the answer before."""
    return isinstance(value, str) and value.startswith("{") and value.endswith("}")


def thoughtless(value: Any) -> Any:
    """What a program sends back if the model has not thought."""
    if isinstance(value, list):
        return [thoughtless(each) for each in value if not is_thought(each)]
    if isinstance(value, dict):
        return {key: thoughtless(each) for key, each in value.items() if each not in THOUGHTS}
    return value


def is_thought(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") in ("reasoning", "thinking")


def call_of(conversation: dict[str, Any]) -> Call:
    """The call that the model writes."""
    [(name, value)] = conversation["call"].items()
    return Call(text=value) if name == "text" else Call(name, value)


def returns_thoughts(conversation: dict[str, Any]) -> bool:
    """Whether the program sends the thought before a call back."""
    later = json.dumps(conversation["turns"][1:])
    return any(name in later for name in THOUGHTS)


def send(served: Served, conversation: dict[str, Any], number: int, turn: Turn) -> Turn:
    """Send a request of a conversation, after the answer before. Return what the program reads."""
    fields = {**conversation["fields"], **(conversation["changed"] if number else {})}
    key = "input" if conversation["path"] == "/v1/responses" else "messages"
    messages = conversation["turns"][number]
    messages = filled(messages if turn.thought else thoughtless(messages), turn.values())
    answer = served.running.http.post(conversation["path"], json={**fields, key: messages})
    check(answer, 200, conversation["ignored"])
    return read_turn(conversation["path"], answer.text)


def check(answer: httpx.Response, status: int, ignored: list[str]) -> None:
    """Check the status of an answer, and what the server ignores of the request."""
    assert answer.status_code == status, answer.text
    names = answer.headers.get("x-ostro-ignored", "")
    assert (names.split(", ") if names else []) == ignored


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_two_turns(served: Served, conversation: dict[str, Any]) -> None:
    engine, call = served.engine, call_of(conversation)
    thinks = "<think>" in served.template and returns_thoughts(conversation)
    thought = f"<think>\n{THOUGHT}\n</think>\n\n" if thinks else ""
    engine.script = lambda prompt: thought + call.written(served.template)
    turn = send(served, conversation, 0, Turn())
    if call.tool:
        assert (turn.name, turn.text.strip()) == (call.tool, "")
        assert json.loads(turn.arguments) == call.arguments
        assert turn.id or conversation["path"] == "/api/chat"
    else:
        assert turn.text == call.text and not turn.name
    assert turn.thought.strip() == (THOUGHT if thinks else "")
    if len(conversation["turns"]) == 1:
        return
    first = engine.seen[-1]
    engine.script = lambda prompt: ANSWER
    assert send(served, conversation, 1, turn).text == ANSWER
    past = [*first.tokens, *engine.written[first.id]]
    assert list(engine.seen[-1].tokens)[: len(past)] == past


OTHERS = [
    pytest.param(other, id=f"{name} {other['method']} {other['path']}")
    for name, program in PROGRAMS.items()
    for conversation in program["conversations"]
    for other in conversation["others"]
]


@pytest.mark.parametrize("other", OTHERS)
def test_other_requests(served: Served, other: dict[str, Any]) -> None:
    """Titles, suggestions, lists of models."""
    served.engine.script = lambda prompt: TITLE
    answer = served.running.http.request(other["method"], other["path"], json=other.get("body"))
    check(answer, other["status"], other["ignored"])
    if other["method"] == "POST" and "chat" in other["path"]:
        assert read_turn(other["path"], answer.text).text == TITLE
