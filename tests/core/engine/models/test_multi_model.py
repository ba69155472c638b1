"""The multi-model engine over engines that record calls: routing, adapters, abort, counters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from ostro.core.adapters.adapter import EMPTY, LoadedAdapter, Mixture, WeightedAdapter
from ostro.core.adapters.registry import ReadResult
from ostro.core.engine.engine import Engine
from ostro.core.engine.jobs import JobEngine
from ostro.core.engine.models.model_engines import ModelEngines
from ostro.core.engine.models.multi_model import MultiModelEngine
from ostro.core.engine.pooling import PoolingEngine
from ostro.core.errors import (
    AdapterConflict,
    AdapterError,
    AdapterNotFound,
    NotFound,
    OstroError,
    Overloaded,
    RequestError,
    Unsupported,
)
from ostro.core.messages.commands import (
    AdapterCommand,
    AdapterInfo,
    AdapterResult,
    Failed,
    ListAdapters,
    LoadAdapter,
    ReadAdapter,
    RegisterAdapter,
    RequantizeModel,
    UnloadAdapter,
)
from ostro.core.messages.outputs import JobOutput, Stats, TokenOutput
from ostro.core.messages.requests import (
    DEFAULT_MODEL,
    AdapterRef,
    JobRequest,
    PoolingRequest,
    Request,
    Sampling,
    TokenRequest,
)


class Recorded:
    """An engine that records its calls in `log` and finishes one request in each step."""

    def __init__(self, name: str, log: list[tuple[str, str]], kind: type, counted: Stats) -> None:
        self.name, self.log, self.kind, self.counted = name, log, kind, counted
        self.live: dict[str, Mixture] = {}
        self.taken: dict[str, Mixture] = {}
        self.refuses: OstroError | None = None
        self.context, self.vocab, self.eos_ids = 10, 20, frozenset({3, 1})

    @property
    def busy(self) -> bool:
        return bool(self.live)

    def submit(self, request: Request, mixture: Mixture = EMPTY, prepared: Any = None) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.live[request.id] = self.taken[request.id] = mixture

    def abort(self, id: str, index: int | None = None) -> list[Any]:
        self.log.append((self.name, f"abort {id} {index}"))
        return [self.kind(id=id, finish="abort")] if self.live.pop(id, None) is not None else []

    def step(self) -> list[Any]:
        self.log.append((self.name, "step"))
        return [self.kind(id=self.live.popitem()[0], finish="stop")]

    def stats(self) -> Stats:
        return self.counted

    def close(self) -> None:
        self.log.append((self.name, "close"))


class Tokens(Recorded, Engine):  # type: ignore[misc]
    """The engine of a model that generates tokens."""


class Pooling(Recorded, PoolingEngine):  # type: ignore[misc]
    """The engine of a model that reads whole inputs."""


class Jobs(Recorded, JobEngine):  # type: ignore[misc]
    """The engine of a model that does jobs."""


class Adapters:
    """A registry whose adapters are read when the test says so."""

    def __init__(self, name: str, log: list[tuple[str, str]], *known: str) -> None:
        self.name, self.log, self.known = name, log, set(known)
        self.loaded = set[str]()
        self.waiting: dict[str, str] = {}
        self.results: list[ReadResult] = []
        self.wake: Callable[[], None] = lambda: None

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.results)

    @property
    def has_finished(self) -> bool:
        return bool(self.results)

    def ensure_read(self, id: str, wanted: Sequence[AdapterRef]) -> bool:
        names = {each.name for each in wanted}
        for name in names - self.known:
            raise AdapterNotFound(f"no adapter {name}")
        for name in names - self.loaded:
            self.waiting[id] = name
        return id not in self.waiting

    def read(self, name: str, error: OstroError | None = None) -> None:
        """Reading of an adapter ends."""
        self.loaded.add(name)
        ready = [id for id, each in self.waiting.items() if each == name]
        for id in ready:
            del self.waiting[id]
            self.finish(id, error)

    def finish(self, id: str, error: OstroError | None = None) -> None:
        self.results.append(ReadResult(id, error))
        self.wake()

    def cancel(self, id: str) -> None:
        del self.waiting[id]

    def mixture(self, wanted: Sequence[AdapterRef], tokens: Sequence[int] = ()) -> Mixture:
        [each] = wanted
        self.log.append((self.name, f"mixture {each.name} {list(tokens)}"))
        adapter = LoadedAdapter(generation=each.name, kind="lora", rank=1, pages=1)
        return Mixture((WeightedAdapter(adapter, each.scale),))

    def load(self, id: str, name: str, reference: str, **fields: Any) -> None:
        self.log.append((self.name, f"load {name} {reference} {fields}"))

    def unload(self, name: str, expected: str | None = None) -> None:
        if name not in self.known:
            raise AdapterNotFound(f"no adapter {name}")
        self.log.append((self.name, f"unload {name} {expected}"))

    def register(self, name: str, reference: str, **fields: Any) -> None:
        self.log.append((self.name, f"register {name} {reference} {fields}"))

    def infos(self) -> list[AdapterInfo]:
        return [AdapterInfo(name=name, reference="r") for name in sorted(self.known)]

    def poll(self) -> Iterator[ReadResult]:
        while self.results:
            yield self.results.pop(0)

    def close(self) -> None:
        self.log.append((self.name, "close"))


class ThreeModels:
    """Model "chat" generates tokens and makes vectors, "draw" does jobs, "other" makes tokens."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.chat = Tokens("chat", self.log, TokenOutput, Stats(steps=3, running=1))
        self.vectors = Pooling("vectors", self.log, JobOutput, Stats(waiting=5))
        self.draw = Jobs("draw", self.log, JobOutput, Stats())
        self.other = Tokens("other", self.log, TokenOutput, Stats(steps=4, waiting=2))
        self.adapters: Any = Adapters("adapters", self.log, "x", "y")
        self.engine = MultiModelEngine(
            {
                "chat": ModelEngines(self.chat, self.vectors, registry=self.adapters),
                "draw": ModelEngines(jobs=self.draw),
                "other": ModelEngines(self.other),
            }
        )

    def read(self, name: str, error: OstroError | None = None) -> None:
        """Reading of an adapter ends, and the engine handles it."""
        self.adapters.read(name, error)
        self.engine.step()


