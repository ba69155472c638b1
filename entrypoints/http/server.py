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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from ostro.core.errors import EngineDied, OstroError, Overloaded, TemplateError, UsageError
from ostro.core.ipc.process import ProcessEngine
from ostro.core.messages.commands import ModelInfo, Ready
from ostro.core.pipeline import ServedModel
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.entrypoints.http.app import make_app
from ostro.entrypoints.http.body_log import BodyLog
from ostro.entrypoints.http.daemon_thread import in_thread
from ostro.entrypoints.http.listener import listen, listen_unix, open_certificate, url_of
from ostro.entrypoints.http.log import configure_log
from ostro.entrypoints.http.loop_watchdog import watch_event_loop
from ostro.entrypoints.http.metrics import EngineMetrics
from ostro.entrypoints.http.options import Options
from ostro.entrypoints.http.systemd import notify
from ostro.entrypoints.http.tracing import Tracing, start_tracing
from ostro.entrypoints.http.web import Web
from ostro.entrypoints.http.workers.messages import Start
from ostro.entrypoints.http.workers.pool import WorkerPool, check_workers, options_of
from ostro.entrypoints.open import find_model, make_pipelines, name_of
from ostro.entrypoints.operations.access.admission import Admission
from ostro.entrypoints.operations.access.keys import KeyRing
from ostro.entrypoints.operations.documents.documents import Documents
from ostro.entrypoints.operations.documents.state import open_state
from ostro.entrypoints.operations.models.model_manager import ModelManager
from ostro.entrypoints.operations.models.service import Service
from ostro.entrypoints.progress import REDRAW_SECONDS, loading
from ostro.entrypoints.serve_config import ModelOptions, check_names

if TYPE_CHECKING:
    from ostro.core.settings import ProgressCallback

log = logging.getLogger(__name__)
QUEUE = 32
"""Limit on unfinished sequences, per sequence that the engine runs at once."""
PROMPT_SHARE = 8
"""Share of the context that prompts take on average when the queue is full of tokens."""
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
SWITCH_SECONDS = 0.0005
"""Seconds after which a thread yields the interpreter lock (Python: 0.005). The event loop releases
the lock several times per request, and waits this long for it each time while a body is decoded.
"""
INCOMPLETE = "the server is shutting down; the answer is incomplete"


def serve(models: Sequence[ModelOptions], **options: Any) -> int:
    """Serve models until a signal arrives. `options` are the fields of `Options`.

    The first model is the default. Returns the exit code. Raises an OstroError if the server
    cannot start or its engine dies.
    """
    start = time.perf_counter()
    parsed = Options(**options)
    check_names(models)
    check_workers(parsed, models)
    has_keys = bool(parsed.api_keys) or parsed.keys is not None
    open_certificate(parsed.ssl_certfile, parsed.ssl_keyfile)
    opened: contextlib.AbstractContextManager[socket.socket]
    if parsed.uds is None:
        opened = contextlib.closing(listen(parsed.host, parsed.port, has_keys))
    else:
        opened = listen_unix(Path(parsed.uds))
    sys.setswitchinterval(SWITCH_SECONDS)
    with opened as listener:
        return asyncio.run(Server(models, parsed, listener, start).run())


