"""Checks of a plugin's config and package: rejected values, imports, import time."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, replace
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from ostro.core.config import NEUTRAL, ModelConfig
from ostro.core.errors import ConfigError, PluginError
from ostro.core.plugins import discovery
from ostro.core.plugins.manager import PluginInfo
from ostro.core.records import resolve
from ostro.plugins.authoring.surface import breach, imports
from ostro.plugins.conformance.checks import check, every, has_config
from ostro.plugins.conformance.golden import Golden
from ostro.plugins.conformance.parity import Subject
from ostro.plugins.conformance.weights import construct, read_config

SECONDS = 0.5
"""The CPU time that importing a plugin may take."""

TIED = "tie_word_embeddings"
"""If nested configs contradict each other here, the version of transformers decides."""

Keys = tuple[str, ...]
"""The path of a value in nested objects."""

HEAVY = ("torch", "transformers", "triton", "numpy")


@check(has_config)
def config_round_trips(tiny: Subject) -> None:
    """Fields equal the values in the reference's config.json, and survive a JSON round trip."""
    config = tiny.config
    kept = {f.name for f in fields(config)} & {*tiny.shape} & {*tiny.raw_config}
    for name in kept:
        ours, theirs = getattr(config, name), tiny.shape[name]
        if not isinstance(theirs, dict):
            assert ours == (tuple(theirs) if isinstance(theirs, list) else theirs), f"{name = }"
    needed = {f.name for f in fields(config) if f.default is f.default_factory is MISSING}
    if needed <= {*tiny.raw_config}:
        again = json.loads(json.dumps(asdict(config)))
        assert type(config).from_hf(again) == config


@check(every)
def mistyped_config_values_are_rejected_by_field_name(tiny: Subject) -> None:
    cls, raw = type(tiny.config), tiny.raw_config
    hints = get_type_hints(cls)
    numbers = [n for n, hint in hints.items() if hint in (int, float) and n in raw]
    assert numbers, f"{cls.__name__} has no field that is a number in config.json"
    for name in numbers:
        with pytest.raises(ConfigError, match=name):
            read_config(tiny.record, {**raw, name: "many"}, tiny.plugins)


@check(has_config)
def unimplemented_config_keys_are_rejected_by_name(tiny: Subject) -> None:
    """The keys in `unimplemented` are; any other that is not read has no effect on the reference.

    Keys that are numbers or booleans are tried, also those of nested configs.
    """
    known = {f.name for f in fields(tiny.config)}
    unimplemented = {k: v for k, v in type(tiny.config).unimplemented.items() if k not in known}
    for name, accepted in unimplemented.items():
        assert not reads(tiny, (name,), accepted), f"{name}={accepted} changes the config"
        with pytest.raises(ConfigError, match=name):
            change(tiny, (name,), other_value(accepted))
        change(tiny, (name,), other_value(accepted), allow=(name,))
    ignored = [
        (path, other_value(value))
        for path, value in settings(tiny.raw_config)
        if not reads(tiny, path, other_value(value))
    ]
    if not (ignored or unimplemented):
        pytest.skip("the config has every key of the reference's")
    for path, other in ignored:
        name = ".".join(path)
        assert has_no_effect(tiny, path, other), f"{name}={other} is accepted and ignored"


def settings(raw: Mapping[str, Any], path: Keys = ()) -> Iterator[tuple[Keys, float]]:
    """The numbers and booleans of a config.json and its nested configs, with their paths."""
    for name, value in raw.items():
        if isinstance(value, Mapping) and "model_type" in value:
            yield from settings(value, (*path, name))
        elif isinstance(value, int | float) and name not in NEUTRAL | {TIED}:
            yield (*path, name), value


def replaced(raw: Mapping[str, Any], path: Keys, value: Any) -> dict[str, Any]:
    """The config.json with another value at a path."""
    name, *rest = path
    return {**raw, name: replaced(raw.get(name) or {}, tuple(rest), value) if rest else value}


def change(tiny: Subject, path: Keys, value: Any, allow: Sequence[str] = ()) -> ModelConfig:
    """The config with another value of a key."""
    raw = replaced(tiny.raw_config, path, value)
    return read_config(tiny.record, raw, tiny.plugins, allow)[0]


