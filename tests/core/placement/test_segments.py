"""Captured segments of models whose layers are split: the same tokens, from inputs in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.architectures.gemma3 import TINY as GEMMA3
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama.model import Block, Decoder
from ostro.architectures.mixtral import TINY as MIXTRAL
from ostro.architectures.qwen3_next import TINY as QWEN3_NEXT
from ostro.core.engine.buckets import POISON
from ostro.core.engine.engine import Engine
from ostro.core.engine.graphs import Graphs
from ostro.core.engine.startup.warm_up import make_ready
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.placement.segments import (
    ORDER,
    USED,
    Capture,
    NotSequential,
    PlaceholderTensor,
    Recorded,
    Recording,
)
from ostro.core.placement.transfers import DeviceTransfers, TransferUnit
from ostro.core.plugins.manager import PluginManager
from ostro.core.step import Step
from ostro.plugins.conformance.decoder import RAGGED
from ostro.plugins.conformance.kernel_parity import tensors_in
from ostro.plugins.conformance.parity import Subject, greedy, subject
from ostro.plugins.conformance.second_device import SECOND, SimulatedDevice

Made = Callable[[str], Subject]

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama": {**LLAMA, "num_hidden_layers": 8},
    "gemma3": {**GEMMA3, "num_hidden_layers": 8},
    "mixtral": {**MIXTRAL, "num_hidden_layers": 5},
    "qwen3_next": {
        **QWEN3_NEXT,
        "num_hidden_layers": 6,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
    },
}
FOURS = "model.layers.[4-7] = cpu:1"
THERE = "model.layers.[0-3] = cpu:1"


@pytest.fixture(scope="module")
def made(plugins: PluginManager) -> Iterator[Made]:
    """Subjects by name, each made once, deep enough for segments."""
    found: dict[str, tuple[Any, Subject]] = {}

    def get(name: str) -> Subject:
        if name not in found:
            context = subject(plugins, name, config=SHAPES[name])
            found[name] = context, context.__enter__()
        return found[name][1]

    yield get
    for context, _ in found.values():
        context.__exit__(None, None, None)


def replaying(tiny: Subject, rules: str, **settings: Any) -> tuple[Engine, list[str]]:
    """An engine in replay mode, captured, and what it says of its segments."""
    asked = {"placement": rules, "replay": True, **settings}
    loaded = tiny.load(**asked)
    engine = tiny.engine(loaded, rows=40, **asked)
    make_ready(engine, loaded)
    said = [line.removeprefix("segment: ") for line in loaded.explain if "segment: " in line]
    return engine, said


def answers(tiny: Subject, engine: Engine) -> list[list[int]]:
    return greedy(engine, [tiny.prompt[:n] for n in RAGGED], 12)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "rules", "said"),
    [
        ("llama", FOURS, ["[0-3] on cpu: captured", "[4-7] on cpu:1: captured"]),
        ("llama", THERE, ["[0-3] on cpu:1: captured", "[4-7] on cpu: captured"]),
        (
            "llama",
            "model.layers.[5-7] = cpu:1",
            ["[0-4] on cpu: captured", "[5-7] on cpu:1: eager: three layers"],
        ),
        (
            "llama",
            "model.layers.[0-2] = cpu:1, lm_head = cpu:1",
            ["[0-2] on cpu:1: eager: three layers", "[3-7] on cpu: captured"],
        ),
        ("llama", "model = cpu:1, lm_head = cpu:1", ["[0-7] on cpu:1: captured"]),
        ("gemma3", FOURS, ["[0-3] on cpu: captured", "[4-7] on cpu:1: captured"]),
        (
            "mixtral",
            "model.layers.4 = cpu:1",
            ["[0-3] on cpu: captured", "[4] on cpu:1: eager: one layer"],
        ),
        (
            "mixtral",
            "model.layers.0.*.experts = cpu:1",
            ["[0] on cpu: eager: its experts are on another device", "[1-4] on cpu: captured"],
        ),
        (
            "qwen3_next",
            "model.layers.[0-3] = cpu:1",
            ["[0-3] on cpu:1: captured", "[4-5] on cpu: eager: two layers"],
        ),
    ],
)
def test_segments_say_what_the_whole_says(
    made: Made, device: SimulatedDevice, name: str, rules: str, said: list[str]
) -> None:
    tiny = made(name)
    engine, explained = replaying(tiny, rules)
    assert explained == [f"model.layers.{line}" for line in said]
    assert [*engine.runner.decode_buckets.plain] == [32, 16, 8, 4, 2, 1]
    found = answers(tiny, engine)
    assert found == answers(tiny, tiny.engine(rows=40, placement=rules))
    assert found == answers(tiny, tiny.engine(rows=40))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "rules", "said"),
    [
        (
            "llama",
            "model.layers.[3-4] = cpu:1",
            ["[0-2] on cpu: eager: three", "[3-4] on cpu:1: eager: two", "[5-7] on cpu: eager: t"],
        ),
        ("mixtral", "experts = cpu:1", ["[0-4] on cpu: eager: its experts are on another device"]),
    ],
)
def test_steps_without_a_long_segment_run_eagerly(
    made: Made, device: SimulatedDevice, name: str, rules: str, said: list[str]
) -> None:
    tiny = made(name)
    engine, explained = replaying(tiny, rules)
    for line, start in zip(explained, said, strict=True):
        assert line.startswith(f"model.layers.{start}")
    assert not engine.runner.decode_buckets.plain
    assert answers(tiny, engine) == answers(tiny, tiny.engine(rows=40))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "rules", "said"),
    [
        ("llama", "offload", ["[0-7] on cpu:1: eager: its weights are offloaded"]),
        (
            "llama",
            "model.layers.[0-3] = offload",
            ["[0-3] on cpu:1: eager: its weights are offloaded", "[4-7] on cpu:1: captured"],
        ),
        (
            "mixtral",
            "model.layers.4.*.experts = offload",
            ["[0-3] on cpu:1: captured", "[4] on cpu:1: eager: its experts are offloaded"],
        ),
    ],
)
def test_what_rests_in_host_memory_stays_eager(
    made: Made, device: SimulatedDevice, name: str, rules: str, said: list[str]
) -> None:
    tiny = made(name)
    engine, explained = replaying(tiny, rules, device="cpu:1")
    assert explained == [f"model.layers.{line}" for line in said]
    assert bool(engine.runner.decode_buckets.plain) == any("captured" in line for line in said)
    assert answers(tiny, engine) == answers(tiny, tiny.engine(rows=40))


def test_a_device_that_captures_nothing_says_so(made: Made, device: SimulatedDevice) -> None:
    loaded = made("llama").load(placement=FOURS)
    segments = loaded.placement.segments(replay=False)
    assert segments is not None
    assert not segments.captured
    assert {segment.why for segment in segments.segments} == {"the CPU has no graphs"}
    assert made("llama").load().placement.segments(replay=True) is None


def copies(call: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """What a graph does: it leaves what it gives where it lay when it was captured."""
    place = call()
    held = [place] if isinstance(place, Tensor) else [t for t in tensors_in(place)]

    def launch() -> Any:
        for tensor in held:
            tensor.fill_(POISON)
        out = call()
        for tensor, value in zip(held, tensors_in(out), strict=True):
            tensor.copy_(value)
        return place

    return launch


@pytest.mark.sample(1)
@pytest.mark.parametrize("rules", [FOURS, THERE, "model.layers.[5-7] = cpu:1"])
def test_graph_outputs_may_reuse_their_memory(
    made: Made, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch, rules: str
) -> None:
    tiny = made("llama")
    monkeypatch.setattr(Graphs, "capture", lambda self, call, where: copies(call, where))
    engine, _ = replaying(tiny, rules)
    assert answers(tiny, engine) == answers(tiny, tiny.engine(rows=40))


def test_every_layer_computes_once_a_step_and_a_segment_is_launched_once(
    made: Made, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, computed, launched = made("llama"), [], []
    plain, repeat = Block.forward, Recording.repeat

    def forward(self: Block, *args: Any) -> Any:
        computed.append(self)
        return plain(self, *args)

    def counted(self: Recording) -> Any:
        launched.append(self.segment.paths)
        return repeat(self)

    monkeypatch.setattr(Block, "forward", forward)
    monkeypatch.setattr(Recording, "repeat", counted)
    monkeypatch.setattr(Graphs, "capture", lambda self, call, where: call)
    engine, _ = replaying(tiny, "model.layers.[5-7] = cpu:1")
    computed.clear()
    launched.clear()
    greedy(engine, [[5, 6]], 3)
    steps = engine.stats().steps
    assert len(computed) == 8 * steps
    assert launched == ["model.layers.[0-4]"] * (steps - 1), "all but the prompt's"


def test_inputs_are_poisoned_between_steps(made: Made, device: SimulatedDevice) -> None:
    engine, _ = replaying(made("llama"), FOURS)
    greedy(engine, [[5]], 3)
    recorded = engine.runner.decode_buckets.plain[1].launch
    assert isinstance(recorded, Recorded)
    assert [(t.device, t.dtype) for t in recorded.inputs] == [
        *[(torch.device("cpu"), t) for t in (torch.float32, torch.int64, torch.int64)],
        *[(SECOND, t) for t in (torch.float32, torch.float32, torch.int64, torch.int64)],
    ], "x; the residual, behind the first layer; tokens and positions"
    assert all((tensor == POISON).all() for tensor in recorded.inputs)


@contextmanager
def unmoved(self: DeviceTransfers, recordings: Mapping[TransferUnit, Any]) -> Iterator[None]:
    """What was moved for the step before is taken for this one's."""
    self.recordings = recordings
    yield
    self.recordings = {}


