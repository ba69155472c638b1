"""`ostro doctor`: check devices, kernels and libraries of this machine."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ostro import __version__
from ostro.core.errors import UsageError

Line = tuple[str, str, str]
"""Subject, finding, and advice ("" if none is needed)."""

LOW_DISK = 2.0
"""Free space in GB below which few models can be downloaded."""

PACKAGES = ("torch", "triton", "transformers", "tokenizers", "safetensors", "huggingface_hub")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    lines = [*system(), *packages(), *devices(), *disk(), *plugins()]
    if args.json:
        keys = ("subject", "finding", "advice")
        print(json.dumps([dict(zip(keys, line, strict=True)) for line in lines], indent=2))
        return 0
    from rich.table import Table

    from ostro.entrypoints.cli import console

    table = Table("subject", "finding", "advice")
    for line in lines:
        table.add_row(*line)
    console().print(table)
    problems = sum(bool(advice) for _, _, advice in lines)
    print(f"{problems} findings with advice" if problems else "no problem found")
    return 0


def system() -> Iterator[Line]:
    yield "ostro", __version__, ""
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}", ""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "cores", str(cores), ""
    yield "C++ compiler", shutil.which("g++") or shutil.which("clang++") or "none", ""


def packages() -> Iterator[Line]:
    for name in PACKAGES:
        try:
            yield name, version(name), ""
        except PackageNotFoundError:
            advice = "required for GPU kernels" if name == "triton" else f"pip install {name}"
            yield name, "not installed", advice


def devices() -> Iterator[Line]:
    try:
        import torch

        from ostro.core.device import format_bytes, free_bytes
    except (ImportError, OSError) as error:
        yield "torch import", f"failed: {error}", "reinstall torch"
        return
    bf16 = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    capability = torch.backends.cpu.get_cpu_capability()
    advice = "" if bf16 else "bf16 models compute in float32 on this CPU"
    yield "cpu", f"{capability}, bf16 {'yes' if bf16 else 'no'}", advice
    yield native_kernels()
    yield "memory", f"{format_bytes(free_bytes(torch.device('cpu')))} free", ""
    if not torch.cuda.is_available():
        yield (
            "cuda",
            "none",
            ""
            if torch.version.cuda is None
            else "torch has CUDA but finds no device; check the driver",
        )
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        size = properties.total_memory / 2**30
        kind = f"sm_{properties.major}{properties.minor}"
        yield f"cuda:{i}", f"{properties.name}, {size:.0f} GiB, {kind}", ""


def native_kernels() -> Line:
    """Which instructions the native kernels use and why, and where the kernels come from."""
    from ostro.core.native.library import PREBUILT, compiler
    from ostro.core.native.variants import this_variant

    subject = "native kernels"
    try:
        variant, reason = this_variant()
    except UsageError as error:
        return subject, "none", str(error)
    if variant is None:
        return subject, f"none ({reason})", ""
    if (PREBUILT / variant.name).is_dir():
        return subject, f"{variant.name} ({reason}), prebuilt", ""
    try:
        command = " ".join(compiler().command)
    except ImportError as error:
        return subject, f"none: {error}", "install g++: models run slower on the CPU without it"
    return subject, f"{variant.name} ({reason}), compiled by {command} at their first use", ""


def disk() -> Iterator[Line]:
    """The folder of downloaded models, and the free space of its disk."""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return
    folder = Path(HF_HUB_CACHE)
    exists = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(exists).free / 1e9
    advice = "" if free > LOW_DISK else "little space for downloads; set HF_HOME to another disk"
    yield "model cache", f"{folder}, {free:.1f} GB free", advice


def plugins() -> Iterator[Line]:
    from ostro.core.plugins.manager import PluginManager

    manager = PluginManager()
    manager.load()
    found = manager.describe()
    yield "plugins", f"{len(found)} found, {len(manager.broken)} broken", ""
    for broken in manager.broken.values():
        yield f"plugin {broken.name}", f"broken ({broken.source})", broken.reason
