"""The programs that `ostro launch` starts, and how each of them is configured for a server.

No file of the user is changed: a program gets its settings as arguments, as environment variables,
or in a file of a folder that belongs to `ostro launch`. The API key is in the environment alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from ostro.core.env import API_KEY

MAX_OUTPUT = 8192
"""The most tokens of an answer that programs are configured for."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A model of a server, and the folder for a program's files.

    url: of the server, without /v1. context: in tokens.
    """

    url: str
    model: str
    context: int
    folder: Path

    @property
    def api(self) -> str:
        """The base URL of OpenAI's API."""
        return f"{self.url}/v1"

    @property
    def output(self) -> int:
        """The most tokens of an answer."""
        return min(MAX_OUTPUT, self.context // 4)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a program is started with: arguments, environment variables, and files by path."""

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[Path, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program.

    command      its executable
    install      the command that installs it
    prompt       tokens of its first prompt, counted with a small vocabulary; None if not measured
    key_variable the environment variable in which it gets the API key
    configure    its setup for a model of a server
    """

    command: str
    install: str
    prompt: int | None = None
    key_variable: str = "OPENAI_API_KEY"
    configure: Callable[[Target], Setup]


def quote(text: str) -> str:
    """A string as JSON, TOML and YAML write it."""
    return json.dumps(text, ensure_ascii=False)


def codex(target: Target) -> Setup:
    provider = (
        f'{{name="ostro", base_url={quote(target.api)}, env_key={quote(API_KEY.name)}, '
        'wire_api="responses"}'
    )
    settings = (
        'model_provider="ostro"',
        f"model_providers.ostro={provider}",
        f"model_context_window={target.context}",
        'web_search="disabled"',
    )
    options = (word for setting in settings for word in ("-c", setting))
    return Setup(arguments=("-m", target.model, *options))


def claude(target: Target) -> Setup:
    return Setup(
        environment={
            "ANTHROPIC_BASE_URL": target.url,
            # The user's key of Anthropic would be sent to the server.
            "ANTHROPIC_API_KEY": "",
            "ANTHROPIC_MODEL": target.model,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": target.model,
        }
    )


def opencode(target: Target) -> Setup:
    limit = {"context": target.context, "output": target.output}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": target.api, "apiKey": f"{{env:{API_KEY.name}}}"},
        "models": {target.model: {"limit": limit}},
    }
    model = f"ostro/{target.model}"
    config = {"provider": {"ostro": provider}, "model": model, "small_model": model}
    text = json.dumps(config, ensure_ascii=False)
    return Setup(environment={"OPENCODE_CONFIG_CONTENT": text})


PI = """\
export default function (pi) {{
  pi.registerProvider("ostro", {{
    baseUrl: {api},
    api: "openai-completions",
    apiKey: process.env.{key},
    models: [
      {{
        id: {model},
        name: {model},
        reasoning: false,
        input: ["text"],
        cost: {{ input: 0, output: 0, cacheRead: 0, cacheWrite: 0 }},
        contextWindow: {context},
        maxTokens: {output},
      }},
    ],
  }});
}}
"""


def pi(target: Target) -> Setup:
    file = target.folder / "ostro.js"
    return Setup(
        arguments=("-e", str(file), "--provider", "ostro", "--model", target.model),
        files={file: fill(PI, target)},
    )


def qwen(target: Target) -> Setup:
    return Setup(
        arguments=("--auth-type", "openai"),
        environment={"OPENAI_BASE_URL": target.api, "OPENAI_MODEL": target.model},
    )


def cline(target: Target) -> Setup:
    provider = "openai-compatible"
    settings = {"provider": provider, "model": target.model, "baseUrl": target.api}
    # Cline ignores a provider that lacks the time of its last change.
    entry = {"settings": settings, "updatedAt": "2026-01-01T00:00:00Z", "tokenSource": "manual"}
    config = {"version": 1, "lastUsedProvider": provider, "providers": {provider: entry}}
    return Setup(
        arguments=("--data-dir", str(target.folder), "-P", provider, "-m", target.model),
        files={target.folder / "settings/providers.json": f"{json.dumps(config, indent=2)}\n"},
    )


CONTINUE = """\
name: ostro
version: 1.0.0
schema: v1
models:
  - name: {model}
    provider: openai
    model: {model}
    apiBase: {api}
    apiKey: ${{{{ secrets.{key} }}}}
    roles: [chat, edit, apply]
    capabilities: [tool_use]
    defaultCompletionOptions:
      contextLength: {context}
      maxTokens: {output}
"""


def continue_cli(target: Target) -> Setup:
    file = target.folder / "config.yaml"
    return Setup(arguments=("--config", str(file)), files={file: fill(CONTINUE, target)})


HERMES = """\
model:
  default: {model}
  provider: custom
  base_url: {api}
  api_key: ${{{key}}}
  context_length: {context}
"""


def hermes(target: Target) -> Setup:
    # The settings of this folder replace those of ~/.hermes/config.yaml, key by key.
    return Setup(
        environment={"HERMES_MANAGED_DIR": str(target.folder)},
        files={target.folder / "config.yaml": fill(HERMES, target)},
    )


def aider(target: Target) -> Setup:
    return Setup(
        arguments=("--model", f"openai/{target.model}", "--no-show-model-warnings"),
        environment={"OPENAI_API_BASE": target.api},
    )


def gptme(target: Target) -> Setup:
    # gptme prefers OPENAI_API_BASE, which may be set for aider.
    return Setup(
        arguments=("-m", f"local/{target.model}"),
        environment={"OPENAI_API_BASE": target.api, "OPENAI_BASE_URL": target.api},
    )


LLM = """\
- model_id: {model}
  model_name: {model}
  api_base: {api}
  api_key_name: ostro
  supports_tools: true
  supports_schema: true
"""


def llm(target: Target) -> Setup:
    return Setup(
        environment={"LLM_USER_PATH": str(target.folder), "LLM_MODEL": target.model},
        files={target.folder / "extra-openai-models.yaml": fill(LLM, target)},
    )


def open_webui(target: Target) -> Setup:
    # Its connection to Ollama would take models of equal names.
    return Setup(
        arguments=("serve",),
        environment={"OPENAI_API_BASE_URL": target.api, "ENABLE_OLLAMA_API": "False"},
    )


def fill(template: str, target: Target) -> str:
    """A file's text for a model of a server."""
    return template.format(
        api=quote(target.api),
        model=quote(target.model),
        key=API_KEY.name,
        context=target.context,
        output=target.output,
    )


PROGRAMS: Mapping[str, Program] = MappingProxyType(
    {
        "codex": Program(
            command="codex",
            install="npm install -g @openai/codex",
            prompt=16_000,
            key_variable=API_KEY.name,
            configure=codex,
        ),
        "claude": Program(
            command="claude",
            install="npm install -g @anthropic-ai/claude-code",
            key_variable="ANTHROPIC_AUTH_TOKEN",
            configure=claude,
        ),
        "opencode": Program(
            command="opencode",
            install="npm install -g opencode-ai",
            prompt=12_000,
            key_variable=API_KEY.name,
            configure=opencode,
        ),
        "pi": Program(
            command="pi",
            install="npm install -g @earendil-works/pi-coding-agent",
            prompt=2_000,
            key_variable=API_KEY.name,
            configure=pi,
        ),
        "qwen": Program(
            command="qwen",
            install="npm install -g @qwen-code/qwen-code",
            prompt=33_000,
            configure=qwen,
        ),
        "cline": Program(
            command="cline",
            install="npm install -g cline",
            prompt=9_000,
            configure=cline,
        ),
        "continue": Program(
            command="cn",
            install="npm install -g @continuedev/cli",
            prompt=4_000,
            key_variable=API_KEY.name,
            configure=continue_cli,
        ),
        "hermes": Program(
            command="hermes",
            install="pip install hermes-agent",
            prompt=24_000,
            key_variable=API_KEY.name,
            configure=hermes,
        ),
        "aider": Program(command="aider", install="pip install aider-chat", configure=aider),
        "gptme": Program(
            command="gptme", install="pip install gptme", prompt=16_000, configure=gptme
        ),
        "llm": Program(command="llm", install="pip install llm", configure=llm),
        "open-webui": Program(
            command="open-webui", install="pip install open-webui", configure=open_webui
        ),
    }
)
"""The programs by the name that `ostro launch` gives them."""
