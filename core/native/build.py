"""How native libraries are compiled, and for which CPUs.

A library is compiled for a variant, a set of instructions of the CPU, and not for the CPU of one
machine: the libraries of the wheel and those that are compiled on a user's machine have the same
flags. This file imports the standard library alone, because the build hook of the wheel runs it
without ostro and torch.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

HEADERS = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC")


@dataclass(frozen=True)
class Variant:
    """A set of CPU instructions.

    name: as in the psABI of x86-64 where it has one.
    flags: of GCC and Clang, beyond those of the baseline.
    requires: names in /proc/cpuinfo, which lists what both the CPU and the kernel support.
    """

    name: str
    flags: tuple[str, ...] = ()
    requires: frozenset[str] = frozenset()

    def with_more(self, name: str, flags: str, requires: str) -> Variant:
        """This set and further instructions."""
        return Variant(
            name,
            self.flags + tuple(f"-m{flag}" for flag in flags.split()),
            self.requires | frozenset(requires.split()),
        )


X86_64_V3 = Variant("x86-64").with_more(
    "x86-64-v3", "avx2 fma f16c bmi bmi2 lzcnt popcnt", "avx2 fma f16c bmi1 bmi2 abm popcnt"
)
AVX512 = "avx512f avx512bw avx512cd avx512dq avx512vl"
X86_64_V4 = X86_64_V3.with_more("x86-64-v4", AVX512, AVX512)
X86_64_V4_VNNI = X86_64_V4.with_more("x86-64-v4-vnni", "avx512vnni", "avx512_vnni")
X86_64_V4_BF16 = X86_64_V4_VNNI.with_more("x86-64-v4-bf16", "avx512bf16", "avx512_bf16")

VARIANTS = {"x86_64": (X86_64_V4_BF16, X86_64_V4_VNNI, X86_64_V4, X86_64_V3)}
"""The variants of each machine type (`platform.machine`), the best first."""

NATIVE = Variant("native", ("-march=native",))
"""All instructions of the compiling machine: for CPUs that no variant fits."""


def library_name(source: Path, variant: Variant) -> str:
    """The file name of a library: a hash of its source, the headers and the flags."""
    key = hashlib.sha256()
    for file in (source, HEADERS / "ostro.h", *sorted(source.parent.glob("*.h"))):
        key.update(file.read_bytes())
    key.update(" ".join((*FLAGS, *variant.flags)).encode())
    return f"{source.parent.name}-{key.hexdigest()[:20]}.so"


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its command and what it prints for `--version`."""

    command: tuple[str, ...]
    version: str

    @classmethod
    def find(cls) -> Compiler:
        """$CXX, g++ or clang++. Raises ImportError if there is none, or if it does not run."""
        command = tuple(shlex.split(os.environ.get("CXX", "")))
        command = command or tuple(filter(shutil.which, ("g++", "clang++")))[:1]
        if not command:
            raise ImportError("no C++ compiler is installed (g++ or clang++)")
        try:
            done = subprocess.run([*command, "--version"], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise ImportError(f"{command[0]} does not run: {error}") from None
        return cls(command, done.stdout.decode(errors="replace"))

    @property
    def has_gnu_openmp(self) -> bool:
        """Whether it compiles to calls of GNU's OpenMP runtime, which torch brings and loads."""
        return "clang" not in self.version

    def compile(self, source: Path, variant: Variant, library: Path) -> None:
        """Compile a C++ file to a library; an object file beside it exists meanwhile.

        The library does not name GNU's OpenMP runtime: it uses the one that torch has loaded, so
        that the process has one. Raises ImportError with the first error that the compiler prints.
        """
        compiled = library.with_suffix(".o")
        link = ("-shared",) if self.has_gnu_openmp else ("-shared", "-fopenmp")
        for arguments in (
            (*FLAGS, *variant.flags, f"-I{HEADERS}", "-c", str(source), "-o", str(compiled)),
            (*link, str(compiled), "-o", str(library)),
        ):
            command = [*self.command, *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if "error" in line]
                why = (lines or ["no reason given"])[0].strip()
                raise ImportError(f"{self.command[0]} could not compile {source.name}: {why}")
        compiled.unlink()
