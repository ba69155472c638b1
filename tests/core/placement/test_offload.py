"""Offloaded weights: outputs do not change, and at most two layers are on the device.

The device is the stand-in for one, which counts its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.architectures.flux import TINY as FLUX
from ostro.architectures.flux import model as flux
from ostro.architectures.flux.config import Config as FluxConfig
from ostro.core.load.model import finalize
from ostro.core.load.names import Names
from ostro.core.load.weights import WeightReader, fill, weight_slots
from ostro.core.messages.requests import JobRequest
from ostro.core.nn import Model
from ostro.core.ops import Target
from ostro.core.placement.placement import choose_placement
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import TensorInfo
from ostro.core.step import ROWS
from ostro.plugins.conformance.decoder import RAGGED
from ostro.plugins.conformance.parity import BAR, Subject, deviation, greedy
from ostro.plugins.conformance.second_device import CPU, SECOND, SimulatedDevice

Made = Callable[[str], Subject]

OFFLOADED = [
    ("llama", "offload"),
    ("llama", "layers = offload, lm_head = offload"),
    ("llama", "model.layers.[1-4] = offload, model.layers.5 = cpu"),
    ("gemma3", "offload"),
    ("mixtral", "offload"),
    ("mixtral", "*.experts = offload"),
    ("mixtral", "layers = offload, *.experts = cpu"),
    ("qwen3_next", "offload"),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "rules"), OFFLOADED)
def test_weights_that_rest_in_host_memory_say_the_same(
    made: Made, device: SimulatedDevice, name: str, rules: str
) -> None:
    tiny = made(name)
    expected = tiny.engine(device="cpu:1").runner.logits(tiny.prompt)
    engine = tiny.engine(device="cpu:1", placement=rules)
    prompts = [tiny.prompt[:n] for n in RAGGED]
    for _ in range(2):
        assert torch.equal(engine.runner.logits(tiny.prompt), expected)
    alone = greedy(tiny.engine(device="cpu:1", rows=40), prompts, 5)
    assert greedy(tiny.engine(device="cpu:1", rows=40, placement=rules), prompts, 5) == alone


LAYER = 4 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96)
"""Bytes of the weights of one of llama's layers."""


def test_at_most_two_offloaded_layers_are_on_the_device(
    made: Made, device: SimulatedDevice
) -> None:
    tiny = made("llama")
    whole = tiny.load(device="cpu:1").nbytes
    device.peak = device.nbytes
    before = device.nbytes
    loaded = tiny.load(device="cpu:1", placement="offload")
    assert device.peak - before < whole / 2, "it was read onto the device as a whole"
    engine = tiny.engine(loaded)
    at_rest = device.nbytes
    for _ in range(3):
        device.moves.clear()
        device.peak = at_rest
        engine.runner.logits(tiny.prompt[:2])
        assert 2 * LAYER <= device.peak - at_rest < 2.2 * LAYER
        assert device.nbytes - at_rest <= LAYER, "only the layer that comes next may wait there"
    arrived = [m for m in device.moves if m.target == SECOND and m.shape == (192, 64)]
    assert len(arrived) == 6, "each layer comes once in a pass, the next one ahead of time"
    assert any("offloaded from cpu:1: model.layers.[0-5]" in x for x in loaded.explain)


def test_the_order_of_transfers_is_learned(made: Made, device: SimulatedDevice) -> None:
    """The layer that a pass begins with is fetched when the last one ends."""
    tiny = made("llama")
    engine = tiny.engine(device="cpu:1", placement="offload")
    engine.runner.logits(tiny.prompt[:2])
    device.moves.clear()
    for _ in range(3):
        engine.runner.logits(tiny.prompt[:2])
    assert arrivals(device) == 4 * 3 * 6 + 4, "none came in vain"


