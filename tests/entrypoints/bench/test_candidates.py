"""The candidates of `ostro tune --kernels` compile for a GPU, in several threads.

Run as a script, this file prints them for one model. The tests run it in a process of its own,
where triton does not interpret kernels.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from tiny.cuda_kernels import cuda_kernels, run_compiled

from ostro.core.plugins.manager import PluginManager
from ostro.entrypoints.bench import kernels
from ostro.entrypoints.bench.kernels import KernelTuner, Site
from ostro.plugins.conformance.kernels import TARGETS, fill_memory, offline_driver
from ostro.plugins.conformance.parity import subject

THREADS = 4
SHARED = 227 << 10
"""The bytes of shared memory that a program may have on sm_90."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "quant", "topology", "ops"),
    [
        ("llama", "q4k", "v_proj = q8_0", {"quant_matmul", "quant_matmul parts", "attention"}),
        ("qwen3_moe", "q8_0", "", {"quant_matmul", "grouped quant_matmul", "attention"}),
        ("deepseek_v2", "", "", {"latent_attention", "grouped_matmul"}),
        ("gpt_oss", "mxfp4", "", {"attention", "grouped mxfp4"}),
    ],
)
def test_candidates_compile(name: str, quant: str, topology: str, ops: set[str]) -> None:
    lines = [line.split(",") for line in run_compiled(__file__, name, quant, topology)]
    assert {op for op, *_ in lines} == ops
    for op, compiled, total in lines:
        # Few need more shared memory than there is.
        assert int(compiled) >= 0.9 * int(total) > 9, op


@contextmanager
def compiler() -> Iterator[None]:
    """Compile launched kernels for sm_90, and run none; fresh memory is zero."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        if kernel.metadata.shared > SHARED:
            raise RuntimeError("out of resources: shared memory")

    triton.runtime.driver.set_active(offline_driver(GPUTarget(*TARGETS["sm_90"])))
    with mock.patch.object(JITFunction, "run", compiled), fill_memory(0):
        yield


def main(name: str, quant: str, topology: str) -> None:
    """Print the candidates of each operation that compile, and all."""
    plugins = PluginManager()
    plugins.load()
    tiny = plugins.get("architectures", name).conformance.tiny
    config = {**tiny, "max_position_embeddings": 300}
    if "kv_lora_rank" in config:
        config["kv_lora_rank"] = 64  # the kernel for latents takes powers of two
    compiled, total = Counter[str](), Counter[str]()

    def note(tuner: KernelTuner, site: Site, candidates: list[Any]) -> kernels.Result:
        compiled[site.op] += len(candidates)
        total[site.op] += len({*site.candidates()} - {site.default})
        return kernels.Result(site, site.default, 1.0, 1.0, tried=0)

    with compiler(), cuda_kernels(), subject(plugins, name, config=config) as made:
        options: dict[str, Any] = {"dtype": "bfloat16", "quant": quant or None}
        options["topology"] = topology or None
        engine = made.engine(made.load(**options), rows=256, blocks=256, **options)
        with (
            mock.patch.object(KernelTuner, "fastest", note),
            mock.patch.object(kernels, "DEPTH", 64),
            mock.patch.object(kernels, "ThreadPoolExecutor", lambda _: ThreadPoolExecutor(THREADS)),
        ):
            KernelTuner(engine, seconds=1e9, progress=lambda *_: None).run()
    for op in total:
        print(op, compiled[op], total[op], sep=",")


if __name__ == "__main__":
    main(*sys.argv[1:])
