"""An engine without a model: every choice repeats its prompt, one token per step.

It ends with the end-of-text id after one repetition, or goes round until `max_tokens`. A token's
log probability is minus its id over 1000. `ECHO_STEP` are the seconds a step takes, `ECHO_START`
those of loading; `ECHO_FAIL` names an error kind that loading ends with. The process writes the
number of objects that are frozen at its exit to the file `ECHO_FROZEN`.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ostro.core import errors
from ostro.core.errors import (
    AdapterBusy,
    AdapterConflict,
    AdapterError,
    AdapterNameRefused,
    AdapterNotFound,
    CheckpointError,
    InsufficientMemory,
    NotFound,
    RequestError,
    UsageError,
)
from ostro.core.messages.commands import (
    AdapterCommand,
    AdapterInfo,
    AdapterResult,
    FromEngine,
    LoadAdapter,
    LoadModel,
    ModelCommand,
    ModelInfo,
    ModelResult,
    ModelSpec,
    ReadAdapter,
    RequantizeModel,
    UnloadAdapter,
    UnloadModel,
)
from ostro.core.messages.outputs import Stats, TokenLogprobs, TokenOutput
from ostro.core.messages.requests import DEFAULT_MODEL, TokenRequest

VOCAB, CONTEXT = 300, 4096


class EchoEngine:
    """Keeps what it was asked in `seen`, for tests that run it in their own process."""

    vocab, context = VOCAB, CONTEXT

    def __init__(
        self, eos_ids: Iterable[int] = (257,), names: Sequence[str] = ("default",)
    ) -> None:
        self.names = list(names)
        self.eos_ids = frozenset(eos_ids)
        self.live: dict[str, tuple[TokenRequest, list[int | None]]] = {}
        self.seen: list[TokenRequest] = []
        self.adapters: dict[str, AdapterInfo] = {}
        self.mixed: dict[str, tuple[str, ...]] = {}
        self.unsent: list[FromEngine] = []
        self.step_seconds = float(os.environ.get("ECHO_STEP", "0"))
        self.counters = Stats()

    @property
    def infos(self) -> dict[str, ModelInfo]:
        ids = sorted(self.eos_ids)
        info = ModelInfo(context=self.context, vocab=self.vocab, eos_ids=ids)
        return dict.fromkeys(self.names, info)

    @property
    def busy(self) -> bool:
        return bool(self.live)

    @property
    def runnable(self) -> bool:
        return self.busy

    def set_wake(self, notify: Callable[[], None]) -> None:
        """No thread beside that of the driver makes work."""

    def submit(self, request: TokenRequest) -> None:
        request.sampling.checked(self.vocab)
        if DEFAULT_MODEL not in self.names and request.model not in (DEFAULT_MODEL, *self.names):
            raise NotFound(f"the model {request.model!r} is not loaded", param="model")
        if request.salt == "refuse me":
            raise RequestError("the engine refuses this", param="cache_salt")
        if request.salt == "fail alone":
            raise ZeroDivisionError("a bug of one request")
        self.mixed[request.id] = self.generations(request)
        self.seen.append(request)
        self.live[request.id] = (request, [0] * request.sampling.n)
        self.counters.prompt_tokens += len(request.tokens)

    def abort(self, id: str, index: int | None = None) -> list[TokenOutput]:
        _, counts = self.live.get(id, (None, []))
        dropped = [i for i, n in enumerate(counts) if n is not None and index in (None, i)]
        for i in dropped:
            counts[i] = None
        if all(count is None for count in counts):
            self.live.pop(id, None)
        return [TokenOutput(id=id, index=i, finish="abort") for i in dropped]

    def step(self) -> list[TokenOutput]:
        time.sleep(self.step_seconds)
        if any(request.salt == "crash" for request, _ in self.live.values()):
            raise ZeroDivisionError("a bug in the engine")
        self.counters.steps += 1
        outputs = []
        for id, (request, counts) in list(self.live.items()):
            for index, count in enumerate(counts):
                if count is not None:
                    output = self.draw(request, index, count)
                    counts[index] = None if output.finish else count + 1
                    outputs.append(output)
            if all(count is None for count in counts):
                del self.live[id]
        return outputs

    def draw(self, request: TokenRequest, index: int, count: int) -> TokenOutput:
        rules, prompt = request.sampling, request.tokens
        output = TokenOutput(id=request.id, index=index)
        if count == 0:
            output.prompt_tokens, output.cached = len(prompt), len(prompt) // 2
            output.generations = self.mixed[request.id]
            if rules.prompt_logprobs is not None and index == 0:
                output.prompt_logprobs = [
                    None,
                    *(logprobs_of(t, rules.prompt_logprobs) for t in prompt[1:]),
                ]
        if rules.max_tokens == 0:
            output.finish = "length"
        elif count == len(prompt) and not rules.ignore_eos:
            output.finish, output.stopped_by = "stop", min(self.eos_ids)
        else:
            token = prompt[count % len(prompt)]
            if token in rules.stop_ids:
                output.finish, output.stopped_by = "stop", token
                return output
            output.tokens = [token]
            if rules.logprobs is not None:
                output.logprobs = [logprobs_of(token, rules.logprobs)]
            self.counters.generated_tokens += 1
            if count + 1 == rules.max_tokens:
                output.finish = "length"
        return output

    def stats(self) -> Stats:
        self.counters.running = len(self.live)
        return self.counters

    def change_models(self, message: ModelCommand) -> None:
        """Models change at once. "broken" in a reference cannot be loaded, "large" fits alone."""
        name = self.names[0] if message.model == DEFAULT_MODEL else message.model
        explain = list[str]()
        match message:
            case LoadModel(spec=ModelSpec() as spec):
                reference = str(spec.settings.reference)
                if "broken" in reference:
                    raise CheckpointError(f"the model {name!r} is damaged")
                if "large" in reference and set(self.names) - {name}:
                    raise InsufficientMemory("2 bytes are needed and 1 is free")
                self.names = list(dict.fromkeys([*self.names, name]))
                explain = [f"all weights: {spec.settings.quant}"]
            case _ if name not in self.names:
                raise NotFound(f"there is no model {name!r}", param="model")
            case UnloadModel():
                self.names.remove(name)
            case RequantizeModel(quant="unknown"):
                raise UsageError("--quant: unknown format 'unknown'")
            case RequantizeModel():
                explain = [f"all weights: {message.quant}"]
        self.unsent.append(ModelResult(message.id, self.infos, explain))

    def adapt(self, message: AdapterCommand) -> None:
        """Adapters load at once; "busy" never does. One is what its path says, and brings the chat
        template in its folder.
        """
        if isinstance(message, LoadAdapter | UnloadAdapter) and message.expected is not None:
            known = self.adapters.get(message.name)
            if known is None or known.generation != message.expected:
                raise AdapterConflict(f"{message.name!r} is not what was expected")
        match message:
            case LoadAdapter(name="busy"):
                raise AdapterBusy("another adapter is being loaded; try again")
            case LoadAdapter(name=name) if "/" in name or not name.isprintable():
                raise AdapterNameRefused(f"{name!r} is not a valid adapter name", param="lora_name")
            case LoadAdapter(name=name, inplace=False) if name in self.adapters:
                raise AdapterConflict(f"there is an adapter {name!r} already", param="lora_name")
            case LoadAdapter(name=name, reference=reference, pinned=pinned):
                self.adapters[name] = AdapterInfo(name=name, reference=reference, pinned=pinned)
                self.read(self.adapters[name])
            case UnloadAdapter(name=name) | ReadAdapter(name=name) if name not in self.adapters:
                raise AdapterNotFound(f"there is no adapter {name!r}")
            case UnloadAdapter(name=name):
                del self.adapters[name]
            case ReadAdapter(name=name):
                self.read(self.adapters[name])
        self.unsent.append(AdapterResult(message.id, list(self.adapters.values())))

    def read(self, facts: AdapterInfo) -> None:
        """Read an adapter, if it was not."""
        if "broken" in facts.reference:
            raise AdapterError(f"{facts.reference}: nothing that can be read")
        facts.loaded, facts.kind, facts.rank = True, "lora", 8
        facts.generation = hashlib.sha256(facts.reference.encode()).hexdigest()
        template = Path(facts.reference) / "chat_template.jinja"
        facts.template = template.read_text() if template.is_file() else None

    def generations(self, request: TokenRequest) -> tuple[str, ...]:
        """Of the adapters of a request, which are read for it; each has its own name's facts."""
        found = []
        for wanted in request.adapters:
            named = [
                facts
                for facts in self.adapters.values()
                if facts.name == wanted.name or facts.generation == wanted.generation != ""
            ]
            if not named:
                raise AdapterNotFound(f"there is no adapter {wanted.name!r}", param="adapters")
            self.read(named[0])
            named[0].requests += 1
            found.append(named[0].generation)
        return tuple(found)

    def events(self) -> list[FromEngine]:
        events, self.unsent = self.unsent, []
        return events

    def close(self) -> None:
        self.live.clear()


def logprobs_of(token: int, wide: int) -> TokenLogprobs:
    top = tuple((other, -other / 1000) for other in range(token, token + wide))
    return TokenLogprobs(token, -token / 1000, top)


def open_engine(
    models: Sequence[ModelSpec], plugins: Any, report: Any
) -> tuple[EchoEngine, list[str]]:
    report("reading weights", 1, 2)
    time.sleep(float(os.environ.get("ECHO_START", "0")))
    if kind := os.environ.get("ECHO_FAIL"):
        raise getattr(errors, kind, ValueError)(f"loading fails: {kind}")
    if file := os.environ.get("ECHO_FROZEN"):
        atexit.register(lambda: Path(file).write_text(str(gc.get_freeze_count())))
    for model in models:
        if "broken" in str(model.settings.reference):
            raise CheckpointError(f"the model {model.settings.name!r} is damaged")
    eos_ids = [id for model in models for id in model.eos_ids]
    names = [model.settings.name or "default" for model in models]
    explain = [f"echo of {model.settings.reference}" for model in models]
    return EchoEngine(eos_ids or [257], names), explain
