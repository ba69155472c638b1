"""gpt-oss against transformers, also where its experts are stored as MXFP4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GptOssForCausalLM, Mxfp4Config

from ostro.core.errors import CheckpointError
from ostro.core.load.model import load_model
from ostro.core.settings import Settings
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject, deviation, greedy

ASKED = Settings(dtype="float32", device="cpu")


def pack(folder: Path, target: Path) -> None:
    """A checkpoint as the hub has them: other experts, of random bytes."""
    tensors, generator = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(0)
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            packed[name] = tensor
            continue
        experts, k, n = tensor.shape
        shape = (experts, n, k // 32)
        scales = torch.randint(122, 125, shape, generator=generator)
        blocks = torch.randint(0, 256, (*shape, 16), generator=generator)
        packed[f"{name}_scales"] = scales.to(torch.uint8)
        packed[f"{name}_blocks"] = blocks.to(torch.uint8)
    save_file(packed, target / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (target / "config.json").write_text(json.dumps(config))


class TestGptOss(ArchitectureTests):
    name = "gpt_oss"

    @pytest.fixture
    def packed(self, tiny: Subject, tmp_path: Path) -> Path:
        pack(tiny.folder, tmp_path)
        return tmp_path

    @torch.inference_mode()
    def test_mxfp4_equals_what_transformers_makes_of_it(self, tiny: Subject, packed: Path) -> None:
        unpacked: Any = GptOssForCausalLM.from_pretrained(
            packed, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.float32
        )
        truth = unpacked(torch.tensor([tiny.prompt])).logits[0]
        loaded = load_model(packed, ASKED, tiny.plugins)
        assert any("MXFP4: grouped by native" in line for line in loaded.explain)
        logits = tiny.engine(loaded).runner.logits(tiny.prompt)
        assert deviation(logits, truth) <= BAR
        assert deviation(logits, tiny.run_reference(tiny.prompt)) > BAR, "its experts are others"

    def test_mxfp4_in_ragged_batches(self, tiny: Subject, packed: Path) -> None:
        loaded = load_model(packed, ASKED, tiny.plugins)
        prompts = [tiny.prompt[:n] for n in (1, 7, 33)]
        together = greedy(tiny.engine(loaded, rows=20), prompts, 8)
        assert together == [greedy(tiny.engine(loaded), [prompt], 8)[0] for prompt in prompts]

    def test_published_configs_are_read(self, tiny: Subject) -> None:
        """The hub's say how the experts are stored, and more that is of no account here."""
        from ostro.architectures.gpt_oss.model import Config

        shape = dict(tiny.record.conformance.tiny or {})
        rule = dict(shape["rope_parameters"])
        stated = {
            "model_type": "gpt_oss",
            "experts_per_token": 3,
            "initial_context_length": 64,
            "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
            "rope_theta": rule.pop("rope_theta"),
            "rope_scaling": rule,
        }
        expected = Config.from_hf(shape)
        del shape["rope_parameters"]
        assert Config.from_hf({**shape, **stated}) == expected

    def test_mxfp4_without_scales_is_refused(self, tiny: Subject, packed: Path) -> None:
        tensors = load_file(packed / "model.safetensors")
        del tensors["model.layers.0.mlp.experts.down_proj_scales"]
        save_file(tensors, packed / "model.safetensors", {"format": "pt"})
        said = r"experts\.0\.down_proj consists of blocks \(U8\), which no installed format reads"
        with pytest.raises(CheckpointError, match=said):
            load_model(packed, ASKED, tiny.plugins)
