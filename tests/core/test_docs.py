"""docs/hooks.md says everything about the contract, and its example is a plugin that works."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file
from tiny.model import make_model

import ostro
from ostro.core import env, hooks, records, routes, settings
from ostro.core.errors import UnsupportedArchitecture
from ostro.core.plugins.kinds import KINDS
from ostro.core.plugins.manager import HOOKS, PluginManager

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "hooks.md"
GIVEN = (
    records.Files,
    records.Format,
    records.TensorInfo,
    records.TokenizerSource,
    records.Conformance,
    records.Mutant,
    settings.Settings,
    routes.RequestBody,
    routes.EventFormat,
)


def sections() -> dict[str, str]:
    """The page's sections by heading."""
    parts = re.split(r"^#{2,3} (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(section: str) -> dict[str, str]:
    """The first cells of a section's table, with the rest of their rows."""
    return dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", section, flags=re.MULTILINE))


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_and_argument_is_described(name: str) -> None:
    hook = getattr(hooks, name)
    deprecated = hook.ostro_spec["warn_on_impl_args"] or {}
    arguments = [each for each in inspect.signature(hook).parameters if each not in deprecated]
    section = sections()[f"{name}({', '.join(arguments)})"]
    listed = re.findall(r"^- `(\w+)`: \S+", section, flags=re.MULTILINE)
    assert listed == arguments
    for argument in deprecated:
        assert re.search(rf"`{argument}` .+ deprecated", section, re.DOTALL)
    said = inspect.getdoc(hook) or ""
    kind = said.partition(" ")[0]
    assert section.strip().startswith(
        {"Declare": "Declaration", "Decide": "Decision"}.get(kind, kind)
    )
    [where] = re.findall(r"\((both|api|engine)\):", said)
    assert f"{where} process" in section


@pytest.mark.parametrize("record", [*KINDS.values(), *GIVEN], ids=lambda record: record.__name__)
def test_every_field_of_every_record_is_described(record: type) -> None:
    common = set() if record in GIVEN else {f.name for f in dataclasses.fields(records.Record)}
    described = rows(sections()[record.__name__])
    fields = {f.name: f for f in dataclasses.fields(record) if f.name not in common}
    assert list(described) == list(fields)
    for name, field in fields.items():
        form, _, meaning = described[name].partition(" | ")
        assert meaning
        assert form.endswith("or None") is str(field.type).endswith("| None"), f"{name}: {form}"
        if field.default not in (dataclasses.MISSING, None):
            assert f"= {default(field.default)}" in form, f"{name}: {form}"


def default(value: object) -> str:
    """The source of a default; a dataclass as a default has the defaults of its fields."""
    made = dataclasses.is_dataclass(value)
    return f"{type(value).__name__}()" if made else re.sub("'", '"', repr(value))


def test_what_all_records_share_is_described() -> None:
    assert set(rows(sections()["Records"])) == {f.name for f in dataclasses.fields(records.Record)}


def test_nothing_is_described_that_is_not_there() -> None:
    known = {record.__name__ for record in (*KINDS.values(), *GIVEN)}
    for heading in sections():
        if heading.startswith("ostro_"):
            assert heading.partition("(")[0] in HOOKS
        elif heading.isidentifier() and heading not in ("Hooks", "Records"):
            assert heading in known


def test_the_public_surface_is_described() -> None:
    section = sections()["The public surface"]
    described = re.findall(
        r"`(\w+)`", " ".join(re.findall(r"^\| (`.+?) \|", section, re.MULTILINE))
    )
    assert sorted(described) == sorted(ostro.__all__)
    assert len(set(described)) == len(described)


def test_environment_variables_are_documented_and_read_in_one_file() -> None:
    described = rows(sections()["How plugins are treated"])
    assert set(described) <= set(env.VARIABLES)
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    for variable in env.VARIABLES:
        assert f"`{variable}`" in pages
    for file in python_files():
        source = file.read_text()
        if file.name == "env.py" or "OSTRO_" not in source:
            continue
        for word in constants(ast.parse(source)):
            assert not re.fullmatch(r"OSTRO_[A-Z_]+", word), (
                f"{file}: {word} belongs in core/env.py"
            )


def test_kinds_that_nothing_asks_for_say_so() -> None:
    sources = [file.read_text() for file in python_files()]
    sources = [text for text in sources if any(f'"{kind}"' in text for kind in KINDS)]
    calls = [call for text in sources for call in ast.walk(ast.parse(text)) if asks(call)]
    asked = {call.args[0].value for call in calls}  # type: ignore[attr-defined]
    for kind in KINDS:
        [section] = [text for head, text in sections().items() if head.startswith(f"ostro_{kind}(")]
        silent = "Nothing asks for these yet." in section
        assert silent is (kind not in asked), f"docs/hooks.md, ostro_{kind}: is it in use or not?"


def asks(node: ast.AST) -> bool:
    """Whether this is a call such as `plugins.get("caches", name)`."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("collect", "get", "claimant")
        and bool(node.args)
        and isinstance(node.args[0], ast.Constant)
        and node.args[0].value in KINDS
    )


def python_files() -> Iterator[Path]:
    for room in ("core", "architectures", "quant", "adapters", "plugins", "entrypoints"):
        yield from (ROOT / room).rglob("*.py")


def constants(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's example, installed as a wheel's files are."""
    files = re.findall(
        r"^`([\w./]+)`\n\n```\w+\n(.+?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    for name, text in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    [requirement] = project["optional-dependencies"]["ostro"]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: {project['version']}\n"
        f"Requires-Dist: {requirement}; extra == 'ostro'\n"
    )
    points = "".join(f"{k} = {v}\n" for k, v in project["entry-points"]["ostro"].items())
    (info / "entry_points.txt").write_text(f"[ostro]\n{points}")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for module in [n for n in sys.modules if n.startswith(("ostro_arch_arcee", "ostro_thin"))]:
        del sys.modules[module]


def test_the_example_is_a_plugin_and_its_logits_are_right(example: Path) -> None:
    from ostro.plugins.conformance.parity import BAR, deviation, subject

    manager = PluginManager()
    manager.load()
    [found] = [each for each in manager.describe() if each.name == "arcee"]
    assert (found.status, found.source) == ("active", "ostro-arch-arcee 1.0"), found.reason
    assert manager.architecture_for(["ArceeForCausalLM"]).name == "arcee"
    with subject(manager, "arcee") as made:
        logits = made.engine().runner.logits(made.prompt)
        assert deviation(logits, made.run_reference(made.prompt)) <= BAR


def test_the_example_of_an_adapter_kind_is_a_plugin(
    example: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its factors do what the same factors do in PEFT's folder; one alone is refused."""
    root = tmp_path_factory.mktemp("thin")
    config = json.loads((make_model(root / "base") / "config.json").read_text())
    d = config["hidden_size"]
    down, up = torch.randn(4, d) / d**0.5, torch.randn(d, 4)
    (root / "thin").mkdir()
    (root / "peft").mkdir()
    save_file({"1.q.down": down, "1.q.up": up}, root / "thin" / "thin.safetensors")
    (root / "thin" / "adapter_config.json").write_text('{"format": "thin", "scale": 0.5}')
    name = "base_model.model.model.layers.1.self_attn.q_proj"
    factors = {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
    save_file(factors, root / "peft" / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": 4, "lora_alpha": 2, "target_modules": ["q_proj"]}
    (root / "peft" / "adapter_config.json").write_text(json.dumps(said))
    with ostro.load(root / "base", dtype="float32", plugins=[example / "ostro_thin"]) as model:
        assert model.load_adapter("thin", root / "thin").kind == "thin"
        model.load_adapter("peft", root / "peft")
        base, thin, peft = (model.logits("hello", adapters=a) for a in ([], ["thin"], ["peft"]))
        assert torch.equal(thin, peft) and (thin - base).norm() > 0.01 * base.norm()
        save_file({"1.q.down": down}, root / "thin" / "thin.safetensors")
        with pytest.raises(ostro.errors.AdapterError, match=r"thin\.safetensors: 1\.q\.up"):
            model.load_adapter("half", root / "thin")


def test_without_the_example_its_model_is_unsupported() -> None:
    manager = PluginManager()
    manager.load()
    with pytest.raises(UnsupportedArchitecture):
        manager.architecture_for(["ArceeForCausalLM"])


def test_the_example_is_as_small_as_promised() -> None:
    blocks = re.findall(r"```python\n(.+?)```", sections()["An architecture in a wheel"], re.DOTALL)
    lines = [line for block in blocks[:2] for line in block.splitlines() if line.strip()]
    assert len(lines) <= 50


def test_the_trunks_are_what_the_records_say() -> None:
    from ostro import trunks

    manager = PluginManager()
    manager.load()
    for name, record in manager.collect("architectures").items():
        if record.trunk:
            module = getattr(trunks, name)
            assert isinstance(module, ModuleType)
            assert issubclass(module.Model, ostro.nn.Model)
        else:
            with pytest.raises(AttributeError, match=name):
                getattr(trunks, name)
