"""Compiles grammars: first in a worker process under limits, then here.

A grammar that ends the worker, or that exceeds its limits, is never compiled in this process.
Compiled grammars, and the errors of others, are kept by the hash of their parameter.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from queue import Empty, LifoQueue
from typing import Any

import msgspec
from llguidance import LLMatcher, LLTokenizer

from ostro.errors import Overloaded, RequestError
from ostro.pipelines import Vocabulary, WorkerProcess
from ostro.plugins.logits.grammar.matcher import build_matcher, build_tokenizer
from ostro.plugins.logits.grammar.parameter import MAX_TEXT, check_parameter, field_of
from ostro.plugins.logits.grammar.worker import PRIORITY

SECONDS = 2.0
"""Limit on the processor time of one compilation."""
PATIENCE = 10
"""Limit on the wall-clock time of one compilation, as a multiple of its processor time."""
WAIT = 15.0
"""The longest wait for a process that is free, in seconds."""
START = 30.0
"""Time limit for the start of a process, and for a vocabulary, in seconds."""
WORKERS = 3
"""The most processes: the engine prepares as many requests at a time. While two compile slow
grammars of one API key, the third one compiles those of others; it starts when it is needed.
"""
KEPT = 128
"""The most compiled grammars and errors that are kept."""
LATE = getattr(signal, "SIGPROF", 0)
"""The signal that ends a process which exceeds its processor time; 0 on systems without it."""
WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Compiled:
    """A compiled grammar, which sequences share. Thread-safe."""

    _matcher: LLMatcher
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def matcher(self) -> LLMatcher:
        """A matcher at the beginning of the grammar, for one sequence."""
        with self._lock:
            return self._matcher.deep_copy()


def lower_priority() -> None:
    """Let other threads go before this one, where the system has priorities of threads."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        lower = os.getpriority(os.PRIO_PROCESS, thread) + PRIORITY
        os.setpriority(os.PRIO_PROCESS, thread, lower)


def encode(parameter: dict[str, Any], place: str) -> bytes:
    """A parameter as bytes. Raises RequestError for one that is too large or no JSON."""
    try:
        data = msgspec.msgpack.encode(parameter)
    except RecursionError:
        what = "the schema nests too deeply; flatten it"
        raise RequestError(f"{place}: {what}", param=place) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(
            f"{place}: the grammar is not valid JSON: {error}", param=place
        ) from None
    if len(data) > MAX_TEXT:
        raise RequestError(
            f"{place}: the grammar has {len(data)} bytes; at most {MAX_TEXT}", param=place
        )
    return data


