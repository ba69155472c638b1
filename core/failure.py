"""Failures: converts an exception of a step to the error that ends its requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isnan
from typing import Any

import torch

from ostro.core.errors import OstroError, Overloaded, StepFailed, describe_error
from ostro.core.plugins.isolation import reason
from ostro.core.results import InvalidResult

log = logging.getLogger(__name__)


OUT_OF_MEMORY = ("DefaultCPUAllocator", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Texts of the RuntimeErrors that torch's allocator for the CPU, CUDA and cuBLAS raise."""


@dataclass(frozen=True)
class Failures:
    """Converts the exceptions of steps on `device` to errors of requests.

    `explain` returns one line about an exception: its type, its message, the plugin that raised it.
    """

    explain: Callable[[BaseException], str] = reason
    device: torch.device | None = None

    def of(self, error: Exception) -> OstroError:
        """Return the error that ends the requests: an OstroError itself, any other wrapped.

        An InvalidResult is wrapped as well, to name its plugin. Logs the wrapped errors, since
        their text does not show where they were raised. Raises the error of a CUDA device that can
        no longer compute.
        """
        if isinstance(error, OstroError) and not isinstance(error, InvalidResult):
            return error
        # After an illegal access every later call fails too. A failing synchronization shows that,
        # and its error ends the engine: ending requests one by one would never stop.
        if self.device is not None and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        text = self.explain(error)
        log.error("requests end with an error: %s", text, exc_info=error)
        if is_out_of_memory(error):
            return Overloaded(
                f"the step ran out of memory ({text}); start with a smaller --memory or --max-seqs"
            )
        return StepFailed(f"the engine could not compute this request: {text}")


@contextmanager
def ordinary_errors() -> Iterator[None]:
    """Convert an error that is no Exception to a RuntimeError. Also a decorator.

    A plugin may call sys.exit, and a Rust library of a plugin may panic: neither may end the
    engine.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise RuntimeError(reason(error)) from error


def is_out_of_memory(error: Exception) -> bool:
    """Whether an exception means that memory ran out."""
    types = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, types) or any(text in str(error) for text in OUT_OF_MEMORY)


LOGITS = "the logits of this request are"


def not_finite(
    dtype: torch.dtype, outputs: str = LOGITS, processors: Iterable[str] = ()
) -> StepFailed:
    """The error of a request whose `outputs`, computed in `dtype`, contain NaN or Inf.

    processors: descriptions of the logits processors that have changed the outputs.
    """
    advice = "the weights are damaged: download the model's files again"
    if dtype == torch.float16:
        advice = "load the model with --dtype bfloat16 or float32"
    if causes := " or ".join(processors):
        advice = f"the logits processor {causes} bans every token or returns NaN; if not, {advice}"
    name = str(dtype).removeprefix("torch.")
    return StepFailed(f"{outputs} not finite in {name}; {advice}")


def check_nan(logprobs: Iterable[float], dtype: torch.dtype) -> None:
    """Raise StepFailed for NaN, which all logprobs of a row of logits with NaN or Inf are."""
    if any(map(isnan, logprobs)):
        raise not_finite(dtype)


def described(error: OstroError | None) -> dict[str, Any]:
    """The fields of an output for the error that ends its request; none without an error."""
    if error is None:
        return {}
    fields = describe_error(error)
    return {"error": fields.pop("message"), **fields}


PLAIN = Failures()
