"""Files by llama.cpp's own converter and quantizer, against llama.cpp.

    python tests/peers/quantized.py [CHECKOUT] [--only CASE ...] [--formats FORMAT ...]

Of every architecture that llama.cpp and we know (`conversions.py`), transformers saves a small
model with rows of whole blocks, `convert_hf_to_gguf.py` of CHECKOUT makes a float file of it, and
`llama_model_quantize` of the environment `llama_cpp` (`environments.py`) brings that to each of
FORMATS. Of what we load from these files, with exact=True, the table says how far the logits (an
encoder's states) are, as a share of their standard deviation,

    own      from those of our own dequantized weights, dense: at most `SAME`
    floats   from llama.cpp's, of the floats that it dequantizes itself: at most `BAR`, or `TABLE`
    rounded  from llama.cpp's as it runs, every activation rounded to 8 bits; of the median token,
             as some take other experts then: at most `ROUNDED`

and text how many of `COUNT` greedy tokens are llama.cpp's, for the first format. Where it is not
all of them, gap is how far the two tokens that differ first are apart in our logits: a tie within
what rounding changes, at most `ROUNDED`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conversions import CASES, Case
from converter import CHECKOUT, ConverterError, convert, find_checkout, find_python
from environments import default_root, python_of
from torch import Tensor

from ostro.core.errors import OstroError
from ostro.core.load.model import LoadedModel, load_model
from ostro.core.plugins import PluginManager
from ostro.core.records import Settings
from ostro.core.testing.formats import SAME, STD, against_floats
from ostro.core.testing.parity import BAR, Subject, deviation, encode, greedy, subject

FORMATS = {"Q8_0": 7, "Q4_0": 2, "Q4_K_M": 15, "Q2_K": 10, "IQ4_XS": 30, "Q6_K": 18}
"""Mixtures by the names that llama-quantize has for them, and their numbers in `llama_ftype`."""

COUNT = 32
ROUNDED = 0.1
TABLE = 4e-3
"""What gelu by a table of halves leaves, which llama.cpp has for it on CPU."""

GEMMA = ("gemma2", "gemma3", "embeddinggemma", "gemma3_images")
TABLED = (*GEMMA, "bert", "t5")
"""Architectures with gelu."""

FULL = {"num_hidden_layers": 6, "layer_types": None}
WIDE = {
    "gemma2": {"query_pre_attn_scalar": 64},
    "gemma3": {"query_pre_attn_scalar": 64, **FULL},
    "embeddinggemma": {"query_pre_attn_scalar": 64, **FULL},
    "gemma3_images": {"query_pre_attn_scalar": 64, **FULL},
    "qwen2_5_vl": {"rms_norm_eps": 1e-12},
}
"""What files of the wide configs stand for, by architecture.

