"""One call on a machine with a GPU: run the items of a call and print a table of their results.

    python3 tests/gpu/day.py CALL [--only ITEM,ITEM...] [--minutes N] [--out FOLDER]

CALL is 1 (truth: are the results right), 2 (breadth: all architectures) 3 (speed) or 4
(speed before and after `ostro tune --kernels`). Each item has
a time limit and writes its output to `FOLDER/<item>.log`; FOLDER is $OUT by default. An item that
fails or runs out of time does not stop the others.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parents[2]
LINES = 36
"""Lines of the table: the end of the output is all that some machines return."""
WIDTH = 150

PYTEST = (
    "-m pytest -v -rf --tb=short -p no:cacheprovider -p no:benchmark -o filterwarnings=default "
    "-o addopts=--import-mode=importlib --timeout 100 --dist worksteal"
)
MODEL = "--dummy-weights llama-8b --device cuda --dtype bfloat16 --context 4096"
START = "--dummy-weights llama-8b"
BENCH = f"-m ostro bench {MODEL} -p 512 -n 64 -r 2 --json --explain"
TUNE = f"-m ostro tune {MODEL} --kernels"
VERSIONS = """
import platform, torch, triton, numpy, transformers
print("python", platform.python_version(), "torch", torch.__version__, "triton", triton.__version__,
      "numpy", numpy.__version__, "transformers", transformers.__version__, "|",
      torch.cuda.get_device_name(), torch.cuda.get_device_capability())
