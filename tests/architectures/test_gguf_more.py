"""GGUF files of several families, as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from torch import Tensor

import ostro
from ostro.core.errors import ConfigError
from ostro.core.load.model import load_model
from ostro.core.load.open import open_container
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.core.settings import Settings
from ostro.entrypoints.cli.quantize import write
from ostro.entrypoints.python.model import LocalModel
from ostro.plugins.conformance.parity import BAR, SMALL, STD, deviation, subject


@dataclass(frozen=True)
class Case:
    """A reference config, with what a file cannot say at the value that it stands for.

    `form` asks for another than the converter's usual one: a tensor that is left whole.
    """

    name: str
    arch: str
    changes: dict[str, Any] = field(default_factory=dict)
    form: str = ""
    asked: str | None = None


YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.8,
    "mscale_all_dim": 0.8,
}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
DENSE = {"mlp_only_layers": [], "norm_topk_prob": True}
CASES = {
    "deepseek 2": Case("deepseek_v2", "deepseek2", {"rope_parameters": YARN}),
    "deepseek 2, whole kv_b": Case("deepseek_v2", "deepseek2", {"rope_parameters": YARN}, "kv_b"),
    "deepseek 2 lite": Case(
        "deepseek_v2",
        "deepseek2",
        {"q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "rope_parameters": PLAIN},
    ),
    "deepseek 3": Case("deepseek_v3", "deepseek2", {"rope_parameters": YARN}),
    "gpt-oss": Case("gpt_oss", "gpt-oss", {"swiglu_limit": 7.0}),
    "qwen3 next": Case("qwen3_next", "qwen3next", DENSE),
    "qwen3.5": Case("qwen3_5", "qwen35"),
    "qwen3 next, whole qkvz": Case("qwen3_next", "qwen3next", DENSE, "qkvz"),
    "qwen3 next, whole experts": Case("qwen3_next", "qwen3next", DENSE, "gate_up"),
    "bert": Case("bert", "bert"),
    "bert classifier": Case("bert_classifier", "bert", {"num_labels": 3}, asked="bert_classifier"),
    "qwen3 classifier": Case(
        "qwen3_classifier", "qwen3", {"num_labels": 3}, asked="qwen3_classifier"
    ),
}

FORMATS = ("F32", "BF16", "Q8_0")


def header(writer: GGUFWriter, config: Any) -> None:
    """The keys that the converter writes for every family."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if (eps := getattr(config, "rms_norm_eps", None)) is not None:
        writer.add_layer_norm_rms_eps(eps)
    for name, add in (
        ("num_key_value_heads", writer.add_head_count_kv),
        ("num_experts_per_tok", writer.add_expert_used_count),
        ("head_dim", writer.add_key_length),
        ("head_dim", writer.add_value_length),
    ):
        if (value := getattr(config, name, None)) is not None:
            add(value)
    if rules := getattr(config, "rope_parameters", None):
        writer.add_rope_freq_base(rules["rope_theta"])
        if rules["rope_type"] == "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rules["factor"])
            writer.add_rope_scaling_orig_ctx_len(rules["original_max_position_embeddings"])
            if "beta_fast" in rules:
                writer.add_rope_scaling_yarn_beta_fast(rules["beta_fast"])
                writer.add_rope_scaling_yarn_beta_slow(rules["beta_slow"])


def deepseek2_header(writer: GGUFWriter, config: Any, form: str) -> None:
    rope, latent = config.qk_rope_head_dim, config.kv_lora_rank
    for key in ("head_count_kv", "key_length", "value_length"):
        del writer.kv_data[0][f"deepseek2.attention.{key}"]
    if form == "kv_b":
        writer.add_head_count_kv(config.num_attention_heads)
        writer.add_key_length(config.qk_nope_head_dim + rope)
        writer.add_value_length(config.v_head_dim)
    else:
        writer.add_head_count_kv(1)
        writer.add_key_length(latent + rope)
        writer.add_value_length(latent)
        writer.add_key_length_mla(config.qk_nope_head_dim + rope)
        writer.add_value_length_mla(config.v_head_dim)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(latent)
    writer.add_rope_dimension_count(rope)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_group_count(config.n_group)
    writer.add_expert_group_used_count(config.topk_group)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if config.model_type == "deepseek_v3":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(config.norm_topk_prob)
    if "mscale_all_dim" in config.rope_parameters:
        writer.add_rope_scaling_yarn_log_mul(0.1 * config.rope_parameters["mscale_all_dim"])


