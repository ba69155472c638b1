"""The tokenizer: text to ids and back. Control tokens in text are encoded as text."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import tokenizers

from ostro.core.errors import RequestError, TokenizerError
from ostro.core.tokenizer.bound import longest_token
from ostro.core.tokenizer.detokenizer import Detokenizer, Spelling, WindowDetokenizer
from ostro.core.tokenizer.errors import tokenizer_errors
from ostro.core.tokenizer.limit import check_length, too_long

if TYPE_CHECKING:
    from ostro.core.records import TokenizerSource


class Tokenizer:
    """A tokenizer with the model's special tokens and chat template.

    special_tokens: token texts by role ("bos_token", "eos_token", ...). eos_ids: the ids that end a
    generation. control_ids, controls: the ids and texts of all control tokens. chat_template: its
    source, several sources by name, or None. prefix, suffix: the ids that `encode(special=True)`
    adds around a text.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        source: str = "tokenizer",
        special_tokens: Mapping[str, str] | None = None,
        eos_ids: Iterable[int] = (),
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
        chat_template: str | dict[str, str] | None = None,
    ) -> None:
        self.backend = backend
        self.source = source
        self.special_tokens = dict(special_tokens or {})
        self.prefix, self.suffix = list(prefix), list(suffix)
        self.chat_template = chat_template
        self.bos_id = self._named("bos_token")
        self.eos_ids = frozenset(eos_ids)
        added = backend.get_added_tokens_decoder()
        highest = [backend.get_vocab_size() - 1, *added, *self.prefix, *self.suffix]
        self.vocab_size = max(highest) + 1
        self.control_ids = frozenset(id for id, token in added.items() if token.special)
        self._forbidden = self.control_ids - {self._named("unk_token")}
        self._spelling = Spelling.find(backend)
        self._pieces: dict[int, bytes] = {}
        self._plain = _view(backend)
        self._inner, self._middle = _without_prefix(self._plain), _without_prefix(backend)
        self._controls = _pattern(added[id] for id in self.control_ids)
        self._added = {token.content: token for token in added.values()}
        self._ids = {added[id].content: id for id in self.control_ids}
        self.controls = frozenset(self._ids)

    def encode(
        self,
        text: str,
        *,
        special: bool = True,
        parse_special: bool = False,
        start: bool = True,
        limit: int | None = None,
    ) -> list[int]:
        """Convert text to ids.

        `special` adds the model's `prefix` and `suffix`. With `parse_special` control tokens in the
        text become their ids, otherwise they are encoded as text. `start=False`: the text continues
        a prompt. `limit` is the context of the model in tokens; a text far beyond it is rejected
        before it is tokenized.
        Raises RequestError for text that is not Unicode (a lone surrogate) and
        ContextLengthExceeded for more than `limit` tokens.
        """
        if not text.isascii():
            _check_unicode(text)
        views = (self.backend, self._middle) if parse_special else (self._plain, self._inner)
        view = views[0] if start else views[1]
        with tokenizer_errors(f"{self.source}: cannot encode"):
            if limit is not None:
                self.check_size(len(text), limit)
                check_length(text, limit, lambda piece: len(_ids(view, piece)))
            ids = _ids(view, text) if parse_special else self._encode_plain(view, text)
        ids = [*self.prefix, *ids, *self.suffix] if special else ids
        if limit is not None and len(ids) > limit:
            raise too_long(limit, len(ids))
        return ids

    def encode_pair(
        self,
        first: str,
        second: str | None = None,
        *,
        parse_special: bool = False,
        limit: int | None = None,
    ) -> tuple[list[int], list[int]]:
        """Convert a text or a pair of texts to ids and token type ids.

        The model's special tokens are added. `parse_special` is that of `encode`, `limit` as well,
        for both texts together. Raises RequestError for text that is not Unicode and
        ContextLengthExceeded for more than `limit` tokens.
        """
        texts = [first] if second is None else [first, second]
        view = self.backend if parse_special else self._plain
        with tokenizer_errors(f"{self.source}: cannot encode"):
            for text in texts:
                _check_unicode(text)
                if limit is not None:
                    self.check_size(len(text), limit)
                    check_length(text, limit, lambda piece: len(_ids(view, piece)))
            parts = view.encode_batch(texts, add_special_tokens=False)
            length = sum(map(len, parts))
            if limit is not None and length > limit:
                raise too_long(limit, length)
            pair = parts[1] if len(parts) > 1 else None
            whole = self.backend.post_process(parts[0], pair, True)
        return list(whole.ids), list(whole.type_ids)

    def check_size(self, size: int, limit: int) -> None:
        """Raise ContextLengthExceeded if a text of `size` bytes has more than `limit` tokens.

        Larger texts pass if one token may stand for any amount of text.
        """
        if size > limit and self.longest is not None and size > limit * self.longest:
            raise too_long(limit)

    @property
    def chat_templates(self) -> dict[str, str]:
        """The sources of the chat templates by name; a single one is the "default"."""
        found = self.chat_template
        return found if isinstance(found, dict) else {"default": found} if found else {}

    @property
    def has_pieces(self) -> bool:
        """Whether each token writes its own bytes in a text, whatever its neighbours are."""
        return self._spelling is not None

    @property
    def decoder(self) -> str:
        """The type of the backend's decoder, "none" without one."""
        return "none" if self.backend.decoder is None else type(self.backend.decoder).__name__

    @cached_property
    def longest(self) -> int | None:
        """The most bytes of a text that one token stands for; None if there is no limit."""
        return longest_token(self.backend)

    def split(self, text: str) -> list[str | int]:
        """Split text at its control tokens: their ids, and the texts between them."""
        parts: list[str | int] = []
        end = 0
        for match in self._controls.finditer(text) if self._controls else ():
            token = self._added[match[0]]
            between = text[end : match.start()]
            end = match.end()
            if token.lstrip:
                between = between.rstrip()
            if token.rstrip:
                end += len(text) - end - len(text[end:].lstrip())
            parts += [between] if between else []
            parts.append(self._ids[match[0]])
        return [*parts, text[end:]] if end < len(text) else parts

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Convert ids to text, without control tokens unless `skip_special` is False."""
        if self._spelling is None:
            return self.backend.decode(list(ids), skip_special_tokens=skip_special)
        whole = self.detokenizer(skip_special=skip_special)
        return whole.add(ids) + whole.finish()

    def detokenizer(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> Detokenizer:
        """A new incremental decoder.

        `prompt` are the ids before the first: SentencePiece removes the first space at the start
        of a text and after a control token, but not after ordinary text.
        """
        if self._spelling is None:
            return WindowDetokenizer(self.backend, skip_special)
        continues = bool(prompt) and prompt[-1] not in self.control_ids
        strip = self._spelling.leading_space and not continues
        skip = self.control_ids if skip_special else frozenset()
        return Detokenizer(self.piece, skip, strip)

    def token(self, id: int) -> str:
        """The vocabulary entry of an id, "" beyond the vocabulary."""
        return self.backend.id_to_token(id) or "" if id >= 0 else ""

    def id(self, token: str) -> int | None:
        """The id of a vocabulary entry, or None."""
        return self.backend.token_to_id(token)

    def check(self, vocab_size: int) -> None:
        """Raise TokenizerError for ids beyond an embedding of `vocab_size` rows."""
        if self.vocab_size > vocab_size:
            raise TokenizerError(
                f"{self.source}: the tokenizer has {self.vocab_size} ids, the model's embedding "
                f"only {vocab_size} rows; set --tokenizer to the model's own tokenizer"
            )

    def _named(self, role: str) -> int | None:
        text = self.special_tokens.get(role)
        return None if text is None else self.backend.token_to_id(text)

    def piece(self, id: int) -> bytes:
        """The bytes of one token within a text, control tokens included, b"" beyond the vocabulary.

        A word has the space before it, which some decoders leave out at the start of a text.
        """
        piece = self._pieces.get(id)
        if piece is None:
            piece = self._pieces[id] = self._spell(id)
        return piece

    def _spell(self, id: int) -> bytes:
        if self._spelling is not None:
            return self._spelling.spell(self.token(id))
        if id in self.control_ids:
            return self.token(id).encode()
        one, two = (self.backend.decode([id] * n, skip_special_tokens=False) for n in (1, 2))
        after = two.removeprefix(one) if two.startswith(one) else ""
        return (after or one).encode()

    def _encode_plain(self, view: tokenizers.Tokenizer, text: str) -> list[int]:
        found = _ids(view, text)
        if self._forbidden.isdisjoint(found):
            return found
        encoding = view.encode_batch([text], add_special_tokens=False)[0]
        # The vocabulary can match a control token as text (unigram pieces, whole words). Cutting
        # the text inside of it makes other tokens match.
        ids: list[int] = []
        end = 0
        for id, (first, last) in zip(encoding.ids, encoding.offsets, strict=True):
            if id in self._forbidden and last - first > 1:
                cut = (first + last) // 2
                ids += self._encode_plain(view, text[end:cut])
                end = cut
        return ids + self._encode_plain(self._inner, text[end:]) if end else encoding.ids


def _ids(view: tokenizers.Tokenizer, text: str) -> list[int]:
    # Only the batch methods release the GIL; the fast one omits offsets.
    return view.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"the text is not valid Unicode: {error.reason}") from error


def _view(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A backend with the same vocabulary that encodes control tokens as text."""
    view = tokenizers.Tokenizer(backend.model)
    view.normalizer = backend.normalizer
    view.pre_tokenizer = backend.pre_tokenizer
    view.decoder = backend.decoder
    added = backend.get_added_tokens_decoder()
    view.add_tokens([added[id] for id in sorted(added)])
    view.encode_special_tokens = True
    return view


