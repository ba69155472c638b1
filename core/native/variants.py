"""The CPU of this machine, and the variant of native libraries that it runs."""

from __future__ import annotations

import platform
from collections.abc import Set
from functools import cache
from pathlib import Path

from ostro.core.env import CPU
from ostro.core.errors import UsageError
from ostro.core.native.build import NATIVE, VARIANTS, Variant


@cache
def cpu_info() -> dict[str, str]:
    """The lines of /proc/cpuinfo of the first CPU; empty where there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    fields = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in fields}


def cpu_flags() -> Set[str]:
    """The names of the instructions of this CPU that the operating system supports."""
    info = cpu_info()
    return frozenset((info.get("flags") or info.get("Features", "")).split())


def this_variant() -> tuple[Variant | None, str]:
    """The variant for this CPU, or that of OSTRO_CPU, and the reason. None selects plain torch.

    Raises UsageError.
    """
    return choose_variant(CPU.read(), platform.machine(), cpu_flags())


def choose_variant(wanted: str, machine: str, flags: Set[str]) -> tuple[Variant | None, str]:
    """The best variant for a CPU with these flags, or the wanted one, and the reason.

    Raises UsageError if there is no variant of the wanted name, or if the CPU lacks instructions.
    """
    variants = VARIANTS.get(machine, ())
    if wanted:
        named = {variant.name: variant for variant in (*variants, NATIVE)} | {"none": None}
        if wanted not in named:
            names = ", ".join(named)
            raise UsageError(f"OSTRO_CPU={wanted!r}: expected one of {names}", param=CPU.name)
        variant = named[wanted]
        if variant is not None and (missing := lacking(variant, flags)):
            raise UsageError(f"OSTRO_CPU={wanted!r}: {missing}; unset it", param=CPU.name)
        return variant, f"OSTRO_CPU={wanted}"
    reason = "this CPU supports every variant"
    for variant in variants:
        if not (missing := lacking(variant, flags)):
            return variant, reason
        reason = missing
    return NATIVE, reason if variants else f"there is no variant for {machine}"


def lacking(variant: Variant, flags: Set[str]) -> str:
    """What a CPU with these flags lacks, in words; "" if it runs the variant."""
    missing = sorted(variant.requires - flags)
    return f"this CPU lacks {', '.join(missing)}" if missing else ""
