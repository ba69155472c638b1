"""Adapters on quantized bases, GGUF bases and models of the transformers backend match PEFT."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "architectures"))

import test_gguf
import test_gguf_more
from tiny.trained import BAR, FELT, RED, Served, compare, distance, train

from ostro.core.config import ModelConfig
from ostro.core.engine.startup.build import refresh
from ostro.core.load.model import LoadedModel, requantize
from ostro.core.load.weights import weight_slots
from ostro.core.nn import Embedding, Linear, Model
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.conformance.formats import densify
from ostro.plugins.conformance.parity import Subject, reinitialise, subject
from ostro.quant.bnb import STATE
from ostro.quant.bnb import naive as bnb
from ostro.quant.gptq import naive as gptq

pytestmark = pytest.mark.slow

Pack = Callable[[Tensor], dict[str, Tensor]]
ALL = "all-linear"
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "lora": {"r": 4, "lora_alpha": 8, "target_modules": ALL},
    "dora": {"r": 4, "lora_alpha": 8, "target_modules": ALL, "use_dora": True},
    "ends": {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens", "lm_head", "q_proj"]},
}
SPREAD = 0.05
"""The standard deviation of base weights; it keeps activations small at inner dimensions of 256."""


# Quantized bases


def floats(model: Model) -> Iterator[tuple[str, Tensor]]:
    """The dequantized weights of a model, with their names in the checkpoint."""
    for slot in weight_slots(model):
        module = slot.module
        if isinstance(module, Embedding):
            assert module.storage is not None, f"{slot.name} is filled"
            yield slot.name, module.storage.dequantize()
        elif isinstance(module, Linear) and slot.kind == "storage":
            whole = None if module.fused is None else module.fused.dequantize()
            rows = module.span(slot.part)
            own = module.storages[slot.part].dequantize() if whole is None else whole[rows]
            yield slot.name, own


@contextmanager
def few_bits(plugins: PluginManager, name: str, format: str) -> Iterator[Served]:
    """An architecture quantized to a format, with a reference of the dequantized weights."""
    shape = plugins.get("architectures", name).conformance.wide
    with subject(plugins, name, config=shape, std=SPREAD) as made:
        if format in PACKED:
            write_packed(made, *PACKED[format])
        loaded = made.load(quant=None if format in PACKED else format, exact=True)
        held, found = made.reference.state_dict(), dict(floats(loaded.model))
        assert len(found) == sum(weight.dim() == 2 for weight in held.values())
        off = 0.0
        for name, weight in found.items():
            off = max(off, distance(weight, held[f"{name}.weight"]))
            held[f"{name}.weight"].copy_(weight)
        assert off > RED, f"{format} is floats: {off = }"
        yield Served(made, made.engine(loaded, exact=True))


def write_packed(made: Subject, pack: Pack, said: Mapping[str, Any]) -> None:
    """Quantize the weights of all layers in the subject's folder with `pack`."""
    tensors = {name: t.clone() for name, t in made.reference.state_dict().items()}
    for name in [n for n in tensors if "layers" in n and tensors[n].dim() == 2]:
        front, weight = name.removesuffix("weight"), tensors.pop(name)
        tensors |= {front + suffix: part for suffix, part in pack(weight).items()}
    save_file(tensors, made.folder / "model.safetensors", metadata={"format": "pt"})
    raw = made.raw_config | {"quantization_config": said}
    (made.folder / "config.json").write_text(json.dumps(raw))


def pack_gptq(weight: Tensor) -> dict[str, Tensor]:
    """The tensors of a "gptq" checkpoint: 4 bits in groups of 64."""
    parts, top = weight.unflatten(-1, (-1, 64)), 15
    low, high = parts.amin(-1), parts.amax(-1)
    scales = ((high - low) / top).half()
    zeros = (-low / scales.float()).round()
    codes = (parts / scales.float()[..., None] + zeros[..., None]).round().clamp(0, top)
    return {
        "qweight": gptq.pack(codes.flatten(1).to(torch.uint8), 4).t().contiguous(),
        "qzeros": gptq.pack_zeros(zeros.t().to(torch.uint8), 4, zeros_minus_one=True),
        "scales": scales.t().contiguous(),
        "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // 64,
    }


