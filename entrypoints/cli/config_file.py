"""The config file of a server: TOML with the tables `[server]`, `[[keys]]` and `[[models]]`.

The keys of `[server]` and `[[models]]`, their types and their meaning are those of the options of
`ostro serve`, as argparse declares them. A key has the name of the attribute of the parsed options:
--max-seqs is `max_seqs`, --adapter is `adapters`, --adapters is `adapter_folder`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostro.core.errors import UsageError, nearest
from ostro.core.settings import Settings
from ostro.entrypoints.cli.options import (
    add_adapter_options,
    add_model_options,
    parse_settings,
    utf8_text,
)
from ostro.entrypoints.cli.server_options import add_server_options
from ostro.entrypoints.serve_config import LOADS, ModelOptions, check_names

TABLES = ("server", "keys", "models")
SHARED = ("threads", "plugin", "explain")
"""Options of models that apply to all models of a server: keys of `[server]`."""
MODEL_KEYS: Mapping[str, tuple[str, str]] = {
    "aliases": (
        "list of strings",
        'further names of the model in requests; "*" is every name that is not served '
        "(default: none)",
    ),
    "default": (
        "true or false",
        "serve requests that name no model (default: the first model of the file)",
    ),
    "load": (
        "string",
        'load the model at the "start" of the server, or "on demand": at its first request '
        "(default: start)",
    ),
}
"""Keys of `[[models]]` without an option: their types and meanings."""
NAMED = "NAME=REF"
"""Metavar of an option whose list may be a table in the file."""
SECRETS = ("api_key", "admin_key", "token_source")
MASK = "..."
"""What `--print-config` prints in the place of a secret."""


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """A config file with checked types. models: the values of each `[[models]]` by key."""

    path: Path
    server: Mapping[str, Any]
    models: Sequence[Mapping[str, Any]]


def server_actions() -> dict[str, argparse.Action]:
    """Return the options that are keys of `[server]`, by key."""
    parser = argparse.ArgumentParser(add_help=False)
    add_server_options(parser)
    shared = all_model_actions()
    found = {action.dest: action for action in parser._actions}
    return {**found, **{key: shared[key] for key in SHARED}}


def model_actions() -> dict[str, argparse.Action]:
    """Return the options that are keys of `[[models]]`, by key."""
    return {key: action for key, action in all_model_actions().items() if key not in SHARED}


def all_model_actions() -> dict[str, argparse.Action]:
    parser = argparse.ArgumentParser(add_help=False)
    add_model_options(parser)
    add_adapter_options(parser)
    # Of two options with one attribute, such as --placement and --offload, the first is general.
    found = {action.dest: action for action in reversed(parser._actions)}
    return dict(reversed(found.items()))


def read_config(path: Path) -> ConfigFile:
    """Read a config file. Raises UsageError, with the line or with the table and key at fault."""
    from ostro.entrypoints.operations.access.keys import parse_toml, read_text

    option = f"--config {path}"
    try:
        document = parse_toml(read_text(path))
        for name in document.keys() - {*TABLES}:
            near = nearest(name, TABLES, n=1)
            raise UsageError(f"unknown table {name!r:.80}{near}; write options below [server]")
        server = convert_table("[server]", document.get("server", {}), server_actions())
        if "keys" in document:
            if "keys" in server:
                raise UsageError("[server] keys and [[keys]] exclude each other; remove one")
            server["keys"] = path
        return ConfigFile(path=path, server=server, models=convert_models(document))
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def convert_models(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the checked values of each `[[models]]`. Raises UsageError."""
    tables = document.get("models")
    if tables is None:
        return []
    if not isinstance(tables, list):
        raise UsageError("models is not a list of tables; write [[models]] before each model")
    if not tables:
        raise UsageError("models is empty; write [[models]] before each model, or remove it")
    actions = model_actions()
    found = [convert_model(f"[[models]] {i}", table, actions) for i, table in enumerate(tables, 1)]
    if sum(values.get("default", False) for values in found) > 1:
        raise UsageError("several models have default = true; one is the default")
    return found


def convert_model(where: str, table: Any, actions: Mapping[str, argparse.Action]) -> dict[str, Any]:
    """Return the checked values of a model by key. Raises UsageError."""
    found = convert_table(where, table, actions, MODEL_KEYS)
    if not found.get("model") and "dummy_weights" not in found:
        raise UsageError(f"{where}: model is missing or empty; write model = REF")
    if found.get("load", "start") not in LOADS:
        raise UsageError(f"{where}: load: expected one of {', '.join(LOADS)}")
    return found


def convert_table(
    where: str,
    table: Any,
    actions: Mapping[str, argparse.Action],
    others: Mapping[str, tuple[str, str]] = {},
) -> dict[str, Any]:
    """Return the values of a table as the command line would parse them. Raises UsageError."""
    if not isinstance(table, dict):
        raise UsageError(f"{where}: expected a table")
    found = {}
    for key, value in table.items():
        try:
            if key in actions:
                found[key] = convert(actions[key], value)
            elif key in others:
                check_type(others[key][0], value)
                found[key] = value
            else:
                near = nearest(key[:80], [*actions, *others], n=1)
                raise UsageError(f"unknown key {key!r:.80}{near}")
        except UsageError as error:
            named = "" if key not in actions and key not in others else f"{key}: "
            raise UsageError(f"{where}: {named}{error}") from None
    return found


