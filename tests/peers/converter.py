"""Compare models in GGUF files of llama.cpp's converter with transformers.

    python tests/peers/converter.py [CHECKOUT] [--only CASE ...] [--python PYTHON]

CHECKOUT is a checkout of llama.cpp (default: $LLAMA_CPP_SOURCES). For each architecture that
llama.cpp and ostro support, transformers saves a tiny model with re-initialised weights,
`convert_hf_to_gguf.py --outtype f32` converts it, and the model that ostro loads from the file is
compared with transformers: the largest difference of the logits (an encoder's states, a
classifier's scores) relative to their standard deviation. Models with media are converted to both
files, text and projector, and have media in their prompts. Errors are printed as the converter or
ostro reports them.

The converter runs unmodified in a separate process under PYTHON, with the gguf package of its
checkout. It identifies pre-tokenizers by a hash of their output, which does not exist for the
tokenizers trained here; RUN supplies a name. For T5 it needs protobuf, which ostro does not:
PYTHON is by default the interpreter of an environment `converter` beside those of the other peers,
or this interpreter if there is none.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from conversions import CASES, Case
from environments import default_root, python_of

from ostro.core.errors import ConfigError, OstroError, Unsupported
from ostro.core.load.model import load_model
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.core.settings import Settings
from ostro.plugins.conformance.parity import BAR, Subject, deviation, subject

CHECKOUT = "LLAMA_CPP_SOURCES"
SCRIPT = "convert_hf_to_gguf.py"
RUN = f"""
import runpy, sys

sys.argv = sys.argv[1:]
sys.path[:0] = [sys.argv[0], sys.argv[0] + "/gguf-py"]
from conversion.base import TextModel

TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
runpy.run_path(sys.argv[0] + "/{SCRIPT}", run_name="__main__")
"""
"""Run the converter with a fixed name for the pre-tokenizer."""


@dataclass(frozen=True)
class Outcome:
    """The deviation `off` of a file from its reference, or the error message `said`."""

    off: float = float("inf")
    said: str = ""

    def good(self, case: Case) -> bool:
        """Whether the outcome is as expected: equal, or the error of an unsupported case."""
        return case.refused in self.said if case.refused else self.off <= BAR

    def __str__(self) -> str:
        return self.said or f"{self.off:.1e}"


class ConverterError(Exception):
    """The last line of the converter's output."""


def convert(
    folder: Path, file: Path, checkout: Path, python: Path, options: tuple[str, ...] = ()
) -> None:
    """Convert a folder to a GGUF file. Raises ConverterError if the converter fails."""
    asked = [str(folder), "--outfile", str(file), "--outtype", "f32", *options]
    command = [str(python), "-c", RUN, str(checkout), *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    if done.returncode:
        raise ConverterError((done.stderr.strip().splitlines() or ["it said nothing"])[-1])


def compare(tiny: Subject, file: Path, asked: str | None) -> float:
    """The deviation of a file's model from the reference. Raises OstroError if loading fails."""
    settings = Settings(dtype="float32", device="cpu", arch=asked)
    engine = tiny.engine(load_model(file, settings, tiny.plugins))
    if not tiny.decodes:
        return deviation(tiny.answer(engine), tiny.expected)
    return deviation(engine.runner.logits(tiny.prompt), tiny.run_reference(tiny.prompt))


def compare_media(tiny: Subject, folder: Path) -> float:
    """As `compare`, for a text and a projector file, with media preprocessed by their settings."""
    loaded = load_model(folder, Settings(dtype="float32", device="cpu"), tiny.plugins)
    if loaded.architecture.name != tiny.name:
        raise ConfigError(f"loaded as {loaded.architecture.name}")
    made = resolve(tiny.record.conformance.examples)(tiny.folder, loaded.raw_config)
    engine, found = tiny.engine(loaded), []
    with suppress(Unsupported):  # videos, which follow the images
        for example in made:
            ours = engine.runner.logits(
                example.prompt.tokens,
                items=example.prompt.items,
                positions=example.prompt.positions,
            )
            found.append(deviation(ours, tiny.reference_output(example)))
    return max(found)


def run(case: Case, checkout: Path, python: Path, plugins: PluginManager) -> Outcome:
    """Make the model, convert it, and compare."""
    with (
        subject(plugins, case.name, config=case.shape(plugins)) as tiny,
        tempfile.TemporaryDirectory() as made,
    ):
        case.prepare(tiny)
        file = Path(made) / "model.gguf"
        try:
            convert(tiny.folder, file, checkout, python, case.options)
            if case.media is not None:
                projector = file.with_name("mmproj-model.gguf")
                convert(tiny.folder, projector, checkout, python, ("--mmproj",))
                return Outcome(compare_media(tiny, file.parent))
            return Outcome(compare(tiny, file, case.asked))
        except ConverterError as error:
            return Outcome(said=f"the converter: {error}")
        except OstroError as error:
            return Outcome(said=f"ostro: {error}")


def find_checkout(given: str | None) -> Path | None:
    """The given checkout, or that of the environment variable; None if there is none."""
    found = Path(given or os.environ.get(CHECKOUT) or "-").resolve()
    return found if (found / SCRIPT).is_file() else None


def find_python() -> Path:
    own = python_of(default_root(), "converter")
    return own if own.exists() else Path(sys.executable)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", nargs="?")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--python", type=Path, default=find_python())
    args = parser.parse_args()
    checkout = find_checkout(args.checkout)
    if checkout is None:
        parser.error(f"name a checkout of llama.cpp, or set {CHECKOUT}")
    plugins = PluginManager()
    plugins.load(Settings())
    good = True
    for name in args.only:
        outcome = run(CASES[name], checkout, args.python, plugins)
        as_known = outcome.good(CASES[name])
        good &= as_known
        print(f"{'ok' if as_known else 'NO':3} {name:20} {outcome}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
