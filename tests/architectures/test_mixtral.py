"""Mixtral against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from ostro.core.errors import CheckpointError, ConfigError
from ostro.core.load.experts import Expert, RowPart
from ostro.core.load.model import load_model
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject, deviation


class TestMixtral(ArchitectureTests):
    name = "mixtral"

    def test_names_of_transformers_5(self, tiny: Subject, tmp_path: Path) -> None:
        """Saved without the way back: the experts of a layer in one tensor."""
        tiny.reference.save_pretrained(tmp_path, save_original_format=False)
        asked = Settings(dtype="float32", device="cpu")
        loaded = load_model(tmp_path, asked, tiny.plugins)
        assert "model.layers.0.mlp.experts.gate_up_proj" in loaded.container.tensors
        logits = tiny.engine(loaded).runner.logits(tiny.prompt)
        assert deviation(logits, tiny.run_reference(tiny.prompt)) <= BAR

    def test_rows_are_reproducible(self, tiny: Subject) -> None:
        runner = tiny.engine(deterministic=True).runner
        whole = runner.logits(tiny.prompt)
        assert torch.equal(runner.logits(tiny.prompt, 1), whole)
        assert deviation(whole, tiny.run_reference(tiny.prompt)) <= BAR

    def test_experts_that_cannot_be(self, plugins: PluginManager) -> None:
        from ostro.architectures.mixtral.model import Config

        tiny = plugins.get("architectures", self.name).conformance.tiny
        with pytest.raises(ConfigError, match=r"num_experts_per_tok=9 is not within 1\.\.6"):
            Config.from_hf({**tiny, "num_experts_per_tok": 9})
        with pytest.raises(ConfigError, match=r"number of experts, 5000, is not within 1\.\.4096"):
            Config.from_hf({**tiny, "num_local_experts": 5000})

    def test_published_configs_are_read(self, plugins: PluginManager) -> None:
        """Mixtral 8x7B states a coefficient of its training."""
        from ostro.architectures.mixtral.model import Config

        tiny = plugins.get("architectures", self.name).conformance.tiny
        trained = {"model_type": "mixtral", "router_aux_loss_coef": 0.02, "sliding_window": None}
        assert Config.from_hf({**tiny, **trained}).window(0) == 0


STACK = torch.arange(24.0).view(3, 4, 2)


@pytest.mark.parametrize("index", range(3))
def test_an_expert_is_a_slice_of_its_stack(index: int) -> None:
    assert torch.equal(Expert(index, 3, None).read(STACK), STACK[index])
    assert torch.equal(Expert(index, 3, RowPart(1, 2)).read(STACK), STACK[index, 2:])


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (STACK[:2], r"shape \(2, 4, 2\) does not contain 3 experts"),
        (STACK[:, 0, 0], r"shape \(3,\) does not contain 3 experts"),
        (STACK[:, :3], "3 rows cannot be split into 2 equal parts"),
    ],
)
def test_stacks_of_other_shapes_are_refused(tensor: Tensor, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        Expert(0, 3, RowPart(0, 2)).read(tensor)
