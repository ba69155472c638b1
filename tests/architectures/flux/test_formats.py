"""FLUX quantized: the outputs of every part are those of its dequantized weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("diffusers")

from tiny.flux import make_flux

from ostro.architectures.flux import WIDE
from ostro.architectures.flux.batch import Batch
from ostro.architectures.flux.request import Drawing
from ostro.core.load.model import load_model
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.core.step import ROWS
from ostro.plugins.conformance.formats import (
    SAME,
    STD,
    assert_matches_dequantized,
    formats,
    sample_formats,
)

SIZE = (2, 3)
TEXT = Drawing(
    clip_tokens=[[1, 9, 5, 2, 0, 0], [1, 30, 2, 0, 0, 0]],
    t5_tokens=[[17, 4, 90, 55, 1, 0, 0], [88, 3, 1, 0, 0, 0, 0]],
    seeds=[11, 12],
)

DEEP = 1.5 * SAME
"""The decoder of images has seventeen convolutions one after the other behind its attention."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_flux(tmp_path_factory.mktemp("models") / "flux", WIDE, STD)


@torch.inference_mode()
def outputs_of(model: Any) -> list[Tensor]:
    """Pooled and T5's states, the velocity of noise under them, and images of noise."""
    random = torch.Generator().manual_seed(0)
    pooled, states = model.encode_text(TEXT, ROWS)
    n, words = len(TEXT.seeds), len(TEXT.t5_tokens[0])
    rows = torch.randn(n * SIZE[0] * SIZE[1], 256, generator=random)
    batch = Batch.of(ROWS, n, words, SIZE, torch.device("cpu"))
    velocity = model.transformer(rows, states, pooled, 0.3, 3.5, batch)
    latents = torch.randn(n, 64, 4, 6, generator=random)
    return [pooled, states, velocity, model.vae.decode(latents, ROWS)]


@pytest.mark.slow
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_quantized_models_match_dequantized_weights(
    folder: Path, plugins: PluginManager, every: bool
) -> None:
    for format in formats(plugins) if every else sample_formats(plugins, "flux")[:1]:
        loaded = load_model(folder, Settings(dtype="float32", quant=format, exact=True), plugins)
        assert_matches_dequantized(
            loaded, plugins, format, lambda model=loaded.model: outputs_of(model), DEEP
        )