def unfilled(self: Recording, capture: Capture) -> None:
    """What a segment is handed is copied elsewhere."""
    finish(self, capture)
    self.inputs = [tensor.clone() for tensor in self.inputs]


finish = Recording.finish


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("cls", "name", "mutant"),
    [(DeviceTransfers, "recorded", unmoved), (Recording, "finish", unfilled)],
)
def test_stale_inputs_fail_the_comparison(
    made: Made,
    device: SimulatedDevice,
    monkeypatch: pytest.MonkeyPatch,
    cls: Any,
    name: str,
    mutant: Any,
) -> None:
    """The comparisons above can fail."""
    tiny = made("llama")
    monkeypatch.setattr(cls, name, mutant)
    engine, _ = replaying(tiny, "model.layers.[5-7] = cpu:1")
    assert answers(tiny, engine) != answers(tiny, tiny.engine(rows=40))


def test_a_step_is_read_one_pass_late(made: Made, device: SimulatedDevice) -> None:
    """The next step is planned and launched before the tokens of this one are known."""
    engine, _ = replaying(made("llama"), FOURS)
    rules = Sampling(temperature=0, max_tokens=3, ignore_eos=True)
    engine.submit(TokenRequest(id="a", tokens=[5, 6], sampling=rules))
    outputs = [[token for output in engine.step() for token in output.tokens] for _ in range(4)]
    assert [len(tokens) for tokens in outputs] == [0, 1, 1, 1]
    assert [tokens[0] for tokens in outputs[1:]] == greedy(made("llama").engine(), [[5, 6]], 3)[0]


