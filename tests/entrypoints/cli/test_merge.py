"""A merged model says what its base says with the adapters, here and in transformers."""

from __future__ import annotations

import copy
import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny.model import make_gguf, make_model
from torch import Tensor, nn

import ostro as package
from ostro.core.errors import AdapterError, Unsupported, UsageError
from ostro.entrypoints.python.model import LocalModel
from ostro.plugins.checkpoints.safetensors import write as writer

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    # PEFT looks for the patterns of parameters among modules alone.
    pytest.mark.filterwarnings("ignore:.*did not match any targeted module:RuntimeWarning"),
]

TOKENS = list(range(5, 30))
SIZES: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 2,
}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("Llama", {}),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen3_moe": ("Qwen3Moe", MIXTURE),
    "gpt_oss": ("GptOss", {"num_local_experts": 3, "num_experts_per_tok": 2, "head_dim": 8}),
}
EXPERTS = {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj"]}
PLAIN = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
DORA = {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "k_proj", "up_proj"]}


@torch.no_grad()
def scatter(module: nn.Module, among: str = "") -> None:
    for name, parameter in module.named_parameters():
        if among in name:
            parameter.normal_(0, 0.2) if parameter.dim() > 1 else parameter.uniform_(0.7, 1.4)


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, nn.Module]]:
    """A model of transformers with a tokenizer beside it, by the name of its family."""
    made: dict[str, tuple[Path, nn.Module]] = {}

    def run(family: str) -> tuple[Path, nn.Module]:
        if family not in made:
            name, more = FAMILIES[family]
            torch.manual_seed(2)
            config = getattr(transformers, f"{name}Config")(**SIZES, **more)
            model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
            scatter(model)
            folder = tmp_path_factory.mktemp("bases") / family
            model.save_pretrained(folder)
            words = make_model(tmp_path_factory.mktemp("words") / "tiny")
            for file in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(words / file, folder / file)
            made[family] = folder, model
        return made[family]

    return run


Ostro = Callable[..., Any]
Tune = Callable[..., Path]