@pytest.fixture
def made() -> ThreeModels:
    return ThreeModels()


def tokens(
    id: str = "a", model: str = DEFAULT_MODEL, adapter: str = "", n: int = 1
) -> TokenRequest:
    adapters = (AdapterRef(name=adapter, scale=0.5),) if adapter else ()
    rules = Sampling(n=n)
    return TokenRequest(id=id, tokens=[7, 8], model=model, adapters=adapters, sampling=rules)


# Routing


def test_a_request_runs_on_its_model(made: ThreeModels) -> None:
    for request in (
        tokens("a", "chat"),
        tokens("b", "other"),
        PoolingRequest(id="c", inputs=[[1]], model="chat"),
        JobRequest(id="d", model="draw"),
    ):
        made.engine.submit(request)
    parts = (made.chat, made.other, made.vectors, made.draw)
    assert [list(part.live) for part in parts] == [["a"], ["b"], ["c"], ["d"]]
    assert made.chat.live["a"] is EMPTY


def test_the_default_name_is_that_of_the_first_model(made: ThreeModels) -> None:
    made.engine.submit(tokens("a"))
    made.engine.submit(PoolingRequest(id="b", inputs=[[1]]))
    assert "a" in made.chat.live and "b" in made.vectors.live


def test_an_unknown_model_is_refused_without_the_names_of_others(made: ThreeModels) -> None:
    with pytest.raises(NotFound, match=r"^the model 'nope' is not loaded$"):
        made.engine.submit(tokens("a", "nope"))
    with pytest.raises(NotFound):
        made.engine.change_models(RequantizeModel(id="q", model="nope"))
    with pytest.raises(NotFound):
        made.engine.adapt(ListAdapters(id="q", model="nope"))
    assert not made.engine.busy


@pytest.mark.parametrize(
    "request_",
    [
        tokens("a", "draw"),
        PoolingRequest(id="a", inputs=[[1]], model="other"),
        JobRequest(id="a", model="chat"),
    ],
)
def test_a_task_that_a_model_does_not_do_is_refused(made: ThreeModels, request_: Request) -> None:
    with pytest.raises(
        Unsupported, match=f"{request_.model} does not support {type(request_).__name__}"
    ):
        made.engine.submit(request_)


def test_a_request_that_its_engine_refuses_raises(made: ThreeModels) -> None:
    made.chat.refuses = RequestError("the prompt is empty", param="prompt")
    with pytest.raises(RequestError, match="the prompt is empty"):
        made.engine.submit(tokens("a"))


def test_facts_are_those_of_tokens_then_of_vectors(made: ThreeModels) -> None:
    only = MultiModelEngine({"vectors": ModelEngines(reader=made.vectors)})
    chat, draw = made.engine.infos["chat"], made.engine.infos["draw"]
    assert (chat.context, chat.vocab, chat.eos_ids) == (10, 20, [1, 3])
    assert (draw.context, draw.vocab, draw.eos_ids) == (0, 0, [])
    assert (only.infos["vectors"].context, only.infos["vectors"].eos_ids) == (10, [])
    assert list(made.engine.infos) == ["chat", "draw", "other"]


# Turns


