"""`best_of`: the choices of a prompt with the highest log probability per token."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from ostro.pipelines import TextDelta
from ostro.plugins.pipelines.text.choice import Choice
from ostro.plugins.pipelines.text.continuation import PromptContinuation


async def best_choices(
    prompt: PromptContinuation, deltas: AsyncGenerator[TextDelta, None]
) -> AsyncGenerator[TextDelta, None]:
    """The deltas of the best `prompt.returned` choices, best first, once all have ended."""
    held: dict[int, list[TextDelta]] = {}
    async with aclosing(deltas):
        async for delta in deltas:
            held.setdefault(delta.index, []).append(delta)
    best = sorted(prompt.choices, key=mean_logprob, reverse=True)[: prompt.returned]
    for index, choice in enumerate(best, prompt.choices[0].index):
        for delta in held.get(choice.index, ()):
            delta.index = index
            if not prompt.report_logprobs:
                delta.logprobs, delta.tokens, delta.offsets = None, [], []
            yield delta


def mean_logprob(choice: Choice) -> float:
    """The mean of the log probabilities of a choice's tokens; an empty choice ranks last."""
    return choice.logprob / choice.tokens if choice.tokens else float("-inf")
