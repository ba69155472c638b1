"""`ostro launch`: what programs are started with, and what is refused before that."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ostro.core.errors import ModelNotFound, UsageError
from ostro.entrypoints.cli.launch.programs import PROGRAMS

from .launching import Home, ModelServer, model, run_in_place

OWN = ".local/state/ostro/launch/"
SECRET = "sk-secret-of-the-server"
ODD = 'org/ö\N{LLAMA} "7b" $HOME:{x}'
"""A name with characters that shells, JSON, TOML and YAML treat specially."""


@pytest.fixture
def serve() -> Iterator[Callable[..., ModelServer]]:
    """Start a server with models."""
    servers = []

    def start(*models: dict[str, Any], status: int = 200) -> ModelServer:
        fake = ModelServer([*models], status)
        servers.append(fake.start())
        return fake

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """An empty home folder. A program runs beside this process, which exits with its code."""
    made = Home(tmp_path / "home", tmp_path / "programs", tmp_path / "record")
    for folder in (made.path, made.programs, made.record):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(made.path))
    monkeypatch.setenv("RECORD", str(made.record))
    monkeypatch.setenv("PATH", f"{made.programs}:/usr/bin:/bin")
    for name in ("XDG_STATE_HOME", "OSTRO_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "execve", run_in_place)
    return made


def settings_of(name: str, home: Home) -> tuple[str, str]:
    """The base URL and the model of a program that was started, from where it reads them."""
    arguments, environment = home.started()
    files = {path.rpartition("/")[2]: text for path, text in home.files().items()}
    if name == "codex":
        found = tomllib.loads("\n".join(arguments[3::2]))
        return found["model_providers"]["ostro"]["base_url"], arguments[1]
    if name == "claude":
        assert environment["ANTHROPIC_API_KEY"] == ""
        assert environment["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == environment["ANTHROPIC_MODEL"]
        return environment["ANTHROPIC_BASE_URL"] + "/v1", environment["ANTHROPIC_MODEL"]
    if name == "opencode":
        found = json.loads(environment["OPENCODE_CONFIG_CONTENT"])
        assert found["model"] == found["small_model"]
        provider, _, chosen = found["model"].partition("/")
        assert chosen in found["provider"][provider]["models"]
        return found["provider"][provider]["options"]["baseURL"], chosen
    if name == "pi":
        url, chosen = re.findall(r'(?:baseUrl|id): (".+"),\n', files["ostro.js"])
        assert arguments[-1] == json.loads(chosen)
        return json.loads(url), json.loads(chosen)
    if name == "cline":
        (found,) = json.loads(files["providers.json"])["providers"].values()
        assert arguments[-1] == found["settings"]["model"] and found["updatedAt"]
        return found["settings"]["baseUrl"], found["settings"]["model"]
    if name == "continue":
        (found,) = yaml.safe_load(files["config.yaml"])["models"]
        return found["apiBase"], found["model"]
    if name == "hermes":
        found = yaml.safe_load(files["config.yaml"])["model"]
        return found["base_url"], found["default"]
    if name == "llm":
        (found,) = yaml.safe_load(files["extra-openai-models.yaml"])
        assert environment["LLM_MODEL"] == found["model_id"]
        return found["api_base"], found["model_name"]
    if name == "open-webui":
        assert (arguments, environment["ENABLE_OLLAMA_API"]) == (["serve"], "False")
        return environment["OPENAI_API_BASE_URL"], ODD
    url = environment["OPENAI_API_BASE" if name == "aider" else "OPENAI_BASE_URL"]
    if name == "qwen":
        return url, environment["OPENAI_MODEL"]
    (chosen,) = (word for word in arguments if word.startswith(("openai/", "local/")))
    return url, chosen.partition("/")[2]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_started_on_the_model(
    ostro, home: Home, serve: Callable[..., ModelServer], name: str
) -> None:
    home.install(PROGRAMS[name].command)
    server = serve(model(ODD), model("other"))
    ran = ostro("launch", name, "--url", server.url)
    assert (ran.code, ran.out) == (7, "")
    assert settings_of(name, home) == (f"{server.url}/v1", ODD)
    assert server.paths == ["/v1/models"] and server.keys == [None]
    assert home.started()[1][PROGRAMS[name].key_variable] == "none"


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_printed_script_does_the_same(
    ostro, home: Home, serve: Callable[..., ModelServer], name: str
) -> None:
    server = serve(model(ODD))
    words = ("launch", name, "--url", server.url, "--api-key", SECRET)
    after = ("--", "--print", "it's $HOME", "--", "")
    ran = ostro(*words, "--print", *after)
    assert ran.code == 0 and home.files() == {} and not list(home.record.iterdir())
    assert SECRET not in ran.out + ran.err
    home.install(PROGRAMS[name].command)
    assert ostro(*words, *after).code == 7
    started, files = home.started(), home.files()
    for path in files:
        (home.path / path).unlink()
    variables = {**os.environ, "OSTRO_API_KEY": SECRET}
    subprocess.run(["sh", "-c", ran.out], env=variables, timeout=60, check=False)
    assert home.files() == files and home.started()[0] == started[0]
    assert started[0][-4:] == [*after[1:]]
    names = {*started[1]} - {"OSTRO_API_KEY", "_", "PWD", "OLDPWD", "SHLVL"}
    assert {key: home.started()[1][key] for key in names} == {key: started[1][key] for key in names}


@pytest.mark.parametrize("name", PROGRAMS)
def test_only_own_files_are_written(
    ostro, home: Home, serve: Callable[..., ModelServer], name: str
) -> None:
    users = (".codex/config.toml", ".pi/agent/models.json", ".config/opencode/opencode.json")
    users += (".continue/config.yaml", ".hermes/config.yaml", ".cline/data/settings/providers.json")
    for path in users:
        (home.path / path).parent.mkdir(parents=True)
        (home.path / path).write_text("mine")
    home.install(PROGRAMS[name].command)
    server = serve(model("one"), model("two"))
    for chosen in ("one", "two"):  # files of an earlier start are written again
        assert ostro("launch", name, "--url", server.url, "--model", chosen).code == 7
        files = home.files()
        assert {files.pop(path) for path in users} == {"mine"}
        assert all(path.startswith(f"{OWN}{name}/") and chosen in files[path] for path in files)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_key_is_in_the_environment_alone(
    ostro, home: Home, serve: Callable[..., ModelServer], name: str
) -> None:
    home.install(PROGRAMS[name].command)
    server = serve(model("m"))
    ran = ostro("launch", name, "--url", server.url, "--api-key", SECRET)
    arguments, environment = home.started()
    assert server.keys == [f"Bearer {SECRET}"]
    assert [key for key, value in environment.items() if SECRET in value] == [
        PROGRAMS[name].key_variable
    ]
    assert SECRET not in ran.out + ran.err + " ".join(arguments) + str(home.files())
    if PROGRAMS[name].key_variable == "OSTRO_API_KEY":
        named = " ".join([*arguments, *home.files().values(), *environment.values()])
        assert "OSTRO_API_KEY" in named


def test_the_key_may_be_a_variable(
    ostro, home: Home, serve: Callable[..., ModelServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTRO_API_KEY", SECRET)
    server = serve(model("m"))
    ran = ostro("launch", "qwen", "--url", server.url, "--print")
    assert ran.code == 0 and 'OPENAI_API_KEY="$OSTRO_API_KEY"' in ran.out
    ostro("launch", "qwen", "--url", server.url, "--print", "--api-key", "other")
    assert server.keys == [f"Bearer {SECRET}", "Bearer other"]


def test_variables_of_the_user_do_not_apply(
    ostro, home: Home, serve: Callable[..., ModelServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "of-another-server")
    monkeypatch.setenv("EDITOR", "vi")
    home.install("gptme")
    assert ostro("launch", "gptme", "--url", serve(model("m")).url).code == 7
    environment = home.started()[1]
    assert "of-another-server" not in environment.values() and environment["EDITOR"] == "vi"


def test_a_model_is_chosen_by_name(ostro, home: Home, serve: Callable[..., ModelServer]) -> None:
    server = serve(model("qwen3-8b"), model("smollm2"))
    words = ("launch", "qwen", "--url", f"{server.url}/v1/", "--print")
    out = ostro(*words).out
    assert "OPENAI_MODEL=qwen3-8b" in out and f"OPENAI_BASE_URL={server.url}/v1 " in out
    words += ("--model",)
    assert "OPENAI_MODEL=smollm2" in ostro(*words, "smollm2").out
    ran = ostro(*words, "smolm2")
    assert (ran.code, ran.out) == (ModelNotFound.exit_code, "")
    assert "no model 'smolm2'; nearest: smollm2; it has qwen3-8b, smollm2" in ran.err
    assert server.paths == ["/v1/models"] * 3


@pytest.mark.parametrize(
    ("models", "status", "code", "text"),
    [
        ([], 200, ModelNotFound.exit_code, "has no model; start it with one: ostro serve"),
        ([model("m", None)], 200, UsageError.exit_code, "does not state the context length of m"),
        ([model("m")], 401, UsageError.exit_code, "name one with --api-key or OSTRO_API_KEY"),
        ([model("m")], 403, UsageError.exit_code, "refuses the API key"),
        ([model("m")], 500, UsageError.exit_code, "not a list of models (status 500); check --url"),
        ([{"name": "m"}], 200, UsageError.exit_code, "is not a list of models"),
    ],
)
def test_servers_without_a_usable_model_are_refused(
    ostro,
    home: Home,
    serve: Callable[..., ModelServer],
    models: list[dict[str, Any]],
    status: int,
    code: int,
    text: str,
) -> None:
    home.install("pi")
    ran = ostro("launch", "pi", "--url", serve(*models, status=status).url)
    assert (ran.code, ran.out) == (code, "") and text in ran.err
    assert home.files() == {} and not list(home.record.iterdir())


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "no-url", "http://[::1"])
def test_without_a_server_it_says_how_to_start_one(ostro, home: Home, url: str) -> None:
    home.install("pi")
    ran = ostro("launch", "pi", "--url", url)
    assert ran.code == 2 and home.files() == {}
    assert f"no server answers at {url} (" in ran.err and "`ostro serve`" in ran.err


@pytest.mark.parametrize(
    ("name", "context", "advice"),
    [
        ("opencode", 12_000, "32768"),
        ("opencode", 12_001, None),
        ("pi", 1024, "16384"),
        ("qwen", 32_768, "65536"),
    ],
)
def test_a_context_that_is_too_short_is_warned_of(
    ostro, home: Home, serve: Callable[..., ModelServer], name: str, context: int, advice: str
) -> None:
    ran = ostro("launch", name, "--url", serve(model("m", context)).url, "--print")
    assert ran.code == 0
    assert f"{PROGRAMS[name].prompt:,} tokens, the context of m {context:,}\n" in ran.err
    assert re.findall(r"warning: .* --context (\d+)\n", ran.err) == ([advice] if advice else [])


def test_a_prompt_that_was_not_measured_is_not_mentioned(
    ostro, home: Home, serve: Callable[..., ModelServer]
) -> None:
    assert ostro("launch", "llm", "--url", serve(model("m", 64)).url, "--print").err == ""


def test_a_program_that_is_not_installed_is_not_configured(
    ostro, home: Home, serve: Callable[..., ModelServer]
) -> None:
    ran = ostro("launch", "continue", "--url", serve(model("m")).url)
    assert ran.code == 2 and home.files() == {}
    assert "cn is not installed: npm install -g @continuedev/cli" in ran.err


def test_programs_are_listed(ostro, home: Home) -> None:
    home.install("cn")
    ran = ostro("launch")
    lines = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
    assert ran.code == 0 and {*lines} == {*PROGRAMS}
    assert lines["continue"] == f"{home.programs}/cn"
    assert lines["codex"] == "not installed: npm install -g @openai/codex"


def test_an_unknown_program_is_refused(ostro, home: Home) -> None:
    ran = ostro("launch", "codx")
    assert ran.code == 2 and "codx" in ran.err and "codex" in ran.err


def test_words_after_dashes_are_the_programs(
    ostro, home: Home, serve: Callable[..., ModelServer]
) -> None:
    home.install("qwen")
    words = ("--debug", "--url", "x", "--print", "--", "a b")
    assert ostro("launch", "qwen", "--url", serve(model("m")).url, "--", *words).code == 7
    assert home.started()[0] == ["--auth-type", "openai", *words]


def test_files_follow_the_folder_for_state(
    ostro,
    home: Home,
    serve: Callable[..., ModelServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home.install("pi")
    url = serve(model("m")).url
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert ostro("launch", "pi", "--url", url).code == 7
    file = tmp_path / "state/ostro/launch/pi/ostro.js"
    assert file.is_file() and str(file) in home.started()[0] and home.files() == {}
    monkeypatch.setenv("XDG_STATE_HOME", str(home.path / "its $tate"))
    script = ostro("launch", "pi", "--url", url, "--print").out
    subprocess.run(["sh", "-c", script], timeout=60, check=False)
    assert home.files() == {"its $tate/ostro/launch/pi/ostro.js": file.read_text()}
    monkeypatch.setenv("XDG_STATE_HOME", str(file))  # not a folder
    ran = ostro("launch", "pi", "--url", url)
    assert ran.code == 2 and str(file) in ran.err and "XDG_STATE_HOME" in ran.err


@pytest.mark.parametrize("name", ["pi", "continue", "hermes", "opencode", "codex"])
def test_programs_get_the_context(
    ostro, home: Home, serve: Callable[..., ModelServer], name: str
) -> None:
    ran = ostro("launch", name, "--url", serve(model("m", 12_340)).url, "--print")
    assert "12340" in ran.out
    assert name in ("hermes", "codex") or "3085" in ran.out  # a quarter for an answer


def test_the_program_replaces_the_process(
    apart, home: Home, serve: Callable[..., ModelServer]
) -> None:
    """`apart` ends with a report, which a process that was replaced does not print."""
    home.install("pi")
    url = serve(model("m")).url
    ran = apart("launch", "pi", "--url", url, "--", "hi")
    assert ran.code == 7 and "imported:" not in ran.err
    assert home.started()[0][-1] == "hi"
    home.install("pi", "#!/bin/sh\nkill -INT $$\n")
    assert apart("launch", "pi", "--url", url).code == -signal.SIGINT
    home.install("pi", "")
    ran = apart("launch", "pi", "--url", url)
    assert ran.code == 2 and "install it again: npm install" in ran.err
