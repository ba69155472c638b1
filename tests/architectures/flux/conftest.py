"""A tiny FLUX: diffusers' pipeline with re-initialised weights, and ostro's model of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.architectures.flux import TINY
from ostro.architectures.flux.config import Config
from ostro.architectures.flux.model import Model
from ostro.architectures.flux.names import names
from ostro.core.load.model import cast_biases, finalize
from ostro.core.load.weights import WeightReader, fill
from ostro.core.ops import Target
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import TensorInfo
from ostro.plugins.conformance.parity import STD, reinitialise

diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")

CPU = torch.device("cpu")
DEV: dict[str, Any] = {**TINY}
SCHNELL = {
    **DEV,
    "transformer": {**DEV["transformer"], "guidance_embeds": False},
    "scheduler": {"shift": 1.0, "use_dynamic_shifting": False},
}


@dataclass
class Held:
    """A checkpoint container of tensors in memory."""

    held: Mapping[str, Tensor]
    path: Path = Path("tiny-flux")
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        return {
            name: TensorInfo(name=name, shape=tuple(t.shape), format="F32", nbytes=t.nbytes)
            for name, t in self.held.items()
        }

    def read(self, name: str) -> Tensor:
        return self.held[name]

    def config(self) -> None:
        return None

    def close(self) -> None:
        pass


@dataclass
class Flux:
    """The reference pipeline, and methods that make ostro's model of it."""

    raw: dict[str, Any]
    pipeline: Any
    plugins: PluginManager

    def tensors(self) -> dict[str, Tensor]:
        """The tensors, with names as in a pipeline folder."""
        return {
            f"{part}.{name}": tensor
            for part in ("transformer", "vae", "text_encoder", "text_encoder_2")
            for name, tensor in getattr(self.pipeline, part).state_dict().items()
            if name != "encoder.embed_tokens.weight"
        }

    def load(self, tensors: Mapping[str, Tensor] | None = None, dtype: Any = torch.float32) -> Any:
        container: Any = Held(self.tensors() if tensors is None else tensors)
        config = Config.from_hf(self.raw)
        model = Model(config)  # type: ignore[abstract]
        reader = WeightReader(container, self.plugins, {}, CPU, dtype)
        fill(model, container, names(config), reader, space="hub")
        cast_biases(model, dtype)
        loaded: Any = SimpleNamespace(model=model, context=77, explain=[])
        finalize(loaded, Target(device=CPU, dtype=dtype))
        return model.eval()


def pipeline(raw: dict[str, Any], std: float) -> Any:
    """diffusers' FluxPipeline of these configs, with re-initialised weights."""
    blocks = len(raw["vae"]["block_out_channels"])
    vae = {
        **raw["vae"],
        "down_block_types": ["DownEncoderBlock2D"] * blocks,
        "up_block_types": ["UpDecoderBlock2D"] * blocks,
    }
    parts = {
        "transformer": diffusers.FluxTransformer2DModel(**raw["transformer"]),
        "vae": diffusers.AutoencoderKL(**vae),
        "text_encoder": transformers.CLIPTextModel(
            transformers.CLIPTextConfig(**raw["text_encoder"])
        ),
        "text_encoder_2": transformers.T5EncoderModel(
            transformers.T5Config(**raw["text_encoder_2"])
        ),
    }
    for part in parts.values():
        reinitialise(part.eval(), std)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(**raw["scheduler"])
    return diffusers.FluxPipeline(scheduler=scheduler, tokenizer=None, tokenizer_2=None, **parts)


@pytest.fixture(scope="session")
def dev(plugins: PluginManager) -> Flux:
    return Flux(DEV, pipeline(DEV, STD), plugins)


@pytest.fixture(scope="session")
def schnell(plugins: PluginManager) -> Flux:
    return Flux(SCHNELL, pipeline(SCHNELL, STD), plugins)


@pytest.fixture(scope="session")
def faint(plugins: PluginManager) -> Flux:
    """A pipeline with smaller weights, for differences that only small activations show."""
    return Flux(DEV, pipeline(DEV, 0.1), plugins)
