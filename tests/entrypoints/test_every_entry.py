"""A seeded chat is the same request, and has the same answer, whichever entry point states it.

Kernels are deterministic here, and there is one thread, as in `test_one_path.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tiny.server import RunningServer, serving

import ostro
from ostro.core.ipc.client import AsyncEngine
from ostro.core.messages.outputs import TokenOutput
from ostro.core.messages.requests import TokenRequest
from ostro.core.settings import STARTER, Settings
from ostro.entrypoints.cli import main
from ostro.entrypoints.python.engine import LocalEngine
from ostro.entrypoints.python.model import LocalModel

pytestmark = pytest.mark.process

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% for t in tools or [] %}{{ t.function.name }}\n{% endfor %}assistant: "
    '{% if false %}<tool_call>{"name": , "arguments": }</tool_call>{% endif %}'
    "{% if enable_thinking %}<think>\n{% endif %}"
)
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
SYSTEM, TEXT, SEED, HEAT, LENGTH = "Be brief.", "Where is it?", 7, 1.0, 60


@dataclass(frozen=True)
class Case:
    """What a chat states besides its messages; `without` are the entries that cannot state it."""

    tool: bool = False
    choice: bool = False
    schema: bool = False
    adapter: bool = False
    budget: int | None = None
    without: tuple[str, ...] = ()


@dataclass
class Answer:
    """The text, the reasoning and the calls of an answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)


NO_BUDGET = ("responses", "anthropic", "ollama")
"""Anthropic's budgets begin at 1,024 tokens."""

CASES = {
    "plain": Case(),
    "strict-tool": Case(tool=True, without=("run",)),
    "forced-tool": Case(tool=True, choice=True, without=("run", "ollama")),
    "schema": Case(schema=True),
    "adapter": Case(adapter=True),
    "reasoning": Case(schema=True, budget=9, without=NO_BUDGET),
    "everything": Case(tool=True, choice=True, adapter=True, budget=9, without=("run", *NO_BUDGET)),
}


