"""Who may import whom, and what must stay light."""

from __future__ import annotations

import ast
import functools
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import ostro
from ostro.core.deprecated import RemovedInOstro1
from ostro.plugins.authoring import surface as public

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("core", "architectures", "quant", "adapters", "plugins", "entrypoints")
FILES = sorted(
    file.relative_to(ROOT).as_posix() for room in ROOMS for file in (ROOT / room).rglob("*.py")
)


def imported(file: str, text: str | None = None) -> Iterator[public.Import]:
    """What a file imports of ostro, anywhere in it."""
    package = ["ostro", *Path(file).parent.parts]
    tree = ast.parse((ROOT / file).read_text() if text is None else text)
    found = public.imports(ast.walk(tree), package)
    return (each for each in found if each.full.split(".")[0] == "ostro")


TOOLS = ("plugins/authoring/", "plugins/conformance/")
"""Tools for plugin authors: they inspect the core, which plugins must not."""


def breach(file: str, imported: public.Import) -> str | None:
    """Why a file may not import something of ostro; None if it may."""
    parts, here = imported.full.split(".")[1:], file.split("/")
    room = parts[0] if parts else ""
    if here[0] in ("core", "entrypoints") or file.startswith(TOOLS):
        if room in ("core", here[0]) or imported.full == "ostro.__version__":
            return None
        if here[0] == "core":
            return "core imports nothing but core"
        if room in ROOMS and not file.startswith(TOOLS):
            return f"{here[0]} asks the plugin manager"
    own = "ostro." + ".".join(here[:2])
    return next(iter(public.breach(imported, own) or ()), None)


@pytest.mark.parametrize("room", ROOMS)
def test_every_file_imports_only_what_it_may(room: str) -> None:
    files = [file for file in FILES if file.startswith(f"{room}/")]
    found = {(file, each.full): breach(file, each) for file in files for each in imported(file)}
    assert not {names: why for names, why in found.items() if why}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("core/load/model.py", "from ostro.quant.gguf import storage"),
        ("core/load/model.py", "def f():\n    import ostro.plugins.sources.hub"),
        ("core/load/weights.py", "from ostro.quant.planes.storage import Packed"),
        ("core/load/model.py", "from ...architectures import llama"),
        ("core/step.py", "from ostro import Step"),
        ("quant/gguf/storage.py", "from ostro.quant.hqq.storage import HQQ"),
        ("quant/gguf/storage.py", "from ostro.plugins.checkpoints.gguf import MAGIC"),
        ("architectures/qwen3/model.py", "from ostro.architectures.glm4.model import Model"),
        ("architectures/qwen3/model.py", "from ostro.quant.dense.storage import Dense"),
        ("architectures/qwen3/model.py", "from ostro import nothing_of_that_name"),
        ("architectures/qwen3/model.py", "from ostro.nn import nothing_of_that_name"),
        ("architectures/qwen3/model.py", "from ostro.core.config import TextConfig"),
        ("plugins/sources/hub/download.py", "from ostro.core.errors import UsageError"),
        ("plugins/sources/hub/download.py", "import ostro.core.nn"),
        ("plugins/sources/hub/download.py", "from ostro.plugins.parsers import hermes"),
        ("entrypoints/cli/run.py", "from ostro.architectures import llama"),
        ("adapters/lora/load.py", "from ostro.entrypoints.python.load import load"),
    ],
)
def test_a_forbidden_import_is_detected(file: str, text: str) -> None:
    assert [name for name in imported(file, text) if breach(file, name)]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("core/load/model.py", "from ostro.core.nn import Model"),
        ("core/load/model.py", "from .names import Names"),
        ("quant/gguf/storage.py", "from ostro import Storage, hookimpl"),
        ("quant/gguf/storage.py", "from ostro.quant.gguf.naive import q4"),
        ("quant/gguf/storage.py", "from ostro.quant.planes.storage import Packed"),
        ("architectures/qwen3/model.py", "from ostro.architectures.llama import model as llama"),
        ("architectures/qwen3/model.py", "from ostro.trunks import llama"),
        ("architectures/qwen3/model.py", "from ostro.config import TextConfig"),
        ("plugins/authoring/lint.py", "from ostro.core.plugins.discovery import GROUP"),
        ("entrypoints/cli/run.py", "from ostro.core.plugins.manager import PluginManager"),
    ],
)
def test_what_is_allowed_is_allowed(file: str, text: str) -> None:
    found = list(imported(file, text))
    assert found and not [name for name in found if breach(file, name)]