def _without_prefix(view: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A backend for text inside a prompt: no leading space under the "first" scheme."""
    if view.pre_tokenizer is None:
        return view
    state = view.pre_tokenizer.__getstate__().decode()
    first = '"prepend_scheme":"first"'
    if first not in state:
        return view
    inner = _view(view)
    inner.encode_special_tokens = view.encode_special_tokens
    never = copy.deepcopy(view.pre_tokenizer)
    never.__setstate__(state.replace(first, first.replace("first", "never")).encode())
    inner.pre_tokenizer = never
    return inner


def _pattern(tokens: Iterable[tokenizers.AddedToken]) -> re.Pattern[str] | None:
    """An expression that matches control tokens as the backend does: the longest first."""
    branches = []
    for token in sorted(tokens, key=lambda token: -len(token.content)):
        text = re.escape(token.content)
        branches.append(rf"(?<!\w){text}(?!\w)" if token.single_word else text)
    return re.compile("|".join(branches)) if branches else None


class TokenizerLoader(Protocol):
    """`TokenizerFormat.load`: loads the tokenizer of a source that the record claims."""

    def __call__(self, source: TokenizerSource, /) -> Tokenizer: ...


class TokenizerWriter(Protocol):
    """`TokenizerFormat.write`: the keys of a container's header for a tokenizer.

    `source` is the folder that the tokenizer was loaded from, `keys` are the header's other keys.
    Raises TokenizerError for a tokenizer that the header cannot describe.
    """

    def __call__(
        self, tokenizer: Tokenizer, source: TokenizerSource, keys: Mapping[str, Any], /
    ) -> Mapping[str, Any]: ...
