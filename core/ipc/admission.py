"""The interface by which an entry point admits requests to an engine and counts their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ostro.core.messages.outputs import Output
from ostro.core.messages.requests import Request


class Admitted(Protocol):
    """A request from its admission to its end. `request` is what the engine gets."""

    @property
    def request(self) -> Request: ...

    def count(self, output: Output) -> None:
        """Count an output of the request."""

    def close(self) -> None:
        """Note the end of the request."""


class Admission(Protocol):
    """Decides which requests an engine gets."""

    def check(self) -> None:
        """Raise Overloaded if no further request is admitted now."""

    def admit(self, request: Request) -> Admitted:
        """Admit a request. Raises an OstroError for one that is refused."""
        ...


@dataclass(frozen=True)
class AdmittedAsIs:
    """A request that is neither changed nor counted."""

    request: Request

    def count(self, output: Output) -> None: ...

    def close(self) -> None: ...


class AdmitAll:
    """Admits every request as it is."""

    def check(self) -> None: ...

    def admit(self, request: Request) -> AdmittedAsIs:
        return AdmittedAsIs(request)
