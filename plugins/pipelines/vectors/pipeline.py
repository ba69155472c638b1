"""Pooling requests: embeddings of texts, scores of pairs of texts, label probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from secrets import token_hex

import numpy as np
from numpy.typing import NDArray

from ostro.checkpoints import read_config
from ostro.errors import ConfigError, ContextLengthExceeded, RequestError, Unsupported
from ostro.pipelines import (
    PREPARATION_EXECUTOR,
    AdapterRef,
    AsyncEngine,
    ChatTemplate,
    PoolingRequest,
    PoolingResult,
    Ranked,
    ServedModel,
    prompt_tokens,
)
from ostro.plugins.pipelines.vectors.limits import text_limit

MARGIN = 64
"""Tokens beyond those kept of a text, so that the place of a cut within a word has no effect."""
Rows = NDArray[np.float32]
Scores = NDArray[np.float64]


class Vectors:
    """Embeds, reranks and classifies with one model. Tokenizes outside of the event loop."""

    def __init__(self, model: ServedModel, engine: AsyncEngine) -> None:
        self.model, self.engine, self.name = model, engine, model.name

    async def embed(
        self,
        inputs: Sequence[str | list[int]],
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
        truncate: int | None = None,
        adapters: Sequence[AdapterRef] = (),
    ) -> PoolingResult[Rows]:
        """One vector per text, or per list of token ids: [n, d] float32.

        `prompt` names one of the model's prompts, which precedes every text; `dimensions` truncates
        vectors and normalises them again (Matryoshka); `truncate` is the number of tokens to which
        longer inputs are shortened, -1 for the limit of the model's folder or the context, 0 to
        reject inputs beyond the context. By default, only a folder of sentence-transformers
        shortens inputs. Raises RequestError, and AdapterError for unknown `adapters`.
        """
        before = self.prompt(prompt)
        size = sum(map(len, inputs)) + len(before) * len(inputs)
        work = partial(self.encode, inputs, before, self.limit(truncate))
        tokens = await PREPARATION_EXECUTOR.run(size, work)
        request = PoolingRequest(
            id=token_hex(12), inputs=tokens, model=self.name, adapters=tuple(adapters)
        )
        read = await self.read(request)
        return read._replace(answer=shorten(read.answer, dimensions))

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        max_tokens: int | None = None,
        adapters: Sequence[AdapterRef] = (),
    ) -> PoolingResult[list[Ranked]]:
        """The documents in descending order of relevance to the query.

        `max_tokens` truncates longer documents.
        """
        if max_tokens is not None:
            work = partial(self.truncate, documents, max_tokens)
            documents = await PREPARATION_EXECUTOR.run(sum(map(len, documents)), work)
        pairs = [(query, document) for document in documents]
        read = await self.relevance(pairs, adapters=adapters)
        ranked = [Ranked(i, score) for i, score in enumerate(read.answer.tolist())]
        ranked.sort(key=lambda item: -item.score)
        return PoolingResult(ranked, read.tokens, read.generations)

    async def relevance(
        self, pairs: Sequence[tuple[str, str]], *, adapters: Sequence[AdapterRef] = ()
    ) -> PoolingResult[Scores]:
        """The relevance of the second text of each pair to the first: [n], within 0..1.

        It is the probability of the one label, or of "yes" if the labels are "yes" and "no". Raises
        Unsupported for other labels.
        """
        read = await self.scores(pairs, adapters)
        labels = self.labels(read.answer.shape[1])
        if len(labels) != 1 and {*labels} != {"yes", "no"}:
            raise Unsupported(
                f"{self.name} has {len(labels)} labels; reranking needs a model with one, or with "
                'the labels "yes" and "no"'
            )
        column = labels.index("yes") if len(labels) > 1 else 0
        shares = probabilities(read.answer)[:, column]
        return PoolingResult(shares, read.tokens, read.generations)

    async def similarity(
        self, pairs: Sequence[tuple[str, str]], *, adapters: Sequence[AdapterRef] = ()
    ) -> PoolingResult[Scores]:
        """The cosine similarity of the vectors of each pair: [n], within -1..1."""
        rows = {text: row for row, text in enumerate(dict.fromkeys(x for p in pairs for x in p))}
        read = await self.embed(list(rows), adapters=adapters)
        units = read.answer.astype(np.float64)
        units /= np.maximum(np.linalg.norm(units, axis=1, keepdims=True), 1e-12)
        first, second = (units[[rows[pair[side]] for pair in pairs]] for side in (0, 1))
        return PoolingResult((first * second).sum(1), read.tokens, read.generations)

    async def classify(
        self, inputs: Sequence[str], *, adapters: Sequence[AdapterRef] = ()
    ) -> PoolingResult[list[dict[str, float]]]:
        """The probability of every label, by text."""
        read = await self.label_probabilities(inputs, adapters=adapters)
        labels = self.labels(read.answer.shape[1])
        shares = [dict(zip(labels, row, strict=True)) for row in read.answer.tolist()]
        return PoolingResult(shares, read.tokens, read.generations)

    async def label_probabilities(
        self, inputs: Sequence[str], *, adapters: Sequence[AdapterRef] = ()
    ) -> PoolingResult[Scores]:
        """The probabilities of the labels in their order: [n, labels]."""
        read = await self.scores([(text, None) for text in inputs], adapters)
        return PoolingResult(probabilities(read.answer), read.tokens, read.generations)

    def labels(self, count: int) -> list[str]:
        """The names of the scores: of the architecture, of the config, or LABEL_0, LABEL_1, ..."""
        config = self.model.raw_config
        # vLLM's field of classifiers whose head is made of rows of a decoder's head.
        names = self.model.architecture.labels or config.get("classifier_from_token")
        if isinstance(names, (list, tuple)) and len(names) == count:
            return [str(name) for name in names]
        named = config.get("id2label") or {}
        return [str(named.get(str(i), f"LABEL_{i}")) for i in range(count)]

    async def scores(
        self, pairs: Sequence[tuple[str, str | None]], adapters: Sequence[AdapterRef] = ()
    ) -> PoolingResult[Rows]:
        """Raw scores [n, labels] of texts, or of pairs of texts."""
        size = sum(len(first) + len(second or "") for first, second in pairs)
        pieces = await PREPARATION_EXECUTOR.run(size, partial(self.encode_pairs, pairs))
        tokens, kinds = [ids for ids, _ in pieces], [types for _, types in pieces]
        request = PoolingRequest(
            id=token_hex(12),
            inputs=tokens,
            kinds=dict(enumerate(kinds)),
            output="scores",
            model=self.name,
            adapters=tuple(adapters),
        )
        return await self.read(request)

    async def read(self, request: PoolingRequest) -> PoolingResult[Rows]:
        """Run a request on the engine. Raises RequestError for an invalid request."""
        last = await self.engine.result(request)
        generations = list(last.generations) if request.adapters else None
        tokens = sum(map(len, request.inputs))
        return PoolingResult(last.arrays["rows"].numpy(), tokens, generations)

    def limit(self, truncate: int | None) -> int | None:
        """The tokens to keep of an input, None to reject longer ones. Raises RequestError."""
        context = self.model.context
        if truncate is None:
            return self.text_limit
        if not -1 <= truncate <= context:
            raise RequestError(
                f"truncate_prompt_tokens={truncate} is not within -1..{context}",
                param="truncate_prompt_tokens",
            )
        return (self.text_limit or context) if truncate == -1 else truncate or None

    @cached_property
    def text_limit(self) -> int | None:
        """The tokens at which the model's folder truncates texts, None if it does not."""
        return text_limit(self.model.path, self.model.context)

    def encode(
        self, inputs: Sequence[str | list[int]], before: str, keep: int | None = None
    ) -> list[list[int]]:
        """Token ids of each input, of which `keep` remain. Raises ContextLengthExceeded."""
        tokens = []
        for i, x in enumerate(inputs):
            with named(i):
                ids = self.encode_text(before + x, keep) if isinstance(x, str) else self.checked(x)
            tokens.append(ids if keep is None else ids[:keep])
        return tokens

    def checked(self, ids: list[int]) -> list[int]:
        """The token ids of an input. Raises RequestError for one outside of the vocabulary."""
        vocab = self.model.vocab or self.model.require_tokenizer().vocab_size
        if wrong := [id for id in ids if not 0 <= id < vocab]:
            raise RequestError(f"token id {wrong[0]} is not within 0..{vocab - 1}", param="input")
        return ids

    def encode_text(self, text: str, keep: int | None) -> list[int]:
        """Token ids of a text; of more than `keep` ids the last ones before the suffix go.

        Only the start of the text that holds these ids is tokenized. Raises ContextLengthExceeded
        for a text beyond the context without `keep`.
        """
        tokenizer, limit = self.model.require_tokenizer(), self.model.context
        if keep is None:
            return tokenizer.encode(text, parse_special=True, limit=limit)
        end, size = tokenizer.suffix, keep
        while True:
            ids = tokenizer.encode(text[:size], parse_special=True)
            if size >= len(text) or len(ids) > keep + MARGIN:
                return ids if len(ids) <= keep else [*ids[: max(keep - len(end), 0)], *end]
            size *= 2

    def truncate(self, texts: Sequence[str], tokens: int) -> list[str]:
        """The texts, each cut after a number of tokens."""
        backend = self.model.require_tokenizer().backend
        encodings = backend.encode_batch(list(texts), add_special_tokens=False)
        ends = [e.offsets[tokens - 1][1] if len(e) > tokens else None for e in encodings]
        return [text[:end] for text, end in zip(texts, ends, strict=True)]

    def encode_pairs(
        self, pairs: Sequence[tuple[str, str | None]]
    ) -> list[tuple[list[int], list[int]]]:
        """Token ids and token types of each pair. Raises ContextLengthExceeded."""
        tokenizer, limit = self.model.require_tokenizer(), self.model.context
        pieces = []
        for i, (first, second) in enumerate(pairs):
            with named(i):
                if second is None or self.template is None:
                    pair = tokenizer.encode_pair(first, second, parse_special=True, limit=limit)
                    pieces.append(pair)
                else:
                    ids = self.encode_template(self.template, first, second)
                    pieces.append((ids, [0] * len(ids)))
        return pieces

    def encode_template(self, template: ChatTemplate, query: str, document: str) -> list[int]:
        """Token ids of a pair in the template. Raises ContextLengthExceeded."""
        messages = [
            {"role": "query", "content": query},
            {"role": "document", "content": document},
        ]
        tokenizer, limit = self.model.require_tokenizer(), self.model.context
        ids = prompt_tokens(template, tokenizer, messages, limit=limit)
        if len(ids) > limit:
            raise ContextLengthExceeded.of(limit, len(ids), to_generate=0)
        return ids

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The template of pairs: --chat-template, else the tokenizer's template "rerank", else the
        architecture's. llama.cpp's converter writes the second, with {query} and {document}.
        """
        if self.model.settings.chat_template:
            return self.model.template
        tokenizer = self.model.require_tokenizer()
        source = tokenizer.chat_templates.get("rerank")
        if source is not None:
            for i, field in enumerate(("{query}", "{document}")):
                source = source.replace(field, f"{{{{ messages[{i}].content }}}}")
            # Jinja drops a newline at the end of a source.
            source += '{{ "" }}'
        source = source or self.model.architecture.score_template
        return ChatTemplate(source, tokens=tokenizer.special_tokens) if source else None

    @cached_property
    def prompts(self) -> dict[str, str]:
        """The prompts of the model's folder by name; "" is the default prompt."""
        file = self.model.path / "config_sentence_transformers.json"
        config = read_config(file, missing_ok=True)
        try:
            prompts = {str(name): str(text) for name, text in (config.get("prompts") or {}).items()}
            default = config.get("default_prompt_name")
            return prompts if default is None else {**prompts, "": prompts[default]}
        except (AttributeError, KeyError, TypeError) as error:
            raise ConfigError(f"{file.name}: {error}") from None

    def prompt(self, name: str | None) -> str:
        if name is None:
            return self.prompts.get("", "")
        if name not in self.prompts:
            known = ", ".join(filter(None, self.prompts)) or "none"
            raise RequestError(
                f"{self.name} has no prompt {name!r}; expected one of {known}", param="prompt"
            )
        return self.prompts[name]


@contextmanager
def named(i: int) -> Iterator[None]:
    """Add the index of the input to a RequestError."""
    try:
        yield
    except RequestError as error:
        error.args, error.param = (f"input[{i}]: {error}",), "input"
        raise


def probabilities(scores: Rows) -> Scores:
    """scores [n, labels] -> probabilities [n, labels]: sigmoid of one label, softmax of several."""
    wide = scores.astype(np.float64)
    if wide.shape[1] == 1:
        return 1 / (1 + np.exp(-wide))
    wide = np.exp(wide - wide.max(1, keepdims=True))
    return wide / wide.sum(1, keepdims=True)


def shorten(rows: Rows, dimensions: int | None) -> Rows:
    """Truncate vectors to `dimensions` and normalise them. Raises RequestError."""
    if dimensions is None:
        return rows
    if not 1 <= dimensions <= rows.shape[1]:
        raise RequestError(
            f"dimensions={dimensions} is not within 1..{rows.shape[1]}", param="dimensions"
        )
    cut = rows[:, :dimensions]
    return cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-12)
