"""Where plugins come from, and what keeps them out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from tiny.steps import count_lines

from ostro.core.errors import UsageError
from ostro.core.records import resolve

if TYPE_CHECKING:
    from tests.core.conftest import Site


@pytest.mark.parametrize(
    ("metadata", "refused"),
    [
        ("", False),
        ("Requires-Dist: ostro>=0.2,<0.3; extra == 'ostro'", False),
        ("Requires-Dist: Ostro>=0.3; extra == 'ostro'", True),
        ("Requires-Dist: ostro<0.2; extra == 'ostro'", True),
        ("Requires-Dist: ostro>=1; extra == 'dev'", False),
        ("Requires-Dist: ostro>=0.2.0", False),
        ("Requires-Dist: ostro>=>1; extra == 'ostro'", True),
    ],
)
def test_the_api_range_of_a_wheel_is_read_before_import(
    metadata: str, refused: bool, site: Site
) -> None:
    module = site.wheel("ranged", site.architecture("mine"), metadata=metadata)
    manager = site.load()
    assert (module in sys.modules) is not refused
    assert ("ranged" in manager.broken) is refused
    assert ("mine" in manager.collect("architectures")) is not refused


def test_a_wheel_with_unreadable_metadata_hides_no_other(site: Site, tmp_path: Path) -> None:
    site.wheel("good", site.architecture("mine"))
    site.wheel("bad", site.architecture("a"))
    [file] = site.folder.glob("ostro_bad*/entry_points.txt")
    file.write_text("[ostro]\nno equals sign\n")
    manager = site.load()
    assert "mine" in manager.collect("architectures")
    assert "metadata cannot be read" in manager.broken["ostro-bad"].reason


def test_plugins_are_switched_off_and_on_by_name_or_wheel(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = site.wheel("one", site.architecture("one"))
    site.wheel("two", site.architecture("two"))

    def offered(variable: str, value: str) -> set[str]:
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            manager = site.load()
        for each in manager.describe():
            assert (each.status == "disabled") is (each.name in manager.disabled)
        return set(manager.collect("architectures")) & {"one", "two", "llama"}

    assert offered("OSTRO_DISABLE_PLUGINS", "one") == {"two", "llama"}
    assert module not in sys.modules
    assert offered("OSTRO_DISABLE_PLUGINS", "ostro-two, one") == {"llama"}
    assert offered("OSTRO_DISABLE_PLUGINS", "*") == {"llama"}
    assert offered("OSTRO_DISABLE_PLUGINS", "architectures.llama") == {"one", "two"}
    assert offered("OSTRO_PLUGINS", "two") == {"two", "llama"}
    assert offered("OSTRO_PLUGINS", "ostro-one") == {"one", "llama"}
    assert offered("OSTRO_PLUGINS", "") == {"one", "two", "llama"}


def test_names_that_switch_nothing_are_pointed_out(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OSTRO_DISABLE_PLUGINS", "architectures.lama")
    monkeypatch.setenv("OSTRO_DISABLE_PLUGIN", "x")
    site.load()
    assert any("no plugin architectures.lama; nearest: arch" in m for m in caplog.messages)
    assert any("OSTRO_DISABLE_PLUGIN is not read; nearest" in m for m in caplog.messages)


def test_two_wheels_may_give_their_plugins_one_name(site: Site) -> None:
    site.wheel("one", site.architecture("one"), entry="plugin")
    site.wheel("two", site.architecture("two"), entry="plugin")
    manager = site.load()
    assert {"one", "two"} <= set(manager.collect("architectures"))
    assert site.info(manager, "plugin@ostro-two").offers == {"architectures": ("two",)}


def test_a_plugin_is_used_from_a_path(site: Site, tmp_path: Path) -> None:
    name = f"local_{tmp_path.name.replace('-', '_')}"
    package = tmp_path / name
    package.mkdir()
    source = site.architecture("local").replace("'x.y:C'", "f'{__name__}.model:C'")
    (package / "__init__.py").write_text(site.head + source)
    (package / "model.py").write_text("class C: pass\n")
    (tmp_path / f"{name}2.py").write_text(site.head + site.architecture("single"))
    manager = site.load(paths=(package, tmp_path / f"{name}2.py"))
    assert resolve(manager.get("architectures", "local").config).__name__ == "C"
    assert manager.get("architectures", "single").name == "single"
    assert site.info(manager, name).source == str(package)
    twice = site.load(paths=(package, tmp_path / "." / name))
    assert twice.get("architectures", "local").name == "local"


def test_a_path_that_is_no_plugin_is_the_users_mistake(site: Site, tmp_path: Path) -> None:
    (tmp_path / "not-a-name").mkdir()
    (tmp_path / "not-a-name" / "__init__.py").touch()
    for path in ("absent", "not-a-name", "."):
        with pytest.raises(UsageError, match=r"is not a plugin"):
            site.load(paths=(tmp_path / path,))


def test_a_path_plugin_takes_no_other_modules_name(site: Site, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise AssertionError('imported')")
    manager = site.load(paths=(tmp_path / "json.py",))
    assert "the module 'json' already exists" in manager.broken["json"].reason


def test_a_slow_plugin_is_named(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr("ostro.core.plugins.manager.perf_counter", lambda: now[0])
    monkeypatch.setitem(sys.modules, "clock_of_test", SimpleNamespace(now=now))
    site.wheel("quick", site.architecture("other"))
    site.wheel("slow", "import clock_of_test as c; c.now[0] += 1.5\n" + site.architecture("mine"))
    site.load()
    assert [message for message in caplog.messages if "took" in message] == [
        "plugin slow took 1.5 s to import"
    ]


def test_sixty_plugins_load_without_torch(site: Site, tmp_path: Path) -> None:
    for i in range(60):
        site.wheel(f"p{i}", site.architecture(f"a{i}", classes=(f"A{i}ForCausalLM",)))
    code = (
        "import sys\n"
        "from ostro.core.plugins.manager import PluginManager\n"
        "manager = PluginManager(); manager.load()\n"
        "found = manager.collect('architectures')\n"
        "assert {f'a{i}' for i in range(60)} <= set(found), manager.broken\n"
        "assert 'torch' not in sys.modules\n"
    )
    paths = os.pathsep.join([str(site.folder), *filter(None, sys.path)])
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_a_plugin_takes_few_lines_beside_many(site: Site) -> None:
    lines = []
    for indices in (range(1), range(1, 41)):
        for i in indices:
            site.wheel(f"p{i}", site.architecture(f"a{i}", classes=(f"A{i}ForCausalLM",)))
        site.load()  # imports
        lines.append(count_lines(site.load))
    assert 0 < (lines[1] - lines[0]) / 40 < 5000  # twice of what it takes