def gpt_oss_header(writer: GGUFWriter, config: Any, form: str) -> None:
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_sliding_window(config.sliding_window)


def qwen3next_header(writer: GGUFWriter, config: Any, form: str) -> None:
    writer.add_expert_count(config.num_experts)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    qwen35_header(writer, config, form)


def qwen35_header(writer: GGUFWriter, config: Any, form: str) -> None:
    writer.add_rope_dimension_count(config.head_dim // 4)
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)


def bert_header(writer: GGUFWriter, config: Any, form: str) -> None:
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_token_type_count(config.type_vocab_size)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    words = {0: "[PAD]", 1: "\u2581hello", 2: "\u2581cat", 3: "s", 100: "[UNK]", 101: "[CLS]"}
    words[102] = "[SEP]"
    writer.add_tokenizer_model("bert")
    writer.add_token_list([words.get(i, f"[unused{i}]") for i in range(config.vocab_size)])
    kinds = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([kinds[i in (1, 2, 3)] for i in range(config.vocab_size)])
    if len(config.id2label) > 2:
        writer.add_classifier_output_labels(list(config.id2label.values()))


def qwen3_header(writer: GGUFWriter, config: Any, form: str) -> None:
    """A reranker: the converter keeps the rows of some tokens of the head."""
    writer.add_pooling_type(gguf.PoolingType.RANK)
    writer.add_classifier_output_labels(list(config.id2label.values()))


HEADERS = {
    "qwen3": qwen3_header,
    "deepseek2": deepseek2_header,
    "gpt-oss": gpt_oss_header,
    "qwen3next": qwen3next_header,
    "qwen35": qwen35_header,
    "bert": bert_header,
}

Moved = Iterator[tuple[str, Tensor]]


def deepseek2_moved(name: str, t: Tensor, config: Any, form: str) -> Moved:
    if name.endswith("kv_b_proj.weight") and form != "kv_b":
        k, v = t.view(config.num_attention_heads, -1, config.kv_lora_rank).split(
            (config.qk_nope_head_dim, config.v_head_dim), 1
        )
        yield name.replace("kv_b", "k_b"), k.transpose(1, 2)
        yield name.replace("kv_b", "v_b"), v
    elif name.endswith("experts.gate_up_proj") and form != "gate_up":
        gate, up = t.chunk(2, 1)
        yield name.replace("gate_up_proj", "gate_proj.weight"), gate
        yield name.replace("gate_up_proj", "up_proj.weight"), up
    elif name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        yield f"{name}.weight", t
    else:
        yield name.replace("correction_bias", "correction.bias"), t


def gpt_oss_moved(name: str, t: Tensor, config: Any, form: str) -> Moved:
    if "experts.gate_up_proj" in name:
        kind = "bias" if name.endswith("_bias") else "weight"
        t = t if kind == "bias" else t.transpose(1, 2)
        stem = name.removesuffix("_bias")
        yield f"{stem.replace('gate_up', 'gate')}.{kind}", t[:, ::2]
        yield f"{stem.replace('gate_up', 'up')}.{kind}", t[:, 1::2]
    elif "experts.down_proj" in name:
        bias = name.endswith("_bias")
        yield (name.replace("_bias", ".bias"), t) if bias else (f"{name}.weight", t.mT)
    else:
        yield f"{name}.weight" if name.endswith("sinks") else name, t


