"""Multi-token heads in what `ostro quantize --speculate heads` writes.

`tests/peers/test_multi_token_files.py` compares GGUF files with those of llama.cpp's converter.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGUFReader
from tiny.drafts import requests_of, run
from tiny.heads import HEADS, deviation_of, record_proposals, with_head
from tiny.model import make_tokenizer

from ostro.core.load.model import load_model
from ostro.core.load.planning import plan_model
from ostro.core.load.saving import Saving
from ostro.core.nn import Linear
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.checkpoints.gguf.write import write_gguf
from ostro.plugins.checkpoints.uqff.save import save_uqff
from ostro.plugins.conformance.parity import BAR


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", HEADS)
def test_a_uqff_folder_has_the_head(name: str, plugins: PluginManager, tmp_path: Path) -> None:
    """Its weights are those of a head that is quantized at load."""
    settings = Settings(dtype="float32", device="cpu", speculate="heads")
    with with_head(plugins, name) as (tiny, _):
        quantizing = Settings(dtype="float32", device="cpu", speculate="heads", quant="q8_0")
        plan = plan_model(tiny.folder, quantizing, plugins)
        saving = Saving(plan, tmp_path / "uqff", "q8_0", plugins, None)
        folder = save_uqff(saving, lambda *step: None)
        written, wanted = (
            load_model(folder, settings, plugins),
            load_model(tiny.folder, quantizing, plugins),
        )
    formats = [
        {each.path: each.formats for each in loaded.layers if each.path.startswith("mtp.")}
        for loaded in (written, wanted)
    ]
    assert formats[0] == formats[1] and ("Q8_0",) in formats[0].values()
    for (path, ours), theirs in zip(
        written.model.mtp.named_modules(), wanted.model.mtp.modules(), strict=True
    ):
        for a, b in zip(ours.parameters(False), theirs.parameters(False), strict=True):
            assert torch.equal(a, b), path
        if isinstance(ours, Linear):
            for part, storage in ours.storages.items():
                assert torch.equal(storage.dequantize(), theirs.storages[part].dequantize()), path
    load_model(folder, Settings(dtype="float32", device="cpu"), plugins)


@pytest.mark.parametrize("name", ["qwen3_5", "glm4_moe"])
def test_a_gguf_file_has_the_head(name: str, plugins: PluginManager, tmp_path: Path) -> None:
    """As the layer after those of the model, which the file counts as well."""
    settings = Settings(dtype="float32", device="cpu", speculate="heads")
    shape = {**(plugins.get("architectures", name).conformance.tiny or {}), "vocab_size": 320}
    with with_head(plugins, name, shape) as (tiny, head):
        make_tokenizer().save(str(tiny.folder / "tokenizer.json"))
        plan = plan_model(tiny.folder, settings, plugins)
        file = write_gguf(Saving(plan, tmp_path, "", plugins, torch.float32), lambda *step: None)
        loaded = load_model(file, settings, plugins)
        engine = tiny.engine(loaded, rows=16, speculate="heads", max_seqs=4)
        proposals = record_proposals(engine)
        run(engine, requests_of(tiny))
        assert len(proposals) > 20 and deviation_of(tiny, head, proposals) <= BAR
        fields = GGUFReader(file).fields
        architecture = fields["general.architecture"].contents()
        layers = len(tiny.reference.model.layers)
        assert fields[f"{architecture}.block_count"].contents() == layers + 1
        assert fields[f"{architecture}.nextn_predict_layers"].contents() == 1
        tiny.engine(load_model(file, Settings(dtype="float32", device="cpu"), plugins))
