"""Measure the host's time per step with a prompt, on a machine without a GPU.

    PYTHONPATH=src:tests python tests/gpu/host.py llama q4k

The arguments are an architecture and a format, or `none`. A model of 32 small layers runs with the
kernels for CUDA, launched by a driver that does nothing (`tiny/empty_driver.py`). The times are
those of Python, of Triton's launcher and of torch's operations, which are small; those of a driver
are not in them.
"""

from __future__ import annotations

import statistics
import sys
from time import perf_counter

import torch
from gpu.compiled_model import compiled_model

from ostro.core.engine.runner import LaunchedStep, ModelRunner
from ostro.core.engine.scheduler import Chunk, StepPlan
from ostro.core.engine.standalone import standalone_sequence

SHAPE = {
    "num_hidden_layers": 32,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
}
ROWS, ROUNDS = 100, 15


@torch.inference_mode()
def main(name: str, quant: str) -> None:
    with compiled_model(name, quant, SHAPE, rows=600, blocks=256) as (_, engine, count_launches):
        runner = engine.runner
        runner.capture()
        runner.poisons = False
        captured = runner.prompt_buckets.plain
        for bucket in captured.values():
            # A graph is launched by one call.
            results = bucket.launch()
            bucket.launch = lambda results=results: results
        for kind, buckets in {"eager": {}, "captured": captured}.items():
            runner.prompt_buckets.plain = buckets
            times = []
            for _ in range(ROUNDS + 2):
                count_launches()
                times.append(step_time(runner))
            milliseconds = statistics.median(times[2:]) * 1e3
            print(f"{kind}: {milliseconds:.2f} ms, {count_launches()} launches of Triton kernels")


def step_time(runner: ModelRunner) -> float:
    """The seconds until a step with a prompt is launched, without its sampling."""
    sequence = standalone_sequence(range(ROWS))
    sequence.tables = runner.blocks.new_tables()
    runner.blocks.grow(sequence.tables, ROWS)
    launched = LaunchedStep(StepPlan([Chunk(sequence, 0, ROWS, draws=True)]))
    began = perf_counter()
    runner.run(launched)
    seconds = perf_counter() - began
    runner.blocks.release(sequence.tables)
    return seconds


if __name__ == "__main__":
    main(*sys.argv[1:])
