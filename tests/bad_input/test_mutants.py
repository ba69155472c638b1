"""Mutated configs and UQFF files: each is refused with an OstroError or loads, in bounded time and
memory. Children run them, since a mutant might end its process.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import extract_tb
from typing import Any

import pytest
import torch

from ostro.core.engine.startup.build import build_engine
from ostro.core.errors import OstroError
from ostro.core.load.model import load_model
from ostro.core.load.quantize import makers
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.checkpoints.uqff.write import Entry, write
from ostro.plugins.conformance.parity import subject

CONFIGS = ("llama", "gemma3", "mixtral", "deepseek_v2", "qwen3_next")
FORMATS = ("q4k", "afq4", "q8_0", "fp8", "mxfp4", "f8q8")
COUNT = 400
"""Mutants of each of the five configs, and of each of five series of UQFF files."""

ROOM = 1 << 30
"""Bytes of address space that the mutants may take beside what the good model took."""
SECONDS = 20
"""Processor time of one mutant."""

VALUES = (
    *(0, 1, -1, 2, 3, 7, 64, 65, 2**31, 2**40, 2**63, -(2**63), 10**400, 0.5, 1e-30, 1e300),
    *(float("nan"), float("inf"), None, True, False, "", "x", "0", "llama", [], [0], {}, {"x": 1}),
)


def mutate_json(value: Any, rng: random.Random) -> Any:
    """A copy of a JSON value with one entry changed, removed, repeated or renamed."""
    value = json.loads(json.dumps(value))
    places = list(containers(value))
    holder = rng.choice(places)
    if isinstance(holder, list):
        at: Any = rng.randrange(len(holder))
    else:
        at = rng.choice(sorted(holder))
    old = holder[at]
    match rng.randrange(8):
        case 0:
            del holder[at]
        case 1 if isinstance(old, int):
            holder[at] = old * rng.choice((2, 3, -1, 1000))
        case 2 if isinstance(old, int | float):
            holder[at] = old + rng.choice((1, -1))
        case 3:
            holder[at] = [old] * rng.choice((1, 2, 100))
        case 4 if isinstance(holder, dict):
            holder[f"{at}x"] = holder.pop(at)
        case 5:
            holder[at] = json.loads(json.dumps(rng.choice(values(rng.choice(places)))))
        case _:
            holder[at] = rng.choice(VALUES)
    return value


def containers(value: Any) -> Iterator[Any]:
    """The lists and objects in a JSON value that are not empty."""
    if isinstance(value, dict | list) and value:
        yield value
        for each in values(value):
            yield from containers(each)


def values(holder: Any) -> list[Any]:
    return list(holder.values()) if isinstance(holder, dict) else list(holder)


def mutate_bytes(good: bytes, rng: random.Random, start: int, stop: int) -> bytes:
    """A copy with a few bytes between start and stop changed, or cut off there."""
    bad = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(start, stop)
        if rng.randrange(20) == 0:
            return bytes(bad[:at])
        size = rng.choice((1, 1, 4, 8))
        bad[at : at + size] = rng.choice((rng.randbytes(size), bytes(size), b"\xff" * size))
    return bytes(bad[: len(good)])


def mutate_shard(good: bytes, rng: random.Random) -> bytes:
    """A copy of a safetensors file with its header, its small tensors or any bytes changed."""
    size = int.from_bytes(good[:8], "little")
    header, data = json.loads(good[8 : 8 + size]), good[8 + size :]
    kind = rng.randrange(4)
    if kind == 0:
        return mutate_bytes(good, rng, 0, 8 + size)
    if kind == 1:
        return mutate_bytes(good, rng, 8 + size, len(good))
    if kind == 2:  # numbers that describe the layers are small tensors
        offsets = [each["data_offsets"] for name, each in header.items() if name != "__metadata__"]
        small = [(a, b) for a, b in offsets if 0 < b - a <= 64]
        first, last = rng.choice(small or offsets)
        return mutate_bytes(good, rng, 8 + size + first, 8 + size + last)
    text = json.dumps(mutate_json(header, rng)).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def config_mutants(folder: Path, seed: int) -> Callable[[int], None]:
    """Writes mutant number i of the config of a folder."""
    file = folder / "config.json"
    good = json.loads(file.read_text())

    def make(i: int) -> None:
        rng = random.Random(f"{seed} {i}")
        bad = good
        for _ in range(rng.choice((1, 1, 2, 5))):
            bad = mutate_json(bad, rng)
        file.write_text(json.dumps(bad))

    return make


def uqff_mutants(folder: Path, seed: int) -> Callable[[int], None]:
    """Writes mutant number i of one shard of a folder; the others are intact."""
    shards = {file: file.read_bytes() for file in sorted(folder.glob("*.uqff"))}

    def make(i: int) -> None:
        rng = random.Random(f"{seed} {i}")
        for file, good in shards.items():
            file.write_bytes(good)
        file = rng.choice(list(shards))
        file.write_bytes(mutate_shard(shards[file], rng))

    return make


def write_uqff(plugins: PluginManager, folder: Path) -> None:
    """A llama whose matrices have formats in turns."""
    wide = dict(plugins.get("architectures", "llama").conformance.wide)
    known = makers(plugins)
    with subject(plugins, "llama", config=wide) as tiny:
        state = tiny.reference.state_dict()
        entries = []
        for i, (name, weight) in enumerate((n, t) for n, t in state.items() if t.dim() == 2):
            storage = known[FORMATS[i % len(FORMATS)]].make(weight, torch.float32, None)
            entries.append(Entry(name.removesuffix(".weight"), partial(lambda x: x, storage)))
        rest = {name: tensor for name, tensor in state.items() if tensor.dim() == 1}
        write(folder, "mix", entries, residual=rest, config=tiny.raw_config, limit=1 << 18)


def attempt(folder: Path, plugins: PluginManager) -> str | None:
    """Load a model and run a prompt: None if that works, "" if it is refused, else the fault."""
    try:
        loaded = load_model(folder, Settings(dtype="float32"), plugins)
        engine = build_engine(loaded, Settings(), plugins, [], rows=64, block=16, blocks=16)
        engine.runner.logits([5, 6, 7])
        engine.close()
    except OstroError as error:
        return "" if str(error) else f"{type(error).__name__} without a message"
    except Exception as error:
        frames = " < ".join(
            f"{Path(f.filename).name}:{f.lineno}"
            for f in reversed(extract_tb(error.__traceback__)[-4:])
        )
        return f"{type(error).__name__}: {str(error)[:200]} ({frames})"
    return None


def main(kind: str, seed: int, first: int) -> None:
    """Print [i, outcome] for each mutant from `first` on. The good model must load before."""
    torch.set_num_threads(1)
    plugins = PluginManager()
    plugins.load(Settings())
    with TemporaryDirectory() as parent:
        folder = Path(parent, "m")
        if kind == "uqff":
            write_uqff(plugins, folder)
            make = uqff_mutants(folder, seed)
        else:
            with subject(plugins, CONFIGS[seed]) as tiny:
                shutil.copytree(tiny.folder, folder)
            make = config_mutants(folder, seed)
        assert attempt(folder, plugins) is None, attempt(folder, plugins)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + ROOM
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for i in range(first, COUNT):
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            make(i)
            print(json.dumps([i, attempt(folder, plugins)]), flush=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["config", "uqff"])
def test_mutants_are_refused_or_load(kind: str, seed: int) -> None:
    outcomes, faults, starts = dict[int, Any](), list[str](), 0
    while len(outcomes) < COUNT:
        assert (starts := starts + 1) <= 5, faults
        done = subprocess.run(
            [sys.executable, __file__, kind, str(seed), str(len(outcomes))],
            capture_output=True,
            text=True,
            timeout=1800,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        outcomes |= dict(lines)
        if done.returncode:
            assert lines or starts > 1, done.stderr[-2000:]
            faults.append(f"{len(outcomes)}: exit status {done.returncode}")
            outcomes[len(outcomes)] = "ended"
    faults += [f"{i}: {outcome}" for i, outcome in outcomes.items() if outcome]
    assert not faults, "\n".join(faults)
    refused = [outcome for outcome in outcomes.values() if outcome == ""]
    assert COUNT // 4 < len(refused) < COUNT


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
