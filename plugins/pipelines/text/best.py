"""`best_of`: the choices of a prompt with the highest log probability per token."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from ostro.pipelines import Event, Text
from ostro.plugins.pipelines.text.choice import ChoiceState
from ostro.plugins.pipelines.text.continuation import PromptContinuation


async def best_choices(
    prompt: PromptContinuation, events: AsyncGenerator[Event, None]
) -> AsyncGenerator[Event, None]:
    """The events of the best `prompt.returned` choices, best first, once all have ended."""
    held: dict[int, list[Event]] = {}
    async with aclosing(events):
        async for event in events:
            if prompt.echo is None and isinstance(event, Text) and event.prompt_logprobs:
                yield event  # the prompt's, in the first choice of the answer
            else:
                held.setdefault(event.index, []).append(event)
    best = sorted(prompt.choices, key=mean_logprob, reverse=True)[: prompt.returned]
    for index, choice in enumerate(best, prompt.choices[0].index):
        for event in held.get(choice.index, ()):
            event.index = index
            if isinstance(event, Text) and not prompt.report_logprobs:
                event.logprobs, event.tokens, event.offsets = None, [], []
                if not event.text and event.prompt_logprobs is None:
                    continue
            yield event


def mean_logprob(choice: ChoiceState) -> float:
    """The mean of the log probabilities of a choice's tokens; an empty choice ranks last."""
    return choice.logprob / choice.tokens if choice.tokens else float("-inf")
