"""The continuation of one prompt: converts the engine's token outputs to events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from ostro.pipelines import (
    Event,
    OutputParser,
    Stop,
    Text,
    Tokenizer,
    TokenLogprobs,
    TokenOutput,
    TokenRequest,
    Usage,
)
from ostro.plugins.pipelines.text.choice import ChoiceState


class PromptContinuation:
    """See `ostro.core.pipeline.Continuation`.

    `usage` counts tokens of the outputs so far. `generations` are those of the adapters that the
    engine applied. `returned` is the number of choices to return, the best ones if it is less than
    that of the request; `report_logprobs` applies to these.
    """

    returned: int
    report_logprobs = True
    echoes_text = False
    """Whether `echo` is the text of the request, with its control tokens."""

    def __init__(
        self,
        request: TokenRequest,
        tokenizer: Tokenizer,
        *,
        stops: tuple[str, ...] = (),
        keep_stop: bool = False,
        echo: str | None = None,
        prompt_logprobs: bool = False,
        token_ids: bool = False,
        first: int = 0,
        parser: Callable[[], OutputParser] | None = None,
        controls: Mapping[int, str] | None = None,
    ) -> None:
        """Stop strings stay in the text with `keep_stop`. `echo` is the prompt's text if the
        response begins with it. `prompt_logprobs` and `token_ids` are reported if requested;
        choices are numbered from `first`. `parser` makes the parser of a choice; `controls` are the
        control tokens, for it and for stop strings.
        """
        self.request, self.tokenizer, self.echo = request, tokenizer, echo
        self.prompt_logprobs = prompt_logprobs
        media = Counter[str]()
        for item in request.items:
            kind = "audio" if item.kind == "audio" else "image"
            media[kind] += sum(count for _, count in item.spans)
        self.usage = Usage(prompt=len(request.tokens), **media)
        self.generations: list[str] = []
        rules = request.sampling
        texts = (controls or {}).values()
        stopping = [text for text in texts if any(text in stop for stop in stops)]
        self.returned = rules.n
        self.choices = [
            ChoiceState(
                first + index,
                tokenizer.detokenizer(prompt=request.tokens),
                Stop(stops, keep=keep_stop, controls=stopping),
                min_tokens=rules.min_tokens,
                logprobs=rules.logprobs is not None,
                token_ids=token_ids,
                parser=None if parser is None else parser(),
                controls=controls,
            )
            for index in range(rules.n)
        ]
        self.begun = False

    @property
    def done(self) -> bool:
        """Whether all choices have ended."""
        return all(choice.done for choice in self.choices)

    def add(self, output: TokenOutput) -> list[Event]:
        """The events that are final after an output; none for a choice that has ended."""
        choice, events = self.choices[output.index], list[Event]()
        self.usage.drafted += output.drafted
        self.usage.accepted += output.accepted
        if not self.begun and (output.prompt_tokens or output.finish):
            self.begun = True
            events = self.begin(output)
        if choice.done:
            return events
        before, reasoned = choice.tokens, choice.reasoning_tokens
        events += choice.add(output)
        self.usage.completion += choice.tokens - before
        self.usage.reasoning += choice.reasoning_tokens - reasoned
        return events

    def begin(self, output: TokenOutput) -> list[Event]:
        """The events before the generated text: the prompt and its logprobs, if requested."""
        self.usage.cached += output.cached
        self.generations += output.generations
        known = self.logprobs_of_prompt(output)
        reported = known if self.prompt_logprobs else None
        if self.echo is None:
            index = self.choices[0].index
            return [Text(index=index, prompt_logprobs=reported)] if reported else []
        tokens, texts = self.request.tokens, self.texts_of_prompt()
        events: list[Event] = []
        for choice in self.choices:
            echoed = choice.echo(self.echo, tokens, texts, known)
            if reported:
                echoed = echoed or [Text(index=choice.index)]
                echoed[0].prompt_logprobs = reported
            events += echoed
        return events

    def texts_of_prompt(self) -> list[str]:
        """The texts of the prompt's tokens in `echo`; tokens around a text have none."""
        tokens, around = self.request.tokens, self.tokenizer
        detokenizer = around.detokenizer(skip_special=not self.echoes_text)
        before = len(around.prefix) if self.echoes_text else 0
        after = len(around.suffix) if self.echoes_text else 0
        inner = tokens[before : len(tokens) - after]
        return [""] * before + [detokenizer.add([token]) for token in inner] + [""] * after

    def logprobs_of_prompt(self, output: TokenOutput) -> list[TokenLogprobs | None] | None:
        """The prompt's logprobs as the engine reports them, one entry per token."""
        known = output.prompt_logprobs
        if known is None or self.request.sampling.prompt_logprobs is None:
            return None
        return [*known, *[None] * (len(self.request.tokens) - len(known))]
