"""Bodies: classes of transformers that no plugin claims, against themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import transformers
from transformers.pytorch_utils import Conv1D

from ostro.core.config import ModelConfig
from ostro.core.load.model import LoadedModel
from ostro.core.nn import CachedLayer, Embedding, Linear, Model
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance import decoder
from ostro.plugins.conformance.outputs import adapter_deltas_reach_every_linear
from ostro.plugins.conformance.parity import BAR, RED, Subject, deviation
from ostro.plugins.conformance.weights import reinitialise

SHAPE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BODIES: Mapping[str, Mapping[str, Any]] = {
    "Olmo2ForCausalLM": {},
    "Phi3ForCausalLM": {"partial_rotary_factor": 0.5, "sliding_window": 24},
    "StableLmForCausalLM": {"use_parallel_residual": True, "qk_layernorm": True},
    "GPTNeoXForCausalLM": {},
    "CohereForCausalLM": {"logit_scale": 0.25},
    "Olmo3ForCausalLM": {"num_hidden_layers": 4, "sliding_window": 24},
    "HyperCLOVAXForCausalLM": {"logits_scaling": 3.0, "residual_multiplier": 0.7},
    "PhiForCausalLM": {},
    "OPTForCausalLM": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "OlmoeForCausalLM": {"num_experts": 4, "num_experts_per_tok": 2},
    "GraniteMoeForCausalLM": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "AriaTextForCausalLM": {"moe_num_experts": 4, "moe_topk": 2, "head_dim": 16},
    "VaultGemmaForCausalLM": {"head_dim": 16, "sliding_window": 24},
    "GPT2LMHeadModel": {"n_inner": 96},
    "BertLMHeadModel": {"is_decoder": True},
    "RobertaForCausalLM": {"is_decoder": True},
    "BartForCausalLM": {
        "d_model": 64,
        "decoder_layers": 2,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 96,
        "scale_embedding": True,
    },
}
QUICK = ("Olmo3ForCausalLM", "OPTForCausalLM", "OlmoeForCausalLM", "BartForCausalLM")
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in BODIES]
WINDOWS = {
    "Phi3ForCausalLM": [24, 24],
    "Olmo3ForCausalLM": [24, 24, 24, 0],
    "VaultGemmaForCausalLM": [24, 0],
}


class Body(Subject):
    """A class under test, on the transformers backend even if a plugin claims it."""

    @cached_property
    def config(self) -> ModelConfig:
        return self.load().config

    def load(self, **settings: Any) -> LoadedModel:
        return super().load(**{"arch": "transformers", **settings})


@contextmanager
def body(plugins: PluginManager, name: str, std: float = 0.2, **shape: Any) -> Iterator[Body]:
    """The reference of that class, saved, and the record of the backend."""
    cls = getattr(transformers, name)
    reference = cls(cls.config_class(**{**SHAPE, **BODIES.get(name, {}), **shape})).eval().float()
    reinitialise(reference, std)
    record = replace(plugins.get("architectures", "transformers"), classes=(name,))
    with TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        yield Body(record, reference, Path(folder), plugins)


@pytest.fixture(scope="module", params=CASES)
def tiny(request: pytest.FixtureRequest, plugins: PluginManager) -> Iterator[Body]:
    with body(plugins, request.param) as made:
        yield made


def memories(model: Model) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, CachedLayer)]


@pytest.mark.sample(1)
def test_logits_equal_those_of_the_class(tiny: Body) -> None:
    loaded = tiny.load()
    name = type(tiny.reference).__name__
    line = f"backend: transformers {name} (--arch transformers; slower than a plugin)"
    assert line in loaded.explain
    assert deviation(tiny.engine(loaded).runner.logits(tiny.prompt), tiny.expected) <= BAR


@pytest.mark.sample(1)
def test_logits_equal_at_small_weights(tiny: Body, plugins: PluginManager) -> None:
    with body(plugins, type(tiny.reference).__name__, std=0.02) as small:
        logits = small.engine().runner.logits(small.prompt)
        assert deviation(logits, small.expected) <= BAR


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "check",
    [
        decoder.chunked_prefill_matches_full_prefill,
        decoder.ragged_batches_match_single_sequences,
        decoder.captured_loop_matches_eager,
        decoder.prefix_cache_hits_do_not_change_outputs,
        adapter_deltas_reach_every_linear,
    ],
    ids=lambda check: check.__name__,
)
def test_the_body_conforms(tiny: Body, check: Callable[[Subject], None]) -> None:
    name = type(tiny.reference).__name__
    if check is adapter_deltas_reach_every_linear and name == "BartForCausalLM":
        pytest.skip("BART's decoder has linears for the states of an encoder, which never run")
    check(tiny)


@pytest.mark.sample(1)
def test_every_linear_is_replaced(tiny: Body) -> None:
    model = tiny.load().model
    torchs = [
        n for n, m in model.named_modules() if type(m) in (torch.nn.Linear, torch.nn.Embedding)
    ]
    assert not torchs
    theirs = [m for m in tiny.reference.modules() if type(m) in (torch.nn.Linear, Conv1D)]
    assert len([m for m in model.modules() if isinstance(m, Linear)]) == len(theirs)


@pytest.mark.sample(1)
def test_a_tied_head_is_one_storage(tiny: Body) -> None:
    model, tied = tiny.load().model, tiny.reference.config.tie_word_embeddings
    tables = [m.storage for m in model.modules() if isinstance(m, Embedding)]
    heads = [m.fused for m in model.modules() if isinstance(m, Linear)]
    assert any(head is table for head in heads for table in tables) == tied


@pytest.mark.sample(1)
def test_windows_are_those_of_the_masks(tiny: Body) -> None:
    windows = [memory.spec.window for memory in memories(tiny.load().model)]
    expected = WINDOWS.get(type(tiny.reference).__name__, [0] * len(windows))
    assert windows == expected


def scaled(model: Any) -> None:
    for memory in memories(model):
        run = memory.attend.kernel
        memory.attend.kernel = stretched(run)


def stretched(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda q, k, v, batch, scale, **rest: run(q, k, v, batch, scale * 1.1, **rest)


def spread(model: Any) -> None:
    hidden = model.hidden
    model.hidden = lambda step: hidden(replace(step, positions=step.positions * 2))


def exchanged(model: Any) -> None:
    for memory in memories(model):
        write = memory.write.kernel
        memory.write.kernel = backwards(write)


def backwards(write: Callable[..., Any]) -> Callable[..., Any]:
    return lambda k, v, *rest: write(k.roll(1, -1), v, *rest)


def bare_head(model: Any) -> None:
    head = model.top[0].get_output_embeddings()

    def logits(hidden: Any, step: Any) -> Any:
        with model.call.bound(step):
            return head(hidden)

    model.logits = logits


def window(by: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for memory in memories(model):
            if memory.spec.window:
                wider = replace(memory.spec, window=memory.spec.window + by)
                memory.remembered = wider

    return change


MUTANTS = {"scores scaled": scaled, "positions doubled": spread, "keys turned": exchanged}
WINDOWED = {"window one longer": window(1), "window one shorter": window(-1)}
SCALED = {"CohereForCausalLM", "HyperCLOVAXForCausalLM"}


@pytest.mark.sample(1)
def test_every_mutant_fails_parity(tiny: Body) -> None:
    name, green = type(tiny.reference).__name__, []
    known = MUTANTS | (WINDOWED if name in WINDOWS else {})
    known = known | ({"logits without their scale": bare_head} if name in SCALED else {})
    for what, spoil in known.items():
        loaded = tiny.load()
        spoil(loaded.model)
        logits = tiny.engine(loaded).runner.logits(tiny.prompt)
        if deviation(logits, tiny.expected) < RED:
            green.append(what)
    assert not green


def test_an_unclaimed_class_is_loaded_as_a_body(plugins: PluginManager) -> None:
    with body(plugins, "OPTForCausalLM") as made:
        line = "backend: transformers OPTForCausalLM (no plugin claims it; slower than a plugin)"
        assert line in made.load(arch=None).explain


@pytest.mark.slow
def test_a_class_with_a_plugin_equals_it(plugins: PluginManager) -> None:
    with body(plugins, "LlamaForCausalLM") as made:
        ours = made.load(arch=None)
        assert ours.architecture.name == "llama"
        forced = made.load()
        assert "backend: transformers LlamaForCausalLM (--arch transformers" in forced.explain[0]
        logits = [made.engine(each).runner.logits(made.prompt) for each in (ours, forced)]
        assert deviation(logits[1], logits[0]) <= BAR
        assert deviation(logits[1], made.expected) <= BAR


def test_bfloat16_is_what_transformers_computes(plugins: PluginManager) -> None:
    with body(plugins, "Olmo2ForCausalLM", std=0.1) as made:
        exact = made.expected
        made.reference.bfloat16()
        theirs = deviation(made.run_reference(made.prompt), exact)
        loaded = made.load(dtype="bfloat16")
        weights = {p.dtype for p in loaded.model.parameters()}
        assert weights == {torch.bfloat16}
        ours = deviation(made.engine(loaded, dtype="bfloat16").runner.logits(made.prompt), exact)
        assert ours <= 2 * theirs