def test_each_engine_with_work_runs_one_step_in_a_pass(made: ThreeModels) -> None:
    for request in (tokens("a"), tokens("b"), JobRequest(id="c", model="draw")):
        made.engine.submit(request)
    assert [output.id for output in made.engine.step()] == ["b", "c"]
    assert made.log == [("chat", "step"), ("draw", "step")]
    assert made.engine.busy
    assert [output.id for output in made.engine.step()] == ["a"]
    assert not made.engine.busy


def test_a_pass_blocks_only_while_adapters_alone_are_read(made: ThreeModels) -> None:
    made.engine.submit(tokens("a", adapter="x"))
    made.engine.submit(tokens("b"))
    assert made.engine.runnable
    assert [output.id for output in made.engine.step()] == ["b"]
    assert made.engine.busy and not made.engine.runnable
    reader = threading.Timer(0.1, made.adapters.read, ["x"])
    reader.start()
    assert [output.id for output in made.engine.step()] == ["a"]
    reader.join()
    assert not made.engine.busy


def test_a_pass_without_work_returns_at_once(made: ThreeModels) -> None:
    assert made.engine.step() == []


def test_the_end_of_a_read_wakes_the_driver(made: ThreeModels) -> None:
    wakes = list[None]()
    made.engine.set_wake(lambda: wakes.append(None))
    made.engine.submit(tokens("a", adapter="x"))
    assert not made.engine.runnable and not wakes
    made.adapters.read("x")
    assert made.engine.runnable and len(wakes) == 1


def test_counters_of_all_models_are_summed(made: ThreeModels) -> None:
    stats = made.engine.stats()
    assert (stats.steps, stats.running, stats.waiting) == (7, 1, 2 + 5)
    assert list(stats.models) == list(made.engine.entries)
    alone = MultiModelEngine({"chat": ModelEngines(made.chat)}).stats()
    assert alone.models == {"chat": made.chat.counted}
    assert alone.steps == made.chat.counted.steps


def test_requests_of_all_engines_of_a_model_are_counted_and_its_cache_once() -> None:
    chat = Tokens("chat", [], TokenOutput, Stats(running=1, waiting=2, blocks_total=8))
    vectors = Pooling("vectors", [], JobOutput, Stats(waiting=5, blocks_total=8))
    stats = ModelEngines(chat, vectors).stats()
    assert stats is not None
    assert (stats.running, stats.waiting, stats.blocks_total) == (1, 7, 8)
    assert chat.counted.waiting == 2


def test_close_closes_all_engines_and_registries(made: ThreeModels) -> None:
    made.engine.close()
    assert made.log == [
        (name, "close") for name in ("chat", "vectors", "adapters", "draw", "other")
    ]


# Adapters


def test_a_request_waits_until_its_adapter_is_read(made: ThreeModels) -> None:
    made.engine.submit(tokens("a", adapter="x"))
    assert not made.chat.live and made.engine.busy
    made.adapters.read("y")
    assert not made.engine.runnable
    made.read("x")
    assert made.chat.taken["a"].generations == ("x",) and not made.engine.waiting
    assert made.log == [("adapters", "mixture x [7, 8]"), ("chat", "step")]
    made.engine.submit(tokens("b", adapter="x"))
    assert "b" in made.chat.live, "a known adapter is not waited for"


def test_a_pooling_request_may_have_adapters(made: ThreeModels) -> None:
    adapters = (AdapterRef(name="x"),)
    made.engine.submit(PoolingRequest(id="a", inputs=[[1]], adapters=adapters))
    made.read("x")
    assert made.vectors.taken["a"].generations == ("x",)
    assert made.log[0] == ("adapters", "mixture x []"), (
        "invocations are looked for in prompts alone"
    )


def test_adapters_of_a_model_that_takes_none_are_refused(made: ThreeModels) -> None:
    with pytest.raises(AdapterNotFound, match="other supports no adapters"):
        made.engine.submit(tokens("a", "other", adapter="x"))
    with pytest.raises(AdapterNotFound, match="other supports no adapters"):
        made.engine.adapt(ListAdapters(id="q", model="other"))
    with pytest.raises(AdapterNotFound, match="no adapter z"):
        made.engine.submit(tokens("a", adapter="z"))
    assert not made.engine.waiting


def test_a_request_whose_adapter_cannot_be_read_fails_alone(made: ThreeModels) -> None:
    made.engine.submit(tokens("a", adapter="x"))
    made.engine.submit(tokens("b", adapter="y"))
    made.read("x", AdapterError("it is damaged"))
    [failed] = made.engine.events()
    assert isinstance(failed, Failed) and (failed.id, failed.message) == ("a", "it is damaged")
    assert isinstance(failed.error(), AdapterError)
    assert list(made.engine.waiting) == ["b"] and made.engine.events() == []


