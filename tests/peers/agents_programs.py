"""Coding agents and chat programs: their versions, their settings for a server, and their calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents_server import MADE, PROMPT
from echo.turns import Call
from environments import default_root

MODEL = "echo"
CONTEXT = 1 << 20
COMMAND = f"touch {MADE}"
KEY = "none"
SETTINGS = {
    **{"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "seed": 1, "max_tokens": 900},
    **{"num_ctx": 65536, "num_keep": 24, "repeat_penalty": 1.1, "repeat_last_n": 64},
    **{"mirostat": 0, "mirostat_eta": 0.1, "mirostat_tau": 5, "tfs_z": 1, "think": True},
    **{"keep_alive": "5m", "use_mmap": True, "stop": ["END"]},
    **{"frequency_penalty": 0.1, "presence_penalty": 0.1},
}
"""The advanced parameters of Open WebUI, with neutral values where a server may lack one."""


@dataclass(frozen=True)
class Place:
    """Where a program runs: the server's URL, its home, its working folder and that of its
    temporary files, all empty.
    """

    url: str
    home: Path
    work: Path
    temporary: Path

    @property
    def base(self) -> str:
        return f"{self.url}/v1"

    @property
    def settings(self) -> str:
        return json.dumps(SETTINGS)

    def write(self, name: str, content: Any) -> None:
        """Write a file of the home: a text, or JSON."""
        file = self.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))


@dataclass(frozen=True)
class Program:
    """A program: the API it uses, the call that the model writes, and how the program is run.

    peer: the name of its environment. setup: writes its settings. before: a command that runs
    first. turns: the requests that are answered with the call or with the text behind it.
    """

    name: str
    version: str
    wire: str
    call: Call
    command: tuple[str, ...]
    setup: Callable[[Place], None] = lambda place: None
    environment: Callable[[Place], Mapping[str, str]] = lambda place: {}
    peer: str = "agents"
    before: tuple[str, ...] = ()
    turns: int = 2

    def commands(self, place: Place) -> list[list[str]]:
        """The command lines, with the program's file in its environment."""
        return [self.argv(place, each) for each in (self.before, self.command) if each]

    def argv(self, place: Place, command: tuple[str, ...]) -> list[str]:
        """A command line. Raises FileNotFoundError if the program is not installed."""
        folder = default_root() / self.peer
        files = [folder / "node_modules/.bin" / command[0], folder / "bin" / command[0]]
        file = next((file for file in files if file.exists()), None)
        if file is None:
            raise FileNotFoundError(f"{self.name}: run tests/peers/environments.py {self.peer}")
        return [str(file), *(part.format(place=place) for part in command[1:])]


def codex(place: Place) -> None:
    place.write(
        ".codex/config.toml",
        f'model = "{MODEL}"\nmodel_provider = "ostro"\ncheck_for_update_on_startup = false\n'
        f'[model_providers.ostro]\nname = "ostro"\nbase_url = "{place.base}"\n'
        'env_key = "OSTRO_KEY"\nwire_api = "responses"\n[analytics]\nenabled = false\n',
    )


def opencode(package: str) -> Callable[[Place], None]:
    """The settings of opencode with a package of the AI SDK."""

    def setup(place: Place) -> None:
        limit = {"context": CONTEXT, "output": 4096}
        model = {"name": MODEL, "limit": limit, "reasoning": True, "tool_call": True}
        options = {"baseURL": place.base, "apiKey": KEY}
        provider = {"npm": package, "name": "ostro", "options": options, "models": {MODEL: model}}
        settings = {
            "provider": {"ostro": provider},
            "model": f"ostro/{MODEL}",
            "small_model": f"ostro/{MODEL}",
            "autoupdate": False,
            "share": "disabled",
        }
        place.write(".config/opencode/opencode.json", settings)

    return setup


