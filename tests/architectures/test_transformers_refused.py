"""Bodies: what they refuse, in whose words, and what a plugin may name as one."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers
from tiny.model import make_gguf, make_model

from ostro.core.engine.startup.build import build_engine
from ostro.core.errors import CheckpointError, ConfigError, OstroError, Unsupported
from ostro.core.errors import UnsupportedArchitecture as Unclaimed
from ostro.core.load.model import LoadedModel, load_model
from ostro.core.nn import Linear
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.entrypoints.cli.models import inventory
from ostro.plugins.conformance.parity import BAR, deviation

PROMPT = list(range(5, 45))
SHAPE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def save(folder: Path, name: str, **shape: Any) -> Path:
    """A checkpoint of a class of transformers."""
    cls = getattr(transformers, name)
    known = {k: v for k, v in SHAPE.items() if hasattr(cls.config_class(), k)}
    cls(cls.config_class(**{**known, **shape})).save_pretrained(folder)
    return folder


def load(folder: Path, plugins: PluginManager, **settings: Any) -> LoadedModel:
    return load_model(folder, Settings(**{"dtype": "float32", **settings}), plugins)


def logits(loaded: LoadedModel, plugins: PluginManager) -> torch.Tensor:
    engine = build_engine(loaded, Settings(), plugins, [], rows=64, block=16, blocks=16)
    return engine.runner.logits(PROMPT)


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 128,
}
REFUSED: Mapping[str, tuple[Mapping[str, Any], type[OstroError], str]] = {
    "MambaForCausalLM": ({"state_size": 8}, Unsupported, "other states than keys and values"),
    # its config.json holds {"__float__": "Infinity"}
    "FalconH1ForCausalLM": (
        {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8},
        Unsupported,
        "other states than keys and values",
    ),
    "T5ForConditionalGeneration": (
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
        Unsupported,
        "an encoder with a decoder",
    ),
    "BloomForCausalLM": ({"n_head": 4, "n_layer": 2}, Unsupported, "0 of its 2 layers attend"),
    "MptForCausalLM": (
        {"d_model": 64, "n_heads": 4, "n_layers": 2},
        Unsupported,
        "0 of its 2 layers attend",
    ),
    "GPTJForCausalLM": (
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8},
        Unsupported,
        "its attention does not use transformers' attention interface",
    ),
    "BertModel": ({}, Unsupported, "not a causal language model"),
    "DiffLlamaForCausalLM": ({}, Unsupported, "calls attention twice"),
    "Phi3ForCausalLM": (
        {"rope_parameters": LONGROPE, "pad_token_id": 0},
        Unsupported,
        "rope_type='longrope' depends on the longest text of a batch",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_class_that_cannot_be_a_body_is_refused(
    name: str, plugins: PluginManager, tmp_path: Path
) -> None:
    shape, error, words = REFUSED[name]
    with pytest.raises(error) as caught:
        load(save(tmp_path, name, **shape), plugins, arch="transformers")
    assert words in str(caught.value)
    assert error is not Unsupported or f"transformers' {name}" in str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path / "olmo", "OlmoForCausalLM")


def spoiled(folder: Path, **config: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "NobodyForCausalLM",
        "os:system",
        "transformers:OlmoForCausalLM",
        "models.olmo.modeling_olmo.OlmoForCausalLM",
        "",
    ],
)
def test_a_name_that_is_no_class_of_transformers(
    name: str, folder: Path, plugins: PluginManager
) -> None:
    assert load(folder, plugins).architecture.name == "transformers"
    spoiled(folder, architectures=[name])
    with pytest.raises(Unclaimed, match="no plugin claims the class"):
        load(folder, plugins)
    with pytest.raises(Unclaimed, match="has no class"):
        load(folder, plugins, arch="transformers")


@pytest.mark.parametrize("name", ["pipeline", "AutoModelForCausalLM", "OlmoConfig", "models"])
def test_a_thing_of_transformers_that_is_no_model(
    name: str, folder: Path, plugins: PluginManager
) -> None:
    with pytest.raises(Unclaimed, match="is not a model of transformers"):
        load(spoiled(folder, architectures=[name]), plugins)


def test_code_beside_a_checkpoint_is_not_run(folder: Path, plugins: PluginManager) -> None:
    (folder / "modeling_evil.py").write_text("raise SystemExit('it ran')")
    spoiled(folder, auto_map={"AutoModelForCausalLM": "modeling_evil.OlmoForCausalLM"})
    found = load(folder, plugins).config.body  # type: ignore[attr-defined]
    assert found is transformers.OlmoForCausalLM
    spoiled(folder, architectures=["EvilForCausalLM"])
    with pytest.raises(Unclaimed, match="'EvilForCausalLM'"):
        load(folder, plugins)


def test_special_floats_of_a_config_are_decoded(folder: Path, plugins: PluginManager) -> None:
    special = {"__float__": "-Infinity"}
    spoiled(folder, clip_qkv={"__float__": "Infinity"}, limits={"each": [0.5, special]})
    config: Any = load(folder, plugins).config
    assert config.hf.clip_qkv == math.inf and config.hf.limits == {"each": [0.5, -math.inf]}


def test_kernels_that_a_config_asks_for_are_left_out(folder: Path, plugins: PluginManager) -> None:
    evil = "kernels-community/evil"
    spoiled(folder, attn_implementation=evil, _attn_implementation=evil)
    spoiled(folder, _attn_implementation_internal=evil, experts_implementation=evil)
    config: Any = load(folder, plugins).config
    assert config.hf._attn_implementation == "ostro"


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ({"hidden_size": "many"}, ConfigError, "OlmoConfig rejects it"),
        ({"hidden_act": "no_such"}, Unsupported, "cannot be built from this config"),
        ({"num_hidden_layers": 10**6}, ConfigError, "has only"),
        ({"hidden_size": 2**20}, ConfigError, "too many"),
        ({"intermediate_size": 128}, CheckpointError, "has shape"),
        ({"num_hidden_layers": 1}, CheckpointError, "left over: model.layers.1."),
        ({"num_hidden_layers": 3}, CheckpointError, "missing: model.layers.2."),
    ],
)
def test_an_inconsistent_config_is_rejected(
    config: Mapping[str, Any],
    error: type[OstroError],
    words: str,
    folder: Path,
    plugins: PluginManager,
) -> None:
    with pytest.raises(error, match=words):
        load(spoiled(folder, **config), plugins)


def test_bodies_can_be_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTRO_DISABLE_PLUGINS", "architectures.transformers")
    manager = PluginManager()
    manager.load(Settings())
    with pytest.raises(Unclaimed, match="'OlmoForCausalLM'"):
        load(folder, manager)


WHEEL = '''
"""A wheel whose model is a class of transformers: one of the library's, and one of its own."""