def test_only_the_sources_are_in_the_package_folder() -> None:
    entries = {entry.name: entry for entry in (ROOT / "src" / "ostro").iterdir()}
    entries.pop("__pycache__", None)
    links = {name for name, entry in entries.items() if entry.is_symlink()}
    assert links == set(ROOMS)
    assert entries.keys() - links == {"__init__.py", "__main__.py", "py.typed"} | {
        f"{name}.py" for name in public.MODULES
    }
    for name in links:
        assert entries[name].readlink() == Path("..", "..", name)


def without_torch(code: str) -> None:
    """Run code in a fresh interpreter, which must end without torch."""
    check = "import sys; heavy = {'torch', 'transformers', 'triton', 'numpy'} & set(sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\n{check}; assert not heavy, heavy"],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


LIGHT = {
    "import": "import ostro; from ostro import Architecture, errors, hookimpl",
    "plugins": "from ostro.core.plugins.manager import PluginManager\n"
    "manager = PluginManager(); manager.load(); found = manager.describe()\n"
    "assert manager.collect('architectures')",
    "claims": "from ostro.core.plugins.manager import PluginManager\n"
    "manager = PluginManager(); manager.load()\n"
    "assert manager.architecture_for(['LlamaForCausalLM']).name == 'llama'",
    "help": "from ostro.entrypoints.cli import main\n"
    "try: main(['--help'])\nexcept SystemExit as done: assert done.code == 0\n"
    "import sys; assert 'asyncio' not in sys.modules",
    "ostro plugins": "from ostro.entrypoints.cli import main\nassert main(['plugins']) == 0",
    "ostro models": "from ostro.entrypoints.cli import main\nassert main(['models']) == 0",
    "ostro list": "from ostro.entrypoints.cli import main\nassert main(['list']) == 0",
}


@pytest.mark.parametrize("what", LIGHT)
def test_what_only_looks_imports_no_torch(what: str) -> None:
    without_torch(LIGHT[what])


INPUTS = [
    file
    for file in FILES
    if file.startswith("architectures/")
    and file.endswith(("/inputs.py", "/pixels.py", "/request.py"))
]


def test_inputs_of_architectures_import_no_torch() -> None:
    """The API process and the processes that prepare media import them."""
    names = ["ostro." + file.removesuffix(".py").replace("/", ".") for file in INPUTS]
    assert "ostro.architectures.llava.inputs" in names
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    assert not {'torch', 'transformers'} & set(sys.modules), name"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *names],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


WEB = {"fastapi", "starlette", "uvicorn", "pydantic"}
"""Packages that only `entrypoints/http` may import."""


def test_operations_and_handlers_import_no_web_framework() -> None:
    folders = ("entrypoints/operations/", "entrypoints/api/")
    names = [f"ostro.{file[:-3].replace('/', '.')}" for file in FILES if file.startswith(folders)]
    code = f"import {', '.join(names)}\nimport sys\n"
    code += f"web = {WEB} & {{*sys.modules}}\n"
    code += "web |= {name for name in sys.modules if name.startswith('ostro.entrypoints.http')}"
    without_torch(f"{code}\nassert not web, web")


def test_only_http_imports_the_web_framework() -> None:
    def packages(file: str) -> set[str]:
        nodes = [*ast.walk(ast.parse((ROOT / file).read_text()))]
        names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        names += [a.name for node in nodes if isinstance(node, ast.Import) for a in node.names]
        return {name.partition(".")[0] for name in names}

    files = [file for file in FILES if not file.startswith("entrypoints/http/")]
    found = {file: web for file in files if (web := packages(file) & WEB)}
    assert found == {"core/routes.py": {"starlette"}}  # the types of `Endpoint`


