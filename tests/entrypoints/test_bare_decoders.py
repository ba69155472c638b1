"""Decoders without a head, as transformers' AutoModel saves them: they embed only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny.model import make_tokenizer

import ostro
from ostro.core.engine.startup.build import build_engine
from ostro.core.errors import CheckpointError, OstroError, UsageError
from ostro.core.load.model import load_model
from ostro.core.load.planning import plan_model
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.entrypoints.merge import Merged
from ostro.entrypoints.python.load import load_text
from ostro.plugins.checkpoints.safetensors.write import write_safetensors
from ostro.plugins.conformance.parity import BAR, deviation, encode, reinitialise

TEXTS = ["hello world", "a", "hello hello hello world"]
PROMPT = list(range(5, 45))
ARCH = {"gemma3": "gemma3"}  # EmbeddingGemma claims its class
POOLING = {"word_embedding_dimension": 64, "pooling_mode_lasttoken": True}


def make_bare(folder: Path, name: str, plugins: PluginManager, **changes: Any) -> Any:
    """Save the bare decoder of an architecture's tiny config, with a tokenizer."""
    record = plugins.get("architectures", name)
    tested = record.conformance
    cls = getattr(transformers, tested.reference.removeprefix("transformers:"))
    config = cls.config_class(**deepcopy({**tested.tiny, "pad_token_id": 0, **changes}))
    decoder = cls(config).base_model.eval().float()
    reinitialise(decoder, 0.1)
    decoder.save_pretrained(folder)
    return decoder


def bare_families() -> Iterator[str]:
    """The decoders whose reference is a class of transformers with a base model of its own."""
    manager = PluginManager()
    manager.load(Settings())
    for name, record in manager.collect("architectures").items():
        tested = record.conformance
        if {*record.tasks} >= {"text", "embed"} and not tested.examples and record.classes:
            if (tested.reference or "").startswith("transformers:"):
                yield name


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", list(bare_families()))
@torch.inference_mode()
def test_its_states_are_those_of_automodel(
    name: str, plugins: PluginManager, tmp_path: Path
) -> None:
    decoder = make_bare(tmp_path, name, plugins)
    loaded = load_model(tmp_path, Settings(dtype="float32", arch=ARCH.get(name)), plugins)
    assert "embed" in loaded.architecture.tasks
    engine = build_engine(loaded, Settings(), plugins, [], rows=64, block=16, blocks=16)
    states = encode(engine, [PROMPT], [[0] * len(PROMPT)])
    expected = decoder(torch.tensor([PROMPT])).last_hidden_state[0]
    assert deviation(states, expected) <= BAR


@pytest.fixture
def embedder(plugins: PluginManager, tmp_path: Path) -> tuple[Path, Any]:
    """An embedding model as sentence-transformers saves it, and its decoder."""
    decoder = make_bare(tmp_path, "mistral", plugins, vocab_size=320)
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(POOLING))
    listed = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    return tmp_path, decoder


def states(decoder: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = decoder(torch.tensor([tokens])).last_hidden_state[0]
    return found


def change(folder: Path, prefix: str = "", head: bool = False, **config: Any) -> None:
    """Rename the tensors of a folder, add a head, and change its config."""
    file = folder / "model.safetensors"
    tensors = {prefix + name: tensor for name, tensor in load_file(file).items()}
    if head:
        tensors["lm_head.weight"] = tensors[f"{prefix}embed_tokens.weight"] * 2
    save_file(tensors, file, {"format": "pt"})
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | config))


def test_its_vectors_are_the_last_states(embedder: tuple[Path, Any]) -> None:
    folder, decoder = embedder
    with ostro.load(folder, dtype="float32") as model:
        assert model.tasks == ("embed",)
        for text, vector in zip(TEXTS, model.embed(TEXTS), strict=True):
            last = states(decoder, model.tokenizer.encode(text))[-1]
            torch.testing.assert_close(vector, last, atol=1e-4, rtol=1e-4)
        with pytest.raises(UsageError, match="supports embed"):
            model.generate("hello")