class Entries:
    """A server and a model in this process, with the same settings."""

    def __init__(self, server: RunningServer, model: LocalModel, folder: Path) -> None:
        self.server, self.model, self.folder = server, model, folder

    def openai_body(self, case: Case) -> dict[str, Any]:
        body: dict[str, Any] = {
            "messages": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": TEXT},
            ],
            "max_tokens": LENGTH,
            "temperature": HEAT,
            "seed": SEED,
        }
        if case.tool:
            body["tools"] = [{"type": "function", "function": self.function}]
        if case.choice:
            body["tool_choice"] = "required"
        if case.schema:
            form = {"name": "city", "schema": CITY}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        if case.adapter:
            body["adapters"] = [{"name": "pirate", "scale": 0.5}]
        if case.budget is not None:
            body["thinking_budget"] = case.budget
            body["chat_template_kwargs"] = {"enable_thinking": True}
        return body

    @property
    def function(self) -> dict[str, Any]:
        return {"name": "weather", "parameters": CITY, "strict": True}

    def chat(self, case: Case) -> Answer:
        return of_openai(self.post("/v1/chat/completions", self.openai_body(case)))

    def batch(self, case: Case) -> Answer:
        line = {
            "custom_id": "a",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "default", **self.openai_body(case)},
        }
        url, files = self.server.url + "/v1", {"file": ("a.jsonl", json.dumps(line).encode())}
        file = httpx.post(f"{url}/files", files=files, data={"purpose": "batch"}).json()["id"]
        fields = {"endpoint": line["url"], "input_file_id": file, "completion_window": "24h"}
        batch = httpx.post(f"{url}/batches", json=fields).json()
        end = time.monotonic() + 60
        while batch["status"] not in ("completed", "failed") and time.monotonic() < end:
            time.sleep(0.1)
            batch = httpx.get(f"{url}/batches/{batch['id']}").json()
        assert batch["output_file_id"], batch
        content = httpx.get(f"{url}/files/{batch['output_file_id']}/content").text
        return of_openai(json.loads(content)["response"]["body"])

    def responses(self, case: Case) -> Answer:
        body: dict[str, Any] = {"instructions": SYSTEM, "input": TEXT, "max_output_tokens": LENGTH}
        body |= {"temperature": HEAT, "seed": SEED}
        if case.tool:
            body["tools"] = [{"type": "function", **self.function}]
        if case.choice:
            body["tool_choice"] = "required"
        if case.schema:
            body["text"] = {"format": {"type": "json_schema", "name": "city", "schema": CITY}}
        if case.adapter:
            body["adapters"] = [{"name": "pirate", "scale": 0.5}]
        answer = Answer()
        for item in self.post("/v1/responses", body)["output"]:
            if item["type"] == "message":
                answer.text += "".join(part["text"] for part in item["content"])
            elif item["type"] == "reasoning":
                answer.reasoning += "".join(part["text"] for part in item["content"])
            elif item["type"] == "function_call":
                answer.calls.append((item["name"], json.loads(item["arguments"])))
        return answer

    def anthropic(self, case: Case) -> Answer:
        body: dict[str, Any] = {
            "model": "default",
            "system": SYSTEM,
            "messages": [{"role": "user", "content": TEXT}],
            "max_tokens": LENGTH,
            "temperature": HEAT,
            "seed": SEED,
        }
        if case.tool:
            tool = {"name": "weather", "input_schema": CITY, "strict": True}
            body["tools"] = [tool]
        if case.choice:
            body["tool_choice"] = {"type": "any"}
        if case.schema:
            body["output_config"] = {"format": {"type": "json_schema", "schema": CITY}}
        if case.adapter:
            body["adapters"] = [{"name": "pirate", "scale": 0.5}]
        answer = Answer()
        for block in self.post("/v1/messages", body)["content"]:
            if block["type"] == "text":
                answer.text += block["text"]
            elif block["type"] == "thinking":
                answer.reasoning += block["thinking"]
            elif block["type"] == "tool_use":
                answer.calls.append((block["name"], block["input"]))
        return answer

    def ollama(self, case: Case) -> Answer:
        body: dict[str, Any] = {
            "model": "default",
            "messages": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": TEXT},
            ],
            "options": {"num_predict": LENGTH, "temperature": HEAT, "seed": SEED},
            "stream": False,
        }
        if case.tool:
            body["tools"] = [{"type": "function", "function": self.function}]
        if case.schema:
            body["format"] = CITY
        if case.adapter:
            body["adapters"] = [{"name": "pirate", "scale": 0.5}]
        message = self.post("/api/chat", body)["message"]
        calls = [call["function"] for call in message.get("tool_calls", [])]
        pairs = [(call["name"], call["arguments"]) for call in calls]
        return Answer(message["content"], message.get("thinking", ""), pairs)

    def python(self, case: Case) -> Answer:
        body = self.openai_body(case)
        adapters = {entry["name"]: entry["scale"] for entry in body.pop("adapters", [])}
        answer = self.model.chat(body.pop("messages"), adapters=adapters, **body)
        calls = [(call.name, json.loads(call.arguments)) for call in answer.tool_calls]
        return Answer(answer.text, answer.reasoning, calls)

    def run(self, case: Case, capsys: pytest.CaptureFixture[str]) -> Answer:
        words = ["run", "-m", STARTER, "-i", TEXT, "--json", "--system", SYSTEM]
        words += ["--chat-template", str(self.folder / "template.jinja")]
        words += ["--dtype", "float32", "--deterministic", "--threads", "1"]
        words += ["-n", str(LENGTH), "--temperature", str(HEAT), "--seed", str(SEED)]
        words += ["--adapter", "pirate=starter/pirate"]
        words += ["--apply", f"pirate={0.5 if case.adapter else 0}"]
        if case.schema:
            file = self.folder / "schema.json"
            file.write_text(json.dumps(CITY))
            words += ["--schema", str(file)]
        if case.budget is not None:
            words += ["--think", "--thinking-budget", str(case.budget)]
        capsys.readouterr()
        assert main(words) == 0
        answer = json.loads(capsys.readouterr().out)
        return Answer(answer["text"], answer.get("reasoning", ""))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        answer = self.server.post(path, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()


def of_openai(body: Mapping[str, Any]) -> Answer:
    message = body["choices"][0]["message"]
    calls = [call["function"] for call in message.get("tool_calls") or []]
    pairs = [(call["name"], json.loads(call["arguments"])) for call in calls]
    return Answer(message["content"] or "", message.get("reasoning_content") or "", pairs)


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Entries]:
    folder = tmp_path_factory.mktemp("entries")
    (folder / "template.jinja").write_text(TEMPLATE)
    settings: dict[str, Any] = {
        "dtype": "float32",
        "deterministic": True,
        "threads": 1,
        "adapters": ("pirate=starter/pirate",),
        "chat_template": str(folder / "template.jinja"),
    }
    with (
        serving(Settings(reference=STARTER, **settings)) as server,
        ostro.load(STARTER, **settings) as model,
    ):
        yield Entries(server, model, folder)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[TokenRequest]:
    """The requests that engines receive, of the server and of Python."""
    requests = list[TokenRequest]()
    local, remote = LocalEngine.generate, AsyncEngine.generate

    def generate(engine: LocalEngine, request: TokenRequest) -> Generator[TokenOutput]:
        requests.append(request)
        return local(engine, request)

    def submit(engine: AsyncEngine, request: TokenRequest) -> AsyncGenerator[TokenOutput, None]:
        requests.append(request)
        return remote(engine, request)

    monkeypatch.setattr(LocalEngine, "generate", generate)
    monkeypatch.setattr(AsyncEngine, "generate", submit)
    return requests


def processors_of(request: TokenRequest) -> Any:
    """The parameters of logits processors, without the name of the field that stated them."""
    processors = json.loads(json.dumps(request.sampling.processors))
    for parameter in processors.values():
        parameter.pop("field", None)
    return processors


@pytest.mark.parametrize("name", CASES)
def test_every_entry_has_the_same_answer(
    entries: Entries, sent: list[TokenRequest], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    ways: dict[str, Callable[[Case], Answer]] = {
        "chat": entries.chat,
        "batch": entries.batch,
        "responses": entries.responses,
        "anthropic": entries.anthropic,
        "ollama": entries.ollama,
        "python": entries.python,
        "run": lambda case: entries.run(case, capsys),
    }
    answers = {way: ask(case) for way, ask in ways.items() if way not in case.without}
    expected = answers["chat"]
    assert answers == dict.fromkeys(answers, expected)
    assert len(sent) == len(answers)
    assert {tuple(request.tokens) for request in sent} == {tuple(sent[0].tokens)}
    assert all(processors_of(request) == processors_of(sent[0]) for request in sent)
    scales = {sum(adapter.scale for adapter in request.adapters) for request in sent}
    assert scales == {0.5 if case.adapter else 0}
    if case.choice:
        [(called, arguments)] = expected.calls
        assert called == "weather" and arguments["city"] in ("Oslo", "Rome")
    if case.schema:
        assert json.loads(expected.text)["city"] in ("Oslo", "Rome")
    if case.budget is not None:
        assert expected.reasoning
