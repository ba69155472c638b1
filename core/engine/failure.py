"""Failures: errors that end requests, not the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ostro.core.errors import OstroError
from ostro.core.plugins.isolation import reason

log = logging.getLogger(__name__)

MEMORY = (MemoryError, torch.OutOfMemoryError)


@dataclass(frozen=True)
class Failures:
    """Makes the errors that end requests of those that a step raises on `device`.

    `explain` gives one line about an error: its type, its message, the plugin that raised it.
    """

    explain: Callable[[BaseException], str] = reason
    device: torch.device | None = None

    def of(self, error: Exception) -> OstroError:
        """The error that ends the requests; an OstroError as it is, any other is logged first.

        Raises the device's own error where it can compute no more: no later step would succeed.
        """
        if isinstance(error, OstroError):
            return error
        if self.device is not None and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        text = self.explain(error)
        log.error("requests end with an error: %s", text, exc_info=error)
        if isinstance(error, MEMORY):
            return OstroError(
                f"the step ran out of memory ({text}); start with a smaller --memory or --max-seqs"
            )
        return OstroError(f"the engine could not compute this request: {text}")


PLAIN = Failures()