def test_a_request_that_is_refused_once_its_adapter_is_read_fails_alone(made: ThreeModels) -> None:
    made.engine.submit(tokens("a", adapter="x"))
    made.chat.refuses = Overloaded("there is no room")
    made.read("x")
    [failed] = made.engine.events()
    assert isinstance(failed, Failed) and failed.id == "a"
    assert isinstance(failed.error(), Overloaded) and not made.engine.waiting


def test_a_request_that_is_refused_with_a_known_adapter_raises(made: ThreeModels) -> None:
    made.adapters.read("x")
    made.chat.refuses = Overloaded("there is no room")
    with pytest.raises(Overloaded):
        made.engine.submit(tokens("a", adapter="x"))
    assert made.engine.events() == []


# Abort


def test_abort_reaches_the_engine_that_has_the_request(made: ThreeModels) -> None:
    made.engine.submit(tokens("a"))
    made.engine.submit(JobRequest(id="b", model="draw"))
    assert [type(output) for output in made.engine.abort("a", 2)] == [TokenOutput]
    assert made.log == [
        ("chat", "abort a 2"),
        ("vectors", "abort a 2"),
        ("draw", "abort a 2"),
        ("other", "abort a 2"),
    ]
    assert [type(output) for output in made.engine.abort("b")] == [JobOutput]
    assert made.engine.abort("unknown") == [] and not made.engine.busy


def test_a_request_that_is_aborted_while_it_waits_is_not_submitted(made: ThreeModels) -> None:
    made.engine.submit(tokens("a", adapter="x"))
    made.engine.submit(tokens("b", adapter="x"))
    assert made.engine.abort("a") == []
    made.read("x")
    assert list(made.chat.taken) == ["b"] and not made.engine.waiting


def test_a_choice_that_is_aborted_while_it_waits_is_dropped_once_submitted(
    made: ThreeModels,
) -> None:
    made.engine.submit(tokens("a", adapter="x", n=3))
    [output] = made.engine.abort("a", 1)
    assert isinstance(output, TokenOutput)
    assert (output.id, output.index, output.finish) == ("a", 1, "abort")
    assert made.engine.abort("a", 1) == [], "the choice has had its last output"
    assert made.engine.abort("a", 3) == [], "there is no such choice"
    made.read("x")
    assert "a" in made.chat.taken and ("chat", "abort a 1") in made.log
    assert [what for _, what in made.log if "abort" in what] == ["abort a 1"] * 4


def test_a_request_whose_choices_are_all_aborted_while_it_waits_is_not_submitted(
    made: ThreeModels,
) -> None:
    made.engine.submit(tokens("a", adapter="x", n=2))
    assert [len(made.engine.abort("a", index)) for index in (0, 1)] == [1, 1]
    assert not made.engine.busy and not made.engine.waiting
    made.adapters.read("x")
    assert not made.chat.taken


# Commands


@pytest.mark.parametrize(
    ("command", "noted"),
    [
        (ListAdapters(id="q"), []),
        (UnloadAdapter(id="q", name="x", expected="g"), ["unload x g"]),
        (
            RegisterAdapter(id="q", name="z", reference="r", pinned=True),
            ["register z r {'generation': None, 'pinned': True}"],
        ),
    ],
)
def test_commands_on_adapters_are_answered_with_all_of_them(
    made: ThreeModels, command: AdapterCommand, noted: list[str]
) -> None:
    made.engine.adapt(command)
    [answer] = made.engine.events()
    assert isinstance(answer, AdapterResult) and answer.id == "q"
    assert [each.name for each in answer.adapters] == ["x", "y"]
    assert [what for _, what in made.log] == noted


def test_a_load_is_answered_when_it_has_ended(made: ThreeModels) -> None:
    for error in (None, AdapterConflict("the name is taken")):
        made.engine.adapt(LoadAdapter(id="q", name="z", reference="r", inplace=True))
        assert made.engine.events() == []
        made.adapters.finish("q", error)
        made.engine.step()
        [answer] = made.engine.events()
        assert isinstance(answer, Failed if error else AdapterResult) and answer.id == "q"
    asked = "load z r {'inplace': True, 'expected': None, 'pinned': False}"
    assert made.log == [("adapters", asked)] * 2


def test_a_read_is_answered_when_the_adapter_is_read(made: ThreeModels) -> None:
    made.engine.adapt(ReadAdapter(id="q", name="x"))
    assert made.engine.events() == []
    made.read("x")
    [answer] = made.engine.events()
    assert isinstance(answer, AdapterResult)
    made.engine.adapt(ReadAdapter(id="q", name="y"))
    made.read("y", AdapterError("it is damaged"))
    [answer] = made.engine.events()
    assert isinstance(answer, Failed) and answer.message == "it is damaged"


def test_an_error_of_a_command_reaches_the_caller(made: ThreeModels) -> None:
    with pytest.raises(AdapterNotFound):
        made.engine.adapt(UnloadAdapter(id="q", name="z"))
    assert made.engine.events() == []
