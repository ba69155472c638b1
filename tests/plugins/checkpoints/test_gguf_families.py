"""Families without an architecture of GGUF files of their own are written as that of another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from tiny.model import make_tokenizer

from ostro.core.load.model import load_model
from ostro.core.load.planning import plan_model
from ostro.core.load.saving import Saving
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.checkpoints.gguf.write import write_gguf
from ostro.plugins.conformance.parity import BAR, deviation, subject

FAMILIES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "internlm3": ("llama", {"mlp_bias": False, "attention_bias": False}),
    "bamba": ("granitehybrid", {"mamba_proj_bias": False, "time_step_limit": [0.0, float("inf")]}),
    "xlm_roberta": ("bert", {"pad_token_id": 1}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_written_as_another(name: str, plugins: PluginManager, tmp_path: Path) -> None:
    architecture, changes = FAMILIES[name]
    tiny_config = plugins.get("architectures", name).conformance.tiny
    config = {**(tiny_config or {}), "vocab_size": 320, **changes}
    with subject(plugins, name, config=config) as tiny:
        make_tokenizer().save(str(tiny.folder / "tokenizer.json"))
        found = plan_model(tiny.folder, Settings(device="cpu"), plugins)
        file = write_gguf(Saving(found, tmp_path, "", plugins, torch.float32), lambda *step: None)
        stated = GGUFReader(file).fields["general.architecture"].contents()
        assert stated == architecture
        loaded = load_model(file, Settings(dtype="float32", device="cpu"), plugins)
        assert architecture in loaded.architecture.gguf
        engine = tiny.engine(loaded)
        if tiny.decodes:
            logits = engine.runner.logits(tiny.prompt)
            assert deviation(logits, tiny.run_reference(tiny.prompt)) <= BAR
        else:
            assert deviation(tiny.answer(engine), tiny.expected) <= BAR