def test_text_is_refused(embedder: tuple[Path, Any], plugins: PluginManager) -> None:
    with pytest.raises(UsageError, match="does not generate text: it supports embed"):
        load_text(Settings(reference=str(embedder[0])))
    with pytest.raises(UsageError, match="--task 'text': mistral supports embed"):
        load_model(embedder[0], Settings(task="text"), plugins)


@pytest.mark.parametrize(
    ("prefix", "classes"),
    [("model.", "MistralModel"), ("", "MistralForCausalLM"), ("", "MistralModel")],
)
def test_the_class_or_the_names_lack_the_head(
    prefix: str, classes: str, embedder: tuple[Path, Any], plugins: PluginManager, tmp_path: Path
) -> None:
    folder, decoder = embedder
    change(folder, prefix, architectures=[classes])
    found = plan_model(folder, Settings(dtype="float32"), plugins)
    write_safetensors(Merged(found, (), tmp_path / "out"), lambda *step: None)
    for place in (folder, tmp_path / "out"):
        loaded = load_model(place, Settings(dtype="float32"), plugins)
        assert loaded.architecture.tasks == ("embed",)
        engine = build_engine(loaded, Settings(), plugins, [], rows=64, block=16, blocks=16)
        ours = encode(engine, [PROMPT], [[0] * len(PROMPT)])
        assert deviation(ours, states(decoder, PROMPT)) <= BAR


def test_a_tied_head_generates_text(plugins: PluginManager, tmp_path: Path) -> None:
    decoder = make_bare(tmp_path, "gemma2", plugins, final_logit_softcapping=None)
    loaded = load_model(tmp_path, Settings(dtype="float32"), plugins)
    assert loaded.architecture.tasks == ("text", "embed")
    engine = build_engine(loaded, Settings(), plugins, [], rows=64, block=16, blocks=16)
    with torch.inference_mode():
        expected = states(decoder, PROMPT) @ decoder.embed_tokens.weight.T
    assert deviation(engine.runner.logits(PROMPT), expected) <= BAR


def test_a_checkpoint_with_its_head_generates_text(
    embedder: tuple[Path, Any], plugins: PluginManager
) -> None:
    change(embedder[0], "model.", head=True, architectures=["MistralModel"])
    loaded = load_model(embedder[0], Settings(dtype="float32"), plugins)
    assert "text" in loaded.architecture.tasks


def test_a_lost_head_is_an_error(embedder: tuple[Path, Any], plugins: PluginManager) -> None:
    change(embedder[0], "model.", architectures=["MistralForCausalLM"])
    with pytest.raises(CheckpointError, match="missing: lm_head"):
        load_model(embedder[0], Settings(), plugins)


@pytest.mark.parametrize("name", ["Gemma3Model", "BertDecoderModel", "Qwen2VLModel"])
def test_other_bodies_are_refused(
    name: str, embedder: tuple[Path, Any], plugins: PluginManager
) -> None:
    change(embedder[0], architectures=[name], text_config={})
    with pytest.raises(OstroError, match=name):
        load_model(embedder[0], Settings(), plugins)


def test_its_adapters_lack_the_prefix_too(embedder: tuple[Path, Any], tmp_path: Path) -> None:
    folder, decoder = embedder
    a, b = torch.randn(4, 64), torch.randn(64, 4)
    weight = decoder.layers[1].self_attn.q_proj.weight
    name = "base_model.model.layers.1.self_attn.q_proj"
    (tmp_path / "lora").mkdir()
    save_file(
        {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b},
        tmp_path / "lora" / "adapter_model.safetensors",
    )
    facts = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps(facts))
    with ostro.load(folder, dtype="float32", adapters=[f"x={tmp_path / 'lora'}"]) as model:
        tokens = model.tokenizer.encode(TEXTS[0])
        plain, changed = states(decoder, tokens)[-1], model.embed(TEXTS[0], adapters=["x"])[0]
        with torch.no_grad():
            weight += b @ a
        torch.testing.assert_close(changed, states(decoder, tokens)[-1], atol=1e-3, rtol=1e-3)
        assert (changed - plain).abs().max() > 0.1