llama.cpp (July 2026) does not read the epsilon of qwen2vl: its hyperparameters fall through to
those of qwen2 in a comment only.
"""


@dataclass(frozen=True)
class Outcome:
    """A line of the table; `said` in its place where something failed."""

    own: float = float("inf")
    floats: float = float("inf")
    rounded: float = float("inf")
    same: int | None = None
    gap: float = 0.0
    said: str = ""

    def good(self, case: Case) -> bool:
        tolerated = TABLE if case.name in TABLED else BAR
        near = self.rounded <= ROUNDED and self.gap <= ROUNDED
        return not self.said and self.own <= SAME and self.floats <= tolerated and near

    def __str__(self) -> str:
        if self.said:
            return self.said
        offs = f"own {self.own:.1e}  floats {self.floats:.1e}  rounded {self.rounded:.1e}"
        if self.same is None:
            return offs
        gap = f", gap {self.gap:.1e}" if self.same < COUNT else ""
        return f"{offs}  text {self.same:2} of {COUNT}{gap}"


class LlamaError(Exception):
    """What llama.cpp said last."""


def ask(
    source: Path, format: str, folder: Path, tiny: Subject, count: int
) -> dict[str, np.ndarray[Any, Any]]:
    """What llama.cpp says, and in `folder` the file that it made. Raises LlamaError."""
    script = Path(__file__).with_name("quantizer.py")
    prompt = ",".join(map(str, tiny.prompt))
    how = ["--count", str(count)] if tiny.decodes else ["--states"]
    words = [str(source), str(FORMATS[format]), str(folder), "--prompt", prompt, *how]
    command = [str(find_llama()), str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise LlamaError(lines[-1] if lines else f"it ended with {done.returncode}")
    with np.load(folder / "said.npz") as said:
        return dict(said)


def compare(tiny: Subject, loaded: LoadedModel, theirs: dict[str, np.ndarray[Any, Any]]) -> Outcome:
    """The line of a file that llama.cpp made, and what it said."""
    text = theirs["text"].tolist()
    engine = tiny.engine(loaded)

    def say(more: list[int]) -> Tensor:
        if tiny.decodes:
            return tiny.engine(loaded).runner.logits([*tiny.prompt, *more])
        return encode(tiny.engine(loaded), [tiny.prompt], [[0] * len(tiny.prompt)])

    same, gap = None, 0.0
    if text:
        [ours] = greedy(engine, [tiny.prompt], len(text))
        unlike = [i for i, pair in enumerate(zip(ours, text, strict=True)) if len({*pair}) > 1]
        same = min(unlike, default=len(text))
        if same < len(text):
            logits = say(text[:same])
            gap = float((logits[-1, ours[same]] - logits[-1, text[same]]) / logits.std())
    [said], own = against_floats(loaded, tiny.plugins, lambda: [say([])])
    floats, rounded = (torch.from_numpy(theirs[name]) for name in ("floats", "rounded"))
    tokens = (said - rounded).abs().amax(-1) / rounded.std()
    return Outcome(own, deviation(said, floats), float(tokens.median()), same, gap)


def run(
    case: Case, formats: Sequence[str], checkout: Path, python: Path, plugins: PluginManager
) -> Iterator[tuple[str, Outcome]]:
    """Make the model, let it be converted and quantized, and compare, format by format."""
    wide = replace(case, changes={**case.changes, **WIDE.get(case.name, {})}).shape(plugins, "wide")
    with (
        subject(plugins, case.name, config=wide, std=STD) as tiny,
        tempfile.TemporaryDirectory() as made,
    ):
        case.prepare(tiny)
        source = Path(made) / "source.gguf"
        try:
            convert(tiny.folder, source, checkout, python, case.options)
        except ConverterError as error:
            yield "", Outcome(said=f"the converter: {error}")
            return
        for format in formats:
            try:
                count = COUNT if format == formats[0] else 0
                theirs = ask(source, format, Path(made), tiny, count)
                asked = Settings(dtype="float32", device="cpu", arch=case.asked, exact=True)
                loaded = load_model(Path(made) / "model.gguf", asked, plugins)
                yield format, compare(tiny, loaded, theirs)
            except LlamaError as error:
                yield format, Outcome(said=f"llama.cpp: {error}")
            except OstroError as error:
                yield format, Outcome(said=f"ostro: {error}")


def find_llama() -> Path:
    return python_of(default_root(), "llama_cpp")


def cases() -> dict[str, Case]:
    """What the converter makes a file of."""
    return {name: case for name, case in CASES.items() if not case.refused}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", nargs="?")
    parser.add_argument("--only", nargs="+", choices=cases(), default=list(cases()), metavar="CASE")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    args = parser.parse_args()
    checkout = find_checkout(args.checkout)
    if checkout is None:
        parser.error(f"name a checkout of llama.cpp, or set {CHECKOUT}")
    if not find_llama().exists():
        parser.error("environments.py llama_cpp makes the environment that this needs")
    plugins = PluginManager()
    plugins.load(Settings())
    good = True
    for name in args.only:
        case = CASES[name]
        for format, outcome in run(case, args.formats, checkout, find_python(), plugins):
            good &= outcome.good(case)
            mark = "ok" if outcome.good(case) else "NO"
            print(f"{mark:3} {name:20} {format:7} {outcome}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
