"""CLIP's text encoder, its pooling and its vision tower against transformers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModel,
)

from ostro import Names, Pair, Step, nn
from ostro.architectures.clip import TINY, mutants, vision
from ostro.architectures.clip.model import Config
from ostro.core.errors import ConfigError, RequestError
from ostro.core.load.model import load_model
from ostro.core.load.open import open_container
from ostro.core.load.weights import WeightReader, fill
from ostro.core.nn import Linear
from ostro.core.ops import Target
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Mutant
from ostro.core.settings import Settings
from ostro.core.step import ROWS
from ostro.plugins.conformance.architecture import ArchitectureTests, NonzeroDelta
from ostro.plugins.conformance.parity import BAR, RED, STD, deviation, reinitialise

TEXTS = ([1, 5, 9, 2, 0, 0], [1, 7, 2, 2, 2, 2], [1, 90, 80, 70, 60, 2])
VISION = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 30,
    "patch_size": 6,
    "projection_dim": 48,
}


class TestClip(ArchitectureTests):
    name = "clip"


def saved(reference: Any, folder: Path, std: float = STD) -> Any:
    """A reference with honest weights, saved."""
    reference = reference.eval().float()
    reinitialise(reference, std)
    reference.save_pretrained(folder)
    return reference


def step_of(texts: Iterable[list[int]]) -> Step:
    tokens = list(texts)
    bounds = [0]
    for text in tokens:
        bounds.append(bounds[-1] + len(text))
    flat = torch.tensor([token for text in tokens for token in text])
    places = torch.tensor([place for text in tokens for place in range(len(text))])
    return Step(tokens=flat, positions=places[None], bounds=bounds)


@torch.inference_mode()
def pooled(folder: Path, plugins: PluginManager, mutant: Mutant | None = None) -> Tensor:
    model: Any = load_model(folder, Settings(dtype="float32", device="cpu"), plugins).model
    if mutant is not None:
        mutant.apply(model)
    step = step_of(TEXTS)
    found: Tensor = model.pooled(model.hidden(step), step)
    return found


@pytest.mark.parametrize("eos", [2, 7])
def test_pooling_takes_the_end_of_the_text(
    eos: int, tmp_path: Path, plugins: PluginManager
) -> None:
    """Id 2 is what old configs say, and means the highest id of a text."""
    reference = saved(CLIPTextModel(CLIPTextConfig(**{**TINY, "eos_token_id": eos})), tmp_path)
    with torch.inference_mode():
        truth = reference(torch.tensor(TEXTS)).pooler_output
    assert deviation(pooled(tmp_path, plugins), truth) <= BAR
    last = Mutant(name="the last row is pooled", apply=mutants.last_row)
    assert deviation(pooled(tmp_path, plugins, last), truth) >= RED


def test_the_projection(tmp_path: Path, plugins: PluginManager) -> None:
    reference = saved(CLIPTextModelWithProjection(CLIPTextConfig(**TINY)), tmp_path)
    with torch.inference_mode():
        truth = reference(torch.tensor(TEXTS)).text_embeds
    assert deviation(pooled(tmp_path, plugins), truth) <= BAR


def test_names_of_older_files(tmp_path: Path, plugins: PluginManager) -> None:
    """They have "text_model" before every name, and a table of positions."""
    from safetensors.torch import load_file, save_file

    saved(CLIPTextModel(CLIPTextConfig(**TINY)), tmp_path)
    bare = pooled(tmp_path, plugins)
    file = tmp_path / "model.safetensors"
    older = {f"text_model.{name}": tensor for name, tensor in load_file(file).items()}
    older["text_model.embeddings.position_ids"] = torch.arange(77)[None]
    save_file(older, file)
    assert torch.equal(pooled(tmp_path, plugins), bare)


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ConfigError, match="hidden_act='relu'"):
        Config.from_hf({**TINY, "hidden_act": "relu"})
    with pytest.raises(ConfigError, match="not a multiple"):
        vision.VisionConfig.from_hf({**VISION, "num_attention_heads": 5})


class Tower(nn.Module):
    """A home for the tower under the name that checkpoints give it."""

    def __init__(self, config: vision.VisionConfig) -> None:
        super().__init__()
        self.vision_model = vision.VisionTower(config)


def tower(folder: Path, plugins: PluginManager) -> Any:
    container = open_container(folder, plugins)
    raw = json.loads((folder / "config.json").read_text())
    home = Tower(vision.VisionConfig.from_hf(raw))
    parts = ("embeddings", "pre_layrnorm", "encoder", "post_layernorm")
    names = Names(hub=[Pair(part, f"vision_model.{part}") for part in parts])
    reader = WeightReader(container, plugins, {}, torch.device("cpu"), torch.float32)
    fill(home, container, names, reader, space="hub")
    for module in home.modules():
        if isinstance(module, Linear):
            module.finalize(Target(device=torch.device("cpu"), dtype=torch.float32))
    return home


def pixels() -> Tensor:
    return torch.randn(3, 3, 30, 30, generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def states(home: Any) -> Tensor:
    found = home.vision_model(pixels(), ROWS)
    last = home.vision_model.pooled(found)[:, None]
    return torch.cat((*found, last), 1)


@torch.inference_mode()
def truth(reference: Any) -> Tensor:
    out = reference(pixels(), output_hidden_states=True)
    return torch.cat((*out.hidden_states, out.pooler_output[:, None]), 1)


@pytest.mark.parametrize("act", ["quick_gelu", "gelu"])
def test_every_state_of_the_vision_tower(act: str, tmp_path: Path, plugins: PluginManager) -> None:
    config = CLIPVisionConfig(**{**VISION, "hidden_act": act})
    reference = saved(CLIPVisionModel(config), tmp_path)
    assert deviation(states(tower(tmp_path, plugins)), truth(reference)) <= BAR


def test_mutants_of_the_vision_tower_turn_parity_red(
    tmp_path: Path, plugins: PluginManager
) -> None:
    green = []
    for mutant in mutants.vision():
        reference = saved(CLIPVisionModel(CLIPVisionConfig(**VISION)), tmp_path, mutant.std or STD)
        home = tower(tmp_path, plugins)
        mutant.apply(home)
        if deviation(states(home), truth(reference)) < RED:
            green.append(mutant.name)
    assert not green, f"the parity test does not notice: {', '.join(green)}"


def test_adapter_deltas_reach_every_linear_of_the_tower(
    tmp_path: Path, plugins: PluginManager
) -> None:
    saved(CLIPVisionModel(CLIPVisionConfig(**VISION)), tmp_path)
    home = tower(tmp_path, plugins)
    before = states(home)
    for path, module in home.named_modules():
        if isinstance(module, Linear):
            module.deltas.append(NonzeroDelta())
            assert not torch.equal(states(home), before), path
            module.deltas.clear()


def test_images_of_another_size_are_refused(tmp_path: Path, plugins: PluginManager) -> None:
    saved(CLIPVisionModel(CLIPVisionConfig(**VISION)), tmp_path)
    with pytest.raises(RequestError, match="24 x 30 pixels"):
        tower(tmp_path, plugins).vision_model(torch.zeros(1, 3, 24, 30), ROWS)
