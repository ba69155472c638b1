"""The kit as a command, for plugins that are not installed and have references of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ostro.core.errors import PluginError
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, Conformance
from ostro.core.settings import Settings
from ostro.plugins.conformance import golden, mutants, references
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.checks import checks_of
from ostro.plugins.conformance.parity import SMALL, Subject, subject

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PARROT = HERE / "parrot"


def renamed(name: str, folder: Path, **changes: str) -> Path:
    """A copy of the parrot under another name, with other words in it."""
    copy = folder / name
    shutil.copytree(PARROT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for file in copy.glob("*.py"):
        text = file.read_text().replace("parrot", name)
        for old, new in changes.items():
            text = text.replace(old, new)
        file.write_text(text)
    return copy


def loaded(path: Path) -> PluginManager:
    manager = PluginManager()
    manager.load(Settings(), [path])
    return manager


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Plugins of this file are imported anew by every test."""
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if name.split(".")[0] in ("parrot", "macaw"):
            del sys.modules[name]


def conforms(tiny: Subject) -> list[str]:
    """Run every check; the names of those that ran to their end."""
    ran = []
    for check in checks_of(tiny.record):
        try:
            check.run(tiny)
        except pytest.skip.Exception:
            continue
        ran.append(check.name)
    return ran


def test_a_reference_may_be_the_plugins_own() -> None:
    with subject(loaded(PARROT), "parrot") as tiny:
        ran = conforms(tiny)
    assert "outputs match the reference" in ran and "every mutant fails parity" in ran


def test_a_reference_may_be_golden_logits(tmp_path: Path) -> None:
    path = renamed("macaw", tmp_path)
    file = path / "golden.safetensors"
    golden.main(["macaw", "macaw.reference:Plain", str(file), "--plugin", str(path)])
    assert file.stat().st_size < 80_000
    source = path / "__init__.py"
    source.write_text(
        source.read_text().replace("macaw.reference:Plain", "macaw:golden.safetensors")
    )
    (path / "reference.py").unlink()
    del sys.modules["macaw"]
    with subject(loaded(path), "macaw") as tiny:
        ran = conforms(tiny)
    assert "outputs match the reference" in ran and "every mutant fails parity" in ran


BODY = """
from ostro import Architecture, Conformance, hookimpl


@hookimpl
def ostro_architectures():
    yield Architecture(
        name="macaw",
        api=(0, 2),
        classes=("NanoChatForCausalLM",),
        config="transformers:NanoChatConfig",
        model="transformers:NanoChatForCausalLM",
        conformance=Conformance(
            tiny={
                "vocab_size": 128,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 1,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "max_position_embeddings": 256,
                "eos_token_id": None,
            },
            reference="transformers:NanoChatForCausalLM",
        ),
    )
"""


@pytest.mark.slow
def test_a_body_conforms(tmp_path: Path) -> None:
    """A class of transformers as a record names it: its config is no config of ours."""
    (tmp_path / "macaw").mkdir()
    (tmp_path / "macaw" / "__init__.py").write_text(BODY)
    with subject(loaded(tmp_path / "macaw"), "macaw") as tiny:
        names = {mutant.name for mutant in mutants.of(tiny.record, tiny.load().model)}
        ran = conforms(tiny)
    assert names == {"scores scaled by 1.1", "all positions are zero"}
    assert "every mutant fails parity" in ran and "chunked prefill matches full prefill" in ran
    assert "mistyped config values are rejected by field name" in ran
    assert "config round trips" not in ran


def test_golden_logits_know_no_media(tmp_path: Path) -> None:
    record = Architecture(
        name="macaw",
        api=(0, 2),
        config="a:b",
        model="a:b",
        conformance=Conformance(
            tiny={"hidden_size": 8},
            reference="macaw:golden.safetensors",
            examples="macaw.examples:examples",
        ),
    )
    with pytest.raises(PluginError, match="golden logits support text only"):
        references.build(record, dict(record.conformance.tiny or {}), SMALL, PluginManager())