def pack_nf4(weight: Tensor) -> dict[str, Tensor]:
    """The tensors of a bitsandbytes checkpoint for QLoRA: NF4 in blocks of 64."""
    blocks = weight.reshape(-1, 64)
    absmax = blocks.abs().amax(-1)
    codes = (blocks / absmax[:, None])[..., None].sub(NF4).abs().argmin(-1)
    said = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [*weight.shape]}
    return {
        "weight": bnb.pack(codes.flatten().to(torch.uint8))[:, None],
        "weight.absmax": absmax,
        "weight.quant_map": NF4.clone(),
        f"{STATE}nf4": torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8),
    }


NF4 = load_file(Path(__file__).parents[1] / "quant" / "bnb" / "golden.safetensors")[
    "nf4.64.6x128.float32.weight.quant_map"
]
PACKED: Mapping[str, tuple[Pack, Mapping[str, Any]]] = {
    "gptq4": (
        pack_gptq,
        {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False},
    ),
    "nf4": (pack_nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True}),
}


FORMATS = [
    pytest.param(name, format, marks=[pytest.mark.slow] * (name != "llama"))
    for name in ("llama", "qwen3")
    for format in ("q4k", "q8_0", "hqq4", "gptq4", "nf4")
]


@pytest.mark.parametrize(("name", "format"), FORMATS)
def test_a_quantized_base(name: str, format: str, plugins: PluginManager, tmp_path: Path) -> None:
    with few_bits(plugins, name, format) as served:
        for what, config in CONFIGS.items():
            compare(served, tmp_path / what, std=0.1, **config)


OTHERS: Mapping[str, Mapping[str, Any]] = {
    "qwen3_moe": {
        "target_modules": ["q_proj", "o_proj"],
        "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    },
    "deepseek_v2": {"target_modules": r".*self_attn\.\w*proj\w*", "use_dora": True},
    "qwen3_next": {"target_modules": r".*(linear_attn|self_attn)\.\w*proj\w*", "use_dora": True},
    "lfm2": {"target_modules": ALL, "use_dora": True},
}


@pytest.mark.parametrize("format", ["q4k", pytest.param("q8_0", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OTHERS)
def test_quantized_models_match_dequantized_weights(
    name: str, format: str, plugins: PluginManager, tmp_path: Path
) -> None:
    shape = plugins.get("architectures", name).conformance.wide
    with subject(plugins, name, config=shape, std=SPREAD) as made:
        loaded = made.load(quant=format, exact=True)
        served = Served(made, made.engine(loaded, exact=True))
        train(made.reference, tmp_path, std=0.1, r=4, lora_alpha=8, **OTHERS[name])
        served.load("it", tmp_path)
        example = made.examples[0]
        said, base = served.answer(example, ["it"]), served.answer(example)
        densify(loaded.model, plugins)
        served.registry.store.adapter_pool.invalidate()
        assert distance(served.answer(example, ["it"]), said) <= BAR
        assert distance(base, said) > FELT


# Bases in GGUF files, which have other weight layouts

SELF = r".*(self_attn|linear_attn)\.\w*proj\w*"
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
LYING: Mapping[str, Mapping[str, Any]] = {
    "linears": {"r": 4, "lora_alpha": 8, "target_modules": SELF, "use_dora": True},
    "experts": {"r": 4, "lora_alpha": 8, "target_parameters": EXPERTS},
}
FILES = ("llama biased", "qwen3_moe", "deepseek 2, whole kv_b", "gpt-oss", "qwen3 next")


@contextmanager
def in_gguf(plugins: PluginManager, case: str, folder: Path) -> Iterator[Served]:
    """An engine over a GGUF file with the layout of llama.cpp's converter."""
    file, more = folder / "model.gguf", test_gguf_more.CASES.get(case)
    name, change = test_gguf.CASES[case] if more is None else (more.name, more.changes)
    shape = {**plugins.get("architectures", name).conformance.tiny, **change}
    with subject(plugins, name, config=shape) as made:
        if more is None:
            with torch.no_grad():
                test_gguf.convert(made.reference, file, ("F32",))
            loaded = test_gguf.loaded(file, plugins)
        else:
            with torch.no_grad():
                test_gguf_more.convert(made.reference, more, file, "F32")
            loaded = test_gguf_more.loaded(file, more, plugins)
        yield Served(made, made.engine(loaded))


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] * (c != "qwen3 next")) for c in FILES]
)
def test_a_base_in_a_gguf_file(case: str, plugins: PluginManager, tmp_path: Path) -> None:
    with in_gguf(plugins, case, tmp_path) as served:
        for what, config in LYING.items():
            if what == "linears" or "llama" not in case:
                compare(served, tmp_path / what, **config)


