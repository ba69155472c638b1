"""Requests, engines and a proposer for the tests of drafts and of forced tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ostro.core.adapters.adapter import EMPTY, Mixture
from ostro.core.engine.draft_length import StepCosts
from ostro.core.engine.engine import Engine
from ostro.core.engine.speculation import DraftRequest, Proposer, Speculation
from ostro.core.messages.requests import AdapterRef, Sampling, TokenRequest
from ostro.plugins.conformance.parity import Subject
from tiny.adapters import adapter

Tokens = dict[tuple[str, int], list[int]]
LENGTH = 40


class Free(StepCosts):
    """Costs that are never known: the number of drafts follows their acceptance alone."""

    def add(self, rows: int, seconds: float) -> None:
        pass


def requests_of(tiny: Subject, **rules: Any) -> list[TokenRequest]:
    """Greedy and sampled requests, one of them of two choices."""
    base: dict[str, Any] = {"max_tokens": LENGTH, "ignore_eos": True} | rules
    return [
        TokenRequest(id="greedy", tokens=tiny.prompt[:9], sampling=Sampling(temperature=0, **base)),
        TokenRequest(
            id="sampled",
            tokens=tiny.prompt[:17],
            sampling=Sampling(temperature=1.5, seed=3, top_k=50, n=2, logprobs=1, **base),
        ),
        TokenRequest(id="plain", tokens=tiny.prompt[3:12], sampling=Sampling(seed=5, **base)),
    ]


def masked_requests(tiny: Subject, masks: dict[str, Any], **fields: Any) -> list[TokenRequest]:
    """Greedy and sampled requests with mask processors and their parameters, and one without."""
    rules: dict[str, Any] = {"max_tokens": LENGTH, "ignore_eos": True} | fields
    greedy = Sampling(temperature=0, processors=masks, **rules)
    sampled = Sampling(temperature=1.5, seed=3, n=2, processors=masks, **rules)
    return [
        TokenRequest(id="greedy", tokens=tiny.prompt[:9], sampling=greedy),
        TokenRequest(id="sampled", tokens=tiny.prompt[:17], sampling=sampled),
        TokenRequest(id="plain", tokens=tiny.prompt[3:12], sampling=Sampling(seed=5, **rules)),
    ]


def run(engine: Engine, requests: Sequence[TokenRequest], mixture: Mixture = EMPTY) -> Tokens:
    found: Tokens = {}
    for request in requests:
        engine.submit(request, mixture)
    for output in engine.drain():
        found.setdefault((output.id, output.index), []).extend(output.tokens)
    return found


def run_with_adapter(tiny: Subject, engine: Engine, requests: Sequence[TokenRequest]) -> Tokens:
    """As `run`, with an adapter that the engine does not have yet."""
    assert engine.registry is not None
    engine.registry.add("a", adapter(tiny, 1))
    return run(engine, requests, engine.registry.mixture([AdapterRef(name="a", scale=1.0)], []))


def whole(requests: Sequence[TokenRequest], found: Tokens) -> list[list[int]]:
    """The prompts with their answers."""
    prompts = {request.id: request.tokens for request in requests}
    return [[*prompts[id], *tokens] for (id, _), tokens in found.items()]


class Oracle(Proposer):
    """Proposes the tokens of known answers, and a wrong one at every `wrong`-th place."""

    def __init__(self, answers: Sequence[list[int]], wrong: int = 10**9) -> None:
        self.answers, self.wrong, self.counts = answers, wrong, list[int]()

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        found = []
        for request in requests:
            tokens, at = list(request.tokens), len(request.tokens)
            self.counts.append(request.count)
            rest = next((a[at:] for a in self.answers if a[:at] == tokens), [])
            found.append(
                [
                    token if (at + i) % self.wrong else (token + 1) % 100
                    for i, token in enumerate(rest[: request.count])
                ]
            )
        return found


def speculation_of(engine: Engine) -> Speculation:
    """The speculation of an engine, whatever its steps cost."""
    speculation = engine.scheduler.speculation
    assert speculation is not None
    speculation.costs = Free()
    return speculation


def speculating(engine: Engine, proposer: Proposer) -> Speculation:
    """The speculation of an engine with a proposer, whatever its steps cost."""
    speculation = Speculation(proposer, engine.scheduler.max_seqs, engine.vocab)
    speculation.costs = Free()
    engine.scheduler.speculation = speculation
    return speculation