class Compiler:
    """Compiles grammars in worker processes and keeps them. Methods are thread-safe.

    `clock` measures the limits on wall-clock time.
    """

    def __init__(
        self, seconds: float = SECONDS, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds, self.clock = seconds, clock
        self.workers = [WorkerProcess(clock=clock) for _ in range(WORKERS)]
        self._idle = LifoQueue[WorkerProcess]()
        for worker in self.workers:
            self._idle.put(worker)
        self._kept: OrderedDict[str, Compiled | str] = OrderedDict()
        self._lock = threading.Lock()
        # One thread, below the engine's: a step of the engine does not wait for a grammar.
        self._builder = ThreadPoolExecutor(1, "ostro-grammar", initializer=lower_priority)
        self._known: weakref.WeakKeyDictionary[Vocabulary, tuple[str, LLTokenizer]]
        self._known = weakref.WeakKeyDictionary()
        self._numbers = count()

    def compile(self, parameter: dict[str, Any], vocabulary: Vocabulary) -> Compiled:
        """The compiled grammar of a parameter.

        Raises RequestError for an invalid grammar and one beyond the limits, Overloaded if no
        process is free or answers.
        """
        check_parameter(parameter)
        place = field_of(parameter)
        if not vocabulary.pieces or not vocabulary.eos_ids:
            lacks = "an end-of-answer token" if vocabulary.pieces else "a tokenizer"
            raise RequestError(
                f"{place}: a grammar needs {lacks}, which the model lacks", param=place
            )
        key, tokenizer = self._tokenizer(vocabulary)
        bare = {name: value for name, value in parameter.items() if name != "field"}
        data = encode(bare, place)
        name = hashlib.sha256(f"{key} ".encode() + data).hexdigest()
        request = {"key": key, "parameter": bare, "seconds": self.seconds}
        found = self._get(name) or self._make(name, request, vocabulary, tokenizer)
        if isinstance(found, str):
            raise RequestError(f"{place}: {found}", param=place)
        return found

    def close(self) -> None:
        """Wait for unfinished compilations and end the processes."""
        for worker in [self._idle.get() for _ in self.workers]:
            worker.stop()
        for worker in self.workers:
            self._idle.put(worker)

    def _tokenizer(self, vocabulary: Vocabulary) -> tuple[str, LLTokenizer]:
        """A name of a vocabulary, and llguidance's tokenizer of it."""
        with self._lock:
            if vocabulary not in self._known:
                built = build_tokenizer(
                    vocabulary.pieces, vocabulary.special, vocabulary.eos_ids, vocabulary.encode
                )
                self._known[vocabulary] = (str(next(self._numbers)), built)
            return self._known[vocabulary]

    def _get(self, name: str) -> Compiled | str | None:
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
            return self._kept.get(name)

    def _make(
        self, name: str, request: dict[str, Any], vocabulary: Vocabulary, tokenizer: LLTokenizer
    ) -> Compiled | str:
        """Compile a grammar in a worker and then here; keep the result or the error."""
        try:
            worker = self._idle.get(timeout=WAIT)
        except Empty:
            raise Overloaded("the processes that compile grammars are busy; try again") from None
        try:
            # Others may have compiled the same grammar during the wait.
            found = self._get(name)
            found = found or self._compile(worker, request, vocabulary, tokenizer)
        finally:
            self._idle.put(worker)
        with self._lock:
            self._kept[name] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found

    def _compile(
        self,
        worker: WorkerProcess,
        request: dict[str, Any],
        vocabulary: Vocabulary,
        tokenizer: LLTokenizer,
    ) -> Compiled | str:
        reply = self._exchange(worker, request, vocabulary)
        if "error" in reply:
            return str(reply["error"])
        try:
            build = self._builder.submit(build_matcher, tokenizer, reply["source"])
            return Compiled(build.result())
        except RequestError as error:
            return str(error)

    def _exchange(
        self, worker: WorkerProcess, request: dict[str, Any], vocabulary: Vocabulary
    ) -> dict[str, Any]:
        """Send a request to a worker; return its reply, or an error if it has ended.

        A process that ends otherwise than by its time limit is replaced once: it may have been
        killed from outside.
        """
        for _ in range(2):
            self._start(worker)
            try:
                return self._reply(worker, request, vocabulary)
            except TimeoutError:
                worker.stop()
                raise Overloaded(
                    f"compiling the grammar took longer than {self.seconds * PATIENCE:g} s; try "
                    "again"
                ) from None
            except (BrokenPipeError, EOFError):
                status = worker.wait()
            worker.stop()
            if status == -LATE:
                what = f"compiling the grammar takes more than {self.seconds:g} s; simplify it"
                return {"error": what}
        return {"error": "compiling the grammar exceeds the limit on memory; simplify it"}

    def _reply(
        self, worker: WorkerProcess, request: dict[str, Any], vocabulary: Vocabulary
    ) -> dict[str, Any]:
        """The reply to a request, with the vocabulary before it if the process lacks it."""
        reply = self._ask(worker, request, self.seconds * PATIENCE)
        if "missing" in reply:
            tokens = {"pieces": vocabulary.pieces, "special": dict(vocabulary.special)}
            ends = sorted(vocabulary.eos_ids)
            self._ask(worker, {"key": request["key"], **tokens, "ends": ends}, START)
            reply = self._ask(worker, request, self.seconds * PATIENCE)
        return reply

    def _ask(
        self, worker: WorkerProcess, request: dict[str, Any], seconds: float
    ) -> dict[str, Any]:
        deadline = self.clock() + seconds
        worker.send(msgspec.msgpack.encode(request), deadline)
        reply: dict[str, Any] = msgspec.msgpack.decode(worker.receive(deadline))
        return reply

    def _start(self, worker: WorkerProcess) -> None:
        """Start the process unless it runs. Raises Overloaded if it does not get ready."""
        if worker.running:
            return
        path = json.dumps([entry for entry in sys.path if entry])
        env = {"PATH": os.environ.get("PATH", "")}
        worker.start([sys.executable, "-I", "-S", str(WORKER), path], env)
        try:
            worker.receive(self.clock() + START)
        except (TimeoutError, EOFError):
            worker.stop()
            raise Overloaded(
                "the process that compiles grammars did not start; try again"
            ) from None


COMPILER = Compiler()
"""The compiler that all models of this process share."""
