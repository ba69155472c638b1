"""Models whose kernels are compiled for a GPU without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import triton
from tiny.cuda_kernels import cuda_kernels
from tiny.empty_driver import empty_driver

from ostro.core.engine.engine import Engine
from ostro.core.load.model import LoadedModel
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.parity import subject


@contextmanager
def compiled_model(
    name: str, quant: str, shape: Mapping[str, Any], **options: Any
) -> Iterator[tuple[LoadedModel, Engine, Callable[[], int]]]:
    """A model of an architecture with the fields of `shape` in bfloat16 or in the format `quant`,
    its engine with `options`, and a function that returns the number of launches since its last
    call. Its loop is that of a GPU; kernels are compiled and launch nothing.
    """
    if triton.knobs.runtime.interpret:
        raise SystemExit("unset TRITON_INTERPRET")
    torch.set_num_threads(1)
    plugins = PluginManager()
    plugins.load()
    tiny = plugins.get("architectures", name).conformance.tiny
    settings: dict[str, Any] = {"dtype": "bfloat16", "quant": None if quant == "none" else quant}
    with (
        empty_driver() as count_launches,
        cuda_kernels(),
        subject(plugins, name, config={**tiny, **shape}) as made,
    ):
        loaded = made.load(**settings)
        yield loaded, made.engine(loaded, replay=True, **options, **settings), count_launches
