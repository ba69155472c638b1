"""`ostro serve --config FILE`: options, keys and models of a TOML file, and --print-config."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from ostro.entrypoints.cli.config_file import (
    MASK,
    MODEL_KEYS,
    mask,
    model_actions,
    server_actions,
    type_of,
)
from ostro.entrypoints.operations.access.keys import read_keys

from .config_page import PAGE, page

GOOD = """
[server]
port = 8000
api_key = ["file-key"]
max_wait = 3
restart = false
threads = 2

[[models]]
name = "chat"
model = "org/chat"
quant = "q8_0"
max_seqs = 4
adapters = {sql = "./sql", style = "org/style"}
aliases = ["gpt-4", "*"]

[[models]]
model = "org/embed"
context = 512
default = true
load = "on demand"
"""
EVERY: dict[str, Any] = {
    "true or false": True,
    "integer": 7,
    "integer or string": 7,
    "number": 2.5,
    "string": "some",
    "list of strings": ["one", "two"],
    "table or list of strings": ["a=b"],
}
CHOSEN = {
    "restart": False,
    "root_path": "/below",
    "trusted_proxies": "127.0.0.1,10.0.0.0/8",
    "retention": "5m",
    "store_limit": "2GB",
    "generation_config": "none",
    "dtype": "float16",
    "log_format": "json",
    "log_requests_size": "5MB",
    "memory": "6GB",
    "adapter_memory": "1GB",
    "chat_template": __file__,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "server.toml"
    path.write_text(GOOD)
    return path


def test_a_file_has_the_options_of_the_server_and_of_each_model(
    ostro: Any, started: list[dict[str, Any]], file: Path
) -> None:
    assert ostro("serve", "--config", str(file)).code == 0
    (ran,) = started
    assert (ran["port"], ran["api_keys"], ran["restart"]) == (8000, ["file-key"], False)
    assert ran["max_wait"] == 3.0 and isinstance(ran["max_wait"], float)
    embed, chat = ran["models"]
    assert (embed.settings.reference, embed.settings.context) == ("org/embed", 512)
    assert embed.load == "on demand" and embed.aliases == ()
    assert (chat.settings.name, chat.settings.quant, chat.settings.max_seqs) == ("chat", "q8_0", 4)
    assert chat.settings.adapters == ("sql=./sql", "style=org/style")
    assert chat.aliases == ("gpt-4", "*") and chat.load == "start"
    assert embed.settings.quant is None and embed.settings.max_seqs == 32
    assert embed.settings.threads == chat.settings.threads == 2


def test_the_command_line_overrides_the_file(
    ostro: Any, started: list[dict[str, Any]], file: Path
) -> None:
    words = ["--api-key", "mine", "--max-wait", "9", "--restart", "--threads", "1"]
    assert ostro("serve", "--port", "1234", "--config", str(file), *words).code == 0
    assert ostro("from-config", str(file), "--port", "1234", *words).code == 0
    first, second = started
    assert first == second
    assert (first["port"], first["api_keys"], first["max_wait"]) == (1234, ["mine"], 9.0)
    assert first["restart"] is True and first["models"][0].settings.threads == 1


def test_a_file_without_models(ostro: Any, started: list[dict[str, Any]], file: Path) -> None:
    file.write_text("[server]\nport = 0\n")
    assert ostro("serve", "x=org/y", "--quant", "q4k", "--config", str(file)).code == 0
    assert ostro("from-config", str(file)).code == 0
    (named,), (starter,) = (ran["models"] for ran in started)
    assert (named.settings.name, named.settings.quant) == ("x", "q4k")
    assert starter.settings.reference == "starter"


@pytest.mark.parametrize(
    "words", [["org/x"], ["-m", "org/x"], ["--also", "x"], ["--quant", "4"], ["--max-seqs", "32"]]
)
def test_models_of_both(
    ostro: Any, started: list[dict[str, Any]], file: Path, words: list[str]
) -> None:
    ran = ostro("serve", "--config", str(file), *words)
    assert ran.code == 2 and "which has models" in ran.err and not started


def test_every_key_reaches_the_server(
    ostro: Any, started: list[dict[str, Any]], file: Path
) -> None:
    """No key of the tables is read and then ignored."""
    server, model = (
        {key: CHOSEN.get(key, EVERY[type_of(action)]) for key, action in actions.items()}
        for actions in (server_actions(), model_actions())
    )
    del server["admin_key_file"], server["api_key_file"], model["token_source"]
    lines = ["[server]", *(f"{key} = {written(value)}" for key, value in server.items())]
    lines += ["[[models]]", *(f"{key} = {written(value)}" for key, value in model.items())]
    file.write_text("\n".join(lines))
    assert ostro("serve", "--config", str(file)).code == 0
    file.write_text('[[models]]\nmodel = "org/other"\n')
    assert ostro("serve", "--config", str(file)).code == 0
    found, plain = started
    same = [key for key in plain if plain[key] == found[key]]
    assert not same
    settings, others = (vars(ran["models"][0].settings) for ran in (found, plain))
    assert {key for key in settings if settings[key] == others[key]} == {"token_source"}


def written(value: Any) -> str:
    """A value in TOML, which writes numbers, strings and lists as Python does."""
    return repr(value).lower() if isinstance(value, bool) else repr(value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[server", "invalid TOML: "),
        ("[servr]", "unknown table 'servr'; nearest: server"),
        ("port = 1", "unknown table 'port'"),
        ("server = 1", "[server]: expected a table"),
        ("[server]\nprot = 1", "[server]: unknown key 'prot'; nearest: port"),
        ('[server]\nport = "1"', "[server]: port: expected integer, got '1'"),
        ("[server]\nport = true", "[server]: port: expected integer, got True"),
        ("[server]\nport = 1.5", "[server]: port: expected integer, got 1.5"),
        ("[server]\nrestart = 1", "[server]: restart: expected true or false"),
        ('[server]\napi_key = "x"', "[server]: api_key: expected list of strings"),
        ("[server]\napi_key = [1]", "[server]: api_key: expected list of strings"),
        ('[server]\nthreads = "many"', "[server]: threads: 'many': expected a number or auto"),
        ('[server]\nstore = "a\\u0000b"', "[server]: store: contains a NUL character"),
        ("[server]\nconfig = 'x'", "[server]: unknown key 'config'"),
        ("[server]\nkeys = 'x'\n[[keys]]\nname = 'a'", "keys and [[keys]] exclude each other"),
        ("models = []", "models is empty"),
        ("[models]\nmodel = 'x'", "write [[models]] before each model"),
        ("models = ['x']", "[[models]] 1: expected a table"),
        ("[[models]]\nname = 'x'", "[[models]] 1: model is missing or empty"),
        ("[[models]]\nmodel = ''", "[[models]] 1: model is missing or empty"),
        ("[[models]]\nmodel_id = 'x'", "[[models]] 1: unknown key 'model_id'; nearest: model"),
        ("[[models]]\nmodel = 'x'\nport = 1", "[[models]] 1: unknown key 'port'"),
        ("[[models]]\nmodel = 'x'\nquant = 4", "[[models]] 1: quant: expected string, got 4"),
        ("[[models]]\nmodel = 'x'\ndtype = 'int4'", "dtype: 'int4' is not one of auto"),
        ("[[models]]\nmodel = 'x'\nload = 'later'", "load: expected one of start, on demand"),
        ("[[models]]\nmodel = 'x'\naliases = 'y'", "aliases: expected list of strings"),
        ("[[models]]\nmodel = 'x'\naliases = ['']", "an alias is empty"),
        ("[[models]]\nmodel = 'x'\naliases = ['default']", "always names the default model"),
        ("[[models]]\nmodel = 'x'\nadapters = {a = 1}", "adapters: expected string, got 1"),
        ("[[models]]\nmodel = 'x'\nadapters = {'a=b' = 'c'}", "'a=b' contains '='"),
        ("[[models]]\nmodel = 'x'\n[[models]]\nmodel = 'x'", "2 models have the name or alias 'x'"),
        (
            "[[models]]\nmodel = 'x'\n[[models]]\nmodel = 'y'\naliases = ['x']",
            "2 models have the name or alias 'x'",
        ),
        (
            "[[models]]\nmodel = 'x'\ndefault = true\n[[models]]\nmodel = 'y'\ndefault = true",
            "several models have default = true",
        ),
    ],
)
def test_invalid_files(
    ostro: Any, started: list[dict[str, Any]], file: Path, text: str, error: str
) -> None:
    file.write_text(text)
    ran = ostro("serve", "--config", str(file))
    assert ran.code == 2 and not started
    assert ran.err.startswith(f"ostro: --config {file}: ") and error in ran.err
    assert ran.err.count("\n") == 1
    file.write_text(GOOD)
    assert ostro("serve", "--config", str(file)).code == 0


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"a = " + b"[" * 100_000])
def test_unreadable_files(ostro: Any, file: Path, content: bytes | None) -> None:
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    ran = ostro("serve", "--config", str(file), "--print-config")
    assert ran.code == 2 and ran.err.startswith(f"ostro: --config {file}: ")
    assert ostro("serve", "--config", str(file.parent)).code == 2


def test_keys_in_the_file(ostro: Any, started: list[dict[str, Any]], file: Path) -> None:
    assert ostro("keys", "new", "alice", "--keys", str(file)).code == 0
    assert ostro("serve", "--config", str(file)).code == 0
    assert started[0]["keys"] == file
    (key,) = read_keys(file)
    assert key.name == "alice"
    assert ostro("keys", "check", str(file)).out.startswith("alice infer")


def test_printed_config_is_a_config(ostro: Any, started: list[dict[str, Any]], file: Path) -> None:
    strange = 'a "b" \\ \t é \x7f\n'
    ostro("serve", "--config", str(file), "--print-config", "--cors-origin", strange)
    words = ["--config", str(file), "--cors-origin", strange]
    printed = ostro("serve", *words, "--print-config").out
    assert "file-key" not in printed and not started
    assert tomllib.loads(printed)["server"]["cors_origin"] == [strange]
    copy = file.with_name("copy.toml")
    copy.write_text(printed)
    assert ostro("serve", "--config", str(copy), "--print-config").out == printed
    # A key of the printed file would be known to everybody.
    refused = ostro("serve", "--config", str(copy))
    assert refused.code == 2 and "--api-key ...: write the key" in refused.err
    assert ostro("serve", *words).code == 0
    assert ostro("serve", "--config", str(copy), "--api-key", "file-key").code == 0
    before, after = started
    names = dict.fromkeys(model.settings.reference for model in before["models"])
    assert list(names) == ["org/embed", "org/chat"]
    assert [each.settings.max_seqs for each in after["models"]] == [32, 4]
    assert {key: value for key, value in before.items() if key != "models"} == {
        key: value for key, value in after.items() if key != "models"
    }


def test_printed_config_of_the_command_line(ostro: Any) -> None:
    printed = ostro("serve", "x=org/y", "org/z", "--quant", "q4k", "--admin-key", "boss").out
    assert not printed
    words = ["x=org/y", "org/z", "--quant", "q4k", "--admin-key", "boss", "--print-config"]
    document = tomllib.loads(ostro("serve", *words).out)
    assert document["server"]["admin_key"] == "..."
    assert [each["name"] for each in document["models"]] == ["x", "org/z"]
    assert [each["quant"] for each in document["models"]] == ["q4k", "q4k"]


def test_the_page_lists_every_key() -> None:
    text = PAGE.read_text("utf-8")
    assert page(text) == text, "run: python tests/entrypoints/cli/config_page.py"
    for key in (*server_actions(), *model_actions(), *MODEL_KEYS):
        assert f"| `{key}` |" in text


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("token_source", "env:HF_TOKEN", "env:HF_TOKEN"),
        ("token_source", "literal:hf_x", MASK),
        ("api_key", ["a", "b"], [MASK, MASK]),
        ("admin_key", "a", MASK),
        ("host", "literal:a", "literal:a"),
    ],
)
def test_secrets_are_masked(key: str, value: Any, shown: Any) -> None:
    assert mask(key, value) == shown