@pytest.fixture
def tune(bases: Callable[[str], tuple[Path, nn.Module]], tmp_path: Path) -> Tune:
    """An adapter of PEFT's for a family, in a folder of this name."""

    def run(family: str, name: str, **config: Any) -> Path:
        torch.manual_seed(len(name))
        model = copy.deepcopy(bases(family)[1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tuned = peft.get_peft_model(model, peft.LoraConfig(**config))
            scatter(tuned, "lora_")
            scatter(tuned, "modules_to_save")
            if config.get("bias", "none") != "none":
                scatter(tuned, ".bias")
            tuned.save_pretrained(str(tmp_path / name))
        return tmp_path / name

    return run


def far(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def logits(folder: Path, adapters: Mapping[Path, float] | None = None) -> Tensor:
    with package.load(folder, dtype="float32") as model:
        assert isinstance(model, LocalModel)
        shares = {f"a{i}": (path, s) for i, (path, s) in enumerate((adapters or {}).items())}
        for name, (path, _) in shares.items():
            model.load_adapter(name, path)
        return model.logits(TOKENS, adapters={name: scale for name, (_, scale) in shares.items()})


@torch.no_grad()
def theirs(folder: Path) -> Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    return model(torch.tensor([TOKENS])).logits[0]


def merge(ostro: Ostro, base: Path, out: Path, *adapters: str) -> Path:
    words = [word for adapter in adapters for word in ("--adapter", adapter)]
    ran = ostro("merge", "-m", str(base), *words, "-o", str(out))
    assert ran.code == 0, ran.err
    assert ran.out.strip() == str(out)
    return out


CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "every linear": ("llama", {"r": 4, "target_modules": "all-linear", "use_rslora": True}),
    "DoRA": ("llama", DORA | {"use_dora": True}),
    "embeddings": ("llama", {"r": 4, "target_modules": ["embed_tokens", "lm_head", "q_proj"]}),
    "saved head": ("llama", PLAIN | {"modules_to_save": ["lm_head"]}),
    "tied, neither": ("tied", PLAIN),
    "tied, head": ("tied", {"r": 4, "target_modules": ["lm_head", "q_proj"]}),
    "tied, table": ("tied", {"r": 4, "target_modules": ["embed_tokens", "q_proj"]}),
    "biases": ("qwen2", PLAIN | {"bias": "lora_only"}),
    "lora_bias": ("qwen2", PLAIN | {"target_modules": ["q_proj", "v_proj"], "lora_bias": True}),
    "experts": ("qwen3_moe", {"r": 2, **EXPERTS}),
    "stacked experts": ("gpt_oss", {"r": 2, **EXPERTS}),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", CASES)
def test_it_says_what_the_adapter_says(
    case: str, bases: Any, tune: Tune, ostro: Ostro, tmp_path: Path
) -> None:
    family, config = CASES[case]
    base, _ = bases(family)
    adapter = tune(family, "adapter", **config)
    out = merge(ostro, base, tmp_path / "out", str(adapter))
    wanted = logits(base, {adapter: 1.0})
    assert far(logits(out), wanted) < 1e-5
    assert far(theirs(out), wanted) < 1e-5
    assert far(logits(base), wanted) > 0.05
    config = json.loads((out / "config.json").read_text())
    assert config["tie_word_embeddings"] == (case == "tied, neither")


def test_several_adapters_are_added_as_they_are_mixed(
    bases: Any, tune: Tune, ostro: Ostro, tmp_path: Path
) -> None:
    base, _ = bases("llama")
    shares = {tune("llama", "plain", **PLAIN): 0.5, tune("llama", "other", **DORA): 0.7}
    words = [f"{path}={scale}" for path, scale in shares.items()]
    out = merge(ostro, base, tmp_path / "out", *words)
    assert far(logits(out), logits(base, shares)) < 1e-5
    assert far(logits(out), logits(base, dict.fromkeys(shares, 1.0))) > 0.05


def product(folder: Path, name: str) -> Tensor:
    held = load_file(folder / "adapter_model.safetensors")
    a, b = (held[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
    return b @ a


def test_rows_of_dora_have_their_length_with_the_base_alone(
    bases: Any, tune: Tune, ostro: Ostro, tmp_path: Path
) -> None:
    base, _ = bases("llama")
    plain, dora = tune("llama", "plain", **PLAIN), tune("llama", "d", **DORA, use_dora=True)
    out = merge(ostro, base, tmp_path / "out", f"{plain}=0.5", f"{dora}=0.7")
    name = "model.layers.1.self_attn.q_proj"
    weight = load_file(base / "model.safetensors")[f"{name}.weight"]
    moved = weight + 0.7 * 5 / 3 * product(dora, name)
    held = load_file(dora / "adapter_model.safetensors")
    lengths = held[f"base_model.model.{name}.lora_magnitude_vector"]
    wanted = moved / moved.norm(dim=1, keepdim=True) * lengths[:, None]
    wanted += 0.5 * 2 * product(plain, name)
    torch.testing.assert_close(load_file(out / "model.safetensors")[f"{name}.weight"], wanted)


@torch.no_grad()
def test_trained_biases_are_no_part_of_doras_rows(
    bases: Any, tune: Tune, ostro: Ostro, tmp_path: Path
) -> None:
    base, model = bases("qwen2")
    adapter = tune("qwen2", "adapter", **DORA, use_dora=True, bias="lora_only")
    out = merge(ostro, base, tmp_path / "out", str(adapter))
    tuned = peft.PeftModel.from_pretrained(copy.deepcopy(model), str(adapter)).eval()
    assert far(theirs(out), tuned(torch.tensor([TOKENS])).logits[0]) < 1e-5


def test_types_and_files_stay_those_of_the_base(
    tune: Tune, ostro: Ostro, bases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = tmp_path / "half"
    copy.deepcopy(bases("llama")[1]).to(torch.bfloat16).save_pretrained(half)
    shutil.copy(bases("llama")[0] / "tokenizer.json", half)
    (half / "notes.md").write_text("not a part of the model")
    (half / "additional_chat_templates").mkdir()
    (half / "additional_chat_templates" / "tool_use.jinja").write_text("of the base")
    monkeypatch.setattr(writer, "LIMIT", 30_000)
    adapter = tune("llama", "adapter", **PLAIN)
    (adapter / "chat_template.jinja").write_text("{{ messages }}")
    out = merge(ostro, half, tmp_path / "out", str(adapter))
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2 and {path.name for path in out.iterdir()} == {
        *("config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"),
        *("model.safetensors.index.json", *files),
    }
    assert (out / "chat_template.jinja").read_text() == "{{ messages }}"
    held = load_file(half / "model.safetensors")
    found = {name: tensor for file in files for name, tensor in load_file(out / file).items()}
    assert {name: t.dtype for name, t in found.items()} == {n: t.dtype for n, t in held.items()}
    moved = {name.split(".")[-2] for name in held if not torch.equal(held[name], found[name])}
    assert moved == {*PLAIN["target_modules"]}  # type: ignore[misc]


def test_an_interrupted_one_leaves_nothing(
    bases: Any, tune: Tune, ostro: Ostro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    adapter = tune("llama", "adapter", **PLAIN)
    monkeypatch.setattr(os, "fsync", full)
    words = ["merge", "-m", str(bases("llama")[0]), "--adapter", str(adapter)]
    ran = ostro(*words, "-o", str(tmp_path / "out"))
    assert ran.code and "No space left" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_what_exists_is_not_written_over(
    bases: Any, tune: Tune, ostro: Ostro, tmp_path: Path
) -> None:
    adapter = tune("llama", "adapter", **PLAIN)
    words = ["merge", "-m", str(bases("llama")[0]), "--adapter", str(adapter)]
    ran = ostro(*words, "-o", str(tmp_path))
    assert ran.code == UsageError.exit_code and "exists" in ran.err


def refused(ostro: Ostro, base: Path, adapter: str, tmp_path: Path) -> tuple[int, str]:
    ran = ostro("merge", "-m", str(base), "--adapter", adapter, "-o", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    return ran.code, ran.err


@pytest.mark.parametrize(
    ("config", "more", "message"),
    [
        ({"modules_to_save": ["lm_head"]}, "=0.5", "must have scale 1"),
        ({"lora_bias": True}, "", "a bias (lora_bias) for a linear without one"),
        ({"alora_invocation_tokens": [5, 6]}, "", "activated LoRA"),
        ({}, "=inf", "expected REF or REF=SCALE"),
        ({}, "=1e39", "contains NaN or Inf after merging"),
    ],
)
def test_unsupported_adapters_are_not_merged(
    config: Any, more: str, message: str, bases: Any, tune: Tune, ostro: Ostro, tmp_path: Path
) -> None:
    adapter = tune("llama", "adapter", **PLAIN, **config)
    code, err = refused(ostro, bases("llama")[0], f"{adapter}{more}", tmp_path)
    assert code and message in err


def test_another_base_is_refused(bases: Any, tune: Tune, ostro: Ostro, tmp_path: Path) -> None:
    adapter = tune("qwen3_moe", "adapter", r=2, **EXPERTS)
    code, err = refused(ostro, bases("llama")[0], str(adapter), tmp_path)
    assert code == AdapterError.exit_code and "has no weights named model.layers.0.mlp.ex" in err


def test_a_gguf_base_is_refused(tune: Tune, ostro: Ostro, tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "tiny.gguf")
    code, err = refused(ostro, file, str(tune("llama", "adapter", **PLAIN)), tmp_path)
    assert code == Unsupported.exit_code and "config.json and float safetensors" in err


def test_quantized_weights_are_rejected(
    bases: Any, tune: Tune, ostro: Ostro, tmp_path: Path
) -> None:
    few = tmp_path / "few"
    base = bases("llama")[0]
    words = ["quantize", "-m", str(base), "--to", "uqff", "--quant", "q8_0", "-o", str(few)]
    assert ostro(*words).code == 0
    code, err = refused(ostro, few, str(tune("llama", "adapter", **PLAIN)), tmp_path)
    assert code == Unsupported.exit_code and "merged into floats" in err


def test_safetensors_cannot_be_quantized(bases: Any, ostro: Ostro, tmp_path: Path) -> None:
    words = ["quantize", "-m", str(bases("llama")[0]), "--to", "safetensors", "--quant", "q8_0"]
    ran = ostro(*words, "-o", str(tmp_path / "out"))
    assert ran.code == Unsupported.exit_code and "use --to gguf or --to uqff to quantize" in ran.err


def test_x_lora_is_refused(bases: Any, tune: Tune, ostro: Ostro, tmp_path: Path) -> None:
    member, folder = tune("llama", "member", **PLAIN), tmp_path / "mixed"
    member.rename(tmp_path / "m0")
    folder.mkdir()
    config = {"peft_type": "XLORA", "hidden_size": 32, "adapters": {"0": "../m0"}}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    name = "base_model.internal_xlora_classifier.layers.0"
    tensors = {f"{name}.weight": torch.ones(1, 32), f"{name}.bias": torch.ones(1)}
    save_file(tensors, folder / "adapter_model.safetensors")
    code, err = refused(ostro, bases("llama")[0], str(folder), tmp_path)
    assert code == AdapterError.exit_code and "X-LoRA computes its scalings per token" in err