def qwen3next_moved(name: str, t: Tensor, config: Any, form: str) -> Moved:
    if name.endswith("in_proj_qkvz.weight") and form != "qkvz":
        heads, dk = config.linear_num_key_heads, config.linear_key_head_dim
        dv = config.linear_num_value_heads // heads * config.linear_value_head_dim
        q, k, v, z = t.view(heads, 2 * (dk + dv), -1).split((dk, dk, dv, dv), 1)
        yield name.replace("qkvz", "qkv"), torch.cat([each.flatten(0, 1) for each in (q, k, v)])
        yield name.replace("qkvz", "z"), z.flatten(0, 1)
    elif name.endswith("norm.weight") and "linear_attn" not in name:
        yield name, t + 1
    elif name.endswith("A_log"):
        yield name, -t.exp()
    elif name.endswith("dt_bias"):
        yield name.replace("dt_bias", "dt_proj.bias"), t
    elif name.endswith("conv1d.weight"):
        yield name, t.squeeze(1)
    elif name.endswith("shared_expert_gate.weight"):
        yield name, t.squeeze(0) if form == "qkvz" else t
    else:
        yield from deepseek2_moved(name, t, config, form)


def qwen35_moved(name: str, t: Tensor, config: Any, form: str) -> Moved:
    """The converter writes value heads in tiled order: the first of each key head, and so on."""
    heads, dv = config.linear_num_key_heads, config.linear_value_head_dim
    size = 1 if name.endswith(("_a.weight", "_b.weight", "A_log", "dt_bias")) else dv
    keys = 2 * heads * config.linear_key_head_dim if "qkv" in name or "conv1d" in name else 0
    if "linear_attn" in name and not name.endswith("linear_attn.norm.weight"):
        t = t.t() if "out_proj" in name else t
        values = t[keys:].unflatten(0, (heads, -1, size)).transpose(0, 1).flatten(0, 2)
        t = torch.cat((t[:keys], values))
        t = t.t() if "out_proj" in name else t
    yield from qwen3next_moved(name, t, config, form)


def bert_moved(name: str, t: Tensor, config: Any, form: str) -> Moved:
    name = name.removeprefix("bert.")
    head = {"pooler.dense": "cls", "classifier": "cls.output"}
    stem, _, kind = name.rpartition(".")
    if stem != "pooler.dense" or config.architectures == ["BertForSequenceClassification"]:
        yield (f"{head[stem]}.{kind}" if stem in head else name), t


def qwen3_moved(name: str, t: Tensor, config: Any, form: str) -> Moved:
    yield ("cls.output.weight" if name == "score.weight" else name), t


MOVED = {
    "qwen3": qwen3_moved,
    "deepseek2": deepseek2_moved,
    "gpt-oss": gpt_oss_moved,
    "qwen3next": qwen3next_moved,
    "qwen35": qwen35_moved,
    "bert": bert_moved,
}
FLOATS = ("ffn_gate_inp", "conv1d", "position_embd", "token_types", "cls")
"""What the converter and the quantizer leave as floats."""


def kind_of(name: str, t: Tensor, format: str, experts: str | None) -> GGMLQuantizationType:
    if t.dim() < 2 or any(part in name for part in FLOATS) or name.endswith("bias"):
        return GGMLQuantizationType.F32
    wanted = experts or format if "_exps" in name else format
    fits = t.shape[-1] % 32 == 0
    return GGMLQuantizationType[wanted if fits or wanted in ("F32", "BF16") else "F16"]


@torch.no_grad()
def convert(
    reference: Any, case: Case, file: Path, format: str, experts: str | None = None
) -> list[str]:
    """Write the file, and leave the reference with the numbers that it holds.

    Returns the names of its tensors with their formats. Matrices are only moved, so moving their
    places tells where each number of the file comes from.
    """
    config, moved = reference.config, MOVED[case.arch]
    writer = GGUFWriter(file, case.arch)
    header(writer, config)
    HEADERS[case.arch](writer, config, case.form)
    number = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}[case.arch]
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    written = []
    for name, parameter in reference.state_dict(keep_vars=True).items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        places = torch.arange(parameter.numel()).view_as(parameter)
        theirs = moved(name, parameter.data, config, case.form)
        for their, data in theirs:
            known = names.get_name(their, (".weight", ".bias"))
            stored = their if their.startswith("cls") else known
            assert stored is not None, f"the converter knows no {their}"
            kind = kind_of(stored, data, format, experts)
            packed = gguf.quantize(data.contiguous().numpy(), kind)
            writer.add_tensor(stored, packed, raw_dtype=kind)
            written.append(f"{stored} {kind.name}")
            if kind != GGMLQuantizationType.F32:
                held = torch.from_numpy(gguf.dequantize(packed, kind))
                place = dict(moved(name, places, config, case.form))[their]
                parameter.data.view(-1)[place.flatten()] = held.flatten()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


