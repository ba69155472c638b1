"""Prepare chats and completions for an engine; synchronous, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from secrets import token_hex
from typing import Any

import msgspec
from msgspec.structs import replace

from ostro import Prompt
from ostro.errors import ContextLengthExceeded, RequestError, Unsupported
from ostro.pipelines import (
    AdapterRef,
    ChatRequest,
    ChatTemplate,
    CompletionRequest,
    InsertMedia,
    MediaPart,
    OutputParser,
    Sampling,
    ServedModel,
    TextRequest,
    TokenRequest,
    ToolSupport,
    missing_template,
    prompt_tokens,
)
from ostro.plugins.pipelines.text.chat import Chat
from ostro.plugins.pipelines.text.continuation import PromptContinuation
from ostro.plugins.pipelines.text.conversation import (
    naming_messages,
    read_conversation,
)
from ostro.plugins.pipelines.text.infill import InfillTokens
from ostro.plugins.pipelines.text.parsing import NONE, OutputFormat, ends_with, output_format
from ostro.plugins.pipelines.text.sampling import BUDGET, GRAMMAR, sampling_of
from ostro.plugins.pipelines.text.tool_support import tool_support
from ostro.plugins.pipelines.text.tools import (
    call_rules,
    declarations,
    shown_tools,
)

NewParser = Callable[[], OutputParser]
"""Makes the parser of a choice."""
END_TOKENS = 16
"""Tokens at the end of a prompt that may contain the text that begins reasoning."""
MAX_CHOICES = 1024
"""The largest number of choices of one request, over all prompts."""


class Preparer:
    """Prepares requests for one model. Thread-safe."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.tokenizer = model.require_tokenizer()
        self.controls = {id: self.tokenizer.token(id) for id in self.tokenizer.control_ids}
        special = self.tokenizer.special_tokens
        self.templates = lru_cache(maxsize=64)(partial(ChatTemplate, tokens=special))
        self.formats = lru_cache(maxsize=64)(self.find_format)
        own = model.template
        for template in (own, own and own.tool_use):
            if template is not None:
                self.formats(template)  # a template that matches several parsers fails at once

    def find_format(self, template: ChatTemplate) -> OutputFormat | None:
        """The format of the outputs of a chat template. Raises UsageError as `output_format`."""
        return output_format(template, self.model.settings, self.model.parsers)

    def tool_support(self) -> ToolSupport:
        """What the model offers for tool calls. It blocks: the template is rendered a few times."""
        model = self.model
        return tool_support(model.template, model.settings, model.parsers, self.tokenizer)

    def understand(self, request: ChatRequest, template: str | None = None) -> Chat:
        """A chat as this model understands it.

        `template` is the source of a chat template that replaces the model's own. Raises
        TemplateError, RequestError as `call_rules`, UsageError as `output_format`.
        """
        rules, tools = call_rules(request), shown_tools(request)
        chosen = self.model.template if template is None else self.templates(template)
        chosen = None if chosen is None else chosen.for_tools(tools)
        form = None if chosen is None else self.formats(chosen)
        return Chat(
            request=request,
            tools=tools,
            declarations=declarations(tools),
            rules=rules,
            template=chosen,
            format=form,
        )

    def end_of(self, prompt: Sequence[int]) -> str:
        """The last characters of a prompt, its control tokens included."""
        return self.tokenizer.decode(prompt[-END_TOKENS:], skip_special=False)

    def parsers(self, chat: Chat, prompt_end: str) -> NewParser | None:
        """The function that makes the parsers of a chat's choices; None if nothing is parsed."""
        if chat.format is None:
            return None
        return partial(chat.format.parser, prompt_end, chat.tools, self.tokenizer.controls)

    def with_budget(self, sampling: Sampling, chat: Chat, prompt_end: str) -> Sampling:
        """The sampling, with the processor that ends reasoning if the chat has a budget of it.

        Raises Unsupported without that processor, and if reasoning is not parsed.
        """
        if chat.budget is None:
            return sampling
        name = "thinking_budget"
        if BUDGET not in self.model.processors:
            raise Unsupported(
                f"{name} needs the logits processor {BUDGET}, which is not installed", param=name
            )
        if chat.format is None or self.model.settings.reasoning_parser == NONE:
            raise Unsupported(
                f"{name}: reasoning is not parsed (--reasoning-parser); leave it out", param=name
            )
        if (markers := chat.format.kind.reasoning) is None:  # the notation has no reasoning
            return sampling
        budget = {
            "tokens": chat.budget,
            "begin": markers[0].strip(),
            "end": markers[1].strip(),
            "open": ends_with(prompt_end, markers[0]),
        }
        return replace(sampling, processors={**sampling.processors, BUDGET: budget})

    def constrained(self, sampling: Sampling, chat: Chat, prompt_end: str) -> Sampling:
        """The sampling, with a grammar of the output if something constrains its text or calls.

        The model may begin with reasoning, unless its budget is 0. Where the marker is text, and no
        token of the vocabulary, it may not: a model that was not trained on it would not end it.
        Raises Unsupported without the logits processor "grammar", RequestError for constraints that
        exclude each other.
        """
        form, rules = chat.format, chat.rules
        answer = sampling.processors.get(GRAMMAR)
        if rules.field and (GRAMMAR not in self.model.processors or form is None):
            raise Unsupported(
                f"{rules.field}: constraining calls needs the logits processor {GRAMMAR}, which "
                "is not installed; use tool_choice auto and none, parallel_tool_calls true and no "
                "strict tools",
                param=rules.field,
            )
        # These keys state that the client knows the notation: the grammar is used as it is. So is a
        # malformed one, which the processor refuses.
        of_whole_output = answer is not None and (
            not isinstance(answer, dict) or not answer.keys().isdisjoint(("after", "outer"))
        )
        if rules.field and of_whole_output:
            raise RequestError(
                f"{rules.field} excludes a grammar of the whole output; use one of them",
                param=rules.field,
            )
        if form is None or of_whole_output or (answer is None and not rules.field):
            return sampling
        ids = {text: id for id, text in self.controls.items()}
        reasons = chat.budget != 0 and self.has_token(form.kind.reasoning)
        grammar = form.grammar(answer, prompt_end, rules, ids, reasons)
        processors = {**sampling.processors, GRAMMAR: grammar}
        return replace(sampling, processors=processors)

    def has_token(self, markers: tuple[str, str] | None) -> bool:
        """Whether a token of the vocabulary is the marker that begins reasoning.

        Some markers are a control token and text behind it.
        """
        if markers is None:
            return False
        begin = self.tokenizer.encode(
            markers[0].strip(), special=False, parse_special=True, start=False
        )
        return len(begin) == 1 or begin[0] in self.controls

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token in a text, the name of a control token."""
        return self.tokenizer.piece(token)

    def context_of(self, request: TextRequest) -> int:
        """The most tokens of prompt and output: those of the context, or fewer by the request.

        Raises RequestError for a number that is not positive.
        """
        most = request.max_total_tokens
        if most is None:
            return self.model.context
        if most < 1:
            raise RequestError(f"max_total_tokens={most} is not positive", param="max_total_tokens")
        return min(most, self.model.context)

    def length_check(self, request: TextRequest, sampling: Sampling) -> Callable[..., None]:
        """`check_length` for the prompts of a request. Raises as `context_of`."""
        context = self.context_of(request)
        own = context < self.model.context
        return partial(check_length, sampling, context=context, own=own)

    def encode(
        self, chat: Chat, messages: Sequence[Mapping[str, Any]], limit: int | None = None
    ) -> list[int]:
        """Token ids of the messages of a chat, rendered with its template.

        Raises TemplateError if there is none or rendering fails, RequestError for malformed
        messages or options, ContextLengthExceeded for more than `limit` tokens, Unsupported for
        tools that the template does not read.
        """
        if chat.tools and chat.template is not None:
            self.check_shows_tools(chat.template)
        return prompt_tokens(
            chat.template,
            self.tokenizer,
            messages,
            chat.declarations,
            chat.adds_prompt,
            chat.options,
            limit=limit,
            until=chat.until,
        )

    def prepare(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        request: TextRequest,
        adapters: Sequence[AdapterRef] = (),
        first: int = 0,
        parser: NewParser | None = None,
    ) -> PromptContinuation:
        """The continuation of one prompt, its choices numbered from `first`.

        `parser` makes the parsers of their outputs. `max_tokens` is limited to the rest of the
        context: clients that do not know the context request more than it has. `request` has the
        options of the output besides sampling. Raises RequestError for a prompt that is empty or
        has unknown ids.
        """
        check_tokens(prompt.tokens, self.model.vocab)
        check_ends(sampling)
        check_integers(sampling.processors)
        room, wanted = self.context_of(request) - len(prompt.tokens), sampling.max_tokens
        wanted = room if wanted is None else min(wanted, room)
        token_request = TokenRequest(
            id=token_hex(12),
            model=self.model.name,
            tokens=prompt.tokens,
            sampling=replace(sampling, max_tokens=wanted, stop=()),
            priority=request.priority or 0,
            salt=request.cache_salt or "",
            speculate=request.speculate is not False,
            adapters=tuple(adapters),
            items=prompt.items,
            positions=prompt.positions,
        )
        return PromptContinuation(
            token_request,
            self.tokenizer,
            stops=sampling.stop,
            keep_stop=bool(request.include_stop_str_in_output),
            prompt_logprobs=request.prompt_logprobs is not None,
            token_ids=bool(request.return_token_ids),
            first=first,
            parser=parser,
            controls=self.controls,
        )

    @naming_messages()
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
        not take, and what `understand` and `encode` raise.
        """
        chat = self.understand(request, template)
        sampling = sampling_of(
            request, self.tokenizer, self.model.vocab, self.model.sampling.values
        )
        check = self.length_check(request, sampling)
        insert = partial(insert_media, check=partial(check, counted=False))
        prompt = self.chat_prompt(chat, insert, limit=self.model.context)
        try:
            check(len(prompt.tokens))
            end = self.end_of(prompt.tokens)
            sampling = self.with_budget(self.constrained(sampling, chat, end), chat, end)
            parser = self.parsers(chat, end)
            return self.prepare(prompt, sampling, adapters=adapters, request=request, parser=parser)
        except BaseException:
            prompt.drop()
            raise

    @naming_messages()
    def chat_prompt(
        self, chat: Chat, insert_media: InsertMedia, *, limit: int | None = None
    ) -> Prompt:
        """The prompt of a chat. Raises what `prepare_chat` raises."""
        messages, media = read_conversation(chat.request, limit)
        self.check_media(media)
        if limit is not None:
            self.tokenizer.check_size(size_of(messages), limit)
        tokens = self.encode(chat, messages, limit)
        return insert_media(tokens, media) if media else Prompt(tokens=tokens)

    def render_chat(self, request: ChatRequest, template: str | None = None) -> str:
        """The text of a conversation's prompt. Raises what `prepare_chat` raises."""
        chat = self.understand(request, template)
        messages, media = read_conversation(request)
        self.check_media(media)
        if chat.template is None:
            raise missing_template(self.tokenizer)
        return chat.template.render(
            messages,
            tools=chat.declarations,
            add_generation_prompt=chat.adds_prompt,
            until=chat.until,
            **chat.options,
        )

    def check_shows_tools(self, template: ChatTemplate) -> None:
        """Raise Unsupported if the chat template does not show tools to the model."""
        if "tools" not in template.features.variables:
            raise Unsupported(
                f"tools: the chat template of {self.model.name} does not read them; leave them "
                "out, or describe them in a message",
                param="tools",
            )

    def check_media(self, media: Sequence[MediaPart]) -> None:
        """Raise Unsupported for media if the model accepts text only."""
        if media and self.model.architecture.inputs is None:
            raise Unsupported(
                f"{self.model.name} accepts text only, not {media[0].kind}", param="messages"
            )

    def prepare_completion(
        self,
        request: CompletionRequest,
        *,
        adapters: Sequence[AdapterRef] = (),
        default_max_tokens: int | None = None,
    ) -> list[PromptContinuation]:
        """The continuations of a request's prompts.

        `default_max_tokens` applies to a request without `max_tokens`, as far as the context
        allows. Raises RequestError for an invalid field, Unsupported for a suffix if the model
        cannot fill in the middle, ContextLengthExceeded for a prompt that leaves no room.
        """
        model = self.model
        sampling = sampling_of(request, self.tokenizer, model.vocab, model.sampling.values)
        check = self.length_check(request, sampling)
        infill = InfillTokens.find(self.tokenizer) if request.suffix else None
        if infill is not None:
            sampling = replace(sampling, stop_ids=(*sampling.stop_ids, *infill.ends))
        prompts, continuations = request.prompts, list[PromptContinuation]()
        returned = request.n or 1
        if len(prompts) * sampling.n > MAX_CHOICES:
            raise RequestError(
                f"{len(prompts)} prompts with n={sampling.n}; at most {MAX_CHOICES} choices",
                param="n",
            )
        for i, given in enumerate(prompts):
            prompt = self.completion_prompt(given, request, infill)
            check(len(prompt.tokens))
            rules = sampling
            if sampling.max_tokens is None and default_max_tokens is not None:
                rules = replace(sampling, max_tokens=max(default_max_tokens, sampling.min_tokens))
            first = i * returned
            one = self.prepare(prompt, rules, request=request, adapters=adapters, first=first)
            one.returned, one.report_logprobs = returned, request.logprobs is not None
            if request.echo:
                one.echoes_text = isinstance(given, str)
                one.echo = given if isinstance(given, str) else self.tokenizer.decode(prompt.tokens)
            continuations.append(one)
        return continuations

    def completion_prompt(
        self,
        given: str | list[int] | Prompt,
        request: CompletionRequest,
        infill: InfillTokens | None,
    ) -> Prompt:
        """The prompt of a completion; with `infill` one between a prefix and a suffix.

        Raises ContextLengthExceeded for a text of more tokens than the context, RequestError for a
        suffix after media.
        """
        if isinstance(given, Prompt):
            if infill is not None:
                raise RequestError("suffix excludes a prompt with media", param="suffix")
            return given
        stated = request.parse_special
        encode = partial(
            self.tokenizer.encode,
            # With a suffix the texts are code from an editor, which may spell control tokens.
            parse_special=infill is None if stated is None else stated,
            limit=self.model.context,
        )
        if infill is None:
            return Prompt(tokens=encode(given) if isinstance(given, str) else given)
        encode = partial(encode, special=False, start=False)
        before = encode(given) if isinstance(given, str) else given
        after = encode(request.suffix or "")
        return Prompt(tokens=[*self.tokenizer.prefix, *infill.prompt(before, after)])


