"""EmbeddingGemma against transformers, from its tokens to the vectors of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import torch.nn.functional as F
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.torch import save_file
from tiny.model import make_tokenizer
from torch import Tensor
from transformers import Gemma3TextConfig, Gemma3TextModel

import ostro
from ostro.core.errors import CheckpointError, ConfigError
from ostro.core.load.model import load_model
from ostro.core.load.open import open_container
from ostro.core.load.pooling import read_pooling
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.entrypoints.python.model import LocalModel
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, deviation, reinitialise, subject

PROMPTS = {"query": "task: search | query: ", "document": "title: none | text: "}
TEXTS = ["hello world", "a", "hello hello hello world " * 4]
CPU = torch.device("cpu")


class TestEmbeddingGemma(ArchitectureTests):
    name = "embeddinggemma"

    def test_one_that_looks_back_only_is_refused(self, plugins: PluginManager) -> None:
        from ostro.architectures.embeddinggemma.model import Config

        tiny = plugins.get("architectures", self.name).conformance.tiny
        with pytest.raises(
            ConfigError, match="use_bidirectional_attention=false is not an encoder"
        ):
            Config.from_hf({**tiny, "use_bidirectional_attention": False})

    @pytest.mark.parametrize("format", ["F32", "BF16", "Q8_0"])
    def test_gguf_files(self, plugins: PluginManager, format: str, tmp_path: Path) -> None:
        """The scale of the scores is no key: it follows from the size of a head."""
        record, asked = (
            plugins.get("architectures", self.name),
            Settings(dtype="float32", exact=True),
        )
        shape = record.conformance.tiny
        config = {**shape, "query_pre_attn_scalar": shape["head_dim"]}
        with subject(plugins, self.name, config=config) as tiny:
            convert(tiny.reference, tmp_path / "model.gguf", format, {})
            loaded = load_model(tmp_path / "model.gguf", asked, plugins)
            assert deviation(tiny.answer(tiny.engine(loaded)), tiny.expected) <= BAR


@torch.no_grad()
def convert(reference: Any, file: Path, format: str, dense: dict[str, Tensor]) -> None:
    """Write the file as llama.cpp's converter does, and leave the reference with its numbers."""
    config = reference.config
    writer = GGUFWriter(file, "gemma-embedding")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rule = config.rope_parameters["full_attention"]
    writer.add_rope_freq_base(rule["rope_theta"])
    writer.add_string("gemma-embedding.rope.scaling.type", rule["rope_type"])
    writer.add_float32("gemma-embedding.rope.scaling.factor", rule["factor"])
    writer.add_sliding_window(2 * (config.sliding_window - 1))
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA_EMBEDDING, config.num_hidden_layers)
    for name, parameter in reference.named_parameters():
        matrix = parameter.dim() == 2
        kind = GGMLQuantizationType[format if matrix else "F32"]
        data = parameter if matrix else parameter + 1
        packed = gguf.quantize(data.numpy(), kind)
        stored = str(names.get_name(f"model.{name}", (".weight",)))
        writer.add_tensor(stored, packed, raw_dtype=kind)
        if matrix:
            parameter.copy_(torch.from_numpy(gguf.dequantize(packed, kind)))
    for name, weight in dense.items():
        kind = GGMLQuantizationType[format]
        writer.add_tensor(name, gguf.quantize(weight.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def describe(folder: Path, *layers: Tensor) -> None:
    """What sentence-transformers saves beside a model: a mean, dense layers, a norm, prompts."""
    kinds = ["Transformer", "Pooling", *["Dense"] * len(layers), "Normalize"]
    places = ["" if i == 0 else f"{i}_{kind}" for i, kind in enumerate(kinds)]
    listed = [
        {"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, place) in enumerate(zip(kinds, places, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))
    for place in places[1:]:
        (folder / place).mkdir()
    mean = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}
    (folder / places[1] / "config.json").write_text(json.dumps(mean))
    for place, weight in zip(places[2:], layers, strict=False):
        n, k = weight.shape
        identity = "torch.nn.modules.linear.Identity"
        config = {"in_features": k, "out_features": n, "activation_function": identity}
        (folder / place / "config.json").write_text(json.dumps(config))
        save_file({"linear.weight": weight}, folder / place / "model.safetensors")


@pytest.fixture(scope="module")
def layers() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(96, 64, generator=generator), torch.randn(64, 96)
    return first, second


@pytest.fixture(scope="module")
def reference() -> Any:
    plugins = PluginManager()
    plugins.load(Settings())
    tiny = plugins.get("architectures", "embeddinggemma").conformance.tiny
    made = Gemma3TextModel(Gemma3TextConfig(**{**tiny, "vocab_size": 304})).eval()
    reinitialise(made, 0.2)
    return made


@pytest.mark.sample(1)
@pytest.mark.parametrize("prompt", [None, "query", "document"])
@torch.inference_mode()
def test_vectors_of_a_folder(
    prompt: str | None, reference: Any, layers: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    reference.save_pretrained(tmp_path)
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    describe(tmp_path, *layers)
    with ostro.load(tmp_path, dtype="float32", device="cpu", exact=True) as model:
        assert isinstance(model, LocalModel) and model.tokenizer is not None
        vectors = torch.as_tensor(model.embed(TEXTS, prompt=prompt))
        tokens = [model.tokenizer.encode(PROMPTS.get(prompt or "", "") + text) for text in TEXTS]
    for ids, vector in zip(tokens, vectors, strict=True):
        mean = reference(torch.tensor([ids])).last_hidden_state[0].mean(0)
        truth = F.normalize(layers[1] @ (layers[0] @ mean), dim=0)
        torch.testing.assert_close(vector, truth, atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", gguf.PoolingType)
def test_pooling_of_a_gguf_header(
    kind: gguf.PoolingType, layers: tuple[Tensor, Tensor], reference: Any, tmp_path: Path
) -> None:
    plugins = PluginManager()
    plugins.load(Settings())
    file = tmp_path / "model.gguf"
    convert(reference, file, "F16", {"dense_2.weight": layers[0], "dense_3.weight": layers[1]})
    container = open_container(file, plugins)
    container.metadata["gemma-embedding.pooling_type"] = int(kind)  # type: ignore[index]
    found = read_pooling(tmp_path, "max", CPU, container)
    modes = {"MEAN": "mean", "CLS": "first", "LAST": "last"}
    assert found.mode == modes.get(kind.name, "max") and found.normalize
    held = [layer.half().float() for layer in layers]
    assert all(torch.equal(a.weight, b) for a, b in zip(found.layers, held, strict=True))


def test_packed_layers_behind_the_pooling_are_refused(
    layers: tuple[Tensor, Tensor], reference: Any, tmp_path: Path
) -> None:
    plugins = PluginManager()
    plugins.load(Settings())
    convert(reference, tmp_path / "model.gguf", "Q8_0", {"dense_2.weight": layers[0]})
    container = open_container(tmp_path / "model.gguf", plugins)
    with pytest.raises(CheckpointError, match=r"dense_2\.weight is Q8_0"):
        read_pooling(tmp_path, "mean", CPU, container)
