"""GGUF files as llama.cpp's converter writes them, against transformers on the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from torch import Tensor

from ostro.core.errors import CheckpointError, ConfigError
from ostro.core.load.model import load_model
from ostro.core.load.open import identify, open_container
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.conformance.parity import BAR, Subject, deviation, subject

GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 4.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4.0,
    "attention_factor": 1.1,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama biased": ("llama", {"attention_bias": True}),
    "llama 3": ("llama", {"rope_parameters": LLAMA3}),
    "llama linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"use_sliding_window": False, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "qwen3 yarn": ("qwen3", {"rope_parameters": YARN}),
    "mixtral": ("mixtral", {}),
    "qwen3_moe": ("qwen3_moe", {"norm_topk_prob": True, "mlp_only_layers": []}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 16}),
    "gemma3": ("gemma3", {"query_pre_attn_scalar": 16, "rope_parameters": GEMMA3_ROPE}),
}
"""Reference configs, with what a GGUF file cannot say at the value that it stands for."""

FORMATS: dict[str, tuple[str, ...]] = {
    "F32": ("F32",),
    "F16": ("F16",),
    "BF16": ("BF16",),
    "Q8_0": ("Q8_0",),
    "mixed": ("Q8_0", "F16", "BF16", "F32", "Q8_0"),
}


@pytest.fixture(scope="module")
def references(plugins: PluginManager) -> Iterator[Callable[[str], Subject]]:
    """The reference of a case; made once, and open for the length of the module."""
    opened: dict[str, Any] = {}

    def get(case: str) -> Subject:
        if case not in opened:
            name, changes = CASES[case]
            config = {**plugins.get("architectures", name).conformance.tiny, **changes}
            opened[case] = subject(plugins, name, config=config)
            opened[case].subject = opened[case].__enter__()
        return opened[case].subject

    yield get
    for context in opened.values():
        context.__exit__(None, None, None)


def permuted(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head with its two halves interleaved, as the converter of the llama family."""
    halves = weight.unflatten(0, (heads, 2, -1))
    return halves.transpose(1, 2).flatten(0, 2)


def scaling(config: Any, rules: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor | None]:
    """The keys below rope.scaling, and Llama 3's factors by transformers' own formula."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = rules.get("rope_type", "default")
    if kind == "default":
        return {}, None
    if kind == "llama3":
        stretched, _ = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        d = config.head_dim
        plain = rules["rope_theta"] ** -(torch.arange(0, d, 2, dtype=torch.float64) / d)
        return {}, (plain / stretched).float()
    keys = {"type": kind, "factor": rules["factor"]}
    if kind == "yarn":
        keys["original_context_length"] = rules["original_max_position_embeddings"]
        keys["yarn_beta_fast"] = rules["beta_fast"]
        keys["yarn_attn_factor"] = rules["attention_factor"]
    return keys, None


def header(writer: GGUFWriter, arch: str, config: Any, scaled: Mapping[str, Any]) -> None:
    """The keys that the converter writes for these families."""
    rules = config.rope_parameters
    rules = rules.get("full_attention", rules)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if arch != "gemma2":
        writer.add_rope_freq_base(rules["rope_theta"])
    if (head_dim := getattr(config, "head_dim", None)) is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if arch == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(head_dim)
    if experts := getattr(config, "num_local_experts", 0):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if arch == "qwen3moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if arch.startswith("gemma"):
        writer.add_sliding_window(config.sliding_window)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    for key, value in scaled.items():
        name = f"{arch}.rope.scaling.{key}"
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_float32(name, value)


ARCHS = {
    "gemma3_text": "gemma3",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen3_moe": "qwen3moe",
}
"""What the converter calls a model type, where it has another name for it."""


def weights(reference: Any) -> Iterator[tuple[str, Tensor]]:
    """A reference's weights under the names that the converter knows."""
    for name, parameter in reference.named_parameters():
        if name.endswith("gate_up_proj"):
            for part, half in zip(("gate_proj", "up_proj"), parameter.chunk(2, 1), strict=True):
                yield name.replace("gate_up_proj", f"{part}.weight"), half
        else:
            yield name if name.endswith((".weight", ".bias")) else f"{name}.weight", parameter


@torch.no_grad()
def convert(reference: Any, file: Path, formats: tuple[str, ...]) -> None:
    """Write a reference model as GGUF, and round its own weights to what the file then holds."""
    config = reference.config
    arch = ARCHS.get(config.model_type, config.model_type)
    rules = config.rope_parameters
    scaled, factors = scaling(config, rules.get("full_attention", rules))
    writer = GGUFWriter(file, arch)
    header(writer, arch, config, scaled)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.numpy())
    number = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}[arch]
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    kinds = cycle(formats)
    for name, parameter in weights(reference):
        part = name.split(".")[-2]
        rows = heads.get(part, 0) if arch == "llama" else 0
        data = permuted(parameter, rows) if rows else parameter.clone()
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            data = data + 1
        kind = GGMLQuantizationType.F32
        if data.dim() > 1:
            kind = GGMLQuantizationType[next(kinds)]
        packed = gguf.quantize(data.contiguous().numpy(), kind)
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), packed, raw_dtype=kind)
        if data.dim() > 1:
            held = torch.from_numpy(gguf.dequantize(packed, kind))
            back = held.unflatten(0, (rows, -1, 2)).transpose(1, 2).flatten(0, 2) if rows else held
            parameter.copy_(back)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def loaded(file: Path, plugins: PluginManager, **settings: Any) -> Any:
    asked = Settings(dtype="float32", device="cpu", exact=True, **settings)
    return load_model(file, asked, plugins)


