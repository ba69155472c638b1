"""Variants of native libraries: which one a CPU runs, and how a library of the wheel is found."""

from __future__ import annotations

import ctypes
import platform
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ostro.core.env import CPU
from ostro.core.errors import UsageError
from ostro.core.native import library, load, variants
from ostro.core.native.build import NATIVE, VARIANTS, Compiler, Variant, library_name
from ostro.core.ops import Op, Target, rms_norm

AVX2 = "fpu sse2 ssse3 sse4_1 sse4_2 popcnt avx f16c fma abm bmi1 avx2 bmi2"
AVX512 = f"{AVX2} avx512f avx512dq avx512cd avx512bw avx512vl"
CPUS = {
    "Sandy Bridge": ("fpu sse2 ssse3 sse4_1 sse4_2 popcnt avx", "native"),
    "Zen 3": (AVX2, "x86-64-v3"),
    "Alder Lake": (f"{AVX2} avx_vnni", "x86-64-v3"),
    "Knights Landing": (f"{AVX2} avx512f avx512cd avx512er avx512pf", "x86-64-v3"),
    "Skylake-X": (AVX512, "x86-64-v4"),
    "Ice Lake": (f"{AVX512} avx512_vnni avx512_vbmi", "x86-64-v4-vnni"),
    "Zen 4": (f"{AVX512} avx512_vnni avx512_bf16", "x86-64-v4-bf16"),
}
"""Names in /proc/cpuinfo, of which those that no variant requires are left out."""

ONE = 'extern "C" long number() { return NUMBER; }\n'


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSTRO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "FAILED", {})
    return tmp_path / "cache/native"


@pytest.mark.parametrize("name", CPUS)
def test_a_cpu_gets_the_best_variant_that_it_runs(name: str) -> None:
    flags, expected = CPUS[name]
    variant, _ = variants.choose_variant("", "x86_64", frozenset(flags.split()))
    assert variant is not None and variant.name == expected


def test_the_reason_names_what_the_next_variant_requires() -> None:
    def reason(name: str) -> str:
        return variants.choose_variant("", "x86_64", frozenset(CPUS[name][0].split()))[1]

    assert reason("Ice Lake") == "this CPU lacks avx512_bf16"
    assert reason("Skylake-X") == "this CPU lacks avx512_vnni"
    assert reason("Zen 4") == "this CPU supports every variant"
    assert variants.choose_variant("", "aarch64", frozenset()) == (
        NATIVE,
        "there is no variant for aarch64",
    )


def test_a_variant_can_be_chosen() -> None:
    flags = frozenset(CPUS["Zen 4"][0].split())
    for variant in (*VARIANTS["x86_64"], NATIVE):
        chosen = variants.choose_variant(variant.name, "x86_64", flags)
        assert chosen == (variant, f"OSTRO_CPU={variant.name}")
    assert variants.choose_variant("none", "x86_64", flags) == (None, "OSTRO_CPU=none")


def test_a_variant_that_the_cpu_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match=r"OSTRO_CPU='x86-64-v4'.* lacks .*avx512f.* unset it"):
        variants.choose_variant("x86-64-v4", "x86_64", frozenset(AVX2.split()))
    with pytest.raises(UsageError, match=r"expected one of x86-64-v4-bf16, .*native, none"):
        variants.choose_variant("avx2", "x86_64", frozenset(AVX2.split()))
    with pytest.raises(UsageError, match="expected one of native, none"):
        variants.choose_variant("x86-64-v3", "aarch64", frozenset())


def test_the_help_names_every_value() -> None:
    variants_of_all = chain.from_iterable(VARIANTS.values())
    for name in (*(variant.name for variant in variants_of_all), NATIVE.name, "none"):
        assert name in CPU.help


