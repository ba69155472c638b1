"""Run the sweep: `python -m sweep.run [--into FILE] [CLASS ...]`, from the folder `tests`.

Each class runs in a child of its own with limits of memory and time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import ostro
from ostro.core.engine.startup.build import build_engine
from ostro.core.errors import OstroError
from ostro.core.load.model import load_model
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.conformance.parity import BAR, deviation
from ostro.plugins.conformance.weights import reinitialise
from sweep.configs import tiny_configs

PROMPT = list(range(5, 45))
STD = 0.2
ROWS = 16
"""The prompt runs in several steps."""

MEMORY = 12 << 30
SECONDS = 90

RIGHT, WRONG, REFUSED, NO_REFERENCE = "right", "wrong", "refused", "no reference"

Row = dict[str, Any]
"""The outcome of a class: `model_type`, `result`, and `why` unless the result is right."""


def causal_classes() -> list[str]:
    """The names of transformers' causal classes, sorted."""
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return sorted({each for name in names for each in ([name] if isinstance(name, str) else name)})


def sweep(names: Sequence[str], plugins: PluginManager) -> Iterator[tuple[str, Row]]:
    """The outcome of each class."""
    torch.set_num_threads(1)
    for name in names:
        yield name, in_child(name, plugins)


def in_child(name: str, plugins: PluginManager) -> Row:
    """The outcome of a class, computed in a forked child."""
    cls = getattr(transformers, name)  # imported here, where it counts towards no limit
    known = {"model_type": cls.config_class.model_type}
    reader, writer = os.pipe()
    with warnings.catch_warnings():  # Python 3.12 warns of threads, none of which hold a lock here
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(reader)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        try:
            row = outcome(name, plugins)
        except BaseException as error:  # a child must end here, whatever happens
            row = {"result": WRONG, "why": describe(error)}
        with os.fdopen(writer, "w") as stream:
            json.dump(row, stream)
            stream.flush()
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    why = f"ended without an answer, within {SECONDS} s and {MEMORY >> 30} GB"
    return known | (json.loads(answer) if answer else {"result": NO_REFERENCE, "why": why})


def outcome(name: str, plugins: PluginManager) -> Row:
    """The outcome of a class, by the logits of its own tiny model."""
    cls = getattr(transformers, name)
    with TemporaryDirectory() as parent:
        folder = Path(parent, "tiny")
        try:
            expected = reference(cls, plugins, folder)
        except Exception as error:  # a class may raise any exception
            return {"result": NO_REFERENCE, "why": describe(error)}
        try:
            loaded = load_model(folder, Settings(dtype="float32"), plugins)
            engine = build_engine(loaded, Settings(), plugins, [], rows=64, block=16, blocks=16)
            ratio = deviation(engine.runner.logits(PROMPT, ROWS), expected)
        except OstroError as error:
            return {"result": REFUSED, "why": describe(error)}
    if ratio > BAR:
        return {"result": WRONG, "why": f"the logits deviate by {ratio:.2g} standard deviations"}
    return {"result": RIGHT}


def reference(cls: Any, plugins: PluginManager, folder: Path) -> torch.Tensor:
    """The logits of the first tiny model of a class that runs, which is saved in `folder`."""
    first: Exception | None = None
    for fields in (*claimed(cls.__name__, plugins), *tiny_configs(cls)):
        try:
            model = cls(cls.config_class(**fields)).eval().float()
            reinitialise(model, STD)
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([PROMPT]), use_cache=False).logits[0]
            if logits.shape[0] != len(PROMPT) or not logits.isfinite().all():
                raise ValueError("its logits are not finite, or of other rows")
        except Exception as error:  # the next config may run
            first = first or error
            continue
        model.save_pretrained(folder)
        return logits
    assert first is not None, f"{cls} has no tiny config"
    raise first


def claimed(name: str, plugins: PluginManager) -> Iterator[Mapping[str, Any]]:
    """The tiny config of the architecture that claims a class and has it as its reference."""
    for record in plugins.collect("architectures").values():
        tested = record.conformance
        if name in record.classes and tested.reference == f"transformers:{name}" and tested.tiny:
            yield tested.tiny


def describe(error: BaseException) -> str:
    """An error in one line, without what changes from run to run."""
    kind = "" if isinstance(error, OstroError) else f"{type(error).__name__}: "
    text = re.sub(r"0x[0-9a-f]+", "0x...", kind + " ".join(str(error).split()))
    text = re.sub(r"^transformers' \w+ cannot run in the transformers backend: ", "", text)
    text = re.sub(
        "; install or write a plugin for it( with )?",
        lambda m: "; needs a plugin with " * bool(m[1]),
        text,
    )
    return text if len(text) <= 200 else f"{text[:197]}..."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="CLASS")
    parser.add_argument("--into", type=Path, metavar="FILE")
    args = parser.parse_args()
    plugins = PluginManager()
    plugins.load(Settings())
    rows = {}
    for name, row in sweep(args.names or causal_classes(), plugins):
        rows[name] = row
        print(f"{name}: {row['result']}  {row.get('why', '')}", flush=True)
    if args.into:
        args.into.write_text(table(rows, read_table(args.into)))
    counts = {
        kind: sum(row["result"] == kind for row in rows.values())
        for kind in (RIGHT, REFUSED, WRONG, NO_REFERENCE)
    }
    print(counts)
    sys.exit(bool(counts[WRONG]))


def read_table(file: Path) -> dict[str, Row]:
    """The outcomes in the file of an earlier sweep, by class."""
    known: dict[str, Row] = json.loads(file.read_text())["classes"] if file.exists() else {}
    return known


def table(rows: Mapping[str, Row], before: Mapping[str, Row]) -> str:
    """The content of the file of the sweep: new outcomes, and earlier ones of other classes.

    `since` is the version of ostro that first had a right result.
    """
    merged = {}
    for name in causal_classes():
        row = dict(rows.get(name) or before.get(name) or {})
        if row.get("result") == RIGHT:
            row["since"] = before.get(name, {}).get("since", ostro.__version__)
        merged |= {name: row} if row else {}
    found = {"transformers": transformers.__version__, "classes": merged}
    return json.dumps(found, indent=1) + "\n"


if __name__ == "__main__":
    main()
