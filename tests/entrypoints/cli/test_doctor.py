"""`ostro doctor`: it finds what is there, and says what is not even where much is missing."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

from ostro.core.native import library, variants
from ostro.core.native.build import X86_64_V3
from ostro.entrypoints.cli import doctor


def findings(ostro, *words: str) -> dict[str, dict[str, str]]:
    ran = ostro("doctor", "--json", *words)
    assert ran.code == 0
    return {line["subject"]: line for line in json.loads(ran.out)}


def test_this_machine_is_described(ostro) -> None:
    found = findings(ostro)
    assert found["python"]["finding"].startswith(platform.python_version())
    assert found["torch"]["finding"] == version("torch")
    assert int(found["cores"]["finding"]) > 0
    assert "bf16" in found["cpu"]["finding"]
    assert found["plugins"]["finding"].endswith(" 0 broken")
    if not torch.cuda.is_available():
        assert found["cuda"]["finding"] == "none"


def test_the_default_output_is_a_table(ostro) -> None:
    ran = ostro("doctor")
    assert ran.code == 0 and "advice" in ran.out and version("torch") in ran.out
    assert ran.out.splitlines()[-1] == "no problem found" or "with advice" in ran.out


def test_a_full_disk_is_a_finding(ostro, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "none" / "hub"))
    line = findings(ostro)["model cache"]
    assert line["finding"].startswith(f"{tmp_path}/none/hub, ")
    monkeypatch.setattr(doctor, "LOW_DISK", float("inf"))
    assert "HF_HOME" in findings(ostro)["model cache"]["advice"]
    assert ostro("doctor").out.endswith(" with advice\n")


def test_a_missing_compiler_is_missed(ostro, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(library, "compiler", library.compiler.__wrapped__)
    lines = findings(ostro)
    assert lines["C++ compiler"]["finding"] == "none"
    line = lines["native kernels"]
    assert line["finding"].startswith("none: ") and "install g++" in line["advice"]


def test_the_variant_of_the_kernels_is_explained(
    ostro, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(variants, "cpu_flags", lambda: X86_64_V3.requires)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    line = findings(ostro)["native kernels"]
    assert line["finding"].startswith("x86-64-v3 (this CPU lacks avx512") and not line["advice"]
    assert "compiled by " in line["finding"]
    (tmp_path / "x86-64-v3").mkdir()
    monkeypatch.setattr(library, "PREBUILT", tmp_path)
    assert findings(ostro)["native kernels"]["finding"].endswith("), prebuilt")
    monkeypatch.setenv("OSTRO_CPU", "none")
    assert findings(ostro)["native kernels"]["finding"] == "none (OSTRO_CPU=none)"
    monkeypatch.setenv("OSTRO_CPU", "x86-64-v4")
    line = findings(ostro)["native kernels"]
    assert line["finding"] == "none" and "this CPU lacks avx512" in line["advice"]


def test_a_missing_package_is_missed(ostro, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        if name in ("triton", "safetensors"):
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(doctor, "version", absent)
    found = findings(ostro)
    assert found["triton"]["advice"] == "required for GPU kernels"
    assert found["safetensors"]["advice"] == "pip install safetensors"
    assert not found["torch"]["advice"]


def test_a_torch_that_does_not_import_is_a_finding(ostro, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = findings(ostro)
    assert "failed" in found["torch import"]["finding"]
    assert "plugins" in found and "python" in found


def test_a_broken_plugin_is_a_finding(
    ostro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"broken_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text("raise RuntimeError('no luck')")
    info = tmp_path / "ostro_broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: ostro-broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ostro]\nbroken = {module}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = findings(ostro)
    assert found["plugins"]["finding"].endswith(" 1 broken")
    assert "no luck" in found["plugin broken"]["advice"]