def pi(api: str) -> Callable[[Place], None]:
    """The settings of pi with an API."""

    def setup(place: Place) -> None:
        model = {"id": MODEL, "contextWindow": CONTEXT, "maxTokens": 4096, "reasoning": True}
        url = place.url if api == "anthropic-messages" else place.base
        provider = {"baseUrl": url, "api": api, "apiKey": KEY, "models": [model]}
        place.write(".pi/agent/models.json", {"providers": {"ostro": provider}})

    return setup


def qwen(place: Place) -> None:
    settings = {
        "model": {"generationConfig": {"contextWindowSize": CONTEXT}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"disableAutoUpdate": True},
    }
    place.write(".qwen/settings.json", settings)


def continues(provider: str) -> Callable[[Place], None]:
    """The settings of Continue with a provider."""

    def setup(place: Place) -> None:
        url = place.url if provider == "ollama" else f"{place.base}/"
        place.write(
            ".continue/config.yaml",
            "name: local\nversion: 1.0.0\nschema: v1\nmodels:\n"
            f"  - name: {MODEL}\n    provider: {provider}\n    model: {MODEL}\n"
            f"    apiBase: {url}\n    apiKey: {KEY}\n    roles: [chat]\n"
            f"    capabilities: [tool_use]\n    defaultCompletionOptions:\n"
            f"      contextLength: {CONTEXT}\n      maxTokens: 4096\n",
        )

    return setup


def llm(place: Place) -> None:
    place.write(
        "llm/extra-openai-models.yaml",
        f"- model_id: {MODEL}\n  model_name: {MODEL}\n  api_base: {place.base}\n"
        "  supports_tools: true\n  supports_schema: true\n",
    )


def hermes(place: Place) -> None:
    place.write(
        ".hermes/config.yaml",
        f"model:\n  default: {MODEL}\n  provider: custom\n  base_url: {place.base}\n"
        f"  api_key: {KEY}\n  context_length: {CONTEXT}\n",
    )


def openai_variables(place: Place) -> Mapping[str, str]:
    return {
        "OPENAI_BASE_URL": place.base,
        "OPENAI_API_BASE": place.base,
        "OPENAI_API_KEY": KEY,
        "OPENAI_MODEL": MODEL,
    }


EDIT = f"{MADE}\n```\n<<<<<<< SEARCH\n=======\nmade\n>>>>>>> REPLACE\n```\n"
MAKE = "def make(name: str) -> str:\n    open(name, 'w').close()\n    return name + ' is made'\n"
OPENCODE = Call("bash", {"command": COMMAND, "description": "Makes a file"})
PI = Call("bash", {"command": COMMAND})
CONTINUE = Call("Bash", {"command": COMMAND})
WEBUI = str(Path(__file__).with_name("agents_webui.py"))
LITELLM = str(Path(__file__).with_name("agents_litellm.py"))
GPTME = ("gptme", "--non-interactive", "--no-confirm", "-m", f"local/{MODEL}")

