"""The options of a server, as `ostro serve` and `ostro.http.Application` take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ostro.core.ipc.client import PATIENCE
from ostro.core.ipc.process import ENGINE
from ostro.core.records import Import
from ostro.entrypoints.http.body_log import LOG_BYTES
from ostro.entrypoints.http.log import Format
from ostro.entrypoints.operations.documents.state import RETENTION


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a server.

    ready: callback that receives the URL once the server accepts requests. admin_key: key for
    loading models and adapters over HTTP. model_root: folder that clients may
    load models from. keys: a keys file. max_queue and max_queue_tokens: limits on
    unfinished sequences and their prompt tokens. store: where files and batches are kept, "none"
    for a server without state. retention: time after which they are deleted, None for no limit.
    store_limit: limit on their bytes, None for no limit. trusted_proxies: addresses and networks
    whose X-Forwarded-For and X-Forwarded-Proto are used. workers: processes that serve HTTP; 1 is
    the server's own. strict_fields: unknown fields of requests are errors.
    Times are in seconds.
    """

    host: str = "127.0.0.1"
    port: int = 1234
    api_keys: Sequence[str] = ()
    allow_hosts: Sequence[str] = ()
    cors_origins: Sequence[str] = ()
    drain_timeout: float = 30.0
    hang_timeout: float = PATIENCE
    restart: bool = True
    access_log: bool = False
    log_format: Format = "text"
    log_requests: str | Path | None = None
    log_requests_size: int = LOG_BYTES
    admin_key: str | None = None
    model_root: str | Path | None = None
    store: str = "memory"
    retention: float | None = RETENTION
    store_limit: int | None = None
    keys: str | Path | None = None
    share_prefixes: bool = False
    open_metrics: bool = False
    max_queue: int | None = None
    max_queue_tokens: int | None = None
    max_wait: float | None = None
    request_timeout: float | None = None
    uds: str | Path | None = None
    ssl_certfile: str | Path | None = None
    ssl_keyfile: str | Path | None = None
    root_path: str = ""
    strict_fields: bool = False
    trusted_proxies: Sequence[str] = ()
    workers: int = 1
    plugin_paths: Sequence[str] = ()
    engine: Import = ENGINE
    ready: Callable[[str], None] | None = None
