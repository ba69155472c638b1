"""One batch of everything, on the starter model: the base, three adapters, two mixtures, X-LoRA."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest
import torch

from ostro import load
from ostro.core.adapters.adapter import Mixture
from ostro.entrypoints.python.model import LocalModel
from ostro.plugins.conformance.parity import greedy
from ostro.plugins.starter import FOLDERS, WEIGHTS

pytestmark = pytest.mark.skipif(
    not all((folder / WEIGHTS["adapter"]).exists() for folder in FOLDERS["adapter"].values()),
    reason="this checkout comes without the adapters of the starter model",
)

ASKED: list[dict[str, float]] = [
    {},
    {"pirate": 1.0},
    {"french": 1.0},
    {"shout": 1.0},
    {"pirate": 0.6, "shout": 0.6},
    {"pirate": 0.3, "french": 0.7},
    {"mix": 1.0},
]
QUESTION = [{"role": "user", "content": "What is the capital of France? Say it like a pirate."}]


@pytest.fixture(scope="module")
def starter() -> Iterator[LocalModel]:
    model = load(dtype="float32", deterministic=True)
    assert isinstance(model, LocalModel)
    with model:
        for reference in FOLDERS["adapter"]:
            model.load_adapter(reference.partition("/")[2], reference)
        yield model


def mixtures(model: LocalModel) -> list[Mixture]:
    tokens = model.encode(QUESTION)
    return [model.mixture(scales, tokens) for scales in ASKED]


@pytest.mark.slow
def test_the_template_of_an_only_adapter_is_used(starter: LocalModel, tmp_path: Path) -> None:
    folder = copytree(FOLDERS["adapter"]["starter/pirate"], tmp_path / "own")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    starter.load_adapter("own", folder)
    plain = starter.encode(QUESTION)
    own = starter.prompt(QUESTION, adapters=["own"]).tokens
    assert own == starter.encode(QUESTION[0]["content"]) != plain
    for others in ((), ["pirate"], ["own", "french"], {"own": 0.0}):
        assert starter.prompt(QUESTION, adapters=others).tokens == plain
    starter.unload_adapter("own")


@pytest.mark.slow
def test_a_mixture_is_the_same_where_its_members_are_there_already(starter: LocalModel) -> None:
    """They lie otherwise as members: each part of a fused linear for itself."""
    tokens = starter.encode(QUESTION)
    said = starter.logits(tokens, adapters=["mix"])
    with load(dtype="float32", deterministic=True) as fresh:
        assert isinstance(fresh, LocalModel)
        fresh.load_adapter("mix", "starter/mix")
        assert torch.equal(fresh.logits(tokens, adapters=["mix"]), said)


@pytest.mark.slow
def test_every_request_of_a_batch_says_what_it_says_alone(starter: LocalModel) -> None:
    tokens, chosen = starter.encode(QUESTION), mixtures(starter)
    together = greedy(starter.engine, [tokens] * len(chosen), 8, chosen)
    alone = [greedy(starter.engine, [tokens], 8, [mixture])[0] for mixture in chosen]
    assert together == alone
    assert len({tuple(said) for said in together}) >= 5, "adapters say different things"


def test_every_row_has_the_bits_that_it_has_alone(starter: LocalModel) -> None:
    """Hidden states of whole prompts, X-LoRA's two passes included."""
    engine, tokens = starter.engine, starter.encode(QUESTION)
    adapter_pool = engine.runner.adapter_pool
    assert adapter_pool is not None
    held = [adapter_pool.acquire(mixture) for mixture in mixtures(starter)]
    together, step = engine.runner.hidden([tokens] * len(held), leases=[h for h in held if h])
    for i, mine in enumerate(held):
        assert mine is not None
        alone, _ = engine.runner.hidden([tokens], leases=[mine])
        assert torch.equal(together[step.bounds[i] : step.bounds[i + 1]], alone), ASKED[i]
        adapter_pool.release(mine)