def anew(self: Decoder, x: Tensor, step: Step) -> Tensor:
    """Positions that are made anew in every step, for all layers."""
    return straight(self, x, replace(step, positions=step.positions + 0))


def between(self: Decoder, x: Tensor, step: Step) -> Tensor:
    residual = None
    for layer in self.layers:
        x, residual = layer(x * 1.25, residual, step)
    return self.norm(x, residual)[0]


def collected(self: Decoder, x: Tensor, step: Step) -> Tensor:
    residual, found = None, []
    for layer in self.layers:
        x, residual = layer(x, residual, step)
        found.append(x)
    return self.norm(torch.stack(found).mean(0), residual)[0]


def backwards(self: Decoder, x: Tensor, step: Step) -> Tensor:
    residual = None
    for layer in reversed(self.layers):  # type: ignore[call-overload]
        x, residual = layer(x, residual, step)
    return self.norm(x, residual)[0]


def twice(self: Decoder, x: Tensor, step: Step) -> Tensor:
    return straight(self, straight(self, x, step), step)


straight = Decoder.forward


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("forward", "how"),
    [
        (anew, "captured"),
        (between, f"eager: {USED}"),
        (collected, f"eager: {USED}"),
        (backwards, f"eager: {ORDER}"),
        (twice, f"eager: {ORDER}"),
    ],
)
def test_a_model_that_is_not_straight_is_not_captured(
    made: Made, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch, forward: Any, how: str
) -> None:
    tiny = made("llama")
    monkeypatch.setattr(Decoder, "forward", forward)
    engine, explained = replaying(tiny, "lm_head = cpu:1")
    assert explained == [f"model.layers.[0-7] on cpu: {how}"]
    assert bool(engine.runner.decode_buckets.plain) == (how == "captured")
    assert answers(tiny, engine) == answers(tiny, tiny.engine(rows=40))


def test_what_stands_for_a_tensor_is_never_computed_with() -> None:
    unread = torch.empty(0).as_subclass(PlaceholderTensor)
    for use in (lambda: unread + 1, lambda: unread.shape, lambda: torch.stack([unread])):
        with pytest.raises(NotSequential, match="used between"):
            use()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("name", ["llama", "gemma3", "mixtral", "qwen3_next"])
@pytest.mark.parametrize("there", ["cpu", "cuda:1"])
def test_graphs_of_segments_say_what_the_whole_says(made: Made, name: str, there: str) -> None:
    if there == "cuda:1" and torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device")
    tiny = made(name)
    for rules in (f"model.layers.[4-9] = {there}", f"model.layers.0 = {there}"):
        engine, said = replaying(tiny, rules, device="cuda", replay=False)
        assert engine.runner.decode_buckets.plain
        assert any("captured" in line for line in said)
        assert answers(tiny, engine) == answers(tiny, tiny.engine(rows=40))
