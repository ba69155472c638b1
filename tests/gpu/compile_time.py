"""Measure how long the kernels of a model's first steps take to compile, without a GPU.

    PYTHONPATH=src:tests python tests/gpu/compile_time.py llama q4k [alone]

The arguments are an architecture and a format, or `none`; with `alone`, each kernel is compiled at
its first launch. A model of two layers starts with the kernels for CUDA, which Triton compiles for
sm_90 into an empty cache, and which a driver launches that does nothing (`tiny/empty_driver.py`).
The time of its steps once all kernels are compiled is printed as well.
"""

from __future__ import annotations

import sys
from time import perf_counter

from gpu.compiled_model import compiled_model

from ostro.core.engine.startup import warm_up
from ostro.core.engine.startup.compilation import run_all
from ostro.core.engine.startup.kernel_compiler import compile_launched
from ostro.plugins.conformance.kernels import fill_memory

SHAPE = {
    "num_hidden_layers": 2,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 4096,
}


def main(name: str, quant: str, how: str = "threads") -> None:
    with (
        fill_memory(0),
        compiled_model(name, quant, SHAPE, rows=2048, blocks=512) as (loaded, engine, _),
    ):

        def start() -> None:
            warm_up.make_ready(engine, loaded)
            warm_up.warm_up(engine)

        began, compiled = perf_counter(), 0
        if how == "threads":
            compiled = compile_launched(lambda: run_all(engine, warm=True))
        start()
        first = perf_counter() - began
        began = perf_counter()
        start()
    print(f"{how}: {first:.1f} s, then {perf_counter() - began:.1f} s", compiled or "", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
