"""Parts of a model on another device: the same numbers, and no crossing that was not meant.

The other device is the CPU's stand-in for one, on which any operation fails that mixes devices.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ostro.architectures.whisper.inputs import Inputs
from ostro.core.adapters.adapter import EMPTY
from ostro.core.adapters.weights import AdapterWeights, LowRank
from ostro.core.deprecated import RemovedInOstro1
from ostro.core.engine.scheduler import Chunk
from ostro.core.errors import OstroError, UsageError
from ostro.core.ops import Fused
from ostro.core.placement.transfers import unguarded
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.core.step import Features, Step
from ostro.plugins.conformance.adapters import adapter_of, engine_with, mixture_of
from ostro.plugins.conformance.decoder import RAGGED
from ostro.plugins.conformance.parity import BAR, Subject, deviation, greedy, subject
from ostro.plugins.conformance.second_device import CPU, SECOND, SimulatedDevice

Made = Callable[[str], Subject]

PLACED = [
    ("llama", "model.layers.[2-3].* = cpu:1"),
    ("llama", "model.layers.[0,4-5] = cpu:1"),
    ("llama", "embed_tokens = cpu:1, lm_head = cpu:1"),
    ("llama", "model = cpu:1, model.layers.[0-1] = cpu"),
    ("tied", "embed_tokens = cpu:1, lm_head = cpu:1, layers = cpu:1"),
    ("gemma3", "model.layers.[2-3] = cpu:1"),
    ("gemma3", "model.layers.[0,5] = cpu:1"),
    ("mixtral", "experts = cpu:1"),
    ("mixtral", "model.layers.0 = cpu:1, *.experts.* = cpu:1"),
    ("mixtral", "layers = cpu:1, *.experts = cpu"),
    ("qwen3_next", "model.layers.[1-2] = cpu:1"),
    ("qwen3_next", "model.layers.0 = cpu:1, *.experts = cpu:1"),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "rules"), PLACED)
def test_a_model_on_two_devices_says_the_same(
    made: Made, device: SimulatedDevice, name: str, rules: str
) -> None:
    tiny = made(name)
    expected = tiny.engine().runner.logits(tiny.prompt)
    assert not device.moves
    for rows in (512, 23):
        logits = tiny.engine(placement=rules).runner.logits(tiny.prompt, rows)
        assert deviation(logits, expected) == 0 or rows < len(tiny.prompt)
        assert deviation(logits, tiny.expected) <= BAR
    assert device.moves


@pytest.mark.sample(1)
@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize(("name", "rules"), [PLACED[i] for i in (0, 5, 7, 10)])
def test_ragged_batches_say_what_they_say_on_one_device(
    made: Made, device: SimulatedDevice, name: str, rules: str, replay: bool
) -> None:
    tiny = made(name)
    prompts = [tiny.prompt[:n] for n in RAGGED]
    engine = tiny.engine(rows=40, placement=rules, replay=replay)
    engine.runner.capture()
    assert not engine.runner.decode_buckets.plain, "its segments are short"
    assert greedy(engine, prompts, 12) == greedy(tiny.engine(rows=40), prompts, 12)


def test_only_the_place_of_an_adapter_uses_its_device(made: Made, device: SimulatedDevice) -> None:
    """Adapters are read in a thread, which must not use a GPU while steps are captured."""
    engine = made("llama").engine(device="cpu:1")
    model, registry = engine.runner.model, engine.registry
    assert registry is not None
    n, k = model.get_submodule("model.layers.0.mlp.down_proj").weight_shape
    up = LowRank(a=torch.randn(4, k), b=torch.randn(n, 4), scale=1.0)
    whole = torch.randn(*model.get_submodule("lm_head").weight_shape)
    weights = AdapterWeights(
        kind="lora",
        weights={"model.layers.0.mlp.down_proj": up},
        whole={"lm_head.weight": whole},
    )
    device.moves.clear()
    before = device.nbytes
    adapter = registry.loader.load(weights)
    assert device.nbytes == before and not device.moves and adapter.unplaced
    registry.loader.place(adapter)
    assert device.nbytes - before >= whole.nbytes and not adapter.unplaced
    after = device.nbytes
    registry.loader.place(adapter)
    assert device.nbytes == after and [d.module for d in adapter.whole] == [
        model.get_submodule("lm_head")
    ]
    engine.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "rules"), [PLACED[i] for i in (0, 2, 4, 5, 7, 8, 11)])
def test_adapters_are_on_the_devices_of_their_modules(
    made: Made, device: SimulatedDevice, name: str, rules: str
) -> None:
    tiny = made(name)
    weights = {
        "a": adapter_of(tiny.load(), seed=1, rank=3, dora=True),
        "b": adapter_of(tiny.load(), seed=2, rank=17),
    }
    said = []
    for placement in (None, rules):
        with engine_with(tiny, tiny.load(placement=placement), weights) as engine:
            mixture = mixture_of(engine, a=0.5, b=0.7)
            said.append(tiny.answer(engine, mixture=mixture))
            texts = [tiny.prompt[:n] for n in (7, 16, 33)]
            said.append(greedy(engine, texts, 8, [mixture, EMPTY, mixture_of(engine, b=1.0)]))
    assert deviation(said[2], said[0]) <= BAR
    assert said[3] == said[1]


def test_a_layer_remembers_on_its_own_device(made: Made, device: SimulatedDevice) -> None:
    engine = made("gemma3").engine(placement="model.layers.[2-3] = cpu:1")
    places = {
        layer: group.kind.device for group in engine.runner.blocks.groups for layer in group.layers
    }
    assert places == {i: SECOND if i in (2, 3) else CPU for i in range(6)}
    for group in engine.runner.blocks.groups:
        assert group.kind.view(0, None).k.device == group.kind.device  # type: ignore[arg-type]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "rules", "there", "back", "lasting"),
    [
        ("llama", "model.layers.[2-3] = cpu:1", 2, 2, 2),  # x and the residual
        ("llama", "model.layers.[4-5] = cpu:1", 2, 2, 2),
        ("llama", "model.layers.[0-2] = cpu:1", 1, 2, 2),  # no residual before the first
        ("llama", "model.layers.[1,3] = cpu:1", 4, 4, 2),
        ("llama", "layers = cpu:1", 1, 2, 2),
        ("llama", "lm_head = cpu:1", 1, 1, 2),
        ("mixtral", "*.experts = cpu:1", 4, 2, 2),  # x and its routing, of two layers
    ],
)
def test_activations_cross_at_the_borders_of_segments_alone(
    made: Made, device: SimulatedDevice, name: str, rules: str, there: int, back: int, lasting: int
) -> None:
    """And what a step says of its rows (tokens, positions) once, not layer by layer."""
    tiny = made(name)
    engine = tiny.engine(placement=rules)
    for _ in range(2):
        device.moves.clear()
        engine.runner.logits(tiny.prompt)
        floats = [m.target for m in device.moves if m.dtype.is_floating_point]
        whole = [m.target for m in device.moves if not m.dtype.is_floating_point]
        routed = 2 if name == "mixtral" else 0
        assert (floats.count(SECOND), floats.count(CPU)) == (there, back)
        assert (whole.count(SECOND), whole.count(CPU)) == (lasting + routed, 0)


@pytest.mark.parametrize("rules", ["model.layers.[2-3] = cpu:1", "model.layers.[0,5] = cpu:1"])
def test_a_kernel_finds_the_next_layers_norm_beside_its_own(
    made: Made, device: SimulatedDevice, rules: str
) -> None:
    """Gemma's layers are handed the norm behind them, of whose weight their kernel makes use."""
    tiny = made("gemma3")
    loaded = tiny.load(placement=rules)
    for module in loaded.model.modules():
        for op in vars(module).values():
            if isinstance(op, Fused):
                op.kernel, op.on = resolve(op.kernels[-1].call), True
    assert deviation(tiny.engine(loaded).runner.logits(tiny.prompt), tiny.expected) <= BAR