PROGRAMS = (
    Program(
        name="codex",
        version="0.171.0",
        wire="responses",
        call=Call("exec_command", {"cmd": COMMAND}),
        setup=codex,
        environment=lambda place: {"OSTRO_KEY": KEY},
        command=(*("codex", "exec", "--skip-git-repo-check", "-s", "danger-full-access", PROMPT),),
    ),
    *(
        Program(
            name="opencode",
            version="1.18.33",
            wire=wire,
            call=OPENCODE,
            setup=opencode(package),
            command=("opencode", "run", PROMPT),
            environment=lambda place: {"OPENCODE_DISABLE_MODELS_FETCH": "1"},
        )
        for wire, package in (
            ("chat", "@ai-sdk/openai-compatible"),
            ("responses", "@ai-sdk/openai"),
            ("messages", "@ai-sdk/anthropic"),
        )
    ),
    *(
        Program(
            name="pi",
            version="0.74.2",
            wire=wire,
            call=PI,
            setup=pi(api),
            command=("pi", "--offline", "--provider", "ostro", "--model", MODEL, "-p", PROMPT),
        )
        for wire, api in (
            ("chat", "openai-completions"),
            ("messages", "anthropic-messages"),
            ("responses", "openai-responses"),
        )
    ),
    Program(
        name="qwen-code",
        version="0.15.10",
        wire="chat",
        call=Call("run_shell_command", {"command": COMMAND, "is_background": False}),
        setup=qwen,
        environment=openai_variables,
        command=("qwen", "--auth-type", "openai", "-y", "-p", PROMPT),
    ),
    Program(
        name="cline",
        version="3.0.65",
        wire="chat",
        call=Call("run_commands", {"commands": [COMMAND]}),
        before=(
            *("cline", "auth", "openai-compatible", "--apikey", KEY, "--modelid", MODEL),
            *("--baseurl", "{place.base}"),
        ),
        command=(
            *("cline", "-P", "openai-compatible", "-m", MODEL, "--auto-approve", "true"),
            *("--timeout", "120", PROMPT),
        ),
    ),
    *(
        Program(
            name="continue",
            version="1.5.47",
            wire=wire,
            call=CONTINUE,
            setup=continues(provider),
            environment=lambda place: {"CONTINUE_TELEMETRY_ENABLED": "0"},
            command=(
                *("cn", "--config", "{place.home}/.continue/config.yaml", "--auto"),
                *("-p", PROMPT),
            ),
        )
        for wire, provider in (
            ("chat", "openai"),
            ("messages", "anthropic"),
            ("chat, as ollama", "ollama"),
        )
    ),
    Program(
        name="gptme",
        version="0.35.1",
        wire="chat, calls as text",
        call=Call(text=f"```shell\n{COMMAND}\n```\n"),
        environment=openai_variables,
        command=(*GPTME, PROMPT),
    ),
    Program(
        name="gptme",
        version="0.35.1",
        wire="chat",
        call=Call("shell", {"command": COMMAND}),
        environment=openai_variables,
        command=(*GPTME, "--tool-format", "tool", PROMPT),
    ),
    Program(
        name="aider",
        version="0.86.2",
        wire="chat, edits as text",
        call=Call(text=EDIT),
        environment=openai_variables,
        command=(
            *("aider", "--model", f"openai/{MODEL}", "--edit-format", "diff", "--no-git"),
            *("--yes-always", "--no-check-update", "--no-show-model-warnings"),
            *("--analytics-disable", "--message", PROMPT),
        ),
        peer="agents-aider",
        turns=1,
    ),
    Program(
        name="llm",
        version="0.36",
        wire="chat",
        call=Call("make", {"name": MADE}),
        setup=llm,
        environment=lambda place: {"LLM_USER_PATH": f"{place.home}/llm", "OPENAI_API_KEY": KEY},
        command=("llm", "-m", MODEL, "--functions", MAKE, PROMPT),
        peer="agents-llm",
    ),
    *(
        Program(
            name="open-webui",
            version="0.12.4",
            wire=wire,
            call=Call("make", {"name": MADE}),
            command=("python", WEBUI, api, "{place.url}", PROMPT, *params),
            peer="agents-webui",
        )
        for wire, api, params in (
            ("chat", "openai", ()),
            ("chat, with settings", "openai", ("{place.settings}",)),
            ("ollama", "ollama", ()),
            ("ollama, with settings", "ollama", ("{place.settings}",)),
        )
    ),
    Program(
        name="hermes",
        version="0.19.0",
        wire="chat",
        call=Call("terminal", {"command": COMMAND}),
        setup=hermes,
        command=("hermes", "chat", "-Q", "--yolo", "-q", PROMPT),
        peer="agents-hermes",
    ),
    *(
        Program(
            name="litellm",
            version="1.108.7",
            wire=wire,
            call=Call("make", {"name": MADE}),
            command=("python", LITELLM, f"{provider}/{MODEL}", base, PROMPT),
            environment=lambda place: {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            peer="agents-litellm",
        )
        for wire, provider, base in (
            ("chat", "openai", "{place.base}"),
            ("chat, as vLLM", "hosted_vllm", "{place.base}"),
            ("messages", "anthropic", "{place.url}"),
            ("ollama", "ollama_chat", "{place.url}"),
        )
    ),
)