def test_a_weight_that_is_stored_transposed(plugins: PluginManager, tmp_path: Path) -> None:
    """GGUF files store the transpose of DeepSeek's k_b."""
    lora = {"r": 4, "lora_alpha": 8, "target_modules": SELF}
    with in_gguf(plugins, "deepseek 2", tmp_path) as served:
        compare(served, tmp_path / "lora", **lora)
        compare(served, tmp_path / "dora", **lora, use_dora=True)


def test_lengths_are_measured_again_where_weights_change(
    plugins: PluginManager, tmp_path: Path
) -> None:
    shape = plugins.get("architectures", "llama").conformance.wide
    few = Settings(dtype="float32", quant="hqq4", exact=True)
    with subject(plugins, "llama", config=shape, std=SPREAD) as made:
        train(made.reference, tmp_path, std=0.1, **CONFIGS["dora"])
        loaded = made.load(exact=True)
        changed = Served(made, made.engine(loaded, exact=True))
        fresh = Served(made, made.engine(made.load(quant="hqq4", exact=True), exact=True))
        for served in (changed, fresh):
            served.load("it", tmp_path)
        example = made.examples[0]
        before, truth = (served.answer(example, ["it"]) for served in (changed, fresh))
        requantize(loaded, few, plugins)
        refresh(changed.engine, loaded, few)
        assert distance(before, truth) > RED
        assert distance(changed.answer(example, ["it"]), truth) <= BAR


# The transformers backend


class Body(Subject):
    """A class of transformers; the plugin derives its config from the class."""

    @cached_property
    def config(self) -> ModelConfig:
        return self.load().config

    def load(self, **settings: Any) -> LoadedModel:
        return super().load(**{"arch": "transformers", **settings})


BODIES: Mapping[str, Mapping[str, Any]] = {
    "Olmo2ForCausalLM": {"num_key_value_heads": 2},
    "GPTNeoXForCausalLM": {},
    "OPTForCausalLM": {"ffn_dim": 96, "word_embed_proj_dim": 64},
}
SHAPE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BIASES = {**CONFIGS["lora"], "bias": "lora_only"}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_from_transformers(name: str, plugins: PluginManager, tmp_path: Path) -> None:
    cls = getattr(transformers, name)
    reference = cls(cls.config_class(**SHAPE, **BODIES[name])).eval().float()
    reinitialise(reference, 0.2)
    reference.save_pretrained(tmp_path / "base")
    record = replace(plugins.get("architectures", "transformers"), classes=(name,))
    made = Body(record, reference, tmp_path / "base", plugins)
    loaded = made.load()
    assert loaded.architecture.name == "transformers"
    served = Served(made, made.engine(loaded))
    for what, config in {**CONFIGS, "biases": BIASES}.items():
        if what != "ends":
            compare(served, tmp_path / what, **config)