def convert(action: argparse.Action, value: Any) -> Any:
    """Return a value as an option would store it. Raises UsageError for another type."""
    if action.metavar == NAMED and isinstance(value, dict):
        for name in value:
            if "=" in name:
                raise UsageError(f"{name!r:.80} contains '='")
            check_type("string", value[name])
        return [f"{name}={reference}" for name, reference in value.items()]
    check_type(type_of(action), value)
    if action.choices is not None and value not in action.choices:
        raise UsageError(f"{value!r:.80} is not one of {', '.join(action.choices)}")
    if action.type in (None, int, float) or not callable(action.type):
        return float(value) if action.type is float else value
    try:
        return action.type(str(value))
    except argparse.ArgumentTypeError as error:
        raise UsageError(str(error)) from None


def type_of(action: argparse.Action) -> str:
    """Return the TOML type of an option's value."""
    if action.nargs == 0:
        return "true or false"
    if isinstance(action, argparse._AppendAction):
        return "table or list of strings" if action.metavar == NAMED else "list of strings"
    if action.type in (int, float):
        return "integer" if action.type is int else "number"
    return "string" if action.type in (None, Path, utf8_text) else "integer or string"


def check_type(name: str, value: Any) -> None:
    """Raise UsageError unless a TOML value has a type of `type_of`."""
    if name == "true or false":
        fits = isinstance(value, bool)
    elif name.endswith("list of strings"):
        fits = isinstance(value, list) and all(isinstance(each, str) for each in value)
    else:
        types: Mapping[str, tuple[type, ...]] = {
            "integer": (int,),
            "number": (int, float),
            "string": (str,),
            "integer or string": (int, str),
        }
        fits = isinstance(value, types[name]) and not isinstance(value, bool)
    if not fits:
        raise UsageError(f"expected {name}, got {value!r:.80}")
    if any("\0" in text for text in (value if isinstance(value, list) else [str(value)])):
        raise UsageError("contains a NUL character")


def configure(args: argparse.Namespace) -> list[ModelOptions]:
    """Set the options that only the config file states, and return its models, default first.

    `args.given` has the options that the command line states. Raises UsageError for an invalid
    file, and if both the command line and the file select models.
    """
    config = read_config(args.config)
    for key, value in config.server.items():
        if key not in args.given:
            setattr(args, key, value)
    if not config.models:
        return []
    actions = model_actions()
    for key in ("models", "also", *actions):
        if key in args.given:
            name = actions[key].option_strings[-1] if key in actions else "a model"
            raise UsageError(
                f"{name} excludes --config {args.config}, which has models; write it in the file"
            )
    values = sorted(config.models, key=lambda each: not each.get("default", False))
    try:
        models = [make_model(each, args) for each in values]
        check_names(models)
    except UsageError as error:
        raise UsageError(f"--config {args.config}: {error}") from None
    return models


def make_model(values: Mapping[str, Any], args: argparse.Namespace) -> ModelOptions:
    """Return a model of the file. `args` has the options that all models share."""
    options = {key: action.default for key, action in model_actions().items()}
    options.update({key: getattr(args, key) for key in (*SHARED, "adapter_root")})
    try:
        settings = parse_settings(argparse.Namespace(**{**options, **values}))
    except UsageError as error:
        raise UsageError(f"model {values.get('model')}: {error}") from None
    aliases = tuple(values.get("aliases", ()))
    return ModelOptions(settings=settings, aliases=aliases, load=values.get("load", "start"))


def config_text(args: argparse.Namespace, models: Sequence[ModelOptions]) -> str:
    """Return the config file of parsed options and models. Secrets are replaced with `MASK`."""
    from ostro.entrypoints.open import name_of

    server = {key: getattr(args, key) for key in server_actions()}
    lines = ["[server]", *assignments(server)]
    for model in models:
        values = {
            **model_values(model.settings),
            "name": name_of(model.settings),
            "aliases": model.aliases,
            "load": model.load,
        }
        lines += ["", "[[models]]", *assignments(values)]
    return "\n".join(lines) + "\n"


def model_text(settings: Settings, plugins: Sequence[str] = ()) -> str:
    """Return the config file of one model, without the options that have their default."""
    shared = {"threads": settings.threads, "plugin": list(plugins)}
    default = model_values(Settings())
    values = model_values(settings)
    changed = {key: value for key, value in values.items() if value != default[key]}
    lines = ["[server]", *assignments(shared), "", "[[models]]", *assignments(changed)]
    return "\n".join(lines) + "\n"


def model_values(settings: Settings) -> dict[str, Any]:
    """Return the options of a model by key."""
    return {
        key: settings.reference if key == "model" else getattr(settings, key)
        for key in model_actions()
    }


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table; options without a value are left out."""
    found = {key: value for key, value in values.items() if value not in (None, [], ())}
    return [f"{key} = {toml(mask(key, value))}" for key, value in found.items()]


def mask(key: str, value: Any) -> Any:
    """Return a value without secrets."""
    is_public = key == "token_source" and not str(value).startswith("literal:")
    if key not in SECRETS or is_public:
        return value
    return [MASK] * len(value) if isinstance(value, list) else MASK


def toml(value: Any) -> str:
    """Return a value in TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    # JSON's strings are TOML's, except that TOML escapes DEL as well.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