def test_what_is_not_moved_explicitly_fails(made: Made, device: SimulatedDevice) -> None:
    """The stand-in itself: without transfers nothing passes."""
    tiny = made("llama")
    loaded = tiny.load(placement="model.layers.[2-3] = cpu:1")
    unguarded(loaded.model)
    with pytest.raises(RuntimeError, match="several devices"):
        tiny.engine(loaded).runner.logits(tiny.prompt)


def test_rules_come_from_a_file(made: Made, device: SimulatedDevice, tmp_path: Path) -> None:
    file = tmp_path / "placement.toml"
    file.write_text('"model.layers.[0-3]" = "cpu:1"\nmodel.layers.1 = "cpu"\n')
    placement = made("llama").load(placement=str(file)).placement
    there = [path for path, unit in placement.units.items() if unit.device == SECOND]
    assert there == ["model.layers.0", "model.layers.2", "model.layers.3"]


def test_explain_lists_the_placement(made: Made, device: SimulatedDevice) -> None:
    rules = "model.layers.[1,3-5] = cpu:1"
    said = made("llama").load(placement=rules).explain
    assert any(
        line.startswith("placement: cpu:1: model.layers.[1,3-5] (491.52 KB)") for line in said
    ), said
    assert any(
        line.startswith("placement: cpu: model.embed_tokens, model.layers.[0,2], lm_head")
        for line in said
    ), said
    assert not any("placement" in line for line in made("llama").load().explain)


