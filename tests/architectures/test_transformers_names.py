"""Bodies: checkpoints whose tensors differ from those of the class."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from ostro.core.adapters.targets import TargetResolver
from ostro.core.engine.startup.build import build_engine
from ostro.core.errors import CheckpointError, OstroError, Unsupported
from ostro.core.load.model import LoadedModel, load_model
from ostro.core.nn import ExpertLinear
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.conformance.parity import BAR, deviation
from ostro.plugins.conformance.weights import reinitialise

PROMPT = list(range(5, 45))
SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "eos_token_id": 2,
}
MIXTURE = "OlmoeForCausalLM"


def make(name: str, folder: Path, **fields: Any) -> Any:
    """The reference of a class, with its checkpoint in `folder`."""
    cls: Any = getattr(transformers, name)
    reference = cls(cls.config_class(**SIZES | fields)).eval().float()
    reinitialise(reference, 0.2)
    reference.save_pretrained(folder)
    return reference


def rewrite(folder: Path, tensors: Mapping[str, Tensor], **config: Any) -> None:
    """Replace the tensors of a checkpoint, and fields of its config."""
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))


def load(folder: Path, plugins: PluginManager, **settings: Any) -> LoadedModel:
    return load_model(folder, Settings(dtype="float32", arch="transformers", **settings), plugins)


def logits(loaded: LoadedModel, plugins: PluginManager) -> Tensor:
    engine = build_engine(loaded, Settings(), plugins, [], rows=64, block=16, blocks=16)
    return engine.runner.logits(PROMPT)


def differs(reference: Any, loaded: LoadedModel, plugins: PluginManager) -> float:
    with torch.no_grad():
        expected = reference(input_ids=torch.tensor([PROMPT]), use_cache=False).logits[0]
    return deviation(logits(loaded, plugins), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (MIXTURE, {}),
        ("AriaTextForCausalLM", {"moe_num_experts": 4, "moe_topk": 2, "head_dim": 16}),
        ("GptOssForCausalLM", {"head_dim": 16}),
    ],
)
def test_stacked_experts_load(
    name: str, fields: Mapping[str, Any], plugins: PluginManager, tmp_path: Path
) -> None:
    """Gate over up, transposed stacks, and interleaved ones with biases."""
    reference = make(name, tmp_path, **fields)
    rewrite(tmp_path, dict(reference.state_dict()))
    assert any(
        ".experts.gate_up_proj" in name for name in load_file(tmp_path / "model.safetensors")
    )
    assert differs(reference, load(tmp_path, plugins), plugins) <= BAR


def test_single_experts_load(plugins: PluginManager, tmp_path: Path) -> None:
    reference = make(MIXTURE, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert "model.layers.1.mlp.experts.3.up_proj.weight" in tensors
    assert differs(reference, load(tmp_path, plugins), plugins) <= BAR


def test_renamed_single_experts_load(plugins: PluginManager, tmp_path: Path) -> None:
    """PhiMoE's published names: block_sparse_moe, w1, w3 and w2."""
    reference = make("PhimoeForCausalLM", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert "model.layers.1.block_sparse_moe.experts.3.w3.weight" in tensors
    assert differs(reference, load(tmp_path, plugins), plugins) <= BAR


@pytest.mark.sample(1)
@pytest.mark.parametrize("key", ["experts.3.up_proj.weight", "experts.0.down_proj.weight"])
def test_a_missing_expert_is_named(key: str, plugins: PluginManager, tmp_path: Path) -> None:
    make(MIXTURE, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[f"model.layers.1.mlp.{key}"]
    rewrite(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=r"missing: .*experts") as caught:
        load(tmp_path, plugins)
    assert key.removesuffix(".weight") in str(caught.value)


def test_an_expert_too_many_is_left_over(plugins: PluginManager, tmp_path: Path) -> None:
    make(MIXTURE, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    extra = "model.layers.1.mlp.experts.4.up_proj.weight"
    rewrite(tmp_path, tensors | {extra: tensors[extra.replace(".4.", ".3.")] + 0})
    with pytest.raises(CheckpointError, match=f"left over: {extra}"):
        load(tmp_path, plugins)


@pytest.mark.parametrize("count", [-1, 0, 3, 5, 10**6, 2**62, "4", None, 0.5])
def test_a_hostile_number_of_experts_is_rejected(
    count: Any, plugins: PluginManager, tmp_path: Path
) -> None:
    make(MIXTURE, tmp_path)
    rewrite(tmp_path, load_file(tmp_path / "model.safetensors"), num_experts=count)
    with pytest.raises(OstroError):
        load(tmp_path, plugins)


def test_a_stack_of_other_experts_is_rejected(plugins: PluginManager, tmp_path: Path) -> None:
    reference = make(MIXTURE, tmp_path)
    tensors = dict(reference.state_dict())
    stack = "model.layers.0.mlp.experts.down_proj"
    rewrite(tmp_path, tensors | {stack: tensors[stack][:3]})
    with pytest.raises(CheckpointError, match="does not contain 4 experts"):
        load(tmp_path, plugins)


@pytest.mark.sample(1)
@pytest.mark.parametrize("quant", ["q8_0", "q4k"])
def test_quantized_experts_equal_those_of_a_plugin(
    quant: str, plugins: PluginManager, tmp_path: Path
) -> None:
    make("Qwen3MoeForCausalLM", tmp_path, hidden_size=256, moe_intermediate_size=256)
    # Exact: rounding of activations depends on the CPU, and moves the scores of the router.
    ours = load_model(tmp_path, Settings(dtype="float32", quant=quant, exact=True), plugins)
    body = load(tmp_path, plugins, quant=quant, exact=True)
    assert ours.architecture.name == "qwen3_moe" != body.architecture.name
    assert expert_formats(ours) == expert_formats(body) != {"dense"}
    assert deviation(logits(body, plugins), logits(ours, plugins)) <= BAR


@pytest.mark.slow
def test_experts_of_an_fp8_checkpoint_load(plugins: PluginManager, tmp_path: Path) -> None:
    make("PhimoeForCausalLM", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    packed, plain = {}, {}
    for name, weight in tensors.items():
        packed[name] = plain[name] = weight
        if ".experts." in name:
            scale = weight.abs().amax() / 448
            packed[name] = (weight / scale).to(torch.float8_e4m3fn)
            packed[f"{name}_scale_inv"] = scale.reshape(1, 1)
            plain[name] = packed[name].float() * scale
    rewrite(tmp_path, plain)
    expected = logits(load(tmp_path, plugins), plugins)
    how = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    rewrite(tmp_path, packed, quantization_config=how)
    loaded = load(tmp_path, plugins)
    assert expert_formats(loaded) == {"F8_E4M3"}
    assert deviation(logits(loaded, plugins), expected) <= BAR


def expert_formats(loaded: LoadedModel) -> set[str]:
    experts = [module for module in loaded.model.modules() if isinstance(module, ExpertLinear)]
    assert len(experts) == 4
    return {storage.format for module in experts for storage in module.storages}


def test_conv1d_weights_are_transposed(plugins: PluginManager, tmp_path: Path) -> None:
    """GPT-2 as published: no prefix, and a mask as a buffer."""
    reference = make("GPT2LMHeadModel", tmp_path, n_inner=96)
    tensors = load_file(tmp_path / "model.safetensors")
    published = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    mask = torch.ones(256, 256).tril()[None, None]
    rewrite(tmp_path, published | {"h.0.attn.bias": mask, "h.1.attn.bias": mask + 0})
    assert differs(reference, load(tmp_path, plugins), plugins) <= BAR


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "module", "count", "transform"),
    [
        (MIXTURE, "model.layers.0.mlp.experts.gate_up_proj", 8, "Expert"),
        (MIXTURE, "model.layers.0.mlp.experts.down_proj", 4, "Expert"),
        (MIXTURE, "model.layers.0.mlp.experts.3.up_proj", 1, "NoneType"),
        ("PhimoeForCausalLM", "model.layers.0.block_sparse_moe.experts.3.w3", 1, "NoneType"),
        ("GPT2LMHeadModel", "transformer.h.1.attn.c_attn", 1, "NoneType"),
    ],
)
def test_adapters_find_experts_and_conv1d(
    name: str, module: str, count: int, transform: str, plugins: PluginManager, tmp_path: Path
) -> None:
    """By the names of PEFT, of modules and of stacked parameters."""
    make(name, tmp_path)
    loaded = load(tmp_path, plugins)
    found = TargetResolver(loaded.model, loaded.names).find(module, "tree")
    assert [type(each).__name__ for _, each in found] == [transform] * count


def test_roberta_counts_positions_from_the_padding_id(
    plugins: PluginManager, tmp_path: Path
) -> None:
    reference = make("RobertaForCausalLM", tmp_path, is_decoder=True, pad_token_id=3)
    loaded = load(tmp_path, plugins)
    assert loaded.config.max_position_embeddings == 252
    assert differs(reference, loaded, plugins) <= BAR


@pytest.mark.parametrize("pad", [None, -1, 127, 128, 255, 10**9, 2**70, "1", True])
def test_a_hostile_padding_id_is_rejected_or_right(
    pad: Any, plugins: PluginManager, tmp_path: Path
) -> None:
    reference = make("RobertaForCausalLM", tmp_path, is_decoder=True, pad_token_id=1)
    rewrite(tmp_path, load_file(tmp_path / "model.safetensors"), pad_token_id=pad)
    try:
        loaded = load(tmp_path, plugins)
    except OstroError:
        assert pad is True or pad not in (1, 127)
        return
    reference.roberta.embeddings.padding_idx = int(pad)
    assert differs(reference, loaded, plugins) <= BAR


@pytest.mark.sample(1)
@pytest.mark.parametrize("scale", [True, False])
def test_embeddings_keep_their_scale(scale: bool, plugins: PluginManager, tmp_path: Path) -> None:
    sizes = {"d_model": 64, "decoder_layers": 2, "decoder_attention_heads": 4}
    sizes |= {"decoder_ffn_dim": 96}
    reference = make("BartForCausalLM", tmp_path, scale_embedding=scale, **sizes)
    assert differs(reference, load(tmp_path, plugins), plugins) <= BAR


def test_gemmas_scale_is_rounded_to_the_dtype(plugins: PluginManager, tmp_path: Path) -> None:
    reference = make("VaultGemmaForCausalLM", tmp_path, head_dim=16, hidden_size=96).bfloat16()
    settings = Settings(dtype="bfloat16", arch="transformers")
    model: Any = load_model(tmp_path, settings, plugins).model
    table, ids = model.embedding[0], torch.tensor([5, 6, 7])
    with torch.no_grad():
        expected = reference.get_input_embeddings()(ids)
    rows = table.storage.rows(ids)
    assert torch.equal(rows * rows.new_full((), table.scale), expected)
    assert table.rounded and not torch.equal(rows * table.scale, expected)


def test_a_conversion_that_is_not_implemented_is_refused(
    plugins: PluginManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import conversion_mapping, core_model_loading

    step = core_model_loading.WeightConverter(
        source_patterns="self_attn.qkv.weight",
        target_patterns=["self_attn.q_proj.weight", "self_attn.k_proj.weight"],
        operations=[core_model_loading.Chunk(dim=0)],
    )
    make(MIXTURE, tmp_path)
    known = conversion_mapping.get_checkpoint_conversion_mapping
    monkeypatch.setattr(
        conversion_mapping,
        "get_checkpoint_conversion_mapping",
        lambda kind: [step] if kind == "olmoe" else known(kind),
    )
    tensors = load_file(tmp_path / "model.safetensors")
    rewrite(tmp_path, tensors | {"model.layers.0.self_attn.qkv.weight": torch.zeros(128, 64)})
    with pytest.raises(Unsupported, match=r"transformers converts .*qkv.weight on loading by"):
        load(tmp_path, plugins)
