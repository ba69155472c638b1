"""Decoders with a head of label scores against transformers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from ostro.architectures.sequence_classification import SHAPES
from ostro.architectures.sequence_classification.model import (
    LlamaConfig,
    Qwen2Config,
    RerankerConfig,
    RewardConfig,
)
from ostro.core.errors import ConfigError, UnsupportedArchitecture
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import encode, subject


class TestLlamaClassifier(ArchitectureTests):
    name = "llama_classifier"

    def test_trailing_padding_is_not_the_last_token(self, plugins: PluginManager) -> None:
        shape = {**SHAPES["Llama"][0], "num_labels": 3, "pad_token_id": 5}
        with subject(plugins, "llama_classifier", config=shape) as tiny:
            texts = [[9, 8, 7, 5, 5], [5, 5], [5, 9], [9, 5, 8]]
            got = encode(tiny.engine(), texts, [[0] * len(text) for text in texts])
            expected = torch.cat([tiny.run_reference(text) for text in texts])
            torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)

    def test_one_label(self, plugins: PluginManager) -> None:
        """Published reward models name one label."""
        shape = {**SHAPES["Llama"][0], "num_labels": 1}
        with subject(plugins, "llama_classifier", config=shape) as tiny:
            assert json.loads((tiny.folder / "config.json").read_text())["id2label"] == {
                "0": "LABEL_0"
            }
            got = encode(tiny.engine(), [tiny.prompt], [tiny.kinds])
            expected = tiny.run_reference(tiny.prompt)
            torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)


class TestMistralClassifier(ArchitectureTests):
    name = "mistral_classifier"


class TestQwen2Classifier(ArchitectureTests):
    name = "qwen2_classifier"


class TestQwen3Classifier(ArchitectureTests):
    name = "qwen3_classifier"


class TestGemmaClassifier(ArchitectureTests):
    name = "gemma_classifier"


class TestQwen2Reward(ArchitectureTests):
    name = "qwen2_reward"

    def test_published_config(self, plugins: PluginManager) -> None:
        """Without labels in config.json, a reward model has one score."""
        shape = {**SHAPES["Qwen2"][0], "num_labels": 1}
        with subject(plugins, "qwen2_reward", config=shape) as tiny:
            file = tiny.folder / "config.json"
            raw = json.loads(file.read_text())
            file.write_text(json.dumps({k: v for k, v in raw.items() if "label" not in k}))
            got = encode(tiny.engine(), [tiny.prompt], [tiny.kinds])
            expected = tiny.run_reference(tiny.prompt)
            torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)

    def test_process_reward_models_are_refused(self, plugins: PluginManager) -> None:
        """They score the rows of a separator token, as many as an answer has steps."""
        classes = ["Qwen2ForProcessRewardModel"]
        with pytest.raises(UnsupportedArchitecture, match="the class 'Qwen2ForProcessRewardModel'"):
            plugins.architecture_for(classes)
        for config in (RewardConfig, Qwen2Config):
            with pytest.raises(ConfigError, match="Qwen2ForProcessRewardModel scores every row"):
                config.from_hf({**SHAPES["Qwen2"][0], "architectures": classes})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_labels": -1}, "num_labels=-1"),
        ({"num_labels": "three"}, "num_labels='three'"),
        ({"num_labels": True}, "num_labels=True"),
        ({"num_labels": 2**40}, "num_labels="),
        ({"id2label": ["a", "b"]}, "id2label="),
        ({"id2label": 7}, "id2label=7"),
        ({"pad_token_id": "none"}, "pad_token_id='none'"),
    ],
)
def test_hostile_config(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        LlamaConfig.from_hf({**SHAPES["Llama"][0], **changes})


class TestQwen3Reranker(ArchitectureTests):
    name = "qwen3_reranker"


@pytest.mark.parametrize(
    "ids",
    [[], [3], [3, 3], [3, 7, 9], [-1, 3], [3, 1 << 40], "no", ["no", "yes"], None, 3, [True, 3]],
)
def test_hostile_label_tokens(ids: Any) -> None:
    with pytest.raises(ConfigError, match="label_token_ids"):
        RerankerConfig.from_hf({**SHAPES["Qwen3"][0], "label_token_ids": ids})


def test_label_tokens_outside_of_the_vocabulary() -> None:
    with pytest.raises(ConfigError, match=r"label_token_ids=\(2152, 9693\)"):
        RerankerConfig.from_hf(SHAPES["Qwen3"][0])