def layers_there(subject: Subject, rules: str) -> list[str]:
    """What is not at home, on cpu:1, but on the CPU."""
    placement = subject.load(device="cpu:1", placement=rules).placement
    return [path for path, unit in placement.units.items() if unit.device == CPU]


def test_layers_that_do_not_fit_are_placed_on_the_cpu(made: Made, device: SimulatedDevice) -> None:
    tiny, layer, ends = made("llama"), 123_392, 2 * 128 * 64 * 4
    assert layers_there(tiny, f"auto:{ends + 6 * layer}B") == []
    assert layers_there(tiny, f"auto:{ends + 6 * layer - 1}B") == ["model.layers.5"]
    four = layers_there(tiny, f"auto:{ends + 2 * layer}B")
    assert four == [f"model.layers.{i}" for i in range(2, 6)]
    assert len(layers_there(tiny, f"auto:{ends}B")) == 6
    assert len(layers_there(tiny, "auto:1KB")) == 8
    logits = tiny.engine(device="cpu:1", placement="auto:400KB").runner.logits(tiny.prompt)
    assert deviation(logits, tiny.expected) <= BAR


def test_the_estimate_leaves_room_for_the_cache(
    made: Made, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, layer, ends = made("llama"), 123_392, 2 * 128 * 64 * 4
    free = ends + 4 * layer
    monkeypatch.setattr("ostro.core.placement.placement.free_bytes", lambda device: free)

    def at_home(**settings: str) -> int:
        placement = tiny.load(device="cpu:1", placement="auto", **settings).placement
        return sum(u.device == SECOND for u in placement.units.values() if u.layer)

    assert at_home() == int((0.75 * free - ends) / layer) == 2
    assert at_home(memory="0.5") == 1
    assert at_home(memory=f"{layer}B") == 3


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("model.layer.[2-3] = cpu:1", "matches nothing in this model; nearest: model.layers"),
        ("expert = cpu:1", "nearest: experts"),
        ("model.layers.7 = cpu:1", "nearest: model.layers"),
        ("*.q_proj = cpu:1", "matches nothing"),
        ("*.self_attn = cpu:1", "a part of model.layers.0; only whole layers"),
        ("*.mlp = cpu:1", "a part of model.layers.0"),
        ("model.norm = cpu:1", "model.norm, which has no weights"),
        ("model.layers.[x] = cpu:1", "not a set of numbers"),
        ("model.layers.[0-99999999] = cpu:1", "not a set of numbers"),
        ("model.layers.0 = cpu:2", "not found by torch"),
        ("model.layers.0 = gpu", "expected cpu, cuda or cuda:1"),
        ("model.layers.0 = ", "is not a rule"),
        ("no-such-file.toml", "there is no such file"),
        ("auto:many", "is not a size"),
        ("offload", "--offload: layers cannot be offloaded"),
        ("model.layers.0 = offload", "the model runs on the CPU"),
    ],
)
def test_what_cannot_be_placed_is_refused(
    made: Made, device: SimulatedDevice, rules: str, said: str
) -> None:
    with pytest.raises(OstroError) as caught:
        made("mixtral").load(placement=rules)
    assert said in str(caught.value)
    assert isinstance(caught.value, UsageError) or "not found by torch" in said