def test_plain_torch_can_be_chosen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OSTRO_CPU", "none")
    monkeypatch.delitem(sys.modules, "ostro.core.ops.rms_norm.native", raising=False)
    choice = Op(rms_norm.KERNELS).select(Target(device=torch.device("cpu"), dtype=torch.float32))
    assert choice.kernel.name == "naive" and "OSTRO_CPU=none" in choice.reason
    assert not caplog.records, "what the user has chosen is not warned about"


def variant_here() -> Variant:
    variant, _ = variants.choose_variant("", platform.machine(), variants.cpu_flags())
    assert variant is not None
    return variant


def number(source: Path) -> int:
    return load(source).number()


def test_a_prebuilt_library_is_loaded_without_a_compiler(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = variant_here()
    source = tmp_path / "kernel.cpp"
    source.write_text(ONE.replace("NUMBER", "17"))
    folder = tmp_path / "prebuilt" / variant.name
    folder.mkdir(parents=True)
    Compiler.find().compile(source, variant, folder / library_name(source, variant))
    assert [file.suffix for file in folder.iterdir()] == [".so"]
    monkeypatch.setattr(library, "PREBUILT", tmp_path / "prebuilt")
    with monkeypatch.context() as without:
        without.setenv("CXX", "/nowhere/c++")
        without.setattr(library, "compiler", library.compiler.__wrapped__)
        assert number(source) == 17
        source.write_text(ONE.replace("NUMBER", "18"))
        with pytest.raises(ImportError, match="does not run"):
            number(source)
    monkeypatch.setattr(library, "FAILED", {})
    assert number(source) == 18, "an edited source is compiled"
    assert len(list(own_cache.glob("*.so"))) == 1


def test_a_header_and_a_flag_change_the_name(tmp_path: Path) -> None:
    variant = Variant("first", ("-mavx",))
    source, header = tmp_path / "kernel.cpp", tmp_path / "types.h"
    source.write_text(ONE)
    header.write_text("// one")
    names = [library_name(source, variant), library_name(source, Variant("second", ("-mfma",)))]
    header.write_text("// two")
    names.append(library_name(source, variant))
    assert len(set(names)) == 3


def test_all_libraries_of_a_package_are_compiled_once(tmp_path: Path, own_cache: Path) -> None:
    package = tmp_path / "package"
    elsewhere = tmp_path / "elsewhere/kernel"
    for folder, value in ((package / "one", "1"), (elsewhere, "2")):
        folder.mkdir(parents=True)
        (folder / "native.cpp").write_text(ONE.replace("NUMBER", value))
    (package / "two").symlink_to(elsewhere.parent)  # as the folders of a source tree are
    reports: list[str] = []
    library.compile_package(package, reports.append)
    assert len(reports) == 1 and reports[0].startswith("compiling 2 native kernels for ")
    made = {file: file.stat().st_mtime_ns for file in own_cache.glob("*.so")}
    assert len(made) == 2
    library.compile_package(package, reports.append)
    assert len(reports) == 1
    assert [number(package / "one/native.cpp"), number(elsewhere / "native.cpp")] == [1, 2]
    assert {file: file.stat().st_mtime_ns for file in own_cache.glob("*.so")} == made


def test_the_openmp_runtime_of_torch_is_visible() -> None:
    """Libraries use it without naming it. torch loads it for all libraries of the process."""
    assert hasattr(ctypes.CDLL(None), "GOMP_parallel")


@pytest.mark.parametrize("has_runtime", [True, False])
def test_a_missing_openmp_runtime_is_loaded(
    has_runtime: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[str | None, int]] = []

    def load_library(name: str | None, mode: int = ctypes.DEFAULT_MODE) -> object:
        loaded.append((name, mode))
        return SimpleNamespace(**({"GOMP_parallel": None} if has_runtime else {}))

    monkeypatch.setattr(ctypes, "CDLL", load_library)
    library.provide_openmp.__wrapped__()
    expected = [] if has_runtime else [("libgomp.so.1", ctypes.RTLD_GLOBAL)]
    assert loaded == [(None, ctypes.DEFAULT_MODE), *expected]