@pytest.mark.sample(15)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(
    case: str,
    format: str,
    references: Callable[[str], Subject],
    plugins: PluginManager,
    tmp_path: Path,
) -> None:
    tiny = references(case)
    convert(tiny.reference, tmp_path / "model.gguf", FORMATS[format])
    arch = case if case == "mixtral" else None  # which calls itself llama
    model = loaded(tmp_path / "model.gguf", plugins, arch=arch)
    logits = tiny.engine(model).runner.logits(tiny.prompt)
    assert deviation(logits, tiny.run_reference(tiny.prompt)) <= BAR
    if format == "Q8_0":
        assert any("Q8_0 (8 bits" in line for line in model.explain)


def test_a_quantized_embedding_is_its_own_head(
    references: Callable[[str], Subject], plugins: PluginManager, tmp_path: Path
) -> None:
    convert(references("llama tied").reference, tmp_path / "model.gguf", ("Q8_0",))
    model = loaded(tmp_path / "model.gguf", plugins).model
    assert model.lm_head.fused is model.model.embed_tokens.storage
    assert model.lm_head.fused.format == "Q8_0"


@pytest.mark.parametrize(
    ("formats", "dtype"), [(("Q8_0",), "bfloat16"), (("F16",), "float16"), (("F32",), "float32")]
)
def test_the_file_says_what_to_compute_in(
    formats: tuple[str, ...],
    dtype: str,
    references: Callable[[str], Subject],
    plugins: PluginManager,
    tmp_path: Path,
) -> None:
    convert(references("llama").reference, tmp_path / "model.gguf", formats)
    raw, _, space = identify(open_container(tmp_path / "model.gguf", plugins), Settings(), plugins)
    assert raw["dtype"] == dtype and space == "gguf"


def rewritten(file: Path, change: Callable[[dict[str, Any]], None], **weights: Any) -> Path:
    """A copy of a GGUF file with other metadata, and other weights by their first names."""
    reader = gguf.GGUFReader(file)
    arch = reader.get_field("general.architecture").contents()
    keys = {k: f.contents() for k, f in reader.fields.items() if k.startswith(f"{arch}.")}
    change(keys)
    copy = file.with_name("changed.gguf")
    writer = GGUFWriter(copy, arch)
    for key, value in keys.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
            add[type(value)](key, value)
    for tensor in reader.tensors:
        if tensor.name.removesuffix(".weight") in weights:
            writer.add_tensor(tensor.name, weights[tensor.name.removesuffix(".weight")])
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return copy


def test_windows_may_be_listed(
    references: Callable[[str], Subject], plugins: PluginManager, tmp_path: Path
) -> None:
    """Newer files of gemma state the pattern; the one that is the family's changes nothing."""
    tiny = references("gemma3")
    convert(tiny.reference, tmp_path / "model.gguf", ("F32",))
    truth = tiny.run_reference(tiny.prompt)
    key = "gemma3.attention.sliding_window_pattern"
    same = ([True] * 5 + [False], 6)
    others = ([False] + [True] * 5, 3)
    for value in (*same, *others):
        file = rewritten(tmp_path / "model.gguf", lambda keys, v=value: keys.update({key: v}))
        logits = tiny.engine(loaded(file, plugins)).runner.logits(tiny.prompt)
        assert (deviation(logits, truth) <= BAR) == (value in same)


@pytest.mark.parametrize(
    ("case", "key", "value", "said"),
    [
        ("llama", "llama.rope.scaling.type", "longrope", "type='longrope' is not implemented"),
        ("llama", "llama.rope.scaling.alpha", 2.0, "scaling.alpha is not implemented"),
        ("llama 3", "llama.rope.dimension_count", 8, "rope_freqs.weight is F32"),
        ("llama 3", "llama.rope.scaling.type", "yarn", "with rope scaling 'yarn'"),
        ("llama", "llama.attention.head_count", "four", "num_attention_heads='four'"),
        ("llama", "llama.attention.head_count_kv", [2, 2], "num_key_value_heads="),
        ("gemma3", "gemma3.attention.sliding_window_pattern", 0, "sliding_window_pattern=0"),
        ("gemma3", "gemma3.attention.sliding_window_pattern", [True], "lists 1 layers"),
    ],
)
def test_what_a_header_cannot_ask_for_is_named(
    case: str,
    key: str,
    value: Any,
    said: str,
    references: Callable[[str], Subject],
    plugins: PluginManager,
    tmp_path: Path,
) -> None:
    convert(references(case).reference, tmp_path / "model.gguf", ("F32",))
    file = rewritten(tmp_path / "model.gguf", lambda keys: keys.update({key: value}))
    with pytest.raises(ConfigError, match=said):
        loaded(file, plugins)


def test_a_format_without_a_reader_is_named(
    references: Callable[[str], Subject], plugins: PluginManager, tmp_path: Path
) -> None:
    tiny = references("llama")
    embedding = torch.zeros(tiny.config.vocab_size, tiny.config.hidden_size, dtype=torch.int8)
    convert(tiny.reference, tmp_path / "model.gguf", ("F32",))
    file = rewritten(tmp_path / "model.gguf", lambda keys: None, token_embd=embedding.numpy())
    with pytest.raises(CheckpointError, match=r"embed_tokens consists of weight \(I8\)"):
        loaded(file, plugins)