def test_golden_logits_that_are_not_of_these_weights_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = renamed("macaw", tmp_path)
    manager = loaded(path)
    golden.write(
        manager.get("architectures", "macaw"),
        "macaw.reference:Plain",
        path / "g.safetensors",
        manager,
    )
    found = golden.read("macaw:g.safetensors", SMALL)
    assert len(found.prompt) == golden.LENGTH and found.logits.shape == (golden.LENGTH, 128)
    with pytest.raises(PluginError, match=r"no golden logits for weights N\(0, 0\.5\)"):
        golden.read("macaw:g.safetensors", 0.5)
    with pytest.raises(PluginError, match="has no file other"):
        golden.read("macaw:other.safetensors", SMALL)
    monkeypatch.setattr(golden, "draw", lambda tensors, std: None)
    with pytest.raises(PluginError, match="draws other weights than torch"):
        golden.read("macaw:g.safetensors", SMALL)


def test_a_record_without_a_reference_says_so(tmp_path: Path) -> None:
    path = renamed("macaw", tmp_path, **{'reference="macaw.reference:Plain",': ""})
    with pytest.raises(PluginError, match="macaw: its record has no reference"):
        with subject(loaded(path), "macaw"):
            pass


@pytest.mark.parametrize("installed", ["5.0.0", "5.22.2", references.TESTED, "6.0.0"])
def test_an_older_transformers_may_lack_a_reference(
    installed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checks are skipped with the version, the class and the reason."""
    lost = {'reference="macaw.reference:Plain"': 'reference="transformers:LostForCausalLM"'}
    plugins = loaded(renamed("macaw", tmp_path, **lost))
    monkeypatch.setattr(references, "version", lambda package: installed)

    class TestMacaw(ArchitectureTests):
        name = "macaw"

    fixture = TestMacaw.tiny.__wrapped__.__func__
    made = fixture(TestMacaw, plugins, SimpleNamespace(param="macaw"))
    if installed in (references.TESTED, "6.0.0"):
        with pytest.raises(AttributeError, match="LostForCausalLM"):
            next(made)
        return
    said = rf"transformers {installed} cannot build transformers:LostForCausalLM \(AttributeError"
    with pytest.raises(pytest.skip.Exception, match=said):
        next(made)


def test_references_are_built_by_the_pinned_transformers() -> None:
    assert f"transformers=={references.TESTED}\n" in (ROOT / "constraints.txt").read_text()


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The kit as its users call it, outside of this repository."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        "pytest.ini",
        "-p",
        "ostro.plugins.conformance.plugin",
    ]
    return subprocess.run(
        [*command, *arguments, "--pyargs", "ostro.testing"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    broken = renamed("macaw", tmp_path, **{'hidden_act: str = "relu"': 'hidden_act: str = "gelu"'})
    ran = run(
        tmp_path,
        *("--ostro-plugin", str(PARROT), "--ostro-plugin", str(broken)),
        *("--ostro-arch", "parrot", "--ostro-arch", "macaw", "--ostro-report", "report.json"),
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "first module that differs: model.layers.0.mlp" in ran.stdout
    assert "matches if: activation relu" in ran.stdout
    assert "ostro conformance" in ran.stdout and "┃ parrot" in ran.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    parity = {name: found["outputs match the reference"] for name, found in report.items()}
    assert parity["parrot"]["status"] == "passed" and parity["macaw"]["status"] == "failed"
    assert "matches if: activation relu" in parity["macaw"]["reason"]
    assert {each["status"] for each in report["parrot"].values()} == {"passed", "skipped"}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["lama"], "no plugin offers 'lama' among the architectures; nearest: llama"),
        ([], "no architecture is named; add --ostro-arch NAME"),
    ],
)
def test_the_command_rejects_unknown_names(names: list[str], said: str) -> None:
    given = {"ostro_arch": names, "ostro_plugin": []}
    config = SimpleNamespace(getoption=lambda name, default=None: given.get(name, default))
    asked = SimpleNamespace(fixturenames=["tiny", "check"], config=config)
    with pytest.raises(pytest.UsageError, match=said):
        ArchitectureTests.pytest_generate_tests(asked)  # type: ignore[arg-type]
