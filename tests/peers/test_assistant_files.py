"""Gemma 4's assistants in GGUF files of llama.cpp's converter and of `ostro quantize`: drafts are
those of the reference.

The converter needs a checkout of llama.cpp, see `converter.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny.assistants import ORDERED, Pair, assistant_of, record_proposals
from tiny.drafts import requests_of, run

sys.path.append(str(Path(__file__).parent))

from conversions import CASES, TOKENIZERS
from converter import CHECKOUT, convert, find_checkout, find_python

from ostro.core.load.model import LoadedModel, load_model
from ostro.core.load.planning import plan_model
from ostro.core.load.saving import Saving
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.checkpoints.gguf.write import write_gguf
from ostro.plugins.conformance.parity import BAR, subject

pytestmark = pytest.mark.peer


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("name", ["gemma4", "gemma4, experts"])
def test_assistants_in_converted_files(
    name: str, ordered: bool, plugins: PluginManager, tmp_path: Path
) -> None:
    """The converter drops the clusters of ordered embeddings: all logits are computed."""
    checkout = find_checkout(None)
    if checkout is None:
        pytest.skip(f"{CHECKOUT} names no checkout of llama.cpp")
    case, folder = CASES[name], tmp_path / "assistant"
    with subject(plugins, case.name, config=case.shape(plugins)) as tiny:
        case.prepare(tiny)
        assistant = assistant_of(tiny.reference, folder, **(ORDERED if ordered else {}))
        TOKENIZERS[case.tokenizer](folder)
        files = [tmp_path / "target.gguf", tmp_path / "assistant.gguf"]
        for source, file in zip((tiny.folder, folder), files, strict=True):
            convert(source, file, checkout, find_python())
        settings = Settings(dtype="float32", device="cpu", arch=case.asked)
        target = load_model(files[0], settings, plugins)
        assistant.config.use_ordered_embeddings = False
        check(Pair(tiny, assistant, files[1]), target)


@pytest.mark.parametrize("fields", [{}, ORDERED])
@pytest.mark.parametrize("name", ["gemma4", "gemma4, experts"])
def test_assistants_in_written_files(
    name: str, fields: dict[str, Any], plugins: PluginManager, tmp_path: Path
) -> None:
    """They contain the clusters."""
    case, folder = CASES[name], tmp_path / "assistant"
    with subject(plugins, case.name, config=case.shape(plugins)) as tiny:
        assistant = assistant_of(tiny.reference, folder, **fields)
        TOKENIZERS[case.tokenizer](folder)
        plan = plan_model(folder, Settings(device="cpu"), plugins)
        file = write_gguf(Saving(plan, tmp_path, "", plugins, torch.float32), lambda *step: None)
        check(Pair(tiny, assistant, file), tiny.load())


def check(pair: Pair, target: LoadedModel) -> None:
    """Compare the drafts of an engine of `target` with the reference."""
    engine = pair.engine(target)
    proposals = record_proposals(engine)
    run(engine, requests_of(pair.tiny))
    assert len(proposals) > 20 and pair.off(proposals) <= BAR
