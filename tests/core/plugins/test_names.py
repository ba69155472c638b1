"""Using a name that several plugins have is an error that names all of them, for every kind."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ostro.core.commands import COMMANDS
from ostro.core.engine.processors import Processors
from ostro.core.engine.proposers.build_speculation import draft_model_settings, new_proposer
from ostro.core.errors import PluginError
from ostro.core.load.quantize import check_conflicts
from ostro.core.messages.requests import Sampling
from ostro.core.plugins.conflicts import RESERVED
from ostro.core.plugins.kinds import KINDS
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.entrypoints.cli import quantize
from ostro.entrypoints.operations.documents.state import find_store

if TYPE_CHECKING:
    from tests.core.conftest import Site

RECORDS = {
    "speculators": "Speculator(name='ngram', proposer='x:Y')",
    "logits_processors": "LogitsProcessor(name='grammar', processor='x:Y')",
    "quantizers": "Quantizer(name='dense', claims=bool, storage='x:Y')",
    "parsers": "Parser(name='hermes', matches=bool, parser='x:Y')",
    "checkpoints": "Checkpoint(name='gguf', claims=bool, open='x:Y', write='x:Y')",
    "aliases": "Alias(name='smollm2', reference='a/b', licence='', about='')",
    "pipelines": "Pipeline(name='text', task='text', pipeline='x:Y')",
    "caches": "Cache(name='paged', kind='x:Y')",
    "adapters": "Adapter(name='lora', claims=bool, load='x:Y')",
    "stores": "Store(name='memory', claims=bool, open='x:Y', usage='dict://NAME')",
    "tokenizers": "TokenizerFormat(name='gguf', claims=bool, load='x:Y', usage='')",
    "planners": "Planner(name='mixed_precision', claims=bool, plan='x:Y', usage='')",
}
"""Records with the names of built-in ones."""


def source(kind: str, record: str) -> str:
    """The source of a plugin with one record."""
    names = "Adapter Alias Cache Checkpoint Command LogitsProcessor Parser Pipeline Planner "
    names += "Quantizer Speculator Store TokenizerFormat Format"
    return (
        f"from ostro import {', '.join(names.split())}\n"
        f"@hookimpl\ndef ostro_{kind}():\n    yield {record}\n"
    )


def named(error: PluginError, *plugins: str) -> bool:
    """Whether a message names the sources of plugins, and how to resolve their conflict."""
    text = str(error)
    return "OSTRO_DISABLE_PLUGINS=" in text and all(plugin in text for plugin in plugins)


@pytest.mark.parametrize("kind", RECORDS)
def test_a_name_in_conflict_names_both_plugins(site: Site, kind: str) -> None:
    site.wheel("second", source(kind, RECORDS[kind]))
    manager = site.load()
    [name] = manager.conflicts(kind)
    for use in (manager.find, manager.get):
        with pytest.raises(PluginError) as raised:
            use(kind, name)
        assert named(raised.value, "built in", "second (ostro-second 1.0)")
        assert "--arch" not in str(raised.value)
    assert site.info(manager, "second").status == "conflict"
    assert name not in manager.collect(kind)


def use_speculator(manager: PluginManager) -> None:
    draft_model_settings(Settings(speculate="same"), manager)


def use_processor(manager: PluginManager) -> None:
    kind = "logits_processors"
    records, conflicts = manager.collect(kind).values(), manager.conflicts(kind)
    processors = Processors(records, 1, 8, torch.device("cpu"), None, conflicts)
    processors.check(Sampling(processors={"same": 1}))


def use_container(manager: PluginManager) -> None:
    quantize.write(Settings(), manager, "same", None)  # type: ignore[arg-type]


MAKES = "claims=bool, storage='x:Y', makes=(Format(name='same', bits=2.0),)"
USES: dict[str, tuple[str, Callable[[PluginManager], Any]]] = {
    "speculator": ("Speculator(name='same', proposer='x:Y')", use_speculator),
    "processor": ("LogitsProcessor(name='same', processor='x:Y')", use_processor),
    "format": (
        f"Quantizer(name='same', {MAKES})",
        lambda manager: check_conflicts(["SAME"], manager),
    ),
    "format of two names": (
        f"Quantizer(name=__name__, {MAKES})",
        lambda manager: check_conflicts(["same"], manager),
    ),
    "container": ("Checkpoint(name='same', claims=bool, open='x:Y')", use_container),
    "alias": (
        "Alias(name='same', reference='a/b', licence='', about='')",
        lambda manager: manager.locate("same", Settings()),
    ),
    "task": (
        "Pipeline(name=__name__, task='same', pipeline='x:Y')",
        lambda manager: manager.claimant("pipelines", lambda p: p.task == "same", "the task"),
    ),
    "store": (
        "Store(name=__name__, claims='s:'.__eq__, open='x:Y', usage='s:')",
        lambda manager: find_store("s:", manager),
    ),
}
KIND = {
    "processor": "logits_processors",
    "container": "checkpoints",
    "alias": "aliases",
    "task": "pipelines",
    "format": "quantizers",
    "format of two names": "quantizers",
}


@pytest.mark.parametrize("what", USES)
def test_every_use_of_a_name_in_conflict_is_refused(site: Site, what: str) -> None:
    record, use = USES[what]
    for name in ("one", "two"):
        site.wheel(name, source(KIND.get(what, f"{what}s"), record))
    with pytest.raises(PluginError) as raised:
        use(site.load())
    assert named(raised.value, "one (ostro-one 1.0)", "two (ostro-two 1.0)")


def test_the_hint_is_the_option_of_the_kind(site: Site) -> None:
    for name, usage in (("one", "a folder"), ("two", "dict://NAME")):
        store = f"Store(name='{name}', claims='a'.__eq__, open='x:Y', usage={usage!r})"
        parser = f"Parser(name='{name}', matches='[['.__eq__, parser='x:Y')"
        site.wheel(name, source("stores", store) + source("parsers", parser))
    manager = site.load()
    with pytest.raises(PluginError, match=r"give --store a location .*: a folder or .*dict://NAME"):
        manager.claimant("stores", lambda store: store.claims("a"), "a")
    with pytest.raises(PluginError, match=r"or choose one with --tool-parser: one, two$"):
        manager.claimant("parsers", lambda parser: parser.matches("[["), "the chat template")


def test_a_command_of_ostro_itself_wins(site: Site) -> None:
    assert RESERVED["commands"] == {*COMMANDS}
    for record in ("serve", "mine"):
        site.wheel(
            record,
            source("commands", f"Command(name='{record}', help='h', parser='x:Y', run='x:Y')"),
        )
    manager = site.load()
    assert "serve" not in manager.collect("commands") and "mine" in manager.collect("commands")
    assert manager.find("commands", "serve") is None
    assert site.info(manager, "serve").status == "conflict"
    assert "'serve' is one of ostro itself" in site.info(manager, "serve").reason
    assert site.info(manager, "mine").status == "active"


def test_a_speculator_that_cannot_be_created_is_named(site: Site) -> None:
    module = site.wheel(
        "bad",
        "from ostro import Speculator\n"
        "class P:\n    def __init__(self, rows, vocab):\n        raise SystemExit(4)\n"
        "    def propose(self, requests):\n        return []\n"
        "@hookimpl\ndef ostro_speculators():\n"
        "    yield Speculator(name='bad', proposer=f'{__name__}:P')\n",
    )
    with pytest.raises(PluginError, match=r"plugin bad \(ostro-bad 1.0\) cannot") as raised:
        new_proposer("bad", site.load(), 1, 8)
    assert f"{module}.py:5" in str(raised.value) and "sys.exit(4)" in str(raised.value)


def test_the_log_names_what_goes_on_after_a_late_failure(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    late = "@hookimpl\ndef ostro_model_loaded(model):\n    raise ValueError(model)\n"
    site.wheel("late", source("speculators", "Speculator(name='half', proposer='x:Y')") + late)
    manager = site.load()
    manager.hook.ostro_model_loaded(model="m")
    assert "plugin late (ostro-late 1.0) is not used: ValueError: m" in caplog.text
    caplog.clear()
    manager = site.load()
    assert manager.find("speculators", "half") is not None
    with caplog.at_level(logging.WARNING):
        manager.hook.ostro_model_loaded(model="m")
    assert "is not used from now on: ValueError: m" in caplog.text
    assert "stay in use until a restart, in this process (speculators: half)" in caplog.text
    assert manager.find("speculators", "half") is None


LATE = {
    **{kind: re.sub("name='[^']*'", "name='half'", record) for kind, record in RECORDS.items()},
    "commands": "Command(name='half', help='', parser='x:Y', run='x:Y')",
    "architectures": "Architecture(name='half', api=(0, 2), config='x:Y', model='x:Y')",
    "routes": "Route(name='GET /half', handler=handle)",
}
"""A record of each kind."""


def test_all_kinds_have_a_late_record() -> None:
    assert LATE.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", LATE)
def test_all_records_of_a_plugin_that_fails_late_are_dropped_and_named(
    site: Site, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    late = "@hookimpl\ndef ostro_model_loaded(model):\n    raise ValueError(model)\n"
    handle = "from ostro import Architecture, Route\nasync def handle(*_): ...\n"
    site.wheel("late", handle + source(kind, LATE[kind]) + late)
    manager = site.load()
    name = "GET /half" if kind == "routes" else "half"
    assert name in manager.collect(kind)
    manager.hook.ostro_model_loaded(model="m")
    assert name not in manager.collect(kind) and "late" in manager.broken
    assert f"until a restart, in this process ({kind}: {name})" in caplog.text
