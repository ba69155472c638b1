"""Tokenizers from a GGUF header: the keys `tokenizer.ggml.*` and `tokenizer.chat_template`.

Source of keys, kinds and defaults: the GGUF specification (ggml-org/ggml, docs/gguf.md) and
llama.cpp (src/llama-vocab.cpp, 2026).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from ostro import TokenizerSource
from ostro.errors import TokenizerError
from ostro.pipelines import Tokenizer, tokenizer_errors
from ostro.plugins.tokenizers.pieces import SPACE, Kind, Pieces, build_bpe, build_unigram
from ostro.plugins.tokenizers.pretokenizers import find_pretokenizer

ENDS = (
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>",
    "<|calls|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "\u2581<EOT>",
    "[EOT]", "[EOS]", "<eos>", "<end_of_utterance>", "<turn|>", "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[",
    # Fill in the middle: padding, the next repository, the next file.
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>",
    "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
)  # fmt: skip
"""Texts of tokens that end a generation; most files state only one of several."""

END_IDS = (
    "eot_token_id", "eom_token_id", "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id",
)  # fmt: skip
"""Keys of tokens that end a generation, besides eos."""

CONTROLS = {
    *ENDS,
    "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>",
    "<fim_prefix>", "<fim_suffix>", "<fim_middle>",
    "<fim-prefix>", "<fim-suffix>", "<fim-middle>",
    "<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>",
    "<|prefix|>", "<|suffix|>", "<|middle|>",
    "<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>",
    "<PRE>", "<SUF>", "<MID>",
    "\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>",
}  # fmt: skip
"""Texts of control tokens, which some files mark as normal or user-defined."""

ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",
    "pad_token": "padding_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
"""Keys of special tokens in GGUF, with its spelling."""

INFILL = ("fim_pre_token", "fim_suf_token", "fim_mid_token")
"""Roles of the tokens for fill in the middle; the keys end in `_id`."""


def load_gguf(source: TokenizerSource) -> Tokenizer:
    """Build the tokenizer of the GGUF header that `source` has."""
    return tokenizer_from_gguf(source.metadata or {}, source=source.file or "GGUF")


def tokenizer_from_gguf(metadata: Mapping[str, Any], *, source: str = "GGUF") -> Tokenizer:
    """Build the tokenizer of a GGUF header.

    Raises TokenizerError with the key that is missing, malformed or not supported.
    """
    header = _Header(metadata, source)
    kind = header.get("model", str)
    builders = {
        "gpt2": _build_words, "gemma4": _build_words, "llama": _build_llama, "bert": _build_bert,
        "t5": _build_t5,
    }  # fmt: skip
    if kind not in builders:
        raise TokenizerError(
            f"{source}: tokenizer.ggml.model = {kind!r} is not supported; expected one of "
            f"{', '.join(builders)}"
        )
    pieces = header.pieces()
    with tokenizer_errors(f"{source}: malformed {kind} vocabulary"):
        backend, rules = builders[kind](header, pieces)
    # GGUF does not state whether a token removes the space after it; only Phi-3's tokens do.
    phi3 = kind == "llama" and metadata.get("general.architecture") == "phi3"
    added = pieces.added(keep_space=("<unk>", "<s>", "<|endoftext|>") if phi3 else None)
    backend.add_tokens(added)
    special = {role: text for role in ROLES if (text := pieces.token(rules.get(role)))}
    special |= {role: text for role in INFILL if (text := pieces.token(header.id(f"{role}_id")))}
    controls = {token.content for token in added if token.special}
    # Not any "</s>": vocabularies with tokens for HTML contain it as a tag.
    ends = controls.intersection((*ENDS, "</s>"))
    if "<|return|>" in ends or "<|flush|>" in ends:
        ends.discard("<|end|>")  # in these formats it ends a message, not the turn
    eos = [rules.get("eos_token"), *map(header.id, END_IDS)]
    return Tokenizer(
        backend,
        source=source,
        special_tokens=special,
        eos_ids=[id for id in [*eos, *map(backend.token_to_id, ends)] if id is not None],
        prefix=_ids(rules["before"]),
        suffix=_ids(rules["after"]),
        chat_template=header.templates(),
    )


class _Header:
    """The tokenizer's keys of a GGUF header, with checks."""

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self.metadata = metadata
        self.source = source

    def get(self, key: str, type: Any, default: Any = None) -> Any:
        """Read `tokenizer.ggml.<key>`. Raises TokenizerError if it is missing or mistyped."""
        value = self.metadata.get(f"tokenizer.ggml.{key}", default)
        if value is None and type is not int:
            raise TokenizerError(f"{self.source}: tokenizer.ggml.{key} is missing")
        if type in (int, bool, str):
            value = value.item() if hasattr(value, "item") else value
        if value is not None and not isinstance(value, type):
            raise TokenizerError(
                f"{self.source}: tokenizer.ggml.{key} is {value!r:.40}, not {type.__name__}"
            )
        return value

    def array(self, key: str, default: list[Any] | None = None) -> list[Any]:
        """Read an array, of any sequence type. Raises TokenizerError if it is missing."""
        value = self.metadata.get(f"tokenizer.ggml.{key}", default)
        if value is None or isinstance(value, str | bytes | int | float):
            raise TokenizerError(f"{self.source}: tokenizer.ggml.{key} is missing or not an array")
        return value.tolist() if hasattr(value, "tolist") else list(value)

    def id(self, key: str, default: int | None = None) -> int | None:
        """Read an id, None without one."""
        value: int | None = self.get(key, int, default)
        return value

    def pieces(self) -> Pieces:
        """Read the vocabulary, with control tokens that are marked as other kinds.

        Raises TokenizerError for different sizes and duplicate texts.
        """
        texts = [text or f"[EMPTY_{id}]" for id, text in enumerate(self.array("tokens"))]
        scores = self.array("scores", [0.0] * len(texts))
        kinds = self.array("token_type", [Kind.NORMAL] * len(texts))
        pieces = Pieces(texts=texts, scores=scores, kinds=kinds, source=self.source)
        named = {self.id(key) for key in ("eos_token_id", *END_IDS)}
        kinds = [
            Kind.CONTROL if text in CONTROLS or (id in named and text[:1] in ("<", "[")) else kind
            for id, (text, kind) in enumerate(zip(texts, kinds, strict=True))
        ]
        return replace(pieces, kinds=kinds)

    def rules(self, *, bos: bool, eos: bool = False, **defaults: int) -> dict[str, Any]:
        """Read the special ids, and the ids before and after a text."""
        ids = {role: self.id(key, defaults.get(role)) for role, key in ROLES.items()}
        before = ids["bos_token"] if self.get("add_bos_token", bool, bos) else None
        after = ids["eos_token"] if self.get("add_eos_token", bool, eos) else None
        return {**ids, "before": before, "after": after}

    def templates(self) -> str | dict[str, str] | None:
        """Read the chat template, or several by name."""
        main = self.metadata.get("tokenizer.chat_template")
        start = "tokenizer.chat_template."
        named = {k.removeprefix(start): v for k, v in self.metadata.items() if k.startswith(start)}
        if not named:
            return main
        return {"default": main, **named} if main else named