def reads(tiny: Subject, path: Keys, value: Any) -> bool:
    """Whether another value of a key changes the config, or is refused."""
    try:
        return change(tiny, path, value) != tiny.config
    except ConfigError:
        return True


def other_value(value: Any) -> Any:
    """Another value of the same type; floats stay between 0 and 1."""
    if isinstance(value, str):
        return f"other than {value}"
    if isinstance(value, float):
        return 0.25 if value == 0.5 else 0.5
    return not value if isinstance(value, bool) else value + 1


def has_no_effect(tiny: Subject, path: Keys, value: Any) -> bool:
    """Whether the reference's outputs are the same with another value of a key.

    A golden reference cannot be built again, and no file has a value that the reference rejects.
    """
    if isinstance(tiny.reference, Golden):
        return True
    reference = resolve(str(tiny.record.conformance.reference))
    try:
        other = construct(tiny.record, reference, replaced(tiny.shape, path, value), tiny.plugins)
    except (ValueError, StrictDataclassError):
        return True
    try:
        other.load_state_dict(tiny.reference.state_dict())
    except RuntimeError:  # the key changes the shape of a weight
        return False
    cases = replace(tiny, reference=other).cases
    return all(torch.equal(a, b) for (_, a), (_, b) in zip(cases, tiny.cases, strict=True))


@check(every)
def only_the_public_surface_is_imported(tiny: Subject) -> None:
    plugin = plugin_of(tiny)
    found = [
        f"{file.name}:{imported.line}: {'; '.join(reasons)}"
        for file in sources(plugin)
        for imported in imports(ast.walk(ast.parse(file.read_bytes())), package_of(file, plugin))
        if (reasons := breach(imported, plugin.__name__))
    ]
    assert not found, "\n".join(found)


@check(every)
def plugin_is_listed_without_importing_torch(tiny: Subject) -> None:
    """Importing the plugin in a new process imports none of `HEAVY`, in less than `SECONDS`."""
    plugin = plugin_of(tiny)
    code = (
        "import sys, time, importlib; sys.path[:] = sys.argv[2:]; import ostro\n"
        "from ostro import Architecture, errors, hookimpl\n"
        "start = time.process_time(); importlib.import_module(sys.argv[1])\n"
        f"print(time.process_time() - start, *({{*{HEAVY}}} & {{*sys.modules}}))"
    )
    parent = str(Path(str(plugin.__file__)).parents[1 if is_package(plugin) else 0])
    paths = [parent, *sys.path] if "." not in plugin.__name__ else sys.path
    argv = [sys.executable, "-c", code, plugin.__name__, *paths]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    seconds, *heavy = ran.stdout.split()
    assert not heavy, f"importing {plugin.__name__} imports {', '.join(heavy)}"
    assert float(seconds) < SECONDS, f"importing {plugin.__name__} takes {seconds} s"


def plugin_of(tiny: Subject) -> ModuleType:
    """The module of the plugin that declares a subject's record."""
    for info in tiny.plugins.describe():
        if tiny.name in info.offers.get("architectures", ()):
            plugin = module_of(info)
            if tiny.record in plugin.ostro_architectures():
                return plugin
    raise PluginError(f"{tiny.name}: no plugin module declares this architecture")


def module_of(info: PluginInfo) -> Any:
    """The imported module of a plugin."""
    for candidate in chain(discovery.built_in(), discovery.installed()):
        if (candidate.name, candidate.source) == (info.name, info.source):
            return candidate.load()
    return sys.modules[info.name]


def is_package(module: ModuleType) -> bool:
    return hasattr(module, "__path__")


def sources(plugin: ModuleType) -> list[Path]:
    """A plugin's Python files, without tests."""
    file = Path(str(plugin.__file__))
    found = sorted(file.parent.rglob("*.py")) if is_package(plugin) else [file]
    return [f for f in found if not f.name.startswith(("test_", "conftest"))]


def package_of(file: Path, plugin: ModuleType) -> list[str]:
    """The components of the package to which a file's relative imports refer."""
    root = Path(str(plugin.__file__)).parent
    return [*plugin.__name__.split("."), *file.relative_to(root).parent.parts]
