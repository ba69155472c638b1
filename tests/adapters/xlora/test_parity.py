"""The engine's output with an X-LoRA matches PEFT's model, token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import pytest
import torch
from torch import Tensor

import ostro
from ostro.core.messages.text import Text
from ostro.entrypoints.python.model import LocalModel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]

PROMPT = list(range(5, 45))
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
LAYERWISE = {"layerwise_scalings": True, "xlora_depth": 2, "xlora_size": 24}


def far(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def engine(mixed: Any, **settings: Any) -> LocalModel:
    model = ostro.load(mixed.base, dtype="float32", **settings)
    assert isinstance(model, LocalModel)
    return model


def said(
    model: LocalModel, adapters: Sequence[str] = (), prompt: Sequence[int] = PROMPT
) -> list[int]:
    answer = model.stream(prompt, adapters=adapters, return_token_ids=True, **GREEDY)
    return answer.collect()[0].tokens


def by_hand(mixed: Any, prompt: Sequence[int] = PROMPT) -> list[int]:
    """Greedy tokens of PEFT's model, computed without a cache."""
    tokens = list(prompt)
    for _ in range(GREEDY["max_tokens"]):
        tokens.append(int(mixed.logits(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"layerwise_scalings": True, "softmax_temperature": 0.3},
        LAYERWISE | {"top_k_lora": 2, "global_scaling_weight": 1.7},
        {"enable_softmax": False, "xlora_depth": 3, "xlora_size": 16, "xlora_dropout_p": 0.0},
        LAYERWISE | {"enable_softmax": False, "top_k_lora": 2, "enable_softmax_topk": True},
    ],
    ids=["plain", "temperature", "top", "raw", "softmax-of-top"],
)
@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_logits(family: str, settings: dict[str, Any], make: Callable[..., Any]) -> None:
    mixed = make(family, **settings)
    with engine(mixed) as model:
        facts = model.load_adapter("x", mixed.folder)
        assert facts.kind == "xlora" and (facts.effect or 0) > 0.01
        theirs = mixed.logits(PROMPT)
        assert far(model.logits(PROMPT, adapters=["x"]), theirs) < 1e-5
        assert far(model.logits(PROMPT), theirs) > 0.01


@pytest.fixture(scope="module")
def mixed(make: Callable[..., Any]) -> Any:
    return make(**LAYERWISE)


@pytest.fixture(scope="module", params=[False, True], ids=["eager", "buckets"])
def model(mixed: Any, request: pytest.FixtureRequest) -> Iterator[LocalModel]:
    with engine(mixed, replay=request.param) as found:
        found.load_adapter("x", mixed.folder)
        found.load_adapter("plain", mixed.folder / "member1")
        yield found


def test_chunks_of_a_prompt_are_the_whole(model: LocalModel) -> None:
    adapter_pool = model.registry.store.adapter_pool
    held = adapter_pool.acquire(model.mixture(["x"], PROMPT))
    assert held is not None
    try:
        parts = model.engine.runner.logits(PROMPT, 7, lease=held)
    finally:
        adapter_pool.release(held)
    assert far(parts, model.logits(PROMPT, adapters=["x"])) < 1e-5


def test_incremental_x_lora_matches_full_recomputation(model: LocalModel, mixed: Any) -> None:
    assert said(model, ["x"]) == by_hand(mixed)


def test_x_lora_does_not_depend_on_the_batch(model: LocalModel, mixed: Any) -> None:
    prompts = [PROMPT, PROMPT[3:], PROMPT[::-1], PROMPT[5:30]]
    asked = [["x"], [], ["plain"], ["x"]]
    alone = [said(model, names, prompt) for names, prompt in zip(asked, prompts, strict=True)]
    streams = [
        model.stream(p, adapters=a, return_token_ids=True, **GREEDY)
        for p, a in zip(prompts, asked, strict=True)
    ]
    tokens = [list[int]() for _ in streams]
    for events in zip_longest(*streams):  # advances all streams, so that they share batches
        for row, event in zip(tokens, events, strict=True):
            row += event.tokens if isinstance(event, Text) else []
    assert tokens == alone
    assert alone[0] == by_hand(mixed) and alone[3] == by_hand(mixed, prompts[3])
    assert alone[1] != said(model, ["x"], prompts[1])


@pytest.mark.parametrize("after", [1, 3])
def test_scalings_stay_after_so_many_tokens(
    after: int, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = make(**LAYERWISE)
    free = by_hand(mixed)
    mixed.change(tgt_non_granular_index=after)
    classifier, last = mixed.model.base_model.internal_xlora_classifier, len(PROMPT) + after - 1
    own = classifier.forward

    def held(*args: Any, **kwargs: Any) -> Tensor:
        found = own(*args, **kwargs)
        kept = found[:, last : last + 1].expand_as(found[:, last:])
        return torch.cat((found[:, :last], kept), 1)

    monkeypatch.setattr(classifier, "forward", held)
    kept = by_hand(mixed)
    assert kept != free
    with engine(mixed) as model:
        model.load_adapter("x", mixed.folder)
        assert said(model, ["x"]) == kept


def test_the_base_finds_blocks_of_its_own(mixed: Any) -> None:
    prompt = list(range(5, 105))
    with engine(mixed) as fresh:
        alone = said(fresh, prompt=prompt)
    with engine(mixed) as model:
        model.load_adapter("x", mixed.folder)
        said(model, ["x"], prompt)
        before = model.engine.counters.cached_tokens
        assert said(model, prompt=prompt) == alone
        assert model.engine.counters.cached_tokens - before >= 64


@pytest.mark.parametrize("wrong", ["layers", "members"])
def test_swapped_scalings_change_the_output(
    wrong: str, mixed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ostro.adapters.xlora.classifier import Classifier

    own, axis = Classifier.scalings, {"layers": 1, "members": 2}[wrong]

    def rolled(self: Classifier, hidden: Tensor) -> Tensor:
        return own(self, hidden).roll(1, axis)

    monkeypatch.setattr(Classifier, "scalings", rolled)
    with engine(mixed) as model:
        model.load_adapter("x", mixed.folder)
        assert far(model.logits(PROMPT, adapters=["x"]), mixed.logits(PROMPT)) > 0.01
