"""Starting engines: embedding models are checked and warmed up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny.bert import make_bert
from tiny.model import make_model

from ostro.core.engine import runner
from ostro.core.engine.startup.start import open_engine
from ostro.core.errors import CheckpointError
from ostro.core.load import describe
from ostro.core.load.describe import choose_dtype
from ostro.core.messages.commands import ModelSpec
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings

ENCODER = "encoder.layer.0.output.dense.weight"


def spec(folder: Path, dtype: str = "float32") -> ModelSpec:
    return ModelSpec(Settings(reference=str(folder), dtype=dtype, threads=1))


def opened(folder: Path, plugins: PluginManager) -> Any:
    return open_engine([spec(folder)], plugins, lambda what, done, total: None)[0]


def change_json(file: Path, **keys: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))


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


def test_auto_takes_float32_for_a_model_that_overflows_in_float16(
    tmp_path: Path,
    plugins: PluginManager,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On a GPU without bfloat16: a text model, an encoder, models that do not overflow."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    gpu = torch.device("cuda", 0)
    on_gpu = lambda name, raw, files, _: choose_dtype(name, raw, files, gpu)  # noqa: E731
    monkeypatch.setattr(describe, "choose_dtype", on_gpu)
    folders = {name: tmp_path / name for name in ("text", "encoder", "fits", "vectors fit")}
    for name, make in zip(folders, (make_model, make_bert) * 2, strict=True):
        make(folders[name])
    wide = {"text": "model.layers.0.mlp.down_proj.weight", "encoder": ENCODER}
    for name, tensor in wide.items():
        file = folders[name] / "model.safetensors"
        tensors = load_file(file)
        tensors[tensor] *= 1e6
        save_file({key: value.bfloat16() for key, value in tensors.items()}, file, {"format": "pt"})
        change_json(folders[name] / "config.json", dtype="bfloat16", torch_dtype="bfloat16")
    for name, folder in folders.items():
        caplog.clear()
        engine, _ = open_engine([spec(folder, "auto")], plugins, lambda what, done, total: None)
        [entry] = engine.entries.values()
        assert entry.loaded is not None
        overflows = name in wide
        assert entry.loaded.dtype == (torch.float32 if overflows else torch.float16)
        notices = [each for each in caplog.messages if "computed in float32" in each]
        assert len(notices) == overflows, notices
        engine.close()
        if overflows:
            with pytest.raises(CheckpointError, match="float16 overflows"):
                open_engine([spec(folder, "float16")], plugins, lambda what, done, total: None)


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