def loaded(file: Path, case: Case, plugins: PluginManager) -> Any:
    asked = Settings(dtype="float32", device="cpu", arch=case.asked, exact=True)
    return load_model(file, asked, plugins)


def config_of(case: Case, format: str, plugins: PluginManager) -> dict[str, Any]:
    """The tiny config; where blocks of 32 are to fit, the wide one."""
    tested = plugins.get("architectures", case.name).conformance
    return {**(tested.tiny if format == "F32" else tested.wide), **case.changes}


@pytest.mark.sample(5)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_states_equal_transformers(
    case: Case, format: str, plugins: PluginManager, tmp_path: Path
) -> None:
    # Wide ones at small weights: their activations would make ten times as much of rounding.
    config, std = config_of(case, format, plugins), STD if format == "F32" else SMALL
    with subject(plugins, case.name, config=config, std=std) as tiny:
        written = convert(tiny.reference, case, tmp_path / "model.gguf", format)
        assert any(format in line for line in written)
        engine = tiny.engine(loaded(tmp_path / "model.gguf", case, plugins))
        assert deviation(tiny.answer(engine), tiny.expected) <= BAR


@torch.inference_mode()
def test_a_file_of_bert_makes_vectors(plugins: PluginManager, tmp_path: Path) -> None:
    case = CASES["bert"]
    with subject(plugins, "bert") as tiny:
        convert(tiny.reference, case, tmp_path / "model.gguf", "F32")
        with ostro.load(
            tmp_path / "model.gguf", dtype="float32", device="cpu", exact=True
        ) as model:
            assert isinstance(model, LocalModel)
            vector = torch.as_tensor(model.embed("Hello cats"))[0]
        mean = tiny.reference(torch.tensor([[101, 1, 2, 3, 102]])).last_hidden_state[0].mean(0)
        torch.testing.assert_close(vector, mean / mean.norm(), atol=1e-5, rtol=0)


def test_a_file_of_a_classifier_names_its_labels(plugins: PluginManager, tmp_path: Path) -> None:
    case = CASES["bert classifier"]
    tiny_config = plugins.get("architectures", case.name).conformance.tiny
    shape = {**tiny_config, "id2label": {0: "bad", 1: "fair", 2: "good"}, "num_labels": 3}
    with subject(plugins, case.name, config=shape) as tiny:
        convert(tiny.reference, case, tmp_path / "model.gguf", "F32")
    with ostro.load(tmp_path / "model.gguf", device="cpu", arch=case.asked) as model:
        assert isinstance(model, LocalModel)
        assert list(model.classify("Hello cats")[0]) == ["bad", "fair", "good"]


def test_quantized_k_b_keeps_its_blocks(plugins: PluginManager, tmp_path: Path) -> None:
    """The file holds the transpose of k_b, along whose rows the blocks run."""
    case = CASES["deepseek 2"]
    config = config_of(case, "Q8_0", plugins)
    with subject(plugins, case.name, config=config) as tiny:
        written = convert(tiny.reference, case, tmp_path / "model.gguf", "Q8_0")
    assert "blk.0.attn_k_b.weight Q8_0" in written
    model = loaded(tmp_path / "model.gguf", case, plugins).model
    k_b = model.model.layers[0].self_attn.k_b_proj
    assert k_b.whole.format == "Q8_0" and k_b.whole.shape == (4 * 64, 256)
    raw = open_container(tmp_path / "model.gguf", plugins).read("blk.0.attn_k_b.weight")
    assert torch.equal(k_b.whole.save()["weight"], raw.flatten(0, 1))


