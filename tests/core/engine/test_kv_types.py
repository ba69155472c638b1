"""Keys and values in int8 and fp8: the error of logits, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core import nn
from ostro.core.engine.engine import Engine
from ostro.core.engine.startup.caches import QUANTIZED_KV
from ostro.core.errors import Unsupported, UsageError
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.ops.kv_write.scaled import Scaled, narrow, widen
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.parity import Subject, greedy, subject

Build = Callable[..., Engine]
Change = Callable[[Any, Any], Sequence[Any]]
BOUNDS = {"int8": 0.01, "fp8": 0.04}
"""The most that logits may be off, root mean square, in units of their standard deviation."""

TYPES = pytest.mark.parametrize("type", BOUNDS)
MIXED = ("mistral", "gemma2", "gpt_oss", "qwen3", "qwen3_next", "mllama")
"""Windows; soft-caps; sinks; a fused way into the pages; states, and media, beside the pages."""


def off(ours: Tensor, reference: Tensor) -> float:
    return float((ours - reference).pow(2).mean().sqrt() / reference.std())


def reading(engine: Engine, change: Change) -> Engine:
    """The engine with `change` applied to the caches that its attention reads."""

    def changed(attend: Any, q: Tensor, k: Any, v: Any, *rest: Any, **given: Any) -> Any:
        return attend(q, *change(k, v), *rest, **given)

    for module in engine.runner.model.modules():
        if isinstance(module, nn.Attention):
            module.attend.kernel = partial(changed, module.attend.kernel)
    return engine


def rounded(cache: Tensor, dtype: torch.dtype) -> Tensor:
    """Float pages rounded to `dtype`."""
    return widen(*narrow(cache, dtype))


@pytest.mark.sample(2)
@TYPES
@pytest.mark.parametrize("name", ["llama", *MIXED])
def test_only_the_rounding_differs(plugins: PluginManager, name: str, type: str) -> None:
    """For all features of a family, with media if it supports them, in chunks of a prompt."""
    with subject(plugins, name) as tiny:
        ours = tiny.engine(kv_dtype=type)
        reference = reading(tiny.engine(), lambda *kv: [rounded(x, QUANTIZED_KV[type]) for x in kv])
        for example in tiny.examples:
            want = tiny.answer(reference, example)
            for rows in (512, 16):
                assert off(tiny.answer(ours, example, rows), want) < 1e-3


@pytest.fixture(scope="module")
def mild(plugins: PluginManager) -> Any:
    """A llama whose attention is not all on one token, as that of trained models is not."""
    with subject(plugins, "llama", std=0.1) as made:
        yield made


@TYPES
def test_logits_change_little(mild: Subject, type: str) -> None:
    floats = mild.answer(mild.engine())
    assert 0 < off(mild.answer(mild.engine(kv_dtype=type)), floats) < BOUNDS[type]


def wrong(scales: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Change:
    def change(k: Scaled, v: Scaled) -> list[Scaled]:
        pairs = zip((k, v), scales(k.scales, v.scales), strict=True)
        return [Scaled(cache.elements, found) for cache, found in pairs]

    return change


CHANGES: dict[str, Change] = {
    "of another token": wrong(lambda k, v: (k.roll(1, 2), v.roll(1, 2))),
    "of another head": wrong(lambda k, v: (k.roll(1, 1), v.roll(1, 1))),
    "k and v swapped": wrong(lambda k, v: (v, k)),
    "none": wrong(lambda k, v: (torch.full_like(k, 0.01), torch.full_like(v, 0.01))),
}


@TYPES
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_wrong_scales_are_detected(mild: Subject, type: str, change: Change) -> None:
    engine = reading(mild.engine(kv_dtype=type), change)
    assert off(mild.answer(engine), mild.answer(mild.engine())) > 3 * BOUNDS[type]


@pytest.mark.sample(1)
@TYPES
def test_deterministic_logits_do_not_depend_on_the_batch(llama: Subject, type: str) -> None:
    prompts = [llama.prompt[:n] for n in (1, 7, 17, 33, 50)]
    options = {"deterministic": True, "kv_dtype": type}
    runner = llama.engine(llama.load(**options), **options).runner
    for prompt in prompts:
        full = runner.logits(prompt)
        assert torch.equal(full, runner.logits(prompt, 3))
        assert torch.equal(full, runner.logits(llama.prompt)[: len(prompt)])


@pytest.mark.sample(1)
@TYPES
def test_batches_chunks_and_preemption_change_nothing(
    llama: Subject, engine_of: Build, type: str
) -> None:
    """In the eager loop and in the captured one, whose answers are those of the eager one."""
    prompts = [llama.prompt[i : i + 30] for i in range(6)]
    alone = llama.engine(kv_dtype=type)
    wanted = [greedy(alone, [prompt], 40)[0] for prompt in prompts]
    assert greedy(engine_of(llama, kv_dtype=type), prompts, 40) == wanted
    assert greedy(engine_of(llama, kv_dtype=type, rows=13), prompts, 40) == wanted
    crowded = engine_of(llama, kv_dtype=type, blocks=11)
    assert greedy(crowded, prompts, 40) == wanted
    assert crowded.stats().preemptions > 0 and crowded.stats().blocks_used == 0


@TYPES
def test_blocks_are_reused_and_copied_with_their_scales(
    llama: Subject, engine_of: Build, type: str
) -> None:
    def ask(id: str, **rules: Any) -> dict[int, list[int]]:
        sampling = Sampling(temperature=1.0, max_tokens=12, ignore_eos=True, **rules)
        engine.submit(TokenRequest(id=id, tokens=llama.prompt, sampling=sampling))
        generated: dict[int, list[int]] = {}
        for output in engine.drain():
            generated.setdefault(output.index, []).extend(output.tokens)
        return generated

    engine = engine_of(llama, kv_dtype=type)
    forked = ask("forked", n=2, seed=7)
    cached = engine.stats().cached_tokens
    again = ask("again", n=2, seed=7)
    assert engine.stats().cached_tokens > cached
    engine = engine_of(llama, kv_dtype=type)
    alone = [ask(str(index), seed=7 + index)[0] for index in (0, 1)]
    assert [forked[0], forked[1]] == [again[0], again[1]] == alone and alone[0] != alone[1]


def test_a_window_releases_blocks(mistral: Subject, engine_of: Build) -> None:
    engine = engine_of(mistral, rows=16, kv_dtype="int8")
    sampling = Sampling(temperature=0, max_tokens=60, ignore_eos=True)
    engine.submit(TokenRequest(id="a", tokens=mistral.prompt, sampling=sampling))
    most, generated = 0, list[int]()
    while engine.busy:
        generated += [token for output in engine.step() for token in output.tokens]
        most = max(most, engine.stats().blocks_used)
    assert most <= 3
    roomy = mistral.engine(rows=512, kv_dtype="int8")
    assert generated == greedy(roomy, [mistral.prompt], 60)[0]


def test_caches_without_heads_stay_in_floats(plugins: PluginManager) -> None:
    for name, other in (("qwen3_next", "recurrent"), ("mllama", "cross")):
        with subject(plugins, name) as tiny:
            loaded = tiny.load(kv_dtype="int8")
            kinds = [group.kind for group in tiny.engine(loaded, kv_dtype="int8").blocks.groups]
            explanation = "\n".join(loaded.explain)
        for kind in kinds:
            assert kind.dtype == (torch.int8 if kind.spec.kind == "paged" else torch.float32)
        assert (
            "cache paged: int8" in explanation
            and f"cache {other}: floats, not quantized" in explanation
        )


@pytest.mark.parametrize("name", ["deepseek_v2", "mamba2"])
def test_a_model_without_keys_and_values_refuses(plugins: PluginManager, name: str) -> None:
    with subject(plugins, name) as tiny, pytest.raises(Unsupported, match=f"int8.*{name}"):
        tiny.engine(kv_dtype="int8")


@pytest.mark.parametrize("type", ["fp8_e5m2", "int4", "float32, int8"])
def test_other_types_are_refused(llama: Subject, type: str) -> None:
    with pytest.raises(UsageError, match=r"--kv-dtype .*auto, .*float32, .*int8, fp8"):
        llama.engine(kv_dtype=type)


def test_blocks_of_another_dtype_are_not_reused(llama: Subject) -> None:
    names = {llama.engine(kv_dtype=type).identity for type in ("auto", "float16", *QUANTIZED_KV)}
    assert len(names) == 4