def size_of(messages: Sequence[Mapping[str, Any]]) -> int:
    """The characters that a chat template writes of messages at least.

    Templates may remove white space around a text, and the reasoning of earlier answers.
    """
    size = 0
    for message in messages:
        if message["role"] != "assistant":
            content = message.get("content") or ""
            parts = [content] if isinstance(content, str) else content
            texts = (part if isinstance(part, str) else part.get("text") or "" for part in parts)
            size += sum(len(text.strip()) for text in texts)
    return size


def check_tokens(tokens: Sequence[int], vocab: int) -> None:
    """Raise RequestError for an empty prompt and for ids outside the vocabulary."""
    if not tokens:
        raise RequestError("the prompt is empty", param="prompt")
    if min(tokens) < 0 or max(tokens) >= vocab:
        wrong = next(token for token in tokens if not 0 <= token < vocab)
        raise RequestError(f"token id {wrong} is not within 0..{vocab - 1}", param="prompt")


def check_length(
    sampling: Sampling, prompt: int, context: int, *, own: bool = False, counted: bool = True
) -> None:
    """Raise ContextLengthExceeded if a context has no room for a prompt and the fewest tokens.

    prompt: its tokens; at least this many unless `counted`. own: the request states the context.
    """
    fewest = sampling.fewest_tokens
    if prompt + fewest <= context:
        return
    advice = "allow the request more tokens" if own else ContextLengthExceeded.advice
    one_fits = prompt < context
    raise ContextLengthExceeded.of(
        context,
        prompt,
        counted=counted,
        to_generate=fewest,
        reason="the request limits its context" if own else "",
        advice=f"lower min_tokens, or {advice}" if one_fits else advice,
        param="min_tokens" if one_fits else "prompt",
    )


def check_ends(sampling: Sampling) -> None:
    """Raise RequestError for fields that contradict a grammar, which decides the end."""
    for name in ("min_tokens", "ignore_eos"):
        if GRAMMAR in sampling.processors and getattr(sampling, name):
            raise RequestError(
                f"{name} and structured output exclude each other: the grammar decides where the "
                f"answer ends; leave {name} out",
                param=name,
            )


def check_integers(processors: Mapping[str, Any]) -> None:
    """Raise RequestError for an integer beyond 64 bits in the parameters of logits processors."""
    for name, parameter in processors.items():
        field = parameter.get("field") if isinstance(parameter, dict) else None
        field = field if isinstance(field, str) else f"logits_processors.{name}"
        try:
            with suppress(TypeError):  # an object, which Python may pass to its own engine
                msgspec.msgpack.encode(parameter)
        except OverflowError:
            raise RequestError(
                f"{field:.80}: an integer is not within -2^63..2^64-1", param=field[:80]
            ) from None