@pytest.mark.slow
def test_float_k_b_is_written_in_blocks_along_the_files_rows(
    plugins: PluginManager, tmp_path: Path
) -> None:
    """Q4_K fits the model's 256 columns, not the file's 64: the written file uses its fallback."""
    case = CASES["deepseek 2"]
    with subject(plugins, case.name, config=config_of(case, "Q8_0", plugins)) as tiny:
        convert(tiny.reference, case, tmp_path / "model.gguf", "F32")
    asked = Settings(reference=str(tmp_path / "model.gguf"), quant="q4k", device="cpu")
    written = write(asked, plugins, "gguf", tmp_path / "out")
    floats = loaded(tmp_path / "model.gguf", case, plugins).model
    blocks = loaded(written, case, plugins).model
    k_b, made = (m.model.layers[0].self_attn.k_b_proj.whole for m in (floats, blocks))
    assert (k_b.format, made.format) == ("dense", "Q4_1") and k_b.shape == made.shape
    assert deviation(made.dequantize(), k_b.dequantize()) < 0.5


def test_experts_of_gpt_oss_as_mxfp4(plugins: PluginManager, tmp_path: Path) -> None:
    case = CASES["gpt-oss"]
    config = config_of(case, "Q8_0", plugins)
    with subject(plugins, case.name, config=config) as tiny:
        written = convert(tiny.reference, case, tmp_path / "model.gguf", "BF16", "MXFP4")
        assert "blk.0.ffn_gate_exps.weight MXFP4" in written
        model = loaded(tmp_path / "model.gguf", case, plugins)
        assert any("MXFP4: grouped by native" in line for line in model.explain)
        assert deviation(tiny.answer(tiny.engine(model)), tiny.expected) <= BAR


@pytest.mark.parametrize(
    ("case", "key", "value", "said"),
    [
        ("deepseek 2", "expert_gating_func", 3, "scoring_func=3 is not a string"),
        ("deepseek 2", "expert_weights_norm", True, "norm_topk_prob=true is not implemented"),
        ("deepseek 2", "attention.key_length_mla", "four", "qk_nope_head_dim='four'"),
        ("deepseek 2", "rope.dimension_count", "eight", "qk_rope_head_dim='eight'"),
        ("deepseek 3", "expert_group_count", 3, "is not a multiple of n_group=3"),
        ("qwen3 next", "ssm.group_count", 3, "is not a multiple of linear_num_key_heads=3"),
        ("gpt-oss", "expert_used_count", 99, "num_experts_per_tok=99 is not within"),
    ],
)
def test_what_a_header_cannot_ask_for_is_named(
    case: str, key: str, value: Any, said: str, plugins: PluginManager
) -> None:
    record = plugins.get("architectures", CASES[case].name)
    gguf_record = plugins.architecture_for(gguf=CASES[case].arch)
    with subject(plugins, record.name, config=config_of(CASES[case], "F32", plugins)) as tiny:
        file = tiny.folder / "model.gguf"
        convert(tiny.reference, CASES[case], file, "F32")
        container = open_container(file, plugins)
        container.metadata[f"{CASES[case].arch}.{key}"] = value  # type: ignore[index]
        with pytest.raises(ConfigError, match=said):
            resolve(gguf_record.config).from_hf(resolve(str(gguf_record.gguf_config))(container))


@pytest.mark.parametrize("case", ["deepseek 2", "qwen3 next"])
def test_transforms_are_inverted(case: str, plugins: PluginManager) -> None:
    record = plugins.get("architectures", CASES[case].name)
    config = resolve(record.config).from_hf(record.conformance.tiny)
    changed = [p for p in resolve(record.names)(config).gguf if p.transform is not None]
    assert changed
    for pair in changed:
        rows = getattr(pair.transform, "stop", 4) - getattr(pair.transform, "start", 0)
        heads = getattr(pair.transform, "heads", 1)
        shape = (1, 8) if "gate" in pair.ours else (8, 1, 4) if "conv" in pair.ours else None
        tensor = torch.randn(shape or (heads * rows, 8))
        there = pair.transform.write(tensor)
        torch.testing.assert_close(pair.transform.read(there), tensor)