@pytest.mark.parametrize("old", ["rest", "model.layers.0 = rest"])
def test_the_old_name_of_offload_warns(made: Made, device: SimulatedDevice, old: str) -> None:
    with pytest.warns(RemovedInOstro1, match="rest is deprecated; write offload"):
        placed = made("mixtral").load(device="cpu:1", placement=old)
    new = made("mixtral").load(device="cpu:1", placement=old.replace("rest", "offload"))
    assert placed.placement.describe() == new.placement.describe()


def test_a_weight_with_two_users_is_not_torn_apart(made: Made, device: SimulatedDevice) -> None:
    with pytest.raises(UsageError, match=r"lm_head and model\.embed_tokens use one"):
        made("tied").load(placement="lm_head = cpu:1")
    with pytest.raises(UsageError, match="one weight"):
        made("tied").load(device="cpu:1", placement="lm_head = offload, embed_tokens = offload")


def test_levels_are_added_at_home(plugins: PluginManager, device: SimulatedDevice) -> None:
    """Behind a layer on another device, too."""
    generator = torch.Generator().manual_seed(0)
    values, *levels = (torch.randn(9, 64, generator=generator) for _ in range(3))
    with subject(plugins, "qwen3_vl") as tiny:

        def hidden(**settings: str) -> Tensor:
            runner = tiny.engine(**settings).runner  # type: ignore[arg-type]
            plain = runner.build_step

            def seeing(chunks: Sequence[Chunk]) -> tuple[Step, list[slice]]:
                step, spans = plain(chunks)
                return replace(step, features=Features(values, torch.arange(2, 11), levels)), spans

            runner.build_step = seeing  # type: ignore[method-assign]
            return runner.hidden([tiny.prompt])[0]

        assert values.shape[1] == tiny.engine().runner.hidden([tiny.prompt])[0].shape[1]
        assert torch.equal(hidden(placement="model.layers = cpu:1"), hidden())


def test_cross_caches_are_written_on_the_layers_devices(
    plugins: PluginManager, device: SimulatedDevice
) -> None:
    """Cross caches are written from outside of the layers, and an encoder may be elsewhere."""
    with subject(plugins, "whisper") as tiny:
        settings = {"feature_size": tiny.raw_config["num_mel_bins"], "chunk_length": 1}
        (tiny.folder / "preprocessor_config.json").write_text(json.dumps(settings))
        sound = np.sin(np.arange(16000, dtype=np.float32) * 0.05)
        item = Inputs(tiny.raw_config, tiny.folder).audio(sound)
        expected = tiny.engine().runner.logits(tiny.prompt[:20], items=[item])
        rules = "model.decoder.layers.1 = cpu:1"
        for placement in (
            rules,
            f"{rules}, model.encoder.layers = cpu:1",
            "model = cpu:1, proj_out = cpu:1",
        ):
            engine = tiny.engine(placement=placement)
            assert torch.equal(engine.runner.logits(tiny.prompt[:20], items=[item]), expected)
        engine = tiny.engine(device="cpu:1", placement="offload")
        assert torch.equal(engine.runner.logits(tiny.prompt[:20], items=[item]), expected)
