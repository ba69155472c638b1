"""Mamba 2 adds its layers up in float32 where the config says so, whatever it computes in."""

from __future__ import annotations

import pytest
import torch

from ostro.architectures.mamba2.model import Block, Config, Norm
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.mutants import each
from ostro.plugins.conformance.parity import BAR, deviation, subject


@pytest.mark.parametrize("wide", [True, False])
def test_small_steps_are_lost_in_bfloat16_only(wide: bool, plugins: PluginManager) -> None:
    tiny = plugins.get("architectures", "mamba2").conformance.tiny
    norm = Norm(Config.from_hf({**tiny, "residual_in_fp32": wide}))
    _, residual = norm(torch.full((1, 64), 256.0, dtype=torch.bfloat16))
    for _ in range(8):
        y, residual = norm(torch.full((1, 64), 0.5, dtype=torch.bfloat16), residual)
    assert y.dtype == torch.bfloat16
    assert residual.dtype == (torch.float32 if wide else torch.bfloat16)
    assert residual.unique().item() == (260.0 if wide else 256.0)


@pytest.mark.parametrize("wide", [True, False])
def test_the_model_uses_the_residual_dtype(wide: bool, plugins: PluginManager) -> None:
    config = {**plugins.get("architectures", "mamba2").conformance.tiny, "residual_in_fp32": wide}
    with subject(plugins, "mamba2", config=config) as tiny:
        assert deviation(tiny.answer(tiny.engine()), tiny.expected) <= BAR
        loaded, seen = tiny.load(dtype="bfloat16"), set[torch.dtype]()

        def watch(block: Block) -> None:
            block.register_forward_hook(lambda *args: seen.add(args[2][1].dtype))

        each(loaded.model, Block, watch)
        logits = tiny.answer(tiny.engine(loaded, dtype="bfloat16")).float()
        assert seen == {torch.float32 if wide else torch.bfloat16}
        assert deviation(logits, tiny.expected) < 0.3