def test_shared_rope_tables_are_not_offloaded(made: Made, device: SimulatedDevice) -> None:
    tiny = made("llama")
    rules = "model.layers.[1-4] = offload, model.layers.5 = cpu"
    engine = tiny.engine(device="cpu:1", placement=rules)
    engine.runner.logits(tiny.prompt[:2])
    device.moves.clear()
    engine.runner.logits(tiny.prompt[:2])
    assert arrivals(device) == 4 * 4 + 4


def arrivals(device: SimulatedDevice) -> int:
    """Weights that came to the device: a layer has four; activations have two rows."""
    return sum(m.target == SECOND and len(m.shape) == 2 and m.shape[0] > 2 for m in device.moves)


@dataclass
class Drawn:
    """A container of random weights for every slot of a model."""

    held: Mapping[str, Tensor]
    path: Path = Path("random")

    @classmethod
    def for_model(cls, model: Model) -> Drawn:
        generator, held = torch.Generator().manual_seed(0), {}
        for slot in weight_slots(model):
            name = f"{slot.name}.weight" if slot.kind == "storage" else slot.name
            held[name] = 0.2 * torch.randn(slot.shape, generator=generator)
        return cls(held)

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        return {
            name: TensorInfo(name=name, shape=tuple(x.shape), format="F32", nbytes=x.nbytes)
            for name, x in self.held.items()
        }

    def read(self, name: str) -> Tensor:
        return self.held[name]


def drawing(plugins: PluginManager, home: torch.device, rules: str | None) -> Tensor:
    """An image [1, h, w, 3] of a tiny FLUX of random weights."""
    model = flux.Model(FluxConfig.from_hf(FLUX))  # type: ignore[abstract]
    container: Any = Drawn.for_model(model)
    placement = choose_placement(rules, model, home, torch.device, dict)
    reader = WeightReader(container, plugins, {}, home, torch.float32, placement=placement)
    fill(model, container, Names(), reader, space="hub")
    placement.move()
    loaded: Any = SimpleNamespace(model=model, context=77, explain=[])
    target = Target(device=home, dtype=torch.float32)
    finalize(loaded, target, placement)
    placement.install_transfers(target)
    asked = {"clip_tokens": [[1, 9, 5, 2]], "t5_tokens": [[17, 4, 90, 1]], "seeds": [3]}
    request = JobRequest(id="", values={**asked, "width": 32, "height": 32, "steps": 2})
    with torch.inference_mode():
        *_, last = model.work(request, ROWS)
    return last.arrays["images"].cpu()


@pytest.mark.slow
def test_images_do_not_depend_on_the_placement(
    plugins: PluginManager, device: SimulatedDevice
) -> None:
    expected = drawing(plugins, CPU, None)
    assert expected.float().std() > 20
    assert torch.equal(drawing(plugins, SECOND, "offload"), expected)
    rules = "transformer.* = offload, text_encoder_2 = offload"
    assert torch.equal(drawing(plugins, SECOND, rules), expected)
    for rules in ("text_encoder_2 = cpu:1", "*.single_transformer_blocks = cpu:1, vae = cpu:1"):
        assert torch.equal(drawing(plugins, CPU, rules), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("llama", "model.layers.[2-3] = cpu"),
        ("gemma3", "model.layers.[0,5] = cpu"),
        ("mixtral", "*.experts = cpu"),
        ("qwen3_next", "model.layers.[1-2] = cpu"),
        ("llama", "auto:400KB"),
        ("llama", "offload"),
        ("mixtral", "*.experts = offload, model.layers.1 = cpu"),
        ("gemma3", "offload"),
    ],
)
def test_a_gpu_and_its_host_say_the_same(made: Made, name: str, rules: str) -> None:
    tiny = made(name)
    prompts: Sequence[Sequence[int]] = [tiny.prompt[:n] for n in RAGGED]
    engine = tiny.engine(device="cuda", rows=40, placement=rules)
    assert deviation(engine.runner.logits(tiny.prompt), tiny.expected) <= 5 * BAR
    engine.runner.capture()
    assert greedy(engine, prompts, 12) == greedy(tiny.engine(rows=40), prompts, 12)
