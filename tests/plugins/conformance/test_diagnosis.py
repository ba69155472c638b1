"""Bugs put in our models, which the kit must find: where they begin, and what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from ostro.architectures.bert import model as bert
from ostro.architectures.gemma2 import model as gemma2
from ostro.architectures.llama import model as llama
from ostro.architectures.qwen3 import native as qwen3
from ostro.core import nn
from ostro.core.config import WindowConfig
from ostro.core.load.names import Names
from ostro.core.nn.experts import ExpertLinear
from ostro.core.ops.act_mul import native as act_mul
from ostro.plugins.conformance.architecture import all_plugins
from ostro.plugins.conformance.diagnosis import diagnose
from ostro.plugins.conformance.fixes import applied
from ostro.plugins.conformance.mutants import of
from ostro.plugins.conformance.parity import BAR, SMALL, STD, deviation, subject

Bug = AbstractContextManager[Any]
LAYER = "model.layers.0"
replaced = mock.patch.object


def built(cls: type, **attributes: Any) -> Bug:
    """Modules of a class are built with other attributes; a function makes them of the module."""
    plain = cls.__init__  # type: ignore[misc]

    def other(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        for name, value in attributes.items():
            setattr(self, name, value(self) if callable(value) else value)

    return replaced(cls, "__init__", other)


@contextmanager
def swapped(cls: type) -> Iterator[None]:
    """Gate and up lie the other way round in every fused linear of a class."""
    plain = cls.__init__  # type: ignore[misc]

    def other(self: Any, n_in: Any, n_out: Any, *args: Any, **kwargs: Any) -> None:
        given = [n_in, n_out, *args]
        at = next((i for i, x in enumerate(given) if isinstance(x, dict) and "up_proj" in x), None)
        if at is not None:
            given[at] = dict(reversed(given[at].items()))
        plain(self, *given, **kwargs)

    with replaced(cls, "__init__", other):
        yield


def rule(**parameters: Any) -> Callable[[nn.Rope], dict[str, Any]]:
    return lambda rope: {**rope.rule, **parameters}


def one_more(self: nn.RMSNorm, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    y: tuple[Tensor, Tensor] = self.norm(x, self.weight + 1, self.eps, residual)
    return y


def tiled(self: nn.Attention, x: Tensor, step: Any) -> Tensor:
    """Attention whose query heads take key heads in turn."""
    heads = self.qkv(x, step).view(len(x), -1, self.head_dim)
    q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), 1)
    q, pages = self.rotate_and_write(q, k, v, step), step.caches[self.layer]
    order = torch.arange(self.heads).view(-1, self.kv_heads).t().flatten()
    y = self.attend(q[:, order], pages.k, pages.v, pages.batch, self.scale)[:, order.argsort()]
    return self.o_proj(y.flatten(1), step)


def loud(self: llama.Model, step: Any) -> Tensor:
    x: Tensor = self.model.embed_tokens(step.tokens, step)
    return x * x.shape[-1] ** 0.5


def unnormed(self: llama.Decoder, x: Tensor, step: Any) -> Tensor:
    residual: Any = None
    for layer in self.layers:
        x, residual = layer(x, residual, step)
    return x + residual


def twice(
    self: llama.Block, x: Tensor, residual: Tensor | None, step: Any
) -> tuple[Tensor, Tensor]:
    x, residual = self.input_layernorm(x, residual)
    x = self.self_attn(x, step)
    x, residual = self.post_attention_layernorm(x, residual)
    return self.mlp(x, step) + x, residual


def later(self: bert.Embeddings, step: Any) -> Tensor:
    places, *kinds = step.positions
    x = self.word_embeddings(step.tokens, step) + self.position_embeddings(places + 1, step)
    return self.LayerNorm(x, self.token_type_embeddings(kinds[0], step))[0]


def backward_looking(self: nn.EncoderAttention, x: Tensor, step: Any) -> Tensor:
    q, k, v = self.qkv(x, step).view(len(x), 3, self.heads, -1).unbind(1)
    y = self.attend(q, k, v, step.bounds, self.scale, causal=True)
    return self.o_proj(y.flatten(1), step)


plain_kernel = qwen3.norm_rope_write


def loud_kernel(q: Tensor, *args: Any) -> Tensor:
    return plain_kernel(q * 1.1, *args) * 1.1


def loud_gate(x: Tensor, act: str) -> Tensor:
    gate, up = x.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up * 1.1


@dataclass(frozen=True)
class Seeded:
    """A bug in an architecture, the change that undoes it (None: none can), and where it begins."""

    architecture: str
    bug: Callable[[], Bug]
    undone_by: str | None
    first: str
    std: float = STD


ATTENTION, MLP = f"{LAYER}.self_attn", f"{LAYER}.mlp"
NORMS = f"{LAYER}.input_layernorm"
plain_window = WindowConfig.window

QUICK: dict[str, Seeded] = {
    "rope pairs adjacent": Seeded(
        "llama",
        lambda: built(nn.Rope, interleaved=True),
        "rope pairs halves instead of adjacent",
        ATTENTION,
    ),
    "softmax over all experts": Seeded(
        "mixtral",
        lambda: built(nn.Router, rule=lambda r: r.rule._replace(renormalise=False)),
        "weights of the chosen experts sum to one",
        MLP,
    ),
    "the final norm is not called": Seeded(
        "llama", lambda: replaced(llama.Decoder, "forward", unnormed), None, "model ["
    ),
}

SLOW: dict[str, Seeded] = {
    "a fused kernel that is wrong": Seeded(
        "qwen3",
        lambda: replaced(qwen3, "norm_rope_write", loud_kernel),
        "plain compositions instead of fused kernels",
        "None",
    ),
    "a kernel that is wrong": Seeded(
        "llama",
        lambda: replaced(act_mul, "act_mul", loud_gate),
        "the naive version of act_mul",
        MLP,
    ),
    "another theta": Seeded(
        "llama", lambda: built(nn.Rope, rule=rule(rope_theta=5e5)), "rope theta 10000", ATTENTION
    ),
    "half of a head turned": Seeded(
        "llama",
        lambda: built(nn.Rope, rule=rule(partial_rotary_factor=0.5)),
        "rope on 1 of each head",
        ATTENTION,
    ),
    "scores divided by head_dim": Seeded(
        "llama",
        lambda: built(nn.Attention, scale=lambda a: 1 / a.head_dim),
        "scores times 1 / sqrt(head_dim)",
        ATTENTION,
    ),
    "key heads in turn": Seeded(
        "llama",
        lambda: replaced(nn.Attention, "forward", tiled),
        "query heads use key heads in turn",
        ATTENTION,
    ),
    "gate and up exchanged": Seeded(
        "llama", lambda: swapped(nn.Linear), "up_proj and gate_proj exchanged", MLP
    ),
    "gelu for silu": Seeded(
        "llama", lambda: built(nn.GatedMLP, act="gelu"), "activation silu", MLP
    ),
    "1 added to norms that hold it": Seeded(
        "llama",
        lambda: replaced(nn.RMSNorm, "forward", one_more),
        "all norms: weights 1 smaller",
        NORMS,
    ),
    "epsilon 1e-3": Seeded(
        "llama", lambda: built(nn.RMSNorm, eps=1e-3), "norm epsilon 1e-06", NORMS, SMALL
    ),
    "embeddings scaled": Seeded(
        "llama",
        lambda: replaced(llama.Model, "embed", loud),
        "embeddings divided by sqrt(d)",
        "model [",
    ),
    "the residual twice": Seeded(
        "llama", lambda: replaced(llama.Block, "forward", twice), None, LAYER
    ),
    "a window too long": Seeded(
        "mistral",
        lambda: replaced(WindowConfig, "window", lambda self, i: plain_window(self, i) + 1),
        "window one shorter",
        ATTENTION,
    ),
    "no window": Seeded(
        "mistral",
        lambda: replaced(WindowConfig, "window", lambda self, i: 0),
        "windows on all layers",
        ATTENTION,
    ),
    "windows on the odd layers": Seeded(
        "gemma2",
        lambda: replaced(
            WindowConfig,
            "window",
            lambda self, i: self.sliding_window * (i % 2),
        ),
        "windows on the even layers",
        ATTENTION,
    ),
    "the head's size scales the scores": Seeded(
        "gemma2",
        lambda: built(nn.Attention, scale=lambda a: a.head_dim**-0.5),
        "scores times 1 / sqrt(query_pre_attn_scalar)",
        ATTENTION,
    ),
    "scores not capped": Seeded(
        "gemma2", lambda: built(nn.Attention, softcap=0.0), "scores capped at", ATTENTION
    ),
    "logits not capped": Seeded(
        "gemma2", lambda: built(gemma2.Model, softcap=0.0), "logits capped at", "None"
    ),
    "embeddings not scaled": Seeded(
        "gemma2",
        lambda: built(gemma2.Decoder, scale=1.0),
        "embeddings times sqrt(d)",
        "model.embed_tokens",
    ),
    "norms without their 1": Seeded(
        "gemma2",
        lambda: mock.patch("ostro.architectures.gemma2.names.names", lambda config: Names()),
        "all norms: weights 1 larger",
        NORMS,
    ),
    "gelu without tanh": Seeded(
        "gemma2", lambda: built(nn.GatedMLP, act="gelu"), "activation gelu_tanh", MLP
    ),
    "an expert too many": Seeded(
        "mixtral",
        lambda: built(nn.Router, rule=lambda r: r.rule._replace(top=r.rule.top + 1)),
        "one expert fewer for each row",
        MLP,
    ),
    "experts with gelu": Seeded(
        "mixtral", lambda: built(nn.Experts, act="gelu"), "activation silu", f"{MLP}.experts"
    ),
    "gate and up of experts exchanged": Seeded(
        "mixtral",
        lambda: swapped(ExpertLinear),
        "up_proj and gate_proj exchanged",
        f"{MLP}.experts",
    ),
    "experts weighted at full": Seeded(
        "deepseek_v2",
        lambda: built(nn.Float32Router, rule=lambda r: r.rule._replace(factor=1.0)),
        "expert weights times 1.7",
        "model.layers.1.mlp",
    ),
    "weights that sum to anything": Seeded(
        "deepseek_v3",
        lambda: built(nn.Float32Router, rule=lambda r: r.rule._replace(renormalise=False)),
        "weights of the chosen experts sum to one",
        "model.layers.1.mlp",
    ),
    "positions from one": Seeded(
        "bert", lambda: replaced(bert.Embeddings, "forward", later), "positions -1", "embeddings"
    ),
    "an encoder of sound with another scale": Seeded(
        "qwen2_audio",
        lambda: built(nn.EncoderAttention, scale=lambda a: a.scale * 1.1),
        "scores times 1 / sqrt(head_dim)",
        "model [",
    ),
    "an encoder that looks back only": Seeded(
        "bert",
        lambda: replaced(nn.EncoderAttention, "forward", backward_looking),
        "attention is bidirectional",
        "encoder.layer.0.attention",
    ),
}


def find(seeded: Seeded) -> None:
    with subject(all_plugins(), seeded.architecture, std=seeded.std) as tiny, seeded.bug():
        found = diagnose(tiny)
    assert found.off > BAR, "the bug does not show"
    assert str(found.first).startswith(seeded.first), str(found)
    named = [name for name in found.fixes if name.startswith(seeded.undone_by or "")]
    assert bool(named) is (seeded.undone_by is not None), str(found)


@pytest.mark.sample(2)
@pytest.mark.parametrize("seeded", QUICK.values(), ids=QUICK)
def test_a_bug_is_found(seeded: Seeded) -> None:
    find(seeded)


@pytest.mark.slow
@pytest.mark.parametrize("seeded", SLOW.values(), ids=SLOW)
def test_more_bugs_are_found(seeded: Seeded) -> None:
    find(seeded)


def test_most_bugs_are_named() -> None:
    bugs = [*QUICK.values(), *SLOW.values()]
    assert len(bugs) >= 20 and sum(bug.undone_by is not None for bug in bugs) >= 0.75 * len(bugs)


def test_the_report_of_a_failed_parity() -> None:
    with subject(all_plugins(), "llama") as tiny, built(nn.Rope, interleaved=True):
        said = str(diagnose(tiny))
    assert "llama does not match its reference: max deviation" in said
    assert f"first module that differs: {ATTENTION} [1, 60, 64]: output off by" in said
    assert (
        f"submodules that match: {ATTENTION}.q_proj, {ATTENTION}.k_proj, {ATTENTION}.v_proj" in said
    )
    assert said.endswith("matches if: rope pairs halves instead of adjacent")


def test_an_uncalled_norm_is_named() -> None:
    with subject(all_plugins(), "llama") as tiny:
        with replaced(llama.Decoder, "forward", unnormed):
            assert diagnose(tiny).not_called == ["model.norm"]


@pytest.mark.parametrize("name", ["llama", "mixtral", "bert", "lfm2"])
def test_a_change_is_taken_back(name: str) -> None:
    with subject(all_plugins(), name) as tiny:
        loaded = tiny.load()
        engine = tiny.engine(loaded)
        before = tiny.answer(engine)
        for mutant in of(tiny.record, loaded.model):
            with applied(mutant, loaded.model):
                changed = deviation(tiny.answer(engine), before) > 0 or mutant.std
            assert changed, mutant.name
            assert torch.equal(tiny.answer(engine), before), mutant.name
