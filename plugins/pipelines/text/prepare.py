"""From conversations and prompts to continuations: synchronous, without I/O or an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from secrets import token_hex
from typing import Any

import msgspec
from msgspec.structs import replace

from ostro import Prompt
from ostro.errors import RequestError, Unsupported, UsageError
from ostro.pipelines import (
    AdapterRef,
    ChatTemplate,
    Sampling,
    ServedModel,
    TokenRequest,
    prompt_tokens,
)
from ostro.pipelines import RequestMedium as Medium
from ostro.plugins.pipelines.text.continuation import PromptContinuation
from ostro.plugins.pipelines.text.conversation import (
    options_of,
    prompts_of,
    read_conversation,
    tools_of,
)
from ostro.plugins.pipelines.text.sampling import check_length, sampling_of
from ostro.plugins.pipelines.text.schema import ChatRequest, CompletionRequest, GenerationRequest

Place = Callable[[Sequence[int], Sequence[Medium]], Prompt]
"""Puts media in the place of their placeholders in a prompt."""

MAX_CHOICES = 1024
"""Choices of one request, over all its prompts."""


class Preparer:
    """Prepares what is sent to an engine for one model. Safe to use from many threads."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.tokenizer = model.require_tokenizer()
        self.template_of = lru_cache(maxsize=64)(self.parse_template)
        self.token_text = lru_cache(maxsize=65536)(self.decode_token)

    def parse_template(self, source: str) -> ChatTemplate:
        """A chat template with this tokenizer's special tokens. Raises TemplateError."""
        return ChatTemplate(source, tokens=self.tokenizer.special_tokens)

    def decode_token(self, token: int) -> str:
        """The text of one token, special tokens included."""
        return self.tokenizer.decode([token], skip_special=False)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. Raises ContextLengthExceeded for more than the context."""
        return self.tokenizer.encode(text, limit=self.model.context)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        limit: int | None = None,
    ) -> list[int]:
        """Token ids of a conversation, rendered with the chat template and its `options`.

        `template` is the source of a template that replaces the model's own. Raises TemplateError
        where there is none or it fails, RequestError for malformed messages or options,
        ContextLengthExceeded for more than `limit` tokens.
        """
        chosen = self.model.template if template is None else self.template_of(template)
        return prompt_tokens(
            chosen,
            self.tokenizer,
            messages,
            tools,
            add_generation_prompt,
            options,
            limit=limit,
        )

    def prepare(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        adapters: Sequence[AdapterRef] = (),
        asked: GenerationRequest | None = None,
        first: int = 0,
    ) -> PromptContinuation:
        """The continuation of one prompt, its choices numbered from `first`.

        `max_tokens` is cut to what the context has room for. `asked` has what concerns the answer
        beside its sampling. Raises RequestError for a prompt that is empty or has unknown ids.
        """
        check_tokens(prompt.tokens, self.model.vocab)
        room, wanted = self.model.context - len(prompt.tokens), sampling.max_tokens
        if room > 0:  # the engine refuses longer prompts
            wanted = room if wanted is None else min(wanted, room)
        request = TokenRequest(
            id=token_hex(12),
            model=self.model.name,
            tokens=prompt.tokens,
            sampling=replace(sampling, max_tokens=wanted, stop=()),
            priority=0 if asked is None else asked.priority or 0,
            salt="" if asked is None else asked.cache_salt or "",
            adapters=tuple(adapters),
            items=prompt.items,
            positions=prompt.positions,
        )
        return PromptContinuation(
            request,
            self.tokenizer,
            stops=sampling.stop,
            keep_stop=asked is not None and bool(asked.include_stop_str_in_output),
            prompt_logprobs=asked is not None and asked.prompt_logprobs is not None,
            first=first,
        )

    def prepare_chat(
        self,
        asked: ChatRequest,
        place: Place,
        *,
        adapters: Sequence[AdapterRef] = (),
        template: str | None = None,
    ) -> PromptContinuation:
        """The continuation of a conversation, whose media `place` puts into its prompt.

        Raises RequestError naming a field that is wrong, Unsupported for media that the model does
        not take, and what `encode_chat` raises.
        """
        sampling = sampling_of(asked, self.tokenizer, self.model.vocab, self.model.sampling)
        messages, media = read_conversation(asked)
        tools, options = tools_of(asked), options_of(asked)
        self.check_media(media)
        tokens = self.encode_chat(
            messages,
            tools=tools,
            options=options,
            add_generation_prompt=asked.add_generation_prompt is not False,
            template=template,
            limit=self.model.context,
        )
        prompt = place(tokens, media) if media else Prompt(tokens=tokens)
        try:
            check_length(sampling, len(prompt.tokens), self.model.context)
            return self.prepare(prompt, sampling, adapters=adapters, asked=asked)
        except BaseException:
            prompt.drop()
            raise

    def check_media(self, media: Sequence[Medium]) -> None:
        """Raise Unsupported for media where the model takes text only."""
        if media and self.model.architecture.inputs is None:
            raise Unsupported(
                f"{self.model.name} takes text only, no {media[0].kind}", param="messages"
            )

    def prepare_completion(
        self, asked: CompletionRequest, *, adapters: Sequence[AdapterRef] = ()
    ) -> list[PromptContinuation]:
        """The continuations of a request's prompts.

        Raises RequestError naming a field that is wrong, ContextLengthExceeded for a prompt that is
        too long together with `max_tokens`.
        """
        model = self.model
        sampling = sampling_of(asked, self.tokenizer, model.vocab, model.sampling)
        prompts, found = prompts_of(asked.prompt), list[PromptContinuation]()
        if len(prompts) * sampling.n > MAX_CHOICES:
            raise RequestError(
                f"{len(prompts)} prompts with n={sampling.n}; at most {MAX_CHOICES} choices",
                param="n",
            )
        for i, given in enumerate(prompts):
            tokens = self.encode(given) if isinstance(given, str) else given
            check_length(sampling, len(tokens), model.context)
            prompt, first = Prompt(tokens=tokens), i * sampling.n
            one = self.prepare(prompt, sampling, adapters=adapters, asked=asked, first=first)
            if asked.echo:
                one.echo = given if isinstance(given, str) else self.tokenizer.decode(given)
            found.append(one)
        return found

    def sampling(self, values: Mapping[str, Any]) -> Sampling:
        """Sampling from fields of `Sampling`; what the model suggests holds for the others.

        Raises UsageError for an unknown name or a wrong type, RequestError for values out of range.
        """
        known = Sampling.__struct_fields__
        if unknown := values.keys() - set(known):
            raise UsageError(
                f"no sampling parameter {', '.join(sorted(unknown))}; there are {', '.join(known)}"
            )
        if isinstance(values.get("stop"), str):
            values = {**values, "stop": (values["stop"],)}
        try:
            rules = msgspec.convert({**self.model.sampling, **values}, Sampling, strict=False)
        except msgspec.ValidationError as error:
            raise UsageError(f"sampling: {error}") from None
        return rules.checked(self.model.vocab)


def check_tokens(tokens: Sequence[int], vocab: int) -> None:
    """Raise RequestError for an empty prompt and for ids outside the vocabulary."""
    if not tokens:
        raise RequestError("the prompt is empty", param="prompt")
    if min(tokens) < 0 or max(tokens) >= vocab:
        wrong = next(token for token in tokens if not 0 <= token < vocab)
        raise RequestError(f"token id {wrong} is not within 0..{vocab - 1}", param="prompt")
