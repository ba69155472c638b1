"""Fixtures: wheels installed for one test, tiny re-initialised models, and engines."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ostro.core import env
from ostro.core.engine.engine import Engine
from ostro.core.plugins.manager import PluginInfo, PluginManager
from ostro.core.settings import Settings
from ostro.plugins.conformance.parity import Subject, subject


class Site:
    """A folder on sys.path, into which wheels of one module are installed."""

    head = "from ostro import Architecture, Conformance, LogitsProcessor, Route, errors, hookimpl\n"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.suffix = folder.parent.name.replace("-", "_")

    def wheel(
        self,
        name: str,
        source: str,
        *,
        entry: str | None = None,
        version: str = "1.0",
        metadata: str = "",
    ) -> str:
        """Install the wheel ostro-<name> with this plugin. Return the name of its module."""
        module = f"{name}_{self.suffix}"
        (self.folder / f"{module}.py").write_text(self.head + textwrap.dedent(source))
        info = self.folder / f"ostro_{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: ostro-{name}\nVersion: {version}\n{metadata}\n"
        )
        (info / "entry_points.txt").write_text(f"[ostro]\n{entry or name} = {module}\n")
        return module

    @staticmethod
    def architecture(name: str, **fields: object) -> str:
        """The source of a plugin with one architecture."""
        more = "".join(f", {key}={value!r}" for key, value in {"api": (0, 2), **fields}.items())
        return (
            "@hookimpl\ndef ostro_architectures():\n"
            f"    yield Architecture(name={name!r}, config='x.y:C', model='x.y:M'{more})\n"
        )

    @staticmethod
    def load(settings: Settings | None = None, paths: Sequence[Path] = ()) -> PluginManager:
        manager = PluginManager()
        manager.load(settings, paths)
        return manager

    @staticmethod
    def info(manager: PluginManager, name: str) -> PluginInfo:
        return next(each for each in manager.describe() if each.name == name)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder, modules = tmp_path / "site", set(sys.modules)
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    for variable in env.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    made = Site(folder)
    yield made
    for module in set(sys.modules) - modules:
        if module.split(".")[0].rstrip("2").endswith(made.suffix):
            del sys.modules[module]


@pytest.fixture(scope="session")
def llama(plugins: PluginManager) -> Iterator[Subject]:
    with subject(plugins, "llama") as made:
        yield made


@pytest.fixture(scope="session")
def mistral(plugins: PluginManager) -> Iterator[Subject]:
    with subject(plugins, "mistral") as made:
        yield made


@pytest.fixture(params=["replay", pytest.param("eager", marks=pytest.mark.slow)])
def engine_of(request: pytest.FixtureRequest) -> Callable[..., Engine]:
    """Build engines. Quick tests run with captured steps, slow ones with eager steps: the kit's
    checks of the cache are eager.
    """

    def build(made: Subject, **options: object) -> Engine:
        engine = made.engine(replay=request.param == "replay", **options)  # type: ignore[arg-type]
        engine.runner.capture()
        return engine

    return build
