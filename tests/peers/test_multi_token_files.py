"""Multi-token heads in GGUF files of llama.cpp's converter: drafts are those of the reference.

The converter needs a checkout of llama.cpp, see `converter.py`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import GGUFReader
from tiny.drafts import requests_of, run
from tiny.heads import deviation_of, record_proposals, with_head

sys.path.append(str(Path(__file__).parent))

from conversions import CASES
from converter import CHECKOUT, convert, find_checkout, find_python

from ostro.core.load.model import load_model
from ostro.core.load.planning import plan_model
from ostro.core.load.saving import Saving
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.checkpoints.gguf.write import write_gguf
from ostro.plugins.conformance.parity import BAR

pytestmark = pytest.mark.peer

STATED = {"num_nextn_predict_layers": 1, "mtp_num_hidden_layers": 1}
NAMED = {
    "qwen3_next": "qwen3 next, no mtp",
    "qwen3_5": "qwen3.5",
    "qwen3_5_moe": "qwen3.5 moe",
    "qwen3_5_vl": "text of qwen3.5 vl",
    "glm4_moe": "glm4 moe, mtp",
    "glm4_moe_lite": "glm4 moe lite",
}
"""The cases of the converter by architecture. It drops the head of DeepSeek-V3."""

COPIES = ("nextn.embed_tokens.weight", "nextn.shared_head_head.weight")


@pytest.mark.parametrize("name", NAMED)
def test_heads_of_converted_files(name: str, plugins: PluginManager, tmp_path: Path) -> None:
    """`ostro quantize --speculate heads` writes the same tensors, and as many layers."""
    checkout = find_checkout(None)
    if checkout is None:
        pytest.skip(f"{CHECKOUT} names no checkout of llama.cpp")
    case, file = replace(CASES[NAMED[name]], change=None), tmp_path / "model.gguf"
    settings = Settings(dtype="float32", device="cpu", speculate="heads")
    with with_head(plugins, name, case.shape(plugins)) as (tiny, head):
        case.prepare(tiny)
        config = tiny.folder / "config.json"
        stated = json.loads(config.read_text())
        inner = stated.get("text_config", stated)
        inner.update(STATED)
        config.write_text(json.dumps(stated))
        convert(tiny.folder, file, checkout, find_python())
        plan = plan_model(tiny.folder, settings, plugins)
        saving = Saving(plan, tmp_path / "written", "", plugins, torch.float32)
        written = write_gguf(saving, lambda *step: None)
        for each in (file, written):
            engine = tiny.engine(
                load_model(each, settings, plugins), rows=16, speculate="heads", max_seqs=4
            )
            proposals = record_proposals(engine)
            run(engine, requests_of(tiny))
            assert len(proposals) > 20
            assert deviation_of(tiny, head, proposals) <= BAR
    assert facts(file) == facts(written)


def facts(file: Path) -> tuple[list[int], list[str]]:
    """The numbers of layers, in all and of heads, and the names of the tensors of a file, without
    the copies of the embedding and the output head.
    """
    reader = GGUFReader(file)
    architecture = reader.fields["general.architecture"].contents()
    counts = [
        reader.fields[f"{architecture}.{key}"].contents()
        for key in ("block_count", "nextn_predict_layers")
    ]
    names = {tensor.name for tensor in reader.tensors}
    return counts, sorted(name for name in names if not name.endswith(COPIES))
