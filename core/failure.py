"""Failures: turns an exception of a step into the error that ends its requests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ostro.core.errors import OstroError, Overloaded
from ostro.core.plugins.isolation import reason

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failures:
    """Converts the exceptions of steps on `device` to errors of requests.

    `explain` returns one line about an exception: its type, its message, the plugin that raised it.
    """

    explain: Callable[[BaseException], str] = reason
    device: torch.device | None = None

    def of(self, error: Exception) -> OstroError:
        """Return the error that ends the requests: an OstroError itself, any other wrapped.

        Logs the others, since their text does not show where they were raised. Raises the error of
        a CUDA device that can no longer compute.
        """
        if isinstance(error, OstroError):
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
        return OstroError(f"the engine could not compute this request: {text}")


def is_out_of_memory(error: Exception) -> bool:
    """Whether an exception means that memory ran out."""
    # torch's allocator for the CPU raises a RuntimeError.
    types = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, types) or "DefaultCPUAllocator" in str(error)


def described(error: OstroError | None) -> dict[str, Any]:
    """The fields of an output for the error that ends its request; none without an error."""
    if error is None:
        return {}
    return {"error": str(error), "kind": type(error).__name__, "param": error.param}


PLAIN = Failures()
