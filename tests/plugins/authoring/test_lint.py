"""`ostro plugin check`: every way in which a plugin can be wrong is found, and named."""

from __future__ import annotations

import ast
import json
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ostro.plugins.authoring.lint import LARGE, check
from ostro.plugins.authoring.package import Package
from ostro.plugins.authoring.renamed import renamed

if TYPE_CHECKING:
    from tests.plugins.authoring.conftest import Plugin

ROOT = Path(__file__).resolve().parents[3]
BUILT_IN = ("adapters", "architectures", "plugins", "quant")
EXAMPLES = ROOT / "docs" / "examples" / "plugins"
ARCEE = "ostro_arch_arcee"
RECORD, MODEL, PROJECT = f"{ARCEE}/__init__.py", f"{ARCEE}/model.py", "pyproject.toml"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The example of an architecture, to be spoilt."""
    hidden = shutil.ignore_patterns("__pycache__", ".*")
    return Path(shutil.copytree(EXAMPLES / "ostro-arch-arcee", tmp_path / "p", ignore=hidden))


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text, f"{file.name} has no {old!r}"
    file.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("name", ["ostro-arch-arcee", "ostro-quant-int8-rows"])
def test_the_examples_are_clean(name: str, plugin: Plugin) -> None:
    ran = plugin("check", EXAMPLES / name)
    assert (ran.code, ran.out) == (0, f"{name}: 0 errors, 0 warnings\n")


HOOK = "def ostro_architectures()"
SPOILT = [
    # a file, what stands there, what is put in its place, what is said of it
    (RECORD, HOOK, "def ostro_architecture()", "error: unknown hook ostro_architecture; near"),
    (RECORD, HOOK, "def ostro_architectures(engine)", "error: ostro_architectures has no argument"),
    (RECORD, HOOK, "def architectures()", "error: it implements no hook"),
    (RECORD, "@hookimpl\n", "", "error: ostro_architectures is not marked"),
    (
        RECORD,
        "@hookimpl\n",
        "@hookimpl(wrapper=True)\n",
        "error: ostro_architectures is a hook wrapper",
    ),
    (RECORD, "tiny=TINY", "tinny=TINY", "error: Conformance has no field 'tinny'; nearest: tiny"),
    (RECORD, "            tiny=TINY,\n", "", "error: no `tiny`: without a small config"),
    (RECORD, 'name="arcee",', "", "error: Architecture needs the field 'name'"),
    (RECORD, 'name="arcee"', '"arcee"', "error: Architecture takes keywords only"),
    (RECORD, 'name="arcee"', "name=3", "error: Architecture.name is 3, expected str"),
    (RECORD, "api=(0, 2)", "api=(0, 7)", "error: Architecture.api is 0.7, this ostro has the"),
    (RECORD, "api=(0, 2)", 'api="0.2"', "error: Architecture.api is '0.2', expected tuple"),
    (RECORD, ".model:Model", ".modell:Model", f"error: Architecture.model names {ARCEE}.modell:Mo"),
    (RECORD, ".model:Model", ".model:Modell", "has no 'Modell'; nearest: Model"),
    (RECORD, ".model:Model", ".model.Model", "expected an import string"),
    (
        RECORD,
        '"transformers:Arcee',
        '"no_such_thing:Arcee',
        "warning: Conformance.reference na",
    ),
    (RECORD, '"transformers:Arcee', '"ostro.core.nn.mlp:Arcee', "which is not public"),
    (RECORD, '"transformers:ArceeForCausalLM"', f'"{ARCEE}:gold.safetensors"', "there is no file"),
    (
        RECORD,
        '            reference="transformers:ArceeForCausalLM",\n',
        "",
        "warning: no `reference`",
    ),
    (
        RECORD,
        "conformance=Conf",
        'reference="no_such_thing:A", conformance=Conf',
        "warning: Architecture.reference na",
    ),
    (
        RECORD,
        "conformance=Conf",
        "tiny=TINY, conformance=Conf",
        "warning: tiny=... is deprecated as an argument of ostro.Architecture; write conformance="
        "Conformance(tiny=...)",
    ),
    (RECORD, "conformance=Conformance(", "conformance=dict(", "0 errors, 0 warnings"),
    (RECORD, "from ostro import Ar", "import torch\nfrom ostro import Ar", "error: `import torch`"),
    (
        RECORD,
        "import Architecture, Con",
        "import Architecture, nn, Con",
        "from ostro import nn`",
    ),
    (RECORD, "TINY = {", f"from {ARCEE} import model\nTINY = {{", "error: `import torch`"),
    (RECORD, "TINY = {", "TINY = {{", "error: cannot be parsed"),
    (MODEL, "import Fused, Step", "import Fused, Steps", "error: ostro exports no 'Steps'"),
    (MODEL, "import llama", "import arcee", "error: arcee is not a trunk; build on one of"),
    (
        MODEL,
        "from ostro import",
        "from ostro.core.step import Step\nfrom ostro import",
        "public API",
    ),
    (MODEL, "from ostro import", "import ostro.entrypoints.cli\nfrom ostro import", "is not part"),
    (PROJECT, "ostro>=0.2,<0.3", "ostro>=0.1,<0.2", "error: it requires the plugin API <0.2,>=0.1"),
    (PROJECT, "ostro>=0.2,<0.3", "ostro>=>0.2", "error: its metadata contains the malformed line"),
    (PROJECT, 'ostro = ["', 'other = ["', "warning: no extra 'ostro' states the plugin API"),
    (
        PROJECT,
        'license = "Apache-2.0"',
        'dependencies = ["ostro>=0.2"]',
        "warning: it depends",
    ),
    (PROJECT, 'license = "Apache-2.0"', "", "warning: it has no licence"),
    (PROJECT, 'arcee = "ostro_arch_arcee"', 'arcee = "ostro_arch_arce"', "is not among its files"),
    (
        PROJECT,
        '[project.entry-points.ostro]\narcee = "ostro_arch_arcee"',
        "",
        "no entry point of",
    ),
]


@pytest.mark.parametrize(("file", "old", "new", "said"), SPOILT)
def test_a_mistake_is_named(
    file: str, old: str, new: str, said: str, project: Path, plugin: Plugin
) -> None:
    change(project / file, old, new)
    if "from ostro_arch_arcee import model" in new:
        change(project / MODEL, "from dataclasses", "import torch\nfrom dataclasses")
    ran = plugin("check", project)
    level, text = re.fullmatch("(error: |warning: |)(.*)", said).groups()  # type: ignore[union-attr]
    assert any(x.startswith(level) and text in x for x in ran.out.splitlines()), ran.out
    assert ran.code == int("error: " in ran.out)


CLASS = "class {}({}):\n    def {}(self, step: Step) -> int:\n        return 0\n"
OLD = [
    # a base, a method of a class, and what is said of it
    ("nn.Remembers", "spec", "ostro.nn exports no 'Remembers'; write ostro.nn.CachedLayer"),
    ("nn.Packed", "read", "ostro.nn exports no 'Packed'; write ostro.trunks.planes.Packed"),
    ("ostro.core", "read", "ostro exports no 'core'"),
    (
        "CacheKind",
        "keeps",
        "Own.keeps overrides nothing: ostro.CacheKind has no 'keeps'; rename it",
    ),
    ("CacheKind", "narrows", "rename it to supports_quantized"),
    ("Storage", "settle", "rename it to finalize"),
    ("nn.Attention", "place", "rename it to rotate_and_write"),
    ("nn.TokenModel", "remember", "rename it to write_states"),
    (
        "nn.Model",
        "logits",
        "Own derives from nn.Model, which serves no task; derive it from nn.Token",
    ),
    ("ostro.nn.Model", "work", "derive it from nn.JobModel"),
    ("nn.Model", "hidden", "derive it from nn.EncoderModel"),
]


@pytest.mark.parametrize(("base", "method", "said"), OLD)
def test_an_old_member_is_named(
    base: str, method: str, said: str, project: Path, plugin: Plugin
) -> None:
    """Also of a class that derives from another one of the file."""
    head = "import ostro\nfrom ostro import CacheKind, Step, Storage, nn\n"
    for text in (
        CLASS.format("Own", base, method),
        CLASS.format("Base", base, "extra") + CLASS.format("Own", "Base", method),
    ):
        (project / ARCEE / "old.py").write_text(head + text)
        ran = plugin("check", project)
        if "Base" in text and base.endswith("nn.Model"):
            continue  # a class of its own is the base
        assert ran.code == 1 and f"error: {ARCEE}/old.py:" in ran.out and said in ran.out, ran.out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("step.wanted", "old.py:3: ostro.Step has no 'wanted'; write step.logits_indices"),
        ("own.held", "old.py:3: ostro.nn.Linear has no 'held'; write own.active_storages"),
        ("nn.MLP(2, 3, approximate='tanh')", "has no argument 'approximate'; use the activation"),
        ("Kernel(name='x', call='y', lays='z')", "has no argument 'lays'; use layout"),
        ("nn.Remembers", "old.py:3: ostro.nn exports no 'Remembers'; write ostro.nn.CachedLayer"),
        ("record.wide", "ostro.Architecture has no 'wide'; write record.conformance.wide"),
    ],
)
def test_an_old_use_is_named(line: str, said: str, project: Path, plugin: Plugin) -> None:
    arguments = "own: nn.Linear, step: 'Step', record: Architecture"
    head = f"from ostro import Architecture, Kernel, Step, nn\ndef use({arguments}) -> object:\n"
    (project / ARCEE / "old.py").write_text(f"{head}    return {line}\n")
    ran = plugin("check", project)
    assert ran.code == 1 and said in ran.out and ran.out.count("error:") == 1, ran.out


@pytest.mark.parametrize(
    ("line", "todo"),
    [
        ("Architecture(name='x', tiny=TINY, wide=TINY)", "Conformance(tiny=..., wide=...)"),
        ("replace(llama, name='x', mutants='a:b')", "replace(llama.conformance, mutants=...)"),
    ],
)
def test_the_old_arguments_of_an_architecture_are_deprecated(
    line: str, todo: str, project: Path, plugin: Plugin
) -> None:
    head = "from dataclasses import replace\nfrom ostro import Architecture, Conformance\n"
    new = f"NEW = replace(Conformance(tiny=TINY), reference='a:b')\nOLD = {line}\n"
    (project / ARCEE / "old.py").write_text(head + new)
    ran = plugin("check", project)
    said = f"is deprecated as an argument of ostro.Architecture; write conformance={todo}"
    assert ran.code == 0 and f"warning: {ARCEE}/old.py:4: " in ran.out and said in ran.out
    assert "0 errors, 1 warning" in ran.out


def test_names_of_a_plugin_are_no_old_members(project: Path, plugin: Plugin) -> None:
    """Its own classes and variables, and those of other packages."""
    (project / ARCEE / "own.py").write_text(
        "from ostro import Storage, nn\n"
        "from torch import nn as torch_nn\n"
        "class Table:\n    keeps = held = 1\n"
        "class Own(Storage):\n    def place(self, table: Table) -> int:\n"
        "        return table.keeps + table.held + self.held\n"
        "def use(norm: torch_nn.Model) -> object:\n    return torch_nn.Remembers, norm.held\n"
    )
    assert plugin("check", project).out.endswith("0 errors, 0 warnings\n")


def test_the_plugins_of_ostro_use_no_old_member() -> None:
    files = [file for name in BUILT_IN for file in (ROOT / name).rglob("*.py")]
    assert len(files) > 500
    for file in files:
        path = file.relative_to(ROOT)
        found = [*renamed(str(path), ast.parse(file.read_bytes()), ("ostro", *path.parent.parts))]
        assert not found, found


def test_what_only_types_need_is_not_imported(project: Path, plugin: Plugin) -> None:
    line = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"
    change(project / RECORD, "from ostro import", f"{line}from ostro import")
    change(project / RECORD, "    yield Arch", "    import json, torch\n    yield Arch")
    assert plugin("check", project).code == 0


@pytest.mark.parametrize("name", ["weights.bin", "model.pt", "cache.pkl", "deep/x.pth"])
def test_a_pickle_is_an_error(name: str, project: Path, plugin: Plugin) -> None:
    file = project / ARCEE / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"\x80\x04.")
    ran = plugin("check", project)
    assert ran.code == 1 and f"{ARCEE}/{name}: a pickle can run code" in ran.out


def test_weights_do_not_belong_into_a_wheel(project: Path, plugin: Plugin) -> None:
    with (project / ARCEE / "model.safetensors").open("wb") as file:
        file.truncate(LARGE + 1)
    ran = plugin("check", project)
    assert ran.code == 1 and "10 MB are weights" in ran.out


def test_a_missing_py_typed_is_a_hint(project: Path, plugin: Plugin) -> None:
    (project / ARCEE / "py.typed").unlink()
    ran = plugin("check", project)
    assert ran.code == 0 and f"warning: {ARCEE}: no py.typed" in ran.out


def zipped(project: Path, target: Path, spoil: Callable[[str], str] = str) -> Path:
    """A wheel of the project, as far as a check looks at it."""
    with zipfile.ZipFile(target, "w") as wheel:
        for file in sorted((project / ARCEE).rglob("*.*")):
            wheel.write(file, file.relative_to(project).as_posix())
        info = "ostro_arch_arcee-1.0.dist-info"
        wheel.writestr(
            f"{info}/METADATA",
            spoil(
                "Metadata-Version: 2.4\nName: ostro-arch-arcee\nVersion: 1.0\n"
                "License-Expression: Apache-2.0\nProvides-Extra: ostro\n"
                "Requires-Dist: ostro<0.3,>=0.2; extra == 'ostro'\n"
            ),
        )
        wheel.writestr(f"{info}/entry_points.txt", f"[ostro]\narcee = {ARCEE}\n")
    return target


def test_a_wheel_is_checked_as_its_project_is(project: Path, plugin: Plugin) -> None:
    wheel = zipped(project, project / "good-1.0-py3-none-any.whl")
    assert plugin("check", wheel).out == "good-1.0-py3-none-any.whl: 0 errors, 0 warnings\n"
    change(project / RECORD, ".model:Model", ".model:Modell")
    wheel = zipped(project, project / "bad.whl", lambda text: text.replace("<0.3,>=0.2", "<0.2"))
    ran = plugin("check", wheel)
    assert ran.code == 1 and "has no 'Modell'" in ran.out
    assert "it requires the plugin API <0.2, this ostro has 0.2" in ran.out
    assert "2 errors, 0 warnings" in ran.out


def test_a_bare_folder_is_checked_without_metadata(project: Path, plugin: Plugin) -> None:
    assert plugin("check", project / ARCEE).out == f"{ARCEE}: 0 errors, 0 warnings\n"


def test_the_name_of_a_command_of_ostro_is_taken(project: Path, plugin: Plugin) -> None:
    target = f"{ARCEE}:main"
    source = (
        "from ostro import Command, hookimpl\n\n\n@hookimpl\ndef ostro_commands():\n"
        f'    yield Command(name="serve", help="h", parser="{target}", run="{target}")\n\n\n'
        "def main(args): ...\n"
    )
    (project / RECORD).write_text(source)
    ran = plugin("check", project)
    assert ran.code == 1 and "ostro itself has the command 'serve'" in ran.out
    (project / RECORD).write_text(source.replace('"serve"', '"served"'))
    assert plugin("check", project).code == 0


def test_findings_are_given_as_json(project: Path, plugin: Plugin) -> None:
    change(project / RECORD, "tiny=TINY", "tinny=TINY")
    ran = plugin("check", project, "--json")
    found = json.loads(ran.out)
    assert ran.code == 1 and {each["level"] for each in found} == {"error"}
    assert found[0].keys() == {"level", "where", "what", "todo"}
    assert all(each["where"].startswith(RECORD) for each in found)


@pytest.mark.parametrize("what", ["absent", "empty", "text.whl", "zip.whl", "broken"])
def test_what_is_no_plugin_is_the_users_mistake(what: str, plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / what
    if what == "empty":
        path.mkdir()
    elif what == "text.whl":
        path.write_text("no zip")
    elif what == "zip.whl":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.txt", "a")
    elif what == "broken":
        path.mkdir()
        (path / PROJECT).write_text("[project\n")
    ran = plugin("check", path)
    assert ran.code == 2 and str(path) in ran.err and "Traceback" not in ran.err


def test_a_source_that_is_too_large_is_not_parsed(project: Path) -> None:
    (project / MODEL).write_text("#" * (1 << 23))
    found = [finding.what for finding in check(Package.read(project))]
    assert any("bytes; at most" in what for what in found)
