"""Starting engines: embedding models are checked and warmed up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny.bert import make_bert

from ostro.core.engine import runner
from ostro.core.engine.start import open_engine
from ostro.core.errors import CheckpointError
from ostro.core.ipc.messages import ModelSpec
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings

ENCODER = "encoder.layer.0.output.dense.weight"


def opened(folder: Path, plugins: PluginManager) -> Any:
    spec = ModelSpec(Settings(reference=str(folder), dtype="float32", threads=1))
    return open_engine([spec], plugins, lambda what, done, total: None)[0]


def test_an_embedding_model_whose_vectors_are_nan_is_refused(
    tmp_path: Path, plugins: PluginManager
) -> None:
    make_bert(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors[ENCODER][3, 3] = torch.nan
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match="NaN or Inf; its weights are damaged"):
        opened(tmp_path, plugins)


def test_an_embedding_model_computes_before_it_is_ready(
    tmp_path: Path, plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bert(tmp_path)
    lengths = list[int]()
    hidden = runner.ModelRunner.hidden

    def note(self: Any, inputs: Any, *arguments: Any) -> Any:
        lengths.extend(len(ids) for ids in inputs)
        return hidden(self, inputs, *arguments)

    monkeypatch.setattr(runner.ModelRunner, "hidden", note)
    engine = opened(tmp_path, plugins)
    assert lengths == [2, 17]
    assert not engine.busy and engine.stats().blocks_used == 0
    engine.close()