class Server:
    """The server process: starts, supervises and stops the engine and the HTTP server."""

    def __init__(
        self,
        models: Sequence[ModelOptions],
        options: Options,
        listener: socket.socket | None,
        start: float,
    ) -> None:
        """listener: None for an application that another server serves. start:
        `time.perf_counter()` when start-up began.
        """
        self.configured, self.options, self.listener = models, options, listener
        self.settings = models[0].settings
        self.start = start
        self.ring = KeyRing.of(
            options.api_keys,
            options.admin_key,
            file=None if options.keys is None else Path(options.keys),
            share_prefixes=options.share_prefixes,
        )
        self.plugins = PluginManager()
        self.engine = ProcessEngine(
            self.settings, plugin_paths=options.plugin_paths, engine=options.engine
        )
        self.stop = asyncio.Event()
        self.stopped_at = 0.0
        self.forced: int | None = None
        self.web: Web | WorkerPool | None = None
        self.tracing: Tracing | None = None
        self.body_log: BodyLog | None = None
        if options.log_requests is not None:
            self.body_log = BodyLog(Path(options.log_requests), options.log_requests_size)

    async def run(self) -> int:
        """Serve and return the exit code. The child starts first: it imports the most."""
        self.engine.spawn()
        configure_log(self.options.log_format)
        self.tracing = start_tracing()
        try:
            with self.signals():
                return await self.work()
        finally:
            self.engine.kill()
            if self.tracing is not None:
                self.tracing.close()
            if self.body_log is not None:
                self.body_log.close()

    async def work(self) -> int:
        """Serve on the listener until a signal arrives, and return the exit code."""
        assert self.listener is not None
        app = await self.open()
        self.web = self.open_web(app)
        web = asyncio.ensure_future(self.web.serve(sockets=[self.listener]))
        try:
            with watch_event_loop(self.plugins):
                return await self.watch()
        finally:
            await self.close()
            self.web.stop()
            if self.forced is None:
                await web
            else:
                await asyncio.wait({web}, timeout=FORCED_SECONDS)
                web.cancel()

    def open_web(self, app: FastAPI) -> Web | WorkerPool:
        """Return what serves HTTP: this process, or workers."""
        options = self.options
        if options.workers == 1:
            proxies = options.trusted_proxies
            return Web.of(app, options.ssl_certfile, options.ssl_keyfile, trusted_proxies=proxies)
        start = Start(
            settings=self.settings,
            options=options_of(options),
            registry=self.plugins.registry(),
            keys=self.ring.state,
        )
        return WorkerPool(app, self.ring, start, options.workers)

    async def open(self) -> FastAPI:
        """Open the store and return the application. Its models are not loaded yet."""
        self.plugins.load(self.settings, self.options.plugin_paths)
        self.engine.registry = self.plugins.registry()
        rows = self.options.max_queue or QUEUE * self.settings.max_seqs
        self.admission = Admission(rows, self.options.max_queue_tokens)
        self.engine.admission = self.admission
        self.engine.max_wait = self.options.max_wait
        self.engine.patience = self.options.hang_timeout
        self.service = Service(self.engine, *self.names(), resolves=self.settings.adapter_resolvers)
        self.manager = ModelManager(
            self.service,
            self.configured,
            lambda settings: in_thread(partial(find_ready, settings, self.plugins)),
            lambda model: make_pipelines(model, self.engine, self.plugins),
            {record.task for record in self.plugins.collect("pipelines").values()},
        )
        self.manager.on_loaded = self.note_context
        self.engine.before_submit = self.manager.ensure
        options = self.options
        app = make_app(
            self.service,
            self.plugins,
            options,
            ring=self.ring,
            state=open_state(options.store, options.retention, self.plugins, options.store_limit),
            adapter_root=self.settings.adapter_root,
            observers=[] if self.tracing is None else [self.tracing],
            body_log=self.body_log,
        )
        self.documents: Documents = app.state.operations.documents
        await self.documents.start()
        self.metrics: EngineMetrics = app.state.metrics
        return app

    async def close(self) -> None:
        """Close the models and the store."""
        self.manager.close()
        await self.documents.close()

    async def watch(self) -> int:
        """Load, then wait for a signal or for the engine to end. Return the exit code."""
        stopped = asyncio.ensure_future(self.stop.wait())
        deaths: list[float] = []
        loaded: Callable[[], Any] = self.load
        while True:
            living = asyncio.ensure_future(self.live(loaded))
            await asyncio.wait({living, stopped}, return_when=asyncio.FIRST_COMPLETED)
            error = living.exception() if living.done() else None
            if error is not None and (loaded == self.load or not isinstance(error, OstroError)):
                raise error
            if self.stop.is_set():
                living.cancel()
                return await self.finish()
            deaths = [*(at for at in deaths if time.monotonic() - at < RESTART_SECONDS)]
            deaths.append(time.monotonic())
            fault = str(error or self.engine.fault)
            if not self.options.restart or len(deaths) > RESTARTS:
                await asyncio.sleep(FAILURE_NOTICE_SECONDS)
                raise error or EngineDied(fault)
            if error is not None:  # of the restart, after which the engine may live
                self.engine.kill(fault)
                await asyncio.sleep(0)  # as in `load_engine`
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
                    cause = f"; {held}" if (held := self.engine.held) else ""
                    seconds = f"{self.engine.silence:.0f} s"
                    self.engine.kill(f"the engine did not respond for {seconds}; killed{cause}")
        finally:
            ended.cancel()

    async def load(self) -> None:
        """Load the tokenizers and pipelines here, and the weights in the engine process."""
        found = await self.manager.find_all()
        with loading() as report:
            following = asyncio.ensure_future(self.follow(report))
            try:
                info = await self.load_engine(found)
                await self.manager.start(found, info.models)
            finally:
                following.cancel()
        await self.service.refresh_adapters()
        if self.settings.explain:
            print("\n".join(info.explain), file=sys.stderr)
        for model in self.service.served.values():
            if "text" in self.service.models[model.name]:
                log.info("%s: sampling: %s", model.name, model.sampling)
        if isinstance(self.web, WorkerPool):
            await self.web.publish(None)
        url = self.announce()
        self.documents.run_jobs()
        notify("READY=1")
        if self.options.ready is not None:
            self.options.ready(url)

    def announce(self) -> str:
        """Log what is served where, and return the URL; it is empty without a listener."""
        names = ", ".join(n for n in self.service.names if self.manager.state(n) != "failed")
        seconds = time.perf_counter() - self.start
        url = where = ""
        if self.listener is not None:
            url = url_of(self.listener, "https" if self.options.ssl_certfile else "http")
            where = f" at {url}" if self.options.uds else f" at {url}/v1"
        log.info("%s%s, ready in %.1f s", names, where, seconds)
        return url

    async def load_engine(self, models: Sequence[ServedModel]) -> Ready:
        """Load models in the engine process; none if one of several fails.

        Raises the error of a server's only model.
        """
        try:
            return await self.engine.load([model.load for model in models])
        except OstroError as error:
            if len(self.configured) == 1 or self.forced is not None:
                raise
            log.error("%s; loading the models one by one", error)
        self.engine.kill()
        await asyncio.sleep(0)  # the loss of the connection is scheduled: it ends no new engine
        self.engine.spawn()
        return await self.engine.load([])

    def note_context(self, info: ModelInfo) -> None:
        """Raise the default limit on prompt tokens to that of a loaded model."""
        if self.options.max_queue_tokens is None:
            tokens = self.admission.max_rows * info.context // PROMPT_SHARE
            self.admission.max_tokens = max(tokens, self.admission.max_tokens or 0)

    async def follow(self, report: ProgressCallback) -> None:
        """Report the engine's progress until cancelled."""
        while True:
            progress = self.engine.progress
            if progress.what != "starting":  # the engine process imports torch
                report(progress.what, progress.done, progress.total)
            await asyncio.sleep(REDRAW_SECONDS)

    def names(self) -> list[str]:
        """Return the names of all models."""
        return [name_of(each.settings) for each in self.configured]

    async def reload(self) -> None:
        """Restart the engine process and register its adapters."""
        self.metrics.requests.restarts += 1
        self.service.behind = True
        self.engine.spawn()
        await self.engine.load(self.manager.specs)
        await self.service.restore()
        if isinstance(self.web, WorkerPool):
            await self.web.publish()
        log.info("the engine is ready again")

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Handle SIGTERM, SIGINT and SIGHUP within the block, if this is the main thread."""
        loop = asyncio.get_running_loop()
        in_main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if in_main else ()
        for number in numbers:
            loop.add_signal_handler(number, self.on_signal, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def reload_files(self) -> None:
        """Read the keys file and the certificate again."""
        if self.ring.file is None and self.options.ssl_certfile is None:
            log.warning("SIGHUP: there is no keys file and no certificate to read again")
        self.reload_certificate()
        self.reload_keys()

    def reload_certificate(self) -> None:
        """Use the files of the certificate for new connections, unless they are invalid."""
        try:
            context = open_certificate(self.options.ssl_certfile, self.options.ssl_keyfile)
        except UsageError as error:
            log.error("%s; the certificate is unchanged", error)
            return
        if context is not None and self.web is not None:  # else it is read when the server starts
            self.web.use(context)
            log.info("--ssl-certfile %s is read again", self.options.ssl_certfile)

    def reload_keys(self) -> None:
        """Read the keys file again. The keys stay if it is malformed."""
        if self.ring.file is None:
            return
        try:
            self.ring.reload()
        except UsageError as error:
            log.error("%s; the keys are unchanged", error)
        else:
            log.info("--keys %s: %d keys", self.ring.file, len(self.ring.keys))

    def on_signal(self, number: int) -> None:
        """Read files again on SIGHUP. Drain on the first other signal, exit on the second.

        `timeout` signals this process and its group: two signals at once count as one.
        """
        if number == signal.SIGHUP:
            reloading = in_thread(self.reload_files)
            if isinstance(self.web, WorkerPool):
                reloading.add_done_callback(self.web.renew)
            return
        now = time.monotonic()
        if not self.stop.is_set():
            self.stopped_at = now
            notify("STOPPING=1")
            name, requests = signal.Signals(number).name, self.engine.requests
            log.info("%s: stopping; %d requests are running", name, requests)
        elif now - self.stopped_at > SAME_SIGNAL_SECONDS:
            self.forced = 128 + number
            self.engine.abort_all(Overloaded(INCOMPLETE))
            self.engine.kill()
        self.stop.set()

    async def finish(self) -> int:
        """Wait for unfinished requests until the drain timeout, then stop the engine."""
        await self.documents.stop_jobs()
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
