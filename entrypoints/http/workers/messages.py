"""Messages between a server and its workers; they are framed as those of the engine."""

from __future__ import annotations

from typing import Any

import msgspec

from ostro.core.errors import Fact, OstroError, describe_error, rebuild_error
from ostro.core.messages.commands import (
    Abort,
    AdapterCommand,
    AdapterInfo,
    AdapterResult,
    GetStats,
    ModelCommand,
    ModelInfo,
    Outputs,
)
from ostro.core.messages.outputs import Stats
from ostro.core.messages.requests import Request
from ostro.core.settings import Settings
from ostro.entrypoints.http.http_series import HttpSeries
from ostro.entrypoints.operations.access import caller, quotas
from ostro.entrypoints.operations.access.keys import RingState

# To a worker


class Start(msgspec.Struct, kw_only=True, tag=True):
    """The first message to a worker. `options` are the fields of `Options`; the plugins of the
    worker must equal the `registry`. `number` is its index among the workers.
    """

    number: int = 0
    settings: Settings
    options: dict[str, Any]
    registry: dict[str, str]
    keys: RingState


class ViewModel(msgspec.Struct, kw_only=True):
    """A loaded model. `load` is another number after each load of its files."""

    name: str
    settings: Settings
    info: ModelInfo
    load: int


class View(msgspec.Struct, kw_only=True, tag=True):
    """The models and adapters of the server; see `Service` and `Adapters`.

    states: of all models, in the order of their names. started: whether the models of the start are
    loaded. A worker answers with `Synced` once its requests see this view.
    """

    version: int
    states: dict[str, str]
    aliases: dict[str, str]
    models: list[ViewModel]
    adapters: dict[str, list[AdapterInfo]]
    templates: dict[str, str | None]
    loaded: bool
    started: int


class Renew(msgspec.Struct, tag=True):
    """Use these keys, and read the certificate again."""

    keys: RingState


class Entered(msgspec.Struct, tag=True):
    """The limits admit the HTTP request `claim`. `headers` are those of `Quota`; they follow again
    when a request to the engine has reserved tokens.
    """

    claim: int
    headers: dict[str, str]


class Refused(msgspec.Struct, kw_only=True, tag=True):
    """An error of a request or command `id`, or of the HTTP request `claim`."""

    kind: str
    message: str
    param: str | None = None
    status: int | None = None
    code: str | None = None
    facts: dict[str, Fact] | None = None
    retry_after: float | None = None
    id: str = ""
    claim: int | None = None
    headers: dict[str, str] = {}

    @classmethod
    def of(cls, error: OstroError, **fields: Any) -> Refused:
        """Describe an error. `fields` are `id`, or `claim` and `headers`."""
        described = {**describe_error(error), "kind": type(error).__name__}
        return cls(retry_after=getattr(error, "retry_after", None), **described, **fields)

    def error(self) -> OstroError:
        """The error to raise."""
        if self.retry_after is not None:
            return quotas.RateLimited(self.message, self.retry_after)
        for module in (quotas, caller):
            kind = getattr(module, self.kind, None)
            if isinstance(kind, type) and issubclass(kind, OstroError):
                return kind(self.message, param=self.param)
        return rebuild_error(
            self.kind, self.message, self.param, self.status, self.code, self.facts
        )


class Forwarded(msgspec.Struct, kw_only=True, tag=True):
    """The response to a forwarded HTTP request. `error` is its code, "" without an error."""

    number: int
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    error: str


class GetSeries(msgspec.Struct, tag=True):
    """Request `Series`."""


class Stop(msgspec.Struct, tag=True):
    """Finish the responses and exit."""


# From a worker


class Enter(msgspec.Struct, kw_only=True, tag=True):
    """An HTTP request begins. `claim` is its number, `key` the digest of its API key."""

    claim: int
    key: bytes | None


class Leave(msgspec.Struct, tag=True):
    """An HTTP request has ended."""

    claim: int


class Submit(msgspec.Struct, kw_only=True, tag=True):
    """A request to the engine, of the HTTP request `claim` to a route."""

    request: Request
    claim: int | None
    key: bytes | None
    route: str


class Forward(msgspec.Struct, kw_only=True, tag=True):
    """An HTTP request that the server handles. The last fields are those of its ASGI scope.

    id: of the request, see `RequestRecord`. key: the digest of its API key. seconds: time left
    until its deadline, None without one.
    """

    number: int
    id: str
    key: bytes | None
    seconds: float | None
    method: str
    path: str
    query_string: bytes
    headers: list[tuple[bytes, bytes]]
    client: tuple[str, int] | None
    body: bytes


class Synced(msgspec.Struct, tag=True):
    """The worker uses the view of this version."""

    version: int


class Series(msgspec.Struct, tag=True):
    """The figures of the worker's HTTP requests."""

    series: HttpSeries


class JobsChanged(msgspec.Struct, tag=True):
    """A batch or a response in the background was created or cancelled."""


ToWorker = (
    Start
    | View
    | Renew
    | Entered
    | Refused
    | Outputs
    | AdapterResult
    | Stats
    | Forwarded
    | GetSeries
    | Stop
)
FromWorker = (
    Enter
    | Leave
    | Submit
    | Abort
    | AdapterCommand
    | ModelCommand
    | GetStats
    | Forward
    | Synced
    | Series
    | JobsChanged
)
to_worker = msgspec.msgpack.Decoder(ToWorker)
from_worker = msgspec.msgpack.Decoder(FromWorker)
