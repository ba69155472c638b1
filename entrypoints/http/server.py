"""`ostro serve`: runs the HTTP server in this process and the engine in a child process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn
from fastapi import FastAPI

from ostro.core.errors import EngineDied, Overloaded, TemplateError, UsageError
from ostro.core.ipc.client import PATIENCE
from ostro.core.ipc.process import ENGINE, ProcessEngine
from ostro.core.pipeline import ServedModel
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Import, Settings
from ostro.entrypoints.http.app import make_app
from ostro.entrypoints.http.listener import Protocol, listen, url_of
from ostro.entrypoints.http.metrics import EngineMetrics
from ostro.entrypoints.open import find_model, make_pipelines, name_of
from ostro.entrypoints.operations.admission import Admission
from ostro.entrypoints.operations.documents import Documents
from ostro.entrypoints.operations.keys import KeyRing
from ostro.entrypoints.operations.service import Service
from ostro.entrypoints.operations.state import RETENTION, open_state
from ostro.entrypoints.progress import REDRAW_SECONDS, loading

if TYPE_CHECKING:
    from ostro.core.records import ProgressCallback

log = logging.getLogger(__name__)
QUEUE = 32
"""Limit on unfinished sequences, per sequence that the engine runs at once."""
FLUSH_SECONDS = 5
"""Time limit for clients to read finished responses at shutdown."""
PROMPT_SHARE = 8
"""Share of the context that prompts take on average when the queue is full of tokens."""
KEEP_ALIVE_SECONDS = 30
FAILURE_NOTICE_SECONDS = 1.0
"""Seconds for which the server still responds after its engine has died."""
RESTARTS, RESTART_SECONDS = 3, 300.0
"""Limit on the restarts of an engine within `RESTART_SECONDS`."""
HANG_CHECK_SECONDS, HANG_CHECKS = 1.0, 3
"""A hung engine is killed after this number of checks. After a pause of the whole machine, the
first one finds an engine that is about to answer.
"""
SAME_SIGNAL_SECONDS = 0.1
"""Signals within this time after the first one count as the same."""
FORCED_SECONDS = 0.5
"""Time limit for clients to read why their responses end, after a second signal."""
INCOMPLETE = "the server is shutting down; the answer is incomplete"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a server.

    also: references of further models, "NAME=REF" or "REF". ready: callback that receives the URL
    once the server accepts requests. admin_key: key for loading adapters over HTTP. keys: a keys
    file. max_queue and max_queue_tokens: limits on unfinished sequences and their prompt tokens.
    store: where files and batches are kept, "none" for a server without state. retention: time
    after which they are deleted, None for no limit. Times are in seconds.
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
    admin_key: str | None = None
    store: str = "memory"
    retention: float | None = RETENTION
    keys: str | Path | None = None
    share_prefixes: bool = False
    open_metrics: bool = False
    max_queue: int | None = None
    max_queue_tokens: int | None = None
    max_wait: float | None = None
    plugin_paths: Sequence[str] = ()
    engine: Import = ENGINE
    also: Sequence[str] = ()
    ready: Callable[[str], None] | None = None


def serve(settings: Settings, **options: Any) -> int:
    """Serve a model until a signal arrives. `options` are the fields of `Options`.

    Returns the exit code. Raises an OstroError if the server cannot start or its engine dies.
    """
    start = time.perf_counter()
    parsed = Options(**options)
    has_keys = bool(parsed.api_keys) or parsed.keys is not None
    listener = listen(parsed.host, parsed.port, has_keys)
    with contextlib.closing(listener):
        return asyncio.run(Server(settings, parsed, listener, start).run())


class Server:
    """The server process: starts, supervises and stops the engine and the HTTP server."""

    def __init__(
        self, settings: Settings, options: Options, listener: socket.socket, start: float
    ) -> None:
        """start: `time.perf_counter()` when start-up began."""
        self.settings, self.options, self.listener = settings, options, listener
        self.start = start
        self.ring = KeyRing.of(
            options.api_keys,
            options.admin_key,
            file=None if options.keys is None else Path(options.keys),
            share_prefixes=options.share_prefixes,
        )
        self.plugins = PluginManager()
        self.engine = ProcessEngine(
            settings, plugin_paths=options.plugin_paths, engine=options.engine
        )
        self.models: list[ServedModel] = []
        self.stop = asyncio.Event()
        self.stopped_at = 0.0
        self.forced: int | None = None

    async def run(self) -> int:
        """Serve and return the exit code. The child starts first: it imports the most."""
        self.engine.spawn()
        try:
            with self.signals():
                return await self.work()
        finally:
            self.engine.kill()

    async def work(self) -> int:
        self.plugins.load(self.settings, self.options.plugin_paths)
        self.engine.registry = self.plugins.registry()
        rows = self.options.max_queue or QUEUE * self.settings.max_seqs
        self.admission = Admission(rows, self.options.max_queue_tokens)
        self.engine.admission = self.admission
        self.engine.max_wait = self.options.max_wait
        self.engine.patience = self.options.hang_timeout
        self.service = Service(self.engine, *self.names(), resolves=self.settings.adapter_resolvers)
        app = make_app(
            self.service,
            self.plugins,
            ring=self.ring,
            hosts=None if self.ring.locked else self.options.allow_hosts,
            origins=self.options.cors_origins,
            adapter_root=self.settings.adapter_root,
            open_metrics=self.options.open_metrics,
            access_log=self.options.access_log,
            state=open_state(self.options.store, self.options.retention, self.plugins),
        )
        self.documents: Documents = app.state.documents
        await self.documents.start()
        self.metrics: EngineMetrics = app.state.metrics
        self.web = Web.of(app)
        web = asyncio.ensure_future(self.web.serve(sockets=[self.listener]))
        try:
            return await self.watch()
        finally:
            for model in self.models:
                model.close()
            await self.documents.close()
            self.web.should_exit = True
            if self.forced is None:
                await web
            else:
                await asyncio.wait({web}, timeout=FORCED_SECONDS)
                web.cancel()

    async def watch(self) -> int:
        """Load, then wait for a signal or for the engine to end. Return the exit code."""
        stopped = asyncio.ensure_future(self.stop.wait())
        deaths: list[float] = []
        loaded: Callable[[], Any] = self.load
        while True:
            living = asyncio.ensure_future(self.live(loaded))
            await asyncio.wait({living, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if living.done() and (error := living.exception()):
                raise error
            if self.stop.is_set():
                living.cancel()
                return await self.finish()
            deaths = [*(at for at in deaths if time.monotonic() - at < RESTART_SECONDS)]
            deaths.append(time.monotonic())
            fault = str(self.engine.fault)
            if not self.options.restart or len(deaths) > RESTARTS:
                await asyncio.sleep(FAILURE_NOTICE_SECONDS)
                raise EngineDied(fault)
            log.error("%s; restarting the engine", fault)
            loaded = self.reload

    async def live(self, load: Callable[[], Any]) -> None:
        """Load the engine and return when it has ended. With `restart`, kill a hung engine."""
        await load()
        ended, checks = asyncio.ensure_future(self.engine.wait_gone()), 0
        try:
            while not ended.done():
                await asyncio.wait({ended}, timeout=HANG_CHECK_SECONDS)
                checks = checks + 1 if self.engine.hung else 0
                if self.options.restart and checks >= HANG_CHECKS:
                    seconds = f"{self.engine.silence:.0f} s"
                    self.engine.kill(f"the engine did not respond for {seconds}; killed")
        finally:
            ended.cancel()

    async def load(self) -> None:
        """Load the tokenizers and pipelines here, and the weights in the engine process."""
        each_settings = self.model_settings()
        found = [await in_thread(partial(find_ready, each, self.plugins)) for each in each_settings]
        with loading() as report:
            following = asyncio.ensure_future(self.follow(report))
            try:
                info = await self.engine.load([model.load for model in found])
            finally:
                following.cancel()
        self.service.takes_media = any(
            "text" in model.tasks and model.architecture.inputs is not None for model in found
        )
        if self.admission.max_tokens is None:
            context = max(facts.context for facts in info.models.values())
            self.admission.max_tokens = self.admission.max_rows * context // PROMPT_SHARE
        await self.service.refresh_adapters()
        self.models = [model.ready(info.models[model.name]) for model in found]
        for model in self.models:
            pipelines = make_pipelines(model, self.engine, self.plugins)
            self.service.models[model.name] = pipelines
        if self.settings.explain:
            print("\n".join(info.explain), file=sys.stderr)
        for model in self.models:
            if "text" in self.service.models[model.name]:
                print(f"ostro: {model.name}: sampling: {model.sampling}", file=sys.stderr)
        url, seconds = url_of(self.listener), time.perf_counter() - self.start
        names = ", ".join(self.service.names)
        print(f"ostro: {names} at {url}/v1, ready in {seconds:.1f} s", file=sys.stderr)
        self.documents.run_batches()
        if self.options.ready is not None:
            self.options.ready(url)

    async def follow(self, report: ProgressCallback) -> None:
        """Report the engine's progress until cancelled."""
        while True:
            progress = self.engine.progress
            if progress.what != "starting":  # the engine process imports torch
                report(progress.what, progress.done, progress.total)
            await asyncio.sleep(REDRAW_SECONDS)

    def model_settings(self) -> list[Settings]:
        """Return the settings of all models, the default first."""
        further = [additional_settings(self.settings, other) for other in self.options.also]
        return [self.settings, *further]

    def names(self) -> list[str]:
        """Return the names of all models. Raises UsageError for duplicates."""
        names = [name_of(each) for each in self.model_settings()]
        if len(set(names)) < len(names):
            raise UsageError(f"duplicate model names: {', '.join(names)}; use --also NAME=REF")
        return names

    async def reload(self) -> None:
        """Restart the engine process and register its adapters."""
        self.metrics.requests.restarts.inc()
        self.service.behind = True
        self.engine.spawn()
        await self.engine.load([model.load for model in self.models])
        await self.service.restore()

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT within the block, if this is the main thread."""
        loop = asyncio.get_running_loop()
        in_main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGTERM, signal.SIGINT) if in_main else ()
        for number in numbers:
            loop.add_signal_handler(number, self.on_signal, number)
        if in_main and self.ring.file is not None:
            loop.add_signal_handler(signal.SIGHUP, lambda: in_thread(self.reload_keys))
            numbers = (*numbers, signal.SIGHUP)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def reload_keys(self) -> None:
        """Read the keys file again. The keys stay if it is malformed."""
        try:
            self.ring.reload()
        except UsageError as error:
            log.error("%s; the keys are unchanged", error)
        else:
            log.warning("--keys %s: %d keys", self.ring.file, len(self.ring.keys))

    def on_signal(self, number: int) -> None:
        """Drain on the first signal, exit at once on the second.

        `timeout` signals this process and its group: two signals at once count as one.
        """
        now = time.monotonic()
        if not self.stop.is_set():
            self.stopped_at = now
        elif now - self.stopped_at > SAME_SIGNAL_SECONDS:
            self.forced = 128 + number
            self.engine.abort_all(Overloaded(INCOMPLETE))
            self.engine.kill()
        self.stop.set()

    async def finish(self) -> int:
        """Wait for unfinished requests until the drain timeout, then stop the engine."""
        await self.documents.stop_batches()
        if not await self.engine.drain(self.options.drain_timeout) and self.forced is None:
            log.warning("%d requests did not finish in time", self.engine.requests)
        self.engine.abort_all(Overloaded(INCOMPLETE))
        if self.forced is None:
            await self.engine.close()
        return self.forced or 0


def find_ready(settings: Settings, plugins: PluginManager) -> ServedModel:
    """Find a model. Render its template once to start the worker before the first request."""
    model = find_model(settings, plugins)
    if model.template is not None:
        with contextlib.suppress(TemplateError):
            model.template.render([{"role": "user", "content": "hello"}])
    return model


class Web(uvicorn.Server):
    """uvicorn's server with limits; it handles no signals and configures no logging."""

    @classmethod
    def of(cls, app: FastAPI) -> Web:
        """Return a server of an application that is not running yet."""
        logging.getLogger("uvicorn.error").addFilter(is_no_cancellation)
        return cls(
            uvicorn.Config(
                app,
                http=Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=FLUSH_SECONDS,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not capture signals: `Server` installs the handlers."""
        yield


def is_no_cancellation(record: logging.LogRecord) -> bool:
    """Return whether a record is not about a request that the server cancelled at its exit."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def additional_settings(settings: Settings, reference: str) -> Settings:
    """Return the settings of a further model: those of the first without model and adapters."""
    name, equals, rest = reference.partition("=")
    is_named = bool(equals) and not Path(reference).exists()
    return replace(
        settings,
        reference=rest if is_named else reference,
        name=name if is_named else None,
        arch=None,
        task=None,
        tokenizer=None,
        chat_template=None,
        revision=None,
        adapters=(),
        adapter_folder=None,
    )


def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run blocking work in a daemon thread: unlike an executor's, it does not delay the exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def set_outcome(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def run() -> None:
        outcome: tuple[T | None, BaseException | None]
        try:
            outcome = (work(), None)
        except BaseException as error:
            outcome = (None, error)
        with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
            loop.call_soon_threadsafe(set_outcome, *outcome)

    threading.Thread(target=run, daemon=True).start()
    return future
