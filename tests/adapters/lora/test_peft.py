"""Adapter folders written by PEFT: the weights read equal the deltas that PEFT computes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from peft.tuners.lora import LoraLayer, ParamWrapper
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ostro import AdapterWeights, LowRank

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    # PEFT matches patterns against modules only and warns of those for parameters.
    pytest.mark.filterwarnings("ignore:.*did not match any targeted module:RuntimeWarning"),
]

Read = Callable[[Path], AdapterWeights]

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 40}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "moe_intermediate_size": 12}


def llama(**config: Any) -> nn.Module:
    made = transformers.LlamaConfig(**SIZES, **HEADS, intermediate_size=24, **config)
    return transformers.LlamaForCausalLM(made)


def qwen3_moe() -> nn.Module:
    made = transformers.Qwen3MoeConfig(**SIZES, **HEADS, intermediate_size=24, **MIXTURE)
    return transformers.Qwen3MoeForCausalLM(made)


def mixtral() -> nn.Module:
    made = transformers.MixtralConfig(
        **SIZES, **HEADS, intermediate_size=24, num_local_experts=3, num_experts_per_tok=2
    )
    return transformers.MixtralForCausalLM(made)


def gpt_oss() -> nn.Module:
    """A gpt-oss, which stores stacked experts transposed."""
    made = transformers.GptOssConfig(
        **SIZES, **HEADS, intermediate_size=24, num_local_experts=3, head_dim=8
    )
    return transformers.GptOssForCausalLM(made)


def gpt2() -> nn.Module:
    """A GPT-2, which stores weights transposed."""
    made = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=40, n_positions=8)
    return transformers.GPT2LMHeadModel(made)


def mamba() -> nn.Module:
    made = transformers.MambaConfig(**SIZES, state_size=4, conv_kernel=3)
    return transformers.MambaForCausalLM(made)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flat, self.sound = nn.Conv2d(4, 6, 3), nn.Conv1d(6, 5, 2)


class Listed(nn.Module):
    """Layers with two experts each, in module lists."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.ModuleList(nn.ModuleDict({"experts": self.experts()}) for _ in range(2))
        self.model = nn.ModuleDict({"layers": layers})

    def experts(self) -> nn.ModuleList:
        return nn.ModuleList(nn.ModuleDict({"up": nn.Linear(4, 3)}) for _ in range(2))


def adapted(model: nn.Module, folder: Path, **config: Any) -> nn.Module:
    """A PEFT model with a random adapter, which is saved to a folder."""
    torch.manual_seed(0)
    made = peft.get_peft_model(model, peft.LoraConfig(**config))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.requires_grad:
                offset = 1.0 if "magnitude" in name else 0.0
                parameter.copy_(torch.rand_like(parameter) + offset)
    made.save_pretrained(folder)
    return made


