"""ModernBERT, as an encoder and as a classifier, against transformers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers

from ostro.architectures.modernbert import TINY
from ostro.architectures.modernbert.model import FULL, SLIDING, Config
from ostro.core.errors import ConfigError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, deviation, encode, subject

BIASES = dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True)


class TestModernBert(ArchitectureTests):
    name = "modernbert"

    def test_biases(self, plugins: PluginManager) -> None:
        with subject(plugins, "modernbert", config={**TINY, **BIASES}) as tiny:
            assert tiny.off(tiny.engine()) <= BAR

    def test_published_config(self, plugins: PluginManager) -> None:
        """Published files have the thetas at the top, and the period of the full layers."""
        with subject(plugins, "modernbert") as tiny:
            file = tiny.folder / "config.json"
            absent = ("rope_parameters", "layer_types")
            raw = {k: v for k, v in json.loads(file.read_text()).items() if k not in absent}
            published = {
                "global_attn_every_n_layers": 3,
                "global_rope_theta": 160000.0,
                "local_rope_theta": 10000.0,
                "reference_compile": True,
                "position_embedding_type": "absolute",
                "layer_norm_eps": 1e-5,
                "sparse_prediction": True,
            }
            file.write_text(json.dumps(raw | published))
            assert tiny.off(tiny.engine()) <= BAR

    def test_masked_language_model(self, plugins: PluginManager) -> None:
        """The encoder is below `model`, beside the head of masked tokens."""
        torch.manual_seed(0)
        config = transformers.ModernBertConfig(**TINY)
        reference = transformers.ModernBertForMaskedLM(config).eval()
        with subject(plugins, "modernbert") as tiny, torch.inference_mode():
            (tiny.folder / "model.safetensors").unlink()
            reference.save_pretrained(tiny.folder)
            got = encode(tiny.engine(), [tiny.prompt], [tiny.kinds])
            out = reference.model(torch.tensor([tiny.prompt])).last_hidden_state[0]
            assert deviation(got, out) <= BAR


class TestModernBertClassifier(ArchitectureTests):
    name = "modernbert_classifier"

    def test_first_state_and_biases(self, plugins: PluginManager) -> None:
        shape = {**TINY, **BIASES, "classifier_pooling": "cls", "num_labels": 3}
        with subject(plugins, "modernbert_classifier", config=shape) as tiny:
            assert tiny.off(tiny.engine()) <= BAR


def test_windows_without_a_theta_have_that_of_the_full_layers() -> None:
    raw = {**TINY, "global_rope_theta": 5e4, "local_rope_theta": None}
    rules = Config.from_hf(raw).rope_parameters
    assert rules[FULL]["rope_theta"] == rules[SLIDING]["rope_theta"] == 5e4


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"local_attention": -1}, "local_attention=-1"),
        ({"local_attention": 0}, "local_attention=0"),
        ({"local_attention": "wide"}, "local_attention='wide'"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers=0"),
        ({"norm_eps": -1.0}, "norm_eps=-1.0"),
        ({"norm_eps": 10**400}, "norm_eps=inf"),
        ({"norm_bias": "no"}, "norm_bias='no'"),
        ({"mlp_bias": 1}, "mlp_bias=1"),
        ({"classifier_bias": 1}, "classifier_bias=1"),
        ({"classifier_pooling": "max"}, "classifier_pooling='max'"),
        ({"classifier_activation": "sine"}, "classifier_activation='sine'"),
        ({"layer_types": [FULL]}, "layer_types lists 1"),
        ({"layer_types": ["chunked"] * 4}, "layer_types contains 'chunked'"),
        ({"layer_types": [7] * 4}, "layer_types"),
        ({"num_labels": 0}, "num_labels=0"),
        ({"id2label": [1]}, "id2label="),
        ({"global_rope_theta": -1.0}, "rope_theta=-1.0"),
        ({"local_rope_theta": "far"}, "rope_theta='far'"),
        ({"rope_parameters": 7}, "rope_parameters=7"),
        ({"rope_parameters": {SLIDING: 7}}, "sliding_attention=7"),
        ({"rope_scaling": [1]}, "rope_scaling="),
    ],
)
def test_hostile_config(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Config.from_hf({**TINY, **changes})