from ostro import Architecture, hookimpl


@hookimpl
def ostro_architectures():
    names = {"names": "ostro.architectures.llama.names:names"}
    gguf = {"gguf_config": "ostro.architectures.llama.names:gguf_config"}
    yield Architecture(
        name="borrowed",
        api=(0, 2),
        config="transformers:LlamaConfig",
        model="transformers:LlamaForCausalLM",
        **names,
        **gguf,
    )
    yield Architecture(
        name="loris",
        api=(0, 2),
        classes=("LorisForCausalLM",),
        config="transformers:loris_of_a_test:LorisConfig",
        model="transformers:loris_of_a_test:LorisForCausalLM",
    )
'''
MODELING = """
from transformers import LlamaConfig, LlamaForCausalLM


class LorisConfig(LlamaConfig):
    model_type = "loris"


class LorisForCausalLM(LlamaForCausalLM):
    config_class = LorisConfig

    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.logits = out.logits * 3
        return out
"""


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginManager]:
    (tmp_path / "wheel").mkdir()
    (tmp_path / "wheel" / "loris_plugin_of_a_test.py").write_text(WHEEL)
    (tmp_path / "wheel" / "loris_of_a_test.py").write_text(MODELING)
    monkeypatch.syspath_prepend(str(tmp_path / "wheel"))
    manager = PluginManager()
    manager.load(Settings(), [tmp_path / "wheel" / "loris_plugin_of_a_test.py"])
    yield manager
    for name in ("loris_of_a_test", "loris_plugin_of_a_test"):
        sys.modules.pop(name, None)


def test_a_wheel_brings_a_class_of_its_own(wheel: PluginManager, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    plain = logits(load(folder, wheel), wheel)
    loris = load(spoiled(folder, architectures=["LorisForCausalLM"], model_type="loris"), wheel)
    line = "backend: transformers loris_of_a_test:LorisForCausalLM (the plugin of loris names it; "
    assert loris.explain[0].startswith(line)
    assert deviation(logits(loris, wheel), 3 * plain) <= BAR


def packed(add: Callable[..., None]) -> Callable[..., None]:
    """GGUFWriter.add_tensor, that packs matrices as Q8_0."""
    kind = gguf.GGMLQuantizationType.Q8_0

    def run(self: Any, name: str, data: Any) -> None:
        if data.ndim == 1 or data.shape[-1] % 32:
            add(self, name, data)
        else:
            add(self, name, gguf.quantize(data, kind), raw_dtype=kind)

    return run


def formats(loaded: LoadedModel) -> set[str]:
    return {m.whole.format for m in loaded.model.modules() if isinstance(m, Linear)}


def test_formats_work_in_a_body(
    wheel: PluginManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", packed(gguf.GGUFWriter.add_tensor))
    file = make_gguf(tmp_path / "tiny.gguf")
    ours, borrowed = load(file, wheel), load(file, wheel, arch="borrowed")
    assert "LlamaForCausalLM" in borrowed.explain[0]
    assert deviation(logits(borrowed, wheel), logits(ours, wheel)) <= BAR
    assert "Q8_0" in formats(borrowed) == formats(ours)


def test_the_list_of_models_says_which_body_serves_what(wheel: PluginManager) -> None:
    bodies = {row["name"]: row["body"] for row in inventory(wheel)["architectures"]}
    assert bodies["loris"] == bodies["borrowed"] == bodies["transformers"] == "transformers"
    assert bodies["llama"] == "ostro"