def test_every_public_name_is_there_and_typed() -> None:
    for name in ostro.__all__:
        assert getattr(ostro, name) is not None
        assert name in dir(ostro)
    tree = ast.parse((ROOT / "src" / "ostro" / "__init__.py").read_text())
    [block] = [
        n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"
    ]
    typed = {
        a.asname or a.name
        for n in ast.walk(block)
        if isinstance(n, ast.ImportFrom)
        for a in n.names
    }
    assert typed == set(ostro.__all__)
    with pytest.raises(AttributeError, match="'ostro' has no attribute 'nothing'"):
        ostro.nothing  # noqa: B018


def test_the_modules_of_the_surface_are_those_that_ostro_exports() -> None:
    found = {name: getattr(ostro, name) for name in ostro.__all__ if name != "trunks"}
    modules = [name for name, value in found.items() if isinstance(value, ModuleType)]
    assert sorted(public.MODULES) == sorted(modules)
    assert all(found[name].__name__ == f"ostro.{name}" for name in modules)
    names = {*public.MODULES, "trunks", *public.exported()}
    names |= {
        f"{module}.{name}" for module in public.MODULES for name in public.public_names(module)
    }
    assert {*public.PROVISIONAL} <= names


@pytest.mark.parametrize("module", public.MODULES)
def test_every_name_of_a_public_module_is_there(module: str) -> None:
    found = importlib.import_module(f"ostro.{module}")
    assert {*found.__all__} == public.public_names(module)
    for name in found.__all__:
        assert getattr(found, name) is not None


def test_a_name_has_one_public_spelling() -> None:
    homes: dict[str, list[str]] = {}
    for module in ("", *public.MODULES):
        names = public.public_names(module) if module else frozenset(ostro.__all__)
        for name in names:
            homes.setdefault(name, []).append(f"ostro.{module}".rstrip("."))
    twice = {name: where for name, where in homes.items() if len(where) > 1}
    assert not twice


@pytest.mark.parametrize("name", ostro.DEPRECATED)
def test_a_deprecated_name_works_and_warns(name: str) -> None:
    use = ostro.DEPRECATED[name]
    with pytest.warns(RemovedInOstro1, match=f"use ostro.{use}"):
        found = getattr(ostro, name)
    assert found is functools.reduce(getattr, use.split("."), ostro)
    assert name not in ostro.__all__ and name in public.exported()
    home, _, own = f"ostro.{use}".rpartition(".")
    space: dict[str, object] = {}
    exec(f"import {home}; from {home} import {own}", space)
    assert space[own] is found


def test_a_trunk_is_a_module() -> None:
    from ostro.trunks.llama import Model

    from ostro.architectures.llama import model

    trunk = importlib.import_module("ostro.trunks.llama")
    assert trunk is model and model.__spec__ is not None and Model is model.Model
    assert model.__name__ == model.__spec__.name == "ostro.architectures.llama.model"
    assert sys.modules["ostro.trunks"].llama is model
    with pytest.raises(ModuleNotFoundError, match=r"ostro\.trunks\.gguf"):
        importlib.import_module("ostro.trunks.gguf")


def test_a_plugin_that_is_no_trunk_is_not_among_the_trunks() -> None:
    assert "planes" in public.trunks() and "gguf" not in public.trunks()
    with pytest.raises(AttributeError, match="gguf"):
        sys.modules["ostro.trunks"].gguf  # noqa: B018


def test_files_in_the_place_of_links_are_explained(tmp_path: Path) -> None:
    package = tmp_path / "ostro"
    package.mkdir()
    (package / "core").write_text("../../core")
    (package / "__init__.py").write_text((ROOT / "src" / "ostro" / "__init__.py").read_text())
    ran = subprocess.run(
        [sys.executable, "-c", "import ostro"],
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ImportError" in ran.stderr and "core.symlinks" in ran.stderr
