"""Adapters on multimodal models match PEFT: on encoders, projectors and decoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tiny.trained import BAR, FELT, RED, Served, compare, distance, train, wrapped

from ostro.core.errors import AdapterError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import all_plugins
from ostro.plugins.conformance.parity import subject

pytestmark = pytest.mark.slow

Serve = Callable[[str], Served]
Config = Mapping[str, Any]

TOWER = r".*(vision_tower|visual|vision_model).*\.(q_proj|v_proj|qkv|out_proj|fc1|fc2|\w+_proj)"
DECODER = r".*(language_model|text_model).*\.(q_proj|o_proj|down_proj)"
BEHIND = r".*(language_model|decoder).*\.(q_proj|o_proj|fc1|down_proj)"
BRIDGE = (
    r".*(multi_modal_projector\.linear_[12]|visual\.merger\.(mlp\.[02]|linear_fc[12])"
    r"|connector\..*\.(\w+_)?proj)"
)
BASE: Config = {"r": 4, "lora_alpha": 8}
BOTH: Config = {**BASE, "target_modules": "all-linear"}

SEEING: Mapping[str, Config] = {
    "decoder": {**BASE, "target_modules": DECODER},
    "tower": {**BASE, "target_modules": TOWER},
    "both": BOTH,
    "both by dora": {**BOTH, "use_dora": True},
    "bridge": {**BASE, "target_modules": BRIDGE},
    "biases of linears": {**BASE, "target_modules": ["q_proj", "qkv"], "bias": "lora_only"},
    "biases of its own": {**BASE, "target_modules": ["q_proj", "qkv"], "lora_bias": True},
    "ends": {**BASE, "target_modules": ["embed_tokens", "lm_head"]},
}
QUICK = {"decoder", "tower", "both by dora"}
MODELS = (
    *("llava", "gemma3_images", "qwen2_5_vl", "qwen3_vl", "mllama"),
    *("llava_next", "llava_onevision", "qwen2_vl", "qwen3_vl_moe"),
    *("mistral3", "idefics3", "idefics2"),
)
BRIDGED = {*MODELS} - {"gemma3_images", "mllama"}
"""Models with projectors of linears; PEFT supports no other modules there."""

BIASED = ["q_proj", "k_proj", "v_proj", "fc2"]
HEARING: Mapping[str, Config] = {
    "both": BOTH,
    "both by dora": {**BOTH, "use_dora": True},
    "encoder": {**BASE, "target_modules": r".*encoder\.layers.*(q_proj|fc1)"},
    "crossing": {**BASE, "target_modules": r".*encoder_attn\.[kv]_proj"},
    "biases of linears": {**BASE, "target_modules": BIASED, "bias": "lora_only"},
    "biases of its own": {**BASE, "target_modules": BIASED, "lora_bias": True},
    "a saved head": {**BASE, "target_modules": ["q_proj"], "modules_to_save": ["proj_out"]},
    "ends": {**BASE, "target_modules": ["proj_out", "embed_tokens"]},
}


def cases() -> Iterator[Any]:
    for name in MODELS:
        for what, config in SEEING.items():
            if what == "bridge" and name not in BRIDGED:
                continue
            slow = name in MODELS[3:] or what not in QUICK
            yield pytest.param(name, config, id=f"{name}: {what}", marks=[pytest.mark.slow] * slow)
    for what, config in HEARING.items():
        yield pytest.param("whisper", config, id=f"whisper: {what}")
    for what in ("both", "both by dora", "biases of linears", "biases of its own"):
        marks = [pytest.mark.slow] * (what != "both")
        yield pytest.param("qwen2_audio", SEEING[what], id=f"qwen2_audio: {what}", marks=marks)


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """An engine over the tiny model of an architecture, cached per module."""
    plugins: PluginManager = all_plugins()
    kept: dict[str, Served] = {}
    with ExitStack() as stack:

        def run(name: str) -> Served:
            if name not in kept:
                kept[name] = Served(stack.enter_context(subject(plugins, name)))
            return kept[name]

        yield run


@pytest.mark.parametrize(("name", "config"), list(cases()))
def test_it_says_what_peft_says(name: str, config: Config, serve: Serve, tmp_path: Path) -> None:
    assert compare(serve(name), tmp_path, **config).matched


CROSSING = r".*(encoder_attn|cross_attn)\.[kv]_proj"
ALTERNATING = {"llava": TOWER, "qwen2_5_vl": TOWER, "mllama": CROSSING, "whisper": CROSSING}
"""Target modules that change the cached features, or keys and values, of a medium."""


@pytest.mark.parametrize("name", ALTERNATING)
def test_one_medium_under_several_adapters(name: str, serve: Serve, tmp_path: Path) -> None:
    served = serve(name)
    models: dict[str, Any] = {"": served.subject.reference}
    configs = {
        "one": {**BASE, "target_modules": ALTERNATING[name], "seed": 1},
        "two": {**BASE, "target_modules": ALTERNATING[name], "seed": 2},
        "text": {**BASE, "target_modules": BEHIND, "seed": 3},
    }
    for adapter, config in configs.items():
        models[adapter] = train(served.subject.reference, tmp_path / adapter, **config)
        served.load(adapter, tmp_path / adapter)
    example = next(e for e in served.subject.examples if e.prompt.items)
    truths = {
        k: wrapped(served.subject, model).reference_output(example) for k, model in models.items()
    }
    assert distance(truths["one"], truths["two"]) > FELT
    for adapter in ("", "one", "two", "text", "one", "", "two"):
        answer = served.answer(example, [adapter] if adapter else [])
        assert distance(answer, truths[adapter]) <= BAR
    asked = [*models, *models]
    drawn = served.greedy([(example, [a] if a else []) for a in asked], 6)
    for adapter, tokens in zip(asked, drawn, strict=True):
        assert tokens == wrapped(served.subject, models[adapter]).reference_tokens(example, 6)
    assert len({tuple(tokens) for tokens in drawn[:3]}) > 1, "all of them say the same"


def test_half_of_a_tower_s_adapter_is_half_of_it(serve: Serve, tmp_path: Path) -> None:
    served = serve("llava")
    targets = {**BASE, "target_modules": TOWER}
    train(served.subject.reference, tmp_path / "whole", **targets)
    model = train(served.subject.reference, tmp_path / "half", **{**targets, "lora_alpha": 4})
    for adapter in ("whole", "half"):
        served.load(adapter, tmp_path / adapter)
    example = next(e for e in served.subject.examples if e.prompt.items)
    truth = wrapped(served.subject, model).reference_output(example)
    assert distance(served.answer(example, {"whole": 1.0}), truth) > RED
    assert distance(served.answer(example, {"whole": 0.5}), truth) <= BAR


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("whisper", {"target_modules": ["conv1"]}, r"model\.encoder\.conv1"),
        ("deepseek_v2", {"target_parameters": ["mlp.gate.weight"]}, r"layers\.1\.mlp\.gate"),
    ],
    ids=["a convolution", "a router of parameters"],
)
def test_what_is_no_linear_is_refused_by_name(
    name: str, config: Config, said: str, serve: Serve, tmp_path: Path
) -> None:
    served = serve(name)
    train(served.subject.reference, tmp_path, **BASE, **config)
    with pytest.raises(AdapterError, match=f"{said}: the base.s weight is not one"):
        served.load("it", tmp_path)


OLD = {
    "model.language_model.": "language_model.model.",
    "model.vision_tower.": "vision_tower.vision_model.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}


@pytest.mark.parametrize("name", ["llava", "gemma3_images"])
def test_names_may_be_those_of_transformers_4(name: str, serve: Serve, tmp_path: Path) -> None:
    served = serve(name)
    targets = ["q_proj", "fc1"]
    model = train(served.subject.reference, tmp_path, **{**BASE, "target_modules": targets})
    file = tmp_path / "adapter_model.safetensors"
    held = load_file(file)
    for new, old in OLD.items():
        held = {name.replace(new, old): tensor for name, tensor in held.items()}
    assert {name.split(".")[2] for name in held} == {"language_model", "vision_tower"}
    save_file(held, file)
    served.load("it", tmp_path)
    for example, _ in served.subject.cases:
        truth = wrapped(served.subject, model).reference_output(example)
        assert distance(served.answer(example, ["it"]), truth) <= BAR
