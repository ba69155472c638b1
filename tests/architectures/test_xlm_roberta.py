"""XLM-RoBERTa, as an encoder and as a classifier, against transformers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ostro.architectures.xlm_roberta import TINY
from ostro.architectures.xlm_roberta.model import Config
from ostro.core.errors import ConfigError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, deviation, encode, subject


class TestXlmRoberta(ArchitectureTests):
    name = "xlm_roberta"

    def test_one_token_type(self, plugins: PluginManager) -> None:
        """Published models have one type, also for the second text of a pair."""
        with subject(plugins, "xlm_roberta", config={**TINY, "type_vocab_size": 1}) as tiny:
            got = encode(tiny.engine(), [tiny.prompt], [tiny.kinds])
            assert deviation(got, tiny.run_reference(tiny.prompt)) <= BAR

    @pytest.mark.parametrize("name", ["Roberta", "Camembert"])
    def test_other_families(self, name: str, plugins: PluginManager) -> None:
        """Their masked language models store the encoder below `roberta`, and a head."""
        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(**TINY)
        reference = getattr(transformers, f"{name}ForMaskedLM")(config).eval()
        with subject(plugins, "xlm_roberta") as tiny, torch.inference_mode():
            (tiny.folder / "model.safetensors").unlink()
            reference.save_pretrained(tiny.folder)
            got = encode(tiny.engine(), [tiny.prompt], [tiny.kinds])
            kinds = torch.tensor([tiny.kinds])
            out = reference.roberta(torch.tensor([tiny.prompt]), token_type_ids=kinds)
            assert deviation(got, out.last_hidden_state[0]) <= BAR

    def test_position_ids_in_a_file_are_unused(self, plugins: PluginManager) -> None:
        """Files of older versions store them."""
        with subject(plugins, "xlm_roberta") as tiny:
            file = tiny.folder / "model.safetensors"
            more = {"embeddings.position_ids": torch.arange(96)[None]}
            save_file(load_file(file) | more, file, {"format": "pt"})
            assert tiny.off(tiny.engine()) <= BAR

    def test_context(self, plugins: PluginManager) -> None:
        """The context ends where the positions do."""
        with subject(plugins, "xlm_roberta") as tiny:
            engine = tiny.engine()
            assert engine.context == 96 - 8
            tokens = [100] * engine.context
            got = encode(engine, [tokens], [[0] * len(tokens)])
            assert deviation(got, tiny.run_reference(tokens)) <= BAR


class TestXlmRobertaClassifier(ArchitectureTests):
    name = "xlm_roberta_classifier"

    def test_published_reranker(self, plugins: PluginManager) -> None:
        """A reranker has one label, which config.json names."""
        with subject(plugins, "xlm_roberta_classifier", config={**TINY, "num_labels": 1}) as tiny:
            file = tiny.folder / "config.json"
            raw = json.loads(file.read_text()) | {"position_embedding_type": "absolute"}
            file.write_text(json.dumps(raw))
            assert raw["id2label"] == {"0": "LABEL_0"}
            expected = tiny.run_reference(tiny.prompt, tiny.kinds)
            got = encode(tiny.engine(), [tiny.prompt], [tiny.kinds])
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"pad_token_id": -1}, "pad_token_id=-1"),
        ({"pad_token_id": 128}, "pad_token_id=128"),
        ({"pad_token_id": 2**40}, "pad_token_id="),
        ({"pad_token_id": "one"}, "pad_token_id='one'"),
        ({"pad_token_id": 95}, "leaves no position after pad_token_id=95"),
        ({"max_position_embeddings": 8}, "max_position_embeddings=8 leaves no position"),
        ({"max_position_embeddings": "many"}, "max_position_embeddings='many'"),
        ({"type_vocab_size": 0}, "type_vocab_size=0"),
        ({"type_vocab_size": -2}, "type_vocab_size=-2"),
        ({"layer_norm_eps": -1.0}, "layer_norm_eps=-1.0"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
    ],
)
def test_hostile_config(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Config.from_hf({**TINY, **changes})
