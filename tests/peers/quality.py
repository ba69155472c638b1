"""Write docs/formats.md: the quality of ostro's formats and llama.cpp's types on the starter.

    python tests/peers/quality.py [CHECKOUT] [--only FORMAT ...]

CHECKOUT is a checkout of llama.cpp (default: $LLAMA_CPP_SOURCES). Its converter makes a float file
of the starter, and llama-quantize, in the environment `llama_cpp` beside those of the other peers,
makes a file of each type that needs no importances. If one of the two is missing, only ostro's
formats are measured. The tables are written between the marks of the page. Everything is computed
in float32 with `--exact`, so that only weights differ; the last table shows the additional error of
rounding activations to 8 bits.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill

from converter import convert, find_checkout, find_python
from environments import default_root, python_of

from ostro.core.load.quantize import makers
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import STARTER, Settings
from ostro.entrypoints.quality.figures import Quality, QualityReport
from ostro.entrypoints.quality.measure import measure
from ostro.entrypoints.quality.text import read_text

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
WIDTH = 100
"""Columns of the text of the page."""
MARKS = re.compile(r"(<!-- quality: .*? -->\n).*?(<!-- end of quality -->)", re.DOTALL)
TYPES = (
    "Q8_0 Q6_K Q5_1 Q5_K_M Q5_K_S Q5_0 Q4_1 Q4_K_M Q4_K_S Q4_0 IQ4_NL IQ4_XS Q3_K_M IQ3_S "
    "Q2_K TQ2_0 TQ1_0"
).split()
ROUNDED = ("q8_0", "q6k", "q4k", "afq4")
QUANTIZE = """
import sys
from ctypes import c_void_p

import llama_cpp

quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
llama_cpp.llama_log_set(quiet, c_void_p(0))
whole, made, kind = sys.argv[1:]
asked = llama_cpp.llama_model_quantize_default_params()
asked.ftype = getattr(llama_cpp, "LLAMA_FTYPE_MOSTLY_" + kind)
sys.exit(llama_cpp.llama_model_quantize(whole.encode(), made.encode(), asked))
"""


def make_files(folder: Path, starter: Path, checkout: Path) -> dict[str, Path]:
    """llama.cpp's files of the starter, by type; types that it rejects are reported and omitted."""
    whole = folder / "whole.gguf"
    convert(starter, whole, checkout, find_python())
    files = {}
    for kind in TYPES:
        made = folder / f"{kind}.gguf"
        python = python_of(default_root(), "llama_cpp")
        command = [python, "-c", QUANTIZE, whole, made, kind]
        if subprocess.run(command, capture_output=True).returncode:
            print(f"llama-quantize makes no {kind} of it", file=sys.stderr)
        else:
            files[kind] = made
    return files


def table(title: str, rows: Iterable[Quality], nominal: Mapping[str, float]) -> list[str]:
    """A table of variants, most bits first; `nominal` are the bits of a format by itself."""
    columns = "bits | MB | KL | KL p99 | same top token, % | perplexity ratio".split(" | ")
    lines = [f"| {' | '.join([title, *columns])} |", "|---" * (len(columns) + 1) + "|"]
    for row in sorted(rows, key=lambda row: (-row.weights.bits, row.kl.value)):
        known = f" ({nominal[row.name]:g})" if row.name in nominal else ""
        cells = (
            row.name,
            f"{row.weights.bits:.2f}{known}",
            f"{row.weights.nbytes / 1e6:.2f}",
            f"{row.kl.value:.2g} ± {row.kl.high - row.kl.value:.1g}",
            f"{row.kl_p99:.2g}",
            f"{100 * row.top1.value:.2f} ({100 * row.top1.low:.2f}..{100 * row.top1.high:.2f})",
            f"{row.ratio.value:.4f} ± {(row.ratio.high - row.ratio.low) / 2:.4f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def write(
    report: QualityReport, rounded: QualityReport, files: Mapping[str, Path], plugins: PluginManager
) -> str:
    """The text between the marks of the page."""
    nominal = {name: maker.format.bits for name, maker in makers(plugins).items()}
    quantizers = plugins.collect("quantizers").values()
    read = sorted(q.name for q in quantizers if not q.makes and q.name != "dense")
    value = report.perplexity
    ours = [row for row in report.variants if row.name not in files]
    theirs = [row for row in report.variants if row.name in files]
    lines = [
        f"{report.windows} windows, {report.positions} positions; the reference in floats has "
        f"perplexity {value.value:.3f} ({value.low:.3f}..{value.high:.3f}). Bits in memory, in "
        "parentheses those of the format alone: embeddings and heads have more.",
        "",
        *table("made at load", ours, nominal),
        "",
    ]
    if theirs:
        lines += [
            "llama.cpp's own files of the same model, by its converter and llama-quantize without "
            "importance, read by ostro:",
            "",
            *table("file", theirs, {}),
            "",
        ]
    lines += [
        "The same with activations rounded to 8 bits, as kernels for the CPU do unless `--exact` "
        "is given (where no such kernel runs, the figures are those above):",
        "",
        *table("not exact", rounded.variants, nominal),
        "",
        f"Read from checkpoints, not made at load: {', '.join(read)}.",
    ]
    wrapped = (line if line.startswith("|") else fill(line, WIDTH) for line in lines)
    return "\n".join(wrapped) + "\n"


def run(only: Sequence[str], checkout: Path | None) -> str:
    plugins = PluginManager()
    plugins.load(Settings())
    formats = list(only) or list(makers(plugins))
    plain = Settings(reference=STARTER, dtype="float32", device="cpu", exact=True)
    text = read_text(None, STARTER)

    def progress(who: str, done: int, total: int) -> None:
        if done == 0:
            print(who, flush=True)

    with tempfile.TemporaryDirectory() as made:
        starter = plugins.locate(STARTER, plain)
        files = {} if checkout is None else make_files(Path(made), starter, checkout)
        variants = {name: replace(plain, quant=name) for name in formats}
        variants |= {name: replace(plain, reference=str(file)) for name, file in files.items()}
        report = measure(plain, variants, text, plugins, progress=progress)
    fast = {name: replace(plain, quant=name, exact=False) for name in ROUNDED if name in formats}
    return write(report, measure(plain, fast, text, plugins, progress=progress), files, plugins)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", nargs="?")
    parser.add_argument("--only", nargs="+", default=[], metavar="FORMAT")
    args = parser.parse_args()
    found = run(args.only, find_checkout(args.checkout))
    page = PAGE.read_text("utf-8")
    if not MARKS.search(page):
        parser.error(f"{PAGE} has lost its marks")
    PAGE.write_text(MARKS.sub(lambda marks: f"{marks[1]}\n{found}\n{marks[2]}", page), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
