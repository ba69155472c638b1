"""Adapters on all kinds of decoders match PEFT, in single steps and in the serving loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny.trained import (
    BAR,
    FELT,
    RED,
    Served,
    compare,
    distance,
    train,
    train_several,
    wrap,
    wrapped,
)
from torch import Tensor

from ostro.adapters.lora import peft as reader
from ostro.adapters.lora.config import Settings as LoraSettings
from ostro.core.adapters.delta import AdapterDelta
from ostro.core.errors import AdapterError
from ostro.core.messages.prompt import Prompt
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.examples import Example
from ostro.plugins.conformance.parity import subject

pytestmark = pytest.mark.slow

Serve = Callable[..., Served]
Config = Mapping[str, Any]

ALL = "all-linear"
TIED = {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
RECURRENT = r".*(linear_attn|self_attn|conv|feed_forward)\.(\w*proj\w*|w[123])"


def lora(targets: Any = (), *, r: int = 4, alpha: float = 8, **more: Any) -> dict[str, Any]:
    named = targets if isinstance(targets, str) else list(targets)
    return {"r": r, "lora_alpha": alpha, "target_modules": named, **more}


TEXT: Mapping[str, Config] = {
    "lora": lora(["q_proj", "v_proj"]),
    "rslora": lora(ALL, r=9, alpha=6, use_rslora=True),
    "dora": lora(ALL, use_dora=True),
    "dora and rslora": lora(["q_proj", "down_proj"], r=18, use_dora=True, use_rslora=True),
    "patterns": lora(
        ALL,
        rank_pattern={"q_proj": 20, r"model.layers.1.*v_proj": 3},
        alpha_pattern={"down_proj": 2, "layers.0.self_attn.o_proj": 12},
    ),
    "a regular expression": lora(r".*layers\.1\.(self_attn\.[qk]_proj|mlp\.\w+_proj)"),
    "biases of its own": lora(["q_proj", "v_proj"], lora_bias=True),
    "biases of linears": lora(["q_proj", "v_proj"], bias="lora_only"),
    "biases of all": lora(["q_proj", "v_proj"], bias="all"),
    "biases and dora": lora(["q_proj", "v_proj"], bias="lora_only", use_dora=True),
    "both ends": lora(["embed_tokens", "lm_head", "q_proj"]),
    "the table": lora(["embed_tokens"]),
    "the head": lora(["lm_head"]),
    "a saved head": lora(["q_proj"], modules_to_save=["lm_head"]),
    "saved ends": lora(["q_proj"], modules_to_save=["embed_tokens", "lm_head"]),
    "one layer": lora(["q_proj", "up_proj"], layers_to_transform=[1]),
    "without some": lora(ALL, exclude_modules=["q_proj", "lm_head"]),
}
QUICK = {"rslora", "dora", "biases of linears", "biases and dora", "both ends", "saved ends"}
BASES: Mapping[str, tuple[str, Config]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", TIED),
    "qwen3": ("qwen3", {}),
    "gemma3": ("gemma3", {}),
}

MIXTURES: Mapping[str, Config] = {
    "attention": lora(["q_proj", "v_proj", "o_proj"]),
    "attention's dora": lora(["q_proj", "k_proj", "o_proj"], use_dora=True),
    "router": lora(target_parameters=["mlp.gate.weight"]),
    "experts": lora(target_parameters=EXPERTS),
    "gate and up": lora(["q_proj"], target_parameters=EXPERTS[:1]),
    "down": lora(target_parameters=EXPERTS[1:]),
    "every linear": lora(ALL),
    "many ranks": lora(r=20, alpha=6, use_rslora=True, target_parameters=EXPERTS),
    "patterns": lora(
        target_parameters=EXPERTS,
        rank_pattern={"experts.down_proj": 5},
        alpha_pattern={"gate_up_proj": 3},
    ),
}
LATENTS: Mapping[str, Config] = {
    "q_a": lora(["q_a_proj"]),
    "q_b": lora(["q_b_proj"]),
    "kv_a": lora(["kv_a_proj_with_mqa"]),
    "kv_b": lora(["kv_b_proj"]),
    "kv_b of many ranks": lora(["kv_b_proj"], r=20, use_rslora=True),
    "kv_b's dora": lora(["kv_b_proj"], use_dora=True),
    "dora": lora(r".*self_attn\.\w*proj\w*", use_dora=True),
    "attention": lora(r".*self_attn\.\w*proj\w*", r=20),
    "shared experts": lora(r".*shared_experts\.\w+_proj"),
    "experts": lora(target_parameters=EXPERTS),
}
STATES: Mapping[str, Config] = {
    "every linear": lora(RECURRENT),
    "rslora": lora(RECURRENT, r=18, use_rslora=True),
    "dora": lora(RECURRENT, use_dora=True),
    "biases of its own": lora(RECURRENT, lora_bias=True),
}
MAMBA: Mapping[str, Config] = {
    "in_proj": lora(["in_proj"]),  # PEFT supports no other linear of this family
    "dora": lora(["in_proj"], use_dora=True, use_rslora=True),
    "both ends": lora(["embeddings", "lm_head", "in_proj"], bias="lora_only"),
}
HYBRIDS: Mapping[str, Config] = {
    "every linear": lora(["in_proj", "q_proj", "o_proj", "input_linear", "output_linear"]),
    "experts": lora(target_parameters=[e.replace("mlp", "block_sparse_moe") for e in EXPERTS]),
}
LINEARS: Mapping[str, Config] = {
    "every linear": lora(ALL),
    "dora": lora(ALL, use_dora=True),
}
FUSED: Mapping[str, Config] = {**LINEARS, "many ranks": lora(["gate_up_proj"], r=20)}
"""Linears that are one weight in the reference: gate and up, in phi3 also q, k and v."""
KINDS: Mapping[str, Mapping[str, Config]] = {
    "phi": LINEARS,
    "phi3": FUSED,
    "glm": FUSED,
    "olmo2": LINEARS,
    "hunyuan_v1_dense": LINEARS,
    "gemma4": LINEARS,
    "bamba": LINEARS,
    "qwen2_moe": {**LINEARS, "experts": MIXTURES["experts"]},
    "qwen3_moe": MIXTURES,
    "mixtral": MIXTURES,
    "gpt_oss": {name: c for name, c in MIXTURES.items() if name != "router"},
    "deepseek_v2": LATENTS,
    "deepseek_v3": LATENTS,
    "qwen3_next": {**STATES, "experts": MIXTURES["experts"]},
    "qwen3_5": STATES,
    "lfm2": STATES,
    "granitemoehybrid": HYBRIDS,
    "mamba2": MAMBA,
}
RARE = {"gpt_oss", "deepseek_v3"}
USUAL = {"attention's dora", "router", "experts", "kv_b", "dora", "every linear", "in_proj"}


def cases() -> Iterator[Any]:
    """(base, changes of its shape, config) for all decoders; redundant cases are marked slow."""
    for name, (base, change) in BASES.items():
        for what, config in TEXT.items():
            slow = name != "llama" and what not in QUICK
            marks = [pytest.mark.slow] * slow
            yield pytest.param(base, change, config, id=f"{name}: {what}", marks=marks)
    for base, configs in KINDS.items():
        for what, config in configs.items():
            slow = base in RARE or what not in USUAL
            marks = [pytest.mark.slow] * slow
            yield pytest.param(base, {}, config, id=f"{base}: {what}", marks=marks)


@pytest.fixture(scope="module")
def serve(plugins: PluginManager) -> Iterator[Serve]:
    """An engine over the tiny model of an architecture with a changed shape, cached per module."""
    kept: dict[str, Served] = {}
    with ExitStack() as stack:

        def run(name: str, **change: Any) -> Served:
            key = f"{name} {change}"
            if key not in kept:
                shape = {**plugins.get("architectures", name).conformance.tiny, **change}
                made = stack.enter_context(subject(plugins, name, config=shape))
                kept[key] = Served(made)
            return kept[key]

        yield run


@pytest.mark.parametrize(("base", "change", "config"), list(cases()))
def test_it_says_what_peft_says(
    base: str, change: Config, config: Config, serve: Serve, tmp_path: Path
) -> None:
    assert compare(serve(base, **change), tmp_path, **config).matched


@pytest.mark.parametrize("base", ["qwen3_moe", "deepseek_v2", "qwen3_next", "lfm2", "mamba2"])
def test_chunks_of_a_prompt_say_what_peft_says(base: str, serve: Serve, tmp_path: Path) -> None:
    config = lora(r".*\.(q_proj|\w+_a_proj\w*|kv_b_proj|in_proj\w*)")
    compare(serve(base), tmp_path, rows=7, **config)


@pytest.mark.parametrize("replay", [False, True], ids=["", "replayed"])
@pytest.mark.parametrize("base", ["llama", "qwen3_moe", "deepseek_v2", "qwen3_next"])
def test_a_batch_of_several_draws_what_peft_draws(
    base: str, replay: bool, serve: Serve, tmp_path: Path
) -> None:
    made = serve(base).subject
    served = Served(made, made.engine(replay=replay))
    models: dict[str, Any] = {"": served.subject.reference}
    configs = {
        "plain": lora(r".*\.(q_proj|kv_b_proj|in_proj_ba)", std=0.3, seed=1),
        "long": lora(r".*\.(o_proj|out_proj)", r=20, use_dora=True, std=0.3, seed=2),
    }
    for name, config in configs.items():
        models[name] = train(served.subject.reference, tmp_path / name, **config)
        served.load(name, tmp_path / name)
    example, asked = served.subject.examples[0], ["plain", "", "long", "plain", ""]
    said = served.greedy([(example, [name] if name else []) for name in asked], 8)
    expected = {
        name: wrapped(served.subject, model).reference_tokens(example, 8)
        for name, model in models.items()
    }
    assert said == [expected[name] for name in asked]
    assert len({tuple(tokens) for tokens in expected.values()}) == 3


def test_two_adapters_add_up_as_in_peft(serve: Serve, tmp_path: Path) -> None:
    served, shares = serve("llama"), {"a": 0.5, "b": -1.5}
    configs = {"a": lora(["q_proj", "down_proj"]), "b": lora(["down_proj"], r=20, use_rslora=True)}
    model = train_several(served.subject.reference, tmp_path, configs)
    for name, share in shares.items():
        served.load(name, tmp_path / name)
        for module in model.modules():
            if hasattr(module, "set_scale"):
                module.set_scale(name, share)
    example, base = served.subject.cases[0]
    truth = wrapped(served.subject, model).reference_output(example)
    assert distance(base, truth) > FELT
    assert distance(served.answer(example, shares), truth) <= BAR


@pytest.mark.parametrize("what", ["dora", "biases of its own", "patterns"])
def test_half_of_an_adapter_is_half_of_peft_s(what: str, serve: Serve, tmp_path: Path) -> None:
    served = serve("llama")
    model = train(served.subject.reference, tmp_path, **TEXT[what])
    served.load("it", tmp_path)
    for module in model.modules():
        if hasattr(module, "set_scale"):
            module.set_scale("default", 0.5)
    truth = wrapped(served.subject, model).expected
    example = served.subject.examples[0]
    assert distance(served.answer(example, {"it": 0.5}), truth) <= BAR
    assert distance(served.answer(example, ["it"]), truth) > RED


@pytest.mark.parametrize("base", ["llama", "deepseek_v2"])
def test_an_activated_adapter_begins_at_its_last_invocation(
    base: str, serve: Serve, tmp_path: Path
) -> None:
    served = serve(base)
    said = served.subject.prompt
    config = lora(r".*self_attn\.(q_proj|q_a_proj|o_proj)")
    called = {"task_type": "CAUSAL_LM", "alora_invocation_tokens": said[20:23]}
    model = wrap(served.subject.reference, tmp_path, **config, **called)
    served.load("it", tmp_path)
    for tokens, since in ((said, 20), (said + said[18:30], len(said) + 2)):
        example = Example(Prompt(tokens=tokens))
        base_answer, ours = served.answer(example), served.answer(example, ["it"])
        with torch.inference_mode():
            truth = model(input_ids=torch.tensor([tokens])).logits[0]
        assert distance(ours, truth) <= BAR
        assert distance(ours[:since], base_answer[:since]) <= BAR
        assert distance(ours[since:], base_answer[since:]) > FELT


# Names in older files


OLD = {False: ("gate_proj", "up_proj", "down_proj"), True: ("w1", "w3", "w2")}
"""The names of an expert's linears, and Mixtral's older names."""


@pytest.mark.parametrize("base", ["qwen3_moe", "mixtral"])
def test_experts_may_be_linears_as_in_transformers_4(
    base: str, serve: Serve, tmp_path: Path
) -> None:
    served = serve(base)
    config = lora(["q_proj"], target_parameters=EXPERTS)
    theirs = wrapped(served.subject, train(served.subject.reference, tmp_path, **config))
    unstack(tmp_path, old=base == "mixtral")
    served.load("it", tmp_path)
    for example, base_answer in served.subject.cases:
        truth = theirs.reference_output(example)
        assert distance(base_answer, truth) > FELT
        assert distance(served.answer(example, ["it"]), truth) <= BAR


def unstack(folder: Path, *, old: bool) -> None:
    """Split an adapter of stacked experts of rank 4 into one for three linears per expert, as in
    transformers 4. Gate and up share the same A; their factors are below `base_layer` in the file.
    """
    file, out = folder / "adapter_model.safetensors", dict[str, Tensor]()
    held = load_file(file)
    for name, a in held.items():
        if ".experts." not in name:
            out[name] = a
        elif name.endswith("lora_A.weight"):
            b, many = held[name.replace("lora_A", "lora_B")], len(a) // 4
            front = name.partition(".experts")[0]
            front = front.replace(".mlp", ".block_sparse_moe") if old else front
            for e in range(many):
                rows = b[:, e::many].chunk(2) if "base_layer" in name else [b[:, e::many]]
                parts = OLD[old][:2] if "base_layer" in name else OLD[old][2:]
                for part, up in zip(parts, rows, strict=True):
                    expert = f"{front}.experts.{e}.{part}"
                    out[f"{expert}.lora_A.weight"] = a[4 * e : 4 * e + 4].clone()
                    out[f"{expert}.lora_B.weight"] = up.contiguous()
    save_file(out, file)
    config = json.loads((folder / "adapter_config.json").read_text())
    config |= {"target_parameters": None, "target_modules": ["q_proj", *OLD[old]]}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def test_two_names_of_one_weight_are_refused(serve: Serve, tmp_path: Path) -> None:
    served = serve("mixtral")
    train(served.subject.reference, tmp_path, **lora(["gate"]))
    file = tmp_path / "adapter_model.safetensors"
    held = load_file(file)
    more = {name.replace(".mlp.", ".block_sparse_moe."): t.clone() for name, t in held.items()}
    save_file(held | more, file)
    with pytest.raises(AdapterError, match="the same weight"):
        served.load("it", tmp_path)


# Mutants


def scaled(change: Callable[[LoraSettings], LoraSettings]) -> Callable[[pytest.MonkeyPatch], None]:
    """A mutant that reads another config."""

    def spoil(patch: pytest.MonkeyPatch) -> None:
        of = LoraSettings.of
        patch.setattr(LoraSettings, "of", lambda *args: change(of(*args)))

    return spoil


def exchanged(patch: pytest.MonkeyPatch) -> None:
    """Read the columns of B of stacked experts as expert by expert instead of rank by rank."""
    stack = reader._stack

    def spoil(*args: Any) -> Any:
        found = stack(*args)
        many, _, rank = found.b.shape
        flat = found.b.permute(1, 2, 0).flatten(1)
        return replace(found, b=flat.unflatten(1, (many, rank)).permute(1, 0, 2))

    patch.setattr(reader, "_stack", spoil)


def silenced(*rows: int) -> Callable[[pytest.MonkeyPatch], None]:
    """Set some computed gains to zero: row 0 are lengths, 1 and 2 their changes, 3 biases."""

    def spoil(patch: pytest.MonkeyPatch) -> None:
        measure = AdapterDelta.compute_gains

        def some(*args: Any) -> Tensor:
            found = measure(*args)
            found[list(rows)] = 0
            return found

        patch.setattr(AdapterDelta, "compute_gains", some)

    return spoil


MUTANTS: Mapping[str, tuple[str, Config, Callable[[pytest.MonkeyPatch], None]]] = {
    "alpha left out": ("llama", TEXT["lora"], scaled(lambda s: replace(s, alpha=s.rank))),
    "rslora's root left out": ("llama", TEXT["rslora"], scaled(lambda s: replace(s, rslora=False))),
    "alphas left out": ("llama", TEXT["patterns"], scaled(lambda s: replace(s, alphas={}))),
    "dora's gain left out": ("llama", TEXT["dora"], silenced(0)),
    "dora's lengths those of the base": ("llama", TEXT["dora"], silenced(1, 2)),
    "biases left out": ("llama", TEXT["biases of its own"], silenced(3)),
    "experts' columns exchanged": ("mixtral", MIXTURES["experts"], exchanged),
    "experts' alpha left out": (
        "mixtral",
        MIXTURES["many ranks"],
        scaled(lambda s: replace(s, alpha=s.rank)),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_mutant_fails_parity(
    mutant: str, serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    base, config, spoil = MUTANTS[mutant]
    served = Served(serve(base).subject)
    theirs = wrapped(served.subject, train(served.subject.reference, tmp_path, **config))
    spoil(monkeypatch)
    served.load("it", tmp_path)
    example = served.subject.examples[0]
    assert distance(served.answer(example, ["it"]), theirs.reference_output(example)) > RED
