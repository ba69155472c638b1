"""Prepare chats and completions for an engine; synchronous, without I/O."""

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

InsertMedia = Callable[[Sequence[int], Sequence[Medium]], Prompt]
"""Expands the placeholders of media in a prompt."""

MAX_CHOICES = 1024
"""The largest number of choices of one request, over all prompts."""


class Preparer:
    """Prepares requests for one model. Thread-safe."""

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
        if the model has none or rendering fails, RequestError for malformed messages or options,
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
        request: GenerationRequest | None = None,
        first: int = 0,
    ) -> PromptContinuation:
        """The continuation of one prompt, its choices numbered from `first`.

        `max_tokens` is limited to the rest of the context. `request` has the options of the output
        besides sampling. Raises RequestError for a prompt that is empty or has unknown ids.
        """
        check_tokens(prompt.tokens, self.model.vocab)
        room, wanted = self.model.context - len(prompt.tokens), sampling.max_tokens
        if room > 0:  # the engine refuses longer prompts
            wanted = room if wanted is None else min(wanted, room)
        token_request = TokenRequest(
            id=token_hex(12),
            model=self.model.name,
            tokens=prompt.tokens,
            sampling=replace(sampling, max_tokens=wanted, stop=()),
            priority=0 if request is None else request.priority or 0,
            salt="" if request is None else request.cache_salt or "",
            adapters=tuple(adapters),
            items=prompt.items,
            positions=prompt.positions,
        )
        return PromptContinuation(
            token_request,
            self.tokenizer,
            stops=sampling.stop,
            keep_stop=request is not None and bool(request.include_stop_str_in_output),
            prompt_logprobs=request is not None and request.prompt_logprobs is not None,
            first=first,
        )

    def prepare_chat(
        self,
        request: ChatRequest,
        insert_media: InsertMedia,
        *,
        adapters: Sequence[AdapterRef] = (),
        template: str | None = None,
    ) -> PromptContinuation:
        """The continuation of a conversation, with media that `insert_media` adds to the prompt.

        Raises RequestError for an invalid field, Unsupported for media that the model does
        not take, and what `encode_chat` raises.
        """
        sampling = sampling_of(
            request, self.tokenizer, self.model.vocab, self.model.sampling.values
        )
        messages, media = read_conversation(request)
        tools, options = tools_of(request), options_of(request)
        self.check_media(media)
        tokens = self.encode_chat(
            messages,
            tools=tools,
            options=options,
            add_generation_prompt=request.add_generation_prompt is not False,
            template=template,
            limit=self.model.context,
        )
        prompt = insert_media(tokens, media) if media else Prompt(tokens=tokens)
        try:
            check_length(sampling, len(prompt.tokens), self.model.context)
            return self.prepare(prompt, sampling, adapters=adapters, request=request)
        except BaseException:
            prompt.drop()
            raise

    def check_media(self, media: Sequence[Medium]) -> None:
        """Raise Unsupported for media if the model accepts text only."""
        if media and self.model.architecture.inputs is None:
            raise Unsupported(
                f"{self.model.name} accepts text only, not {media[0].kind}", param="messages"
            )

    def prepare_completion(
        self, request: CompletionRequest, *, adapters: Sequence[AdapterRef] = ()
    ) -> list[PromptContinuation]:
        """The continuations of a request's prompts.

        Raises RequestError for an invalid field, ContextLengthExceeded for a prompt that is
        too long together with `max_tokens`.
        """
        model = self.model
        sampling = sampling_of(request, self.tokenizer, model.vocab, model.sampling.values)
        prompts, found = prompts_of(request.prompt), list[PromptContinuation]()
        if len(prompts) * sampling.n > MAX_CHOICES:
            raise RequestError(
                f"{len(prompts)} prompts with n={sampling.n}; at most {MAX_CHOICES} choices",
                param="n",
            )
        for i, given in enumerate(prompts):
            tokens = self.encode(given) if isinstance(given, str) else given
            check_length(sampling, len(tokens), model.context)
            prompt, first = Prompt(tokens=tokens), i * sampling.n
            one = self.prepare(prompt, sampling, adapters=adapters, request=request, first=first)
            if request.echo:
                one.echo = given if isinstance(given, str) else self.tokenizer.decode(given)
            found.append(one)
        return found

    def sampling(self, values: Mapping[str, Any]) -> Sampling:
        """Sampling from fields of `Sampling`; the model's defaults apply to the others.

        Raises UsageError for an unknown name or a wrong type, RequestError for values out of range.
        """
        known = Sampling.__struct_fields__
        if unknown := values.keys() - set(known):
            raise UsageError(
                f"unknown sampling parameter {', '.join(sorted(unknown))}; expected "
                f"{', '.join(known)}"
            )
        if isinstance(values.get("stop"), str):
            values = {**values, "stop": (values["stop"],)}
        try:
            rules = msgspec.convert(
                {**self.model.sampling.values, **values}, Sampling, strict=False
            )
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
