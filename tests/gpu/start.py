"""Measure a start on a GPU: the seconds of a whole `ostro bench` of one token.

    python -m gpu.start --dummy-weights llama-8b --quant q4k

The arguments are those of `ostro bench`. It starts with an empty cache of Triton's, then twice with
a full one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from time import perf_counter

OPTIONS = ("--device", "cuda", "--dtype", "bfloat16", "--context", "4096")
COMMAND = (sys.executable, "-m", "ostro", "bench", "-p", "16", "-n", "1", "-r", "1", *OPTIONS)


def main() -> None:
    print("| cache of Triton | seconds |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TRITON_CACHE_DIR": folder}
        for cache in ("empty", "full", "full"):
            began = perf_counter()
            subprocess.run(
                [*COMMAND, *sys.argv[1:]], env=environment, check=True, stdout=subprocess.DEVNULL
            )
            print(f"| {cache} | {perf_counter() - began:.1f} |", flush=True)


if __name__ == "__main__":
    main()