def deltas(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """PEFT's delta of each weight [n, k] or [e, n, k], by its name in ostro."""
    for name, layer in model.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        name = name.removeprefix("base_model.model.").replace(".base_layer", "")
        delta = layer.get_delta_weight("default").detach()
        if isinstance(layer, ParamWrapper):
            name = f"{name}.{layer.parameter_name}".removesuffix(".weight")
            yield (
                name,
                delta.mT if getattr(layer.get_base_layer(), "is_transposed", False) else delta,
            )
        else:
            delta = delta.flatten(1)
            yield name, delta.mT if getattr(layer, "fan_in_fan_out", False) else delta


def product(made: LowRank) -> Tensor:
    return made.scale * (made.b @ made.a)


CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "lora": (llama, {"target_modules": ["q_proj", "v_proj"], "r": 4, "lora_alpha": 6}),
    "rslora": (llama, {"target_modules": ["q_proj"], "r": 4, "use_rslora": True}),
    "all-linear": (llama, {"target_modules": "all-linear"}),
    "regex": (llama, {"target_modules": r".*\.1\.self_attn\.(q|o)_proj"}),
    "patterns": (
        llama,
        {
            "target_modules": ["q_proj", "k_proj", "down_proj"],
            "rank_pattern": {"layers.1.self_attn.q_proj": 3, r"layers\.\d+\.mlp\.down_proj": 2},
            "alpha_pattern": {"^model.layers.0.self_attn.k_proj": 5, "q_proj": 7},
        },
    ),
    "patterns of parts": (llama, {"target_modules": ["q_proj"], "rank_pattern": {"proj": 3}}),
    "excluded": (llama, {"target_modules": ["q_proj"], "exclude_modules": r".*layers\.0\..*"}),
    "excluded names": (
        llama,
        {"target_modules": ["q_proj", "k_proj"], "exclude_modules": ["0.self_attn.q_proj"]},
    ),
    "layers": (llama, {"target_modules": ["q_proj"], "layers_to_transform": [1]}),
    "layers in": (
        llama,
        {"target_modules": ["q_proj"], "layers_to_transform": 1, "layers_pattern": "layers"},
    ),
    "layers of experts": (Listed, {"target_modules": ["up"], "layers_to_transform": [1]}),
    "layers of experts in": (
        Listed,
        {"target_modules": ["up"], "layers_to_transform": [0], "layers_pattern": ["layers"]},
    ),
    "table and head": (llama, {"target_modules": ["embed_tokens", "lm_head", "q_proj"]}),
    "experts": (
        qwen3_moe,
        {
            "target_modules": ["q_proj"],
            "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
            "r": 3,
            "rank_pattern": {"experts.down_proj": 2},
            "alpha_pattern": {r"1\.mlp\.experts\.gate_up_proj": 5},
        },
    ),
    "experts of one": (mixtral, {"target_modules": [], "target_parameters": ["down_proj"]}),
    "experts transposed": (
        gpt_oss,
        {
            "target_modules": ["q_proj"],
            "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
        },
    ),
    "matrices": (
        qwen3_moe,
        {"target_modules": ["q_proj"], "target_parameters": ["mlp.gate.weight"], "r": 2},
    ),
    "convolutions": (Convolutions, {"target_modules": ["flat", "sound"], "r": 2}),
    "sound": (mamba, {"target_modules": ["in_proj", "x_proj"]}),
    "transposed": (gpt2, {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "begun otherwise": (llama, {"target_modules": ["q_proj"], "init_lora_weights": "orthogonal"}),
}


@pytest.mark.sample(10)
@pytest.mark.parametrize("case", CASES)
def test_what_is_read_is_what_peft_adds(case: str, tmp_path: Path, read: Read) -> None:
    make, config = CASES[case]
    model = adapted(make(), tmp_path, **config)
    ours, theirs = read(tmp_path), dict(deltas(model))
    assert theirs and ours.weights.keys() == theirs.keys()
    assert (ours.kind, ours.space) == ("lora", "tree")
    for name, delta in theirs.items():
        torch.testing.assert_close(product(ours.weights[name]), delta, rtol=1e-5, atol=1e-6)


def test_of_several_patterns_the_files_first_decides(tmp_path: Path, read: Read) -> None:
    """The first match in the file decides; PEFT sorts the patterns on saving."""
    pattern = {r"layers\.1\..*q_proj": 5, "self_attn.q_proj": 3}
    adapted(llama(), tmp_path, target_modules=["q_proj"], rank_pattern=pattern)
    ranks = {name: made.rank for name, made in read(tmp_path).weights.items()}
    names = [f"model.layers.{i}.self_attn.q_proj" for i in range(2)]
    assert ranks == {names[0]: 3, names[1]: 5}


@pytest.mark.parametrize("make", [llama, Convolutions])
def test_dora_brings_rows_to_its_lengths(
    make: Callable[[], nn.Module], tmp_path: Path, read: Read
) -> None:
    targets = ["q_proj", "lm_head"] if make is llama else ["flat", "sound"]
    model = adapted(make(), tmp_path, target_modules=targets, use_dora=True, r=2)
    ours = read(tmp_path).weights
    base = {name: weight.detach().clone() for name, weight in weights(model)}
    merged = dict(model.merge_and_unload().named_parameters())
    for name, made in ours.items():
        assert made.magnitude is not None
        rows = base[name].flatten(1) + product(made)
        rows = rows * (made.magnitude / rows.norm(dim=1))[:, None]
        torch.testing.assert_close(rows, merged[f"{name}.weight"].flatten(1).detach())


def weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield name.removeprefix("base_model.model."), module.get_base_layer().weight


def test_the_bias_of_b_is_scaled(tmp_path: Path, read: Read) -> None:
    model = adapted(
        llama(attention_bias=True),
        tmp_path,
        target_modules=["q_proj"],
        lora_bias=True,
        lora_alpha=3,
    )
    ours = read(tmp_path).weights
    base = {
        n: m.get_base_layer().bias.detach().clone()
        for n, m in model.named_modules()
        if isinstance(m, LoraLayer)
    }
    merged = dict(model.merge_and_unload().named_parameters())
    for name, before in base.items():
        plain = name.removeprefix("base_model.model.")
        made = ours[plain]
        assert made.bias is not None
        torch.testing.assert_close(
            before + made.scale * made.bias, merged[f"{plain}.bias"].detach()
        )


@pytest.mark.parametrize(("bias", "count"), [("none", 0), ("lora_only", 2), ("all", 8)])
def test_trained_biases_take_the_place_of_the_bases(
    bias: str, count: int, tmp_path: Path, read: Read
) -> None:
    model = adapted(llama(attention_bias=True), tmp_path, target_modules=["q_proj"], bias=bias)
    whole = read(tmp_path).whole
    assert len(whole) == count
    merged = dict(model.merge_and_unload().named_parameters())
    for name, tensor in whole.items():
        assert name.endswith(".bias") and torch.equal(tensor, merged[name])


def test_saved_modules_come_whole(tmp_path: Path, read: Read) -> None:
    saved = ["lm_head", "input_layernorm"]
    model = adapted(llama(), tmp_path, target_modules=["q_proj"], modules_to_save=saved)
    whole = read(tmp_path).whole
    names = [f"model.layers.{i}.input_layernorm.weight" for i in range(2)]
    assert sorted(whole) == ["lm_head.weight", *names]
    merged = dict(model.merge_and_unload().named_parameters())
    assert all(torch.equal(tensor, merged[name]) for name, tensor in whole.items())


def test_older_names_of_saved_modules_are_understood(tmp_path: Path, read: Read) -> None:
    adapted(llama(), tmp_path, target_modules=["q_proj"], modules_to_save=["lm_head"])
    front = "base_model.model.lm_head"
    renamed(tmp_path, {f"{front}.weight": f"{front}.modules_to_save.default.weight"})
    assert [*read(tmp_path).whole] == ["lm_head.weight"]


def renamed(folder: Path, names: dict[str, str]) -> None:
    """Rename tensors in the weight file of a folder."""
    file = folder / "adapter_model.safetensors"
    save_file({names.get(n, n): t for n, t in load_file(file).items()}, file)


def test_an_adapted_embedding_includes_its_base_weights(tmp_path: Path, read: Read) -> None:
    model = adapted(llama(), tmp_path, target_modules=["embed_tokens"])
    ours = read(tmp_path)
    assert [*ours.weights] == ["model.embed_tokens"] and [*ours.whole] == [
        "model.embed_tokens.weight"
    ]
    ids = torch.arange(40)
    made = ours.weights["model.embed_tokens"]
    table = ours.whole["model.embed_tokens.weight"] + product(made)
    theirs = model.get_input_embeddings()(ids)
    torch.testing.assert_close(table, theirs.detach())


def test_names_of_adapters_in_names_of_tensors_are_left_out(tmp_path: Path, read: Read) -> None:
    model = adapted(llama(), tmp_path, target_modules=["q_proj", "embed_tokens"])
    before = read(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    named = {n: insert(n) for n in load_file(file)}
    assert len(set(named.values()) - named.keys()) == 6
    renamed(tmp_path, named)
    assert read(tmp_path).generation == before.generation
    assert dict(deltas(model)).keys() == before.weights.keys()


def insert(name: str) -> str:
    """The tensor name with an adapter name inserted."""
    for part in ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B"):
        name = name.replace(f".{part}.", f".{part}.mine.")
        name = f"{name}.mine" if name.endswith(f".{part}") else name
    return name


def test_shards_are_one_adapter(tmp_path: Path, read: Read) -> None:
    adapted(llama(), tmp_path, target_modules=["q_proj"])
    before = read(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    file.unlink()
    owners = {}
    for number, name in enumerate(sorted(tensors)):
        shard = f"adapter_model-0000{number % 2 + 1}-of-00002.safetensors"
        owners[name] = shard
        held = {n: tensors[n] for n, s in owners.items() if s == shard}
        save_file(held, tmp_path / shard)
    index = tmp_path / "adapter_model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": owners}))
    assert read(tmp_path).generation == before.generation


def test_an_activated_adapter_names_its_invocation(tmp_path: Path, read: Read) -> None:
    adapted(
        llama(),
        tmp_path,
        target_modules=["q_proj"],
        alora_invocation_tokens=[3, 1, 4],
        task_type="CAUSAL_LM",
    )
    assert read(tmp_path).invocation == (3, 1, 4)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("chat_template.jinja", "{{ 1 }}"),
        ("tokenizer_config.json", json.dumps({"chat_template": "{{ 1 }}"})),
        (
            "tokenizer_config.json",
            json.dumps({"chat_template": [{"name": "default", "template": "{{ 1 }}"}]}),
        ),
    ],
)
def test_its_chat_template_is_read(name: str, text: str, tmp_path: Path, read: Read) -> None:
    adapted(llama(), tmp_path, target_modules=["q_proj"])
    before = read(tmp_path)
    (tmp_path / name).write_text(text)
    assert before.template is None and read(tmp_path).template == "{{ 1 }}"
    assert read(tmp_path).generation != before.generation


def test_added_tokens_are_reported(tmp_path: Path, read: Read) -> None:
    adapted(llama(), tmp_path, target_modules=["q_proj"])
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<mine>": 40}))
    assert read(tmp_path).tokens == {"<mine>": 40}


def test_path_and_training_fields_do_not_change_the_generation(tmp_path: Path, read: Read) -> None:
    found = set()
    for name, dropout in (("one", 0.0), ("two", 0.3)):
        adapted(llama(), tmp_path / name, target_modules=["q_proj"], lora_dropout=dropout)
        found.add(read(tmp_path / name).generation)
    assert len(found) == 1
