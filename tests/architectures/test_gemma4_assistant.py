"""Gemma 4's assistants: their files and configs, and the models that they are refused for.

`tests/core/engine/proposers/test_assistant.py` compares their drafts with transformers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny.assistants import ORDERED, Pair, assistant_of
from tiny.drafts import requests_of, run, speculation_of

from ostro.architectures.gemma4.config import Config as TargetConfig
from ostro.architectures.gemma4_assistant.config import Config
from ostro.architectures.gemma4_assistant.model import Model, OrderedEmbedding
from ostro.core.errors import CheckpointError, ConfigError, Unsupported
from ostro.core.load.model import load_model
from ostro.core.load.weights import weight_slots
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.core.step import ROWS
from ostro.entrypoints.open import find_model
from ostro.plugins.conformance.names import fault_of
from ostro.plugins.conformance.parity import Subject, subject


@pytest.fixture(scope="module")
def target(plugins: PluginManager) -> Iterator[Subject]:
    with subject(plugins, "gemma4") as tiny:
        yield tiny


@pytest.fixture(scope="module")
def folder(target: Subject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("assistant")
    assistant_of(target.reference, folder, **ORDERED)
    return folder


@pytest.fixture
def config(folder: Path) -> dict[str, Any]:
    stated: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return stated


def test_every_weight_has_a_name(folder: Path, plugins: PluginManager) -> None:
    loaded = load_model(folder, Settings(device="cpu"), plugins)
    written = {slot.name: fault_of(loaded.names, slot) for slot in weight_slots(loaded.model)}
    assert "masked_embedding.token_ordering" in written and not any(written.values())


def test_configs_of_older_versions(
    target: Subject, folder: Path, config: dict[str, Any], tmp_path: Path
) -> None:
    """Published files have the heads of layers without a window in fields of their own."""
    text = config["text_config"]
    [heads] = text.pop("per_layer_config").values()
    text |= {"global_head_dim": heads["head_dim"], "num_global_key_value_heads": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(folder / "model.safetensors", tmp_path)
    engine = Pair(target, None, tmp_path).engine()
    run(engine, requests_of(target))
    assert speculation_of(engine).drafted


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"enable_moe_block": True}, "enable_moe_block=True is not implemented for assistants"),
        ({"use_double_wide_mlp": True}, "use_double_wide_mlp=True is not implemented"),
        (
            {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 128},
            "hidden_size_per_layer_input=8 is not implemented",
        ),
        ({"sliding_window": 1}, "sliding_window=1 is not above 1"),
        ({"backbone_hidden_size": 0}, "backbone_hidden_size=0 is not within"),
        ({"num_centroids": 0}, "num_centroids=0 is not within"),
        ({"num_centroids": 15}, "num_centroids=15 is no divisor of vocab_size=128"),
        ({"num_centroids": 4}, "below centroid_intermediate_top_k=5"),
        ({"tie_word_embeddings": False}, "use_ordered_embeddings=true needs tie_word_embeddings"),
        ({"text_config": []}, r"text_config=\[\] is not an object"),
        ({"per_layer_config": {"2": {"head_dim": 31}}}, "layer 2 has 2 key heads of size 31"),
    ],
)
def test_configs_that_are_refused(
    config: dict[str, Any], fields: dict[str, Any], fault: str
) -> None:
    Config.from_hf(config)
    if "text_config" not in fields:
        config["text_config"] |= fields
    with pytest.raises(ConfigError, match=fault):
        Config.from_hf(config | fields)


def test_clusters_are_not_checked_without_them(config: dict[str, Any]) -> None:
    own = {"use_ordered_embeddings": False, "num_centroids": 15, "tie_word_embeddings": False}
    assert not Config.from_hf(config | own).tie_word_embeddings


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"hidden_size": 96}, "they have hidden_size=64, and this one has 96"),
        ({"vocab_size": 120}, "they have vocab_size=128, and this one has 120"),
        ({"sliding_window": 9}, "they have sliding_window=8, and this one has 9"),
        ({"head_dim": 8}, "its layer 0 reads keys and values of another shape"),
        ({"per_layer_config": {"2": {"head_dim": 16}}}, "its layer 2 reads keys and values"),
        ({"layer_types": ("full_attention",) * 6}, "its layer 0 reads keys and values"),
    ],
)
def test_targets_of_another_shape_are_refused(
    target: Subject, config: dict[str, Any], fields: dict[str, Any], fault: str
) -> None:
    own, other = Config.from_hf(config), target.config
    assert isinstance(other, TargetConfig) and own.sources(other) == [1, 1, 2]
    with pytest.raises(ConfigError, match=fault):
        own.sources(replace(other, **fields))


def test_an_assistant_cannot_be_served_on_its_own(folder: Path, plugins: PluginManager) -> None:
    with pytest.raises(Unsupported, match="-m MODEL --speculate ASSISTANT"):
        find_model(Settings(reference=str(folder)), plugins)


def test_an_assistant_that_lacks_a_tensor_is_refused(
    target: Subject, folder: Path, tmp_path: Path
) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["post_projection.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(CheckpointError, match="missing: post_projection"):
        Pair(target, None, tmp_path).engine()


def test_an_ordering_with_ids_out_of_range_gives_tokens(
    folder: Path, plugins: PluginManager
) -> None:
    """An index out of range would end all work on a GPU."""
    model = load_model(folder, Settings(device="cpu"), plugins).model
    assert isinstance(model, Model) and isinstance(model.masked_embedding, OrderedEmbedding)
    model.masked_embedding.token_ordering[::2] = 2**40
    model.masked_embedding.token_ordering[1::2] = -5
    hidden = torch.randn(3, model.config.hidden_size)
    with torch.inference_mode():
        found = model.masked_embedding.most_likely(hidden, model.model.embed_tokens, ROWS)
    assert {*found.tolist()} <= {0, 127}
