"""Dia quantized: states and logits are those of its dequantized weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

from tiny.dia import make_dia

from ostro.architectures.dia import WIDE
from ostro.core.load.model import load_model
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.core.step import ROWS
from ostro.plugins.conformance.architecture import all_plugins
from ostro.plugins.conformance.formats import (
    STD,
    assert_matches_dequantized,
    formats,
    sample_formats,
)

TEXT = list(b"\x01 hello, \x02 said the other")
TEXTS = torch.tensor([TEXT, [0] * len(TEXT)])
CODES = torch.randint(0, 32, (30, 4), generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dia(tmp_path_factory.mktemp("models") / "dia", WIDE, std=STD).folder


@torch.inference_mode()
def outputs(model: Any) -> list[Tensor]:
    """States of the encoder, and logits [n, places, channels, V] for given codes."""
    memory = model.cache_states(TEXTS, len(CODES), ROWS)
    logits = [model.logits(frame, memory, i, ROWS) for i, frame in enumerate(CODES)]
    return [model.model.encoder(TEXTS, ROWS), torch.stack(logits, 1)]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_quantized_models_match_dequantized_weights(folder: Path, every: bool) -> None:
    plugins: PluginManager = all_plugins()
    for format in formats(plugins) if every else sample_formats(plugins, "dia")[:1]:
        loaded = load_model(folder, Settings(dtype="float32", quant=format, exact=True), plugins)
        assert_matches_dequantized(
            loaded, plugins, format, lambda model=loaded.model: outputs(model)
        )