def _build_words(header: _Header, pieces: Pieces) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Build byte-level BPE."""
    default = "gemma4" if header.get("model", str) == "gemma4" else "default"
    rule = find_pretokenizer(header.get("pre", str, default), header.source)
    merges = []
    for merge in header.array("merges"):
        cut = merge.find(" ", 1)
        if cut < 0:
            raise TokenizerError(f"{header.source}: merge {merge!r} is not a pair")
        merges.append((merge[:cut], merge[cut + 1 :]))
    model = models.BPE(pieces.ids(), merges)
    model.ignore_merges = rule.ignore_merges
    model.byte_fallback = not rule.byte_level
    backend = tokenizers.Tokenizer(model)
    cuts = [pre_tokenizers.Split(Regex(p), "isolated") for p in rule.patterns]
    if rule.byte_level:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
        backend.decoder = decoders.ByteLevel()
    else:
        backend.normalizer = normalizers.Replace(" ", SPACE)
        backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
        undo = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        backend.decoder = decoders.Sequence(undo)
    return backend, header.rules(bos=rule.bos)


def _build_llama(header: _Header, pieces: Pieces) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Build SentencePiece's BPE."""
    rules = header.rules(bos=True, bos_token=1, eos_token=2, unk_token=0)
    prefix = "always" if header.get("add_space_prefix", bool, True) else "never"
    return build_bpe(pieces, unk=pieces.token(rules["unk_token"]), prefix=prefix), rules


def _build_t5(header: _Header, pieces: Pieces) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Build SentencePiece's unigram model."""
    rules = header.rules(bos=False, eos=True, eos_token=1, unk_token=2, pad_token=0)
    charsmap = header.array("precompiled_charsmap", [])
    backend = build_unigram(
        pieces,
        unk=rules["unk_token"],
        charsmap=bytes(byte & 0xFF for byte in charsmap),
        prefix=header.get("add_space_prefix", bool, True),
        collapse=header.get("remove_extra_whitespaces", bool, False),
    )
    return backend, rules


def _build_bert(header: _Header, pieces: Pieces) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Build WordPiece. GGUF marks beginnings of words, BERT's vocabulary continuations."""
    ids = {}
    for id, (text, kind) in enumerate(zip(pieces.texts, pieces.kinds, strict=True)):
        bracketed = text.startswith("[") and text.endswith("]") and len(text) > 2
        if text.startswith(SPACE):
            text = text.removeprefix(SPACE)
        elif kind == Kind.NORMAL and not bracketed:
            text = f"##{text}"
        ids[text] = id
    rules = header.rules(
        bos=True, bos_token=101, cls_token=header.get("bos_token_id", int, 101), unk_token=100,
        sep_token=102, pad_token=0, mask_token=103,
    )  # fmt: skip
    rules["before"] = rules["before"] and (rules["cls_token"] or rules["before"])
    rules["after"] = rules["sep_token"]
    lowercase = header.get("normalizer.lowercase", bool, True)
    accents = header.get("normalizer.strip_accents", bool, lowercase)
    unk = pieces.token(rules["unk_token"]) or "[UNK]"
    backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unk))
    backend.normalizer = normalizers.BertNormalizer(strip_accents=accents, lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend, rules


def _ids(id: int | None) -> list[int]:
    return [] if id is None else [id]
