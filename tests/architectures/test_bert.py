"""BERT, as an encoder and as a classifier, against transformers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, subject


class TestBert(ArchitectureTests):
    name = "bert"

    @pytest.mark.parametrize("name", ["bert", "bert_classifier", "xlm_roberta"])
    def test_norms_under_their_names_in_tensorflow(
        self, name: str, plugins: PluginManager, tmp_path: Path
    ) -> None:
        with subject(plugins, name) as tiny:
            shutil.copytree(tiny.folder, tmp_path, dirs_exist_ok=True)
            tensors = load_file(tmp_path / "model.safetensors")
            for old in [old for old in tensors if "LayerNorm" in old]:
                new = old.replace(".weight", ".gamma").replace(".bias", ".beta")
                tensors[new] = tensors.pop(old)
            assert any("gamma" in name for name in tensors)
            save_file(tensors, tmp_path / "model.safetensors")
            moved = replace(tiny, folder=tmp_path)
            assert moved.off(moved.engine()) <= BAR


class TestBertClassifier(ArchitectureTests):
    name = "bert_classifier"
