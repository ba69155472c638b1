"""Build hook of the wheel: compiles the native kernels for every variant of this machine's CPUs.

Without g++, or on another platform, the wheel has no kernels: a machine with a compiler compiles
them at their first use. OSTRO_CPU limits the variants: a name of one, or none.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("core", "plugins", "architectures", "quant", "adapters", "entrypoints")


class BuildKernels(BuildHookInterface[Any]):
    """Adds `ostro/core/native/prebuilt/VARIANT/*.so` to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # its sources change
            return
        root = Path(self.root)
        build = load_module(root / "core/native/build.py")
        variants = select_variants(build, os.environ.get("OSTRO_CPU", ""))
        if sys.platform != "linux" or not variants:
            return
        self.folder = Path(tempfile.mkdtemp(prefix="ostro-kernels-"))
        try:
            compiler = build.Compiler.find()
            if not compiler.has_gnu_openmp:
                raise ImportError(f"{compiler.command[0]} is not GCC, whose OpenMP torch brings")
            names = compile_all(build, compiler, root, variants, self.folder)
        except ImportError as error:
            self.app.display_warning(f"the wheel has no native kernels: {error}")
            return
        for name in names:
            source, target = self.folder / name, f"ostro/core/native/prebuilt/{name}"
            build_data["force_include"][str(source)] = target
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if folder := getattr(self, "folder", None):
            shutil.rmtree(folder)


def select_variants(build: Any, wanted: str) -> list[Any]:
    """The variants of this machine type: all, the wanted one, or none for "none" and "native"."""
    variants = build.VARIANTS.get(platform.machine(), ())
    names = [variant.name for variant in variants]
    if wanted not in ("", "none", "native", *names):
        raise ValueError(f"OSTRO_CPU={wanted!r}: expected one of {', '.join((*names, 'none'))}")
    return [variant for variant in variants if wanted in ("", variant.name)]


def load_module(path: Path) -> Any:
    """A module of ostro by its path: importing the package would import torch."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def compile_all(build: Any, compiler: Any, root: Path, variants: Any, folder: Path) -> list[str]:
    """Compile each source for each variant; returns the paths below `folder`.

    The largest sources come first, so that no core waits for one at the end.
    """
    sources = sorted(
        (source for name in FOLDERS for source in (root / name).rglob("*.cpp")),
        key=lambda source: source.stat().st_size,
        reverse=True,
    )
    jobs = [(source, variant) for source in sources for variant in variants]
    names = [f"{variant.name}/{build.library_name(source, variant)}" for source, variant in jobs]
    for variant in variants:
        (folder / variant.name).mkdir()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        libraries = [folder / name for name in names]
        list(pool.map(compiler.compile, *zip(*jobs, strict=True), libraries))
    return names