"""


@dataclass(frozen=True)
class Item:
    """Arguments of Python, and the seconds after which it is interrupted."""

    name: str
    seconds: int
    arguments: Sequence[str]

    @classmethod
    def tests(cls, name: str, seconds: int, workers: int, *files: str) -> Item:
        return cls(name, seconds, [*PYTEST.split(), "-n", str(workers), *files])


@dataclass(frozen=True)
class Result:
    """The exit code, the seconds it took, and the lines of the table."""

    item: Item
    code: int
    seconds: float
    lines: Sequence[str]


def bench(name: str, seconds: int, *options: str) -> Item:
    return Item(name, seconds, [*BENCH.split(), *options])


def measure(seconds: int, *sections: str) -> Item:
    arguments = ["-m", "gpu.measure", *sections, "--seconds", str(seconds)]
    return Item(f"measure-{sections[-1]}", len(sections) * seconds + 60, arguments)


CALLS: dict[int, list[list[Item]]] = {
    1: [
        [
            Item("versions", 60, ["-c", VERSIONS]),
            Item("doctor", 60, ["-m", "ostro", "doctor"]),
        ],
        [measure(10, "roof")],
        [
            Item.tests("ops", 90, 4, "tests/gpu/test_ops.py"),
            Item.tests("products", 130, 10, "tests/gpu/test_products.py"),
            Item.tests("loop", 130, 3, "tests/gpu/test_loop.py"),
            Item.tests("tuning", 130, 1, "tests/gpu/test_tuning.py"),
        ],
        [bench("bench-bf16", 140, "--concurrency", "1,8,32")],
    ],
    2: [
        [Item.tests("models", 220, 14, "tests/gpu/test_models.py")],
        [
            Item.tests("ops", 90, 4, "tests/gpu/test_ops.py"),
            Item.tests("products", 110, 10, "tests/gpu/test_products.py"),
            Item.tests("loop", 110, 3, "tests/gpu/test_loop.py"),
        ],
    ],
    3: [
        [Item("start-q4_k", 110, ["-m", "gpu.start", *START.split(), "--quant", "q4k"])],
        [bench("bench-bf16", 100, "--concurrency", "1,8,32")],
        [bench("bench-q4_k", 100, "--concurrency", "1,8,32", "--quant", "q4k")],
        [measure(45, "roof", "products")],
        [bench("bench-fp8", 100, "--concurrency", "1,8,32", "--quant", "fp8")],
        [bench("bench-q8_0", 100, "--concurrency", "1,8,32", "--quant", "q8_0")],
        [measure(12, "attention", "latent", "moe", "lora", "sample")],
    ],
    4: [
        [bench("bench-q4_k", 100, "--concurrency", "1,8,32", "--quant", "q4k", "--profile")],
        [Item("tune-q4_k", 210, [*TUNE.split(), "--quant", "q4k", "--seconds", "120"])],
        [bench("bench-q4_k-tuned", 100, "--concurrency", "1,8,32", "--quant", "q4k", "--profile")],
    ],
}
"""Groups of items by call; the items of a group run at the same time."""


def run(item: Item, out: Path, left: float) -> Result:
    """Run an item, for at most `left` seconds; its output goes to a file."""
    if left < 5:
        return Result(item, 124, 0.0, ["left out: the time is over"])
    log, start = out / f"{item.name}.log", perf_counter()
    # pytest and ostro end in order when interrupted, and print what they have.
    limit = ["timeout", "-s", "INT", "-k", "10", f"{min(item.seconds, left):.0f}"]
    paths = [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "140",
    }
    with log.open("wb") as file:
        code = subprocess.run(
            [*limit, sys.executable, *item.arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    lines = summary(log.read_text("utf-8", "replace").splitlines(), code)
    return Result(item, code, perf_counter() - start, lines)


def summary(lines: Sequence[str], code: int) -> list[str]:
    """The lines of an output that the table shows: failed tests, rows of a table, an error."""
    failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    # Without pytest's own summary, if it was killed.
    failed = failed or [found[0] for x in lines if (found := re.search(r"FAILED tests/\S+", x))]
    counts = [line.strip("= ") for line in lines[-3:] if re.search(r"\d+ (passed|failed)", line)]
    if failed or counts:
        return [*counts, *(line.replace("tests/gpu/", "") for line in failed)]
    rows = [line for line in lines if line.startswith("| ")]
    if rows and not code:
        return rows
    if rates := rates_of("\n".join(lines)):
        return rates
    return [line for line in lines if line.strip()][-1 if not code else -6 :]


def rates_of(text: str) -> list[str]:
    """A line for each test of `ostro bench --json`."""
    fields = ("concurrency", "prefill", "decode", "total", "ttft_p50", "itl_p50")
    found = []
    for block in re.findall(r"\{[^{}]*\"ttft_p50\"[^{}]*\}", text):
        values = [re.search(rf'"{name}": ([\d.]+)', block) for name in fields]
        pairs = zip(fields, values, strict=True)
        found.append(", ".join(f"{n} {float(v[1]):.1f}" for n, v in pairs if v))
    return found


def table(results: Sequence[Result]) -> list[str]:
    """At most `LINES` lines: all items, and the lines of each that fit."""
    share = max(1, (LINES - len(results)) // max(1, len(results)))
    left = LINES - sum(1 + min(share, len(result.lines)) for result in results)
    shown = []
    for result in results:
        status = "ok" if result.code == 0 else f"exit {result.code}"
        shown.append(f"{result.item.name:20} {status:9} {result.seconds:6.1f} s")
        extra = min(max(len(result.lines) - share, 0), max(left, 0))
        left -= extra
        shown += [f"    {line}"[:WIDTH] for line in result.lines[: share + extra]]
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description="Run one call on a machine with a GPU.")
    parser.add_argument("call", type=int, choices=CALLS)
    parser.add_argument("--only", default="", help="names of items, separated by commas")
    parser.add_argument("--minutes", type=float, default=9.0, help="end after this time")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "gpu-day")))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    only, results = {name for name in args.only.split(",") if name}, list[Result]()
    end = perf_counter() + 60 * args.minutes
    for group in CALLS[args.call]:
        items = [item for item in group if not only or item.name in only]
        with ThreadPoolExecutor(max(1, len(items))) as pool:
            for result in pool.map(lambda each: run(each, args.out, end - perf_counter()), items):
                results.append(result)
                line = f"{result.item.name}: exit {result.code} after {result.seconds:.0f} s"
                print(line, flush=True)
    print("\n".join(table(results)))
    return int(any(result.code for result in results))


if __name__ == "__main__":
    sys.exit(main())
