"""The tokenizer of a model folder: tokenizer.json or older files, and the configs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from ostro.core.errors import TokenizerError
from ostro.core.tokenizer.guard import guard
from ostro.core.tokenizer.sentencepiece import build_sentencepiece
from ostro.core.tokenizer.tokenizer import Tokenizer
from ostro.core.tokenizer.vocabulary import build_merges, build_wordpiece, read_backend

ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
SENTENCEPIECE = ("tokenizer.model", "spiece.model")
PLAIN_SENTENCEPIECE = ("Llama", "CodeLlama", "Gemma", "T5", "")
"""Tokenizer classes that use the ids of the SentencePiece file; others shift them."""


def read_json_file(path: Path) -> Tokenizer:
    """Read a tokenizer.json and the configs in its folder."""
    return read_folder(path.parent, path.name)


def read_folder(root: Path, file: str = "tokenizer.json") -> Tokenizer:
    """Read the tokenizer of a model folder as transformers would.

    Raises TokenizerError if there is none, if a file is malformed, and if a config names a token
    that the vocabulary lacks.
    """
    with guard(f"{root.name}: malformed tokenizer"):
        return _build(root, file)


def _build(root: Path, file: str) -> Tokenizer:
    config = _read(root / "tokenizer_config.json")
    backend, rules = _backend(root, file, config)
    _add_tokens(backend, root, config)
    special = rules.get("special_tokens", {}) | dict(_named(root, config))
    known = {role: text for role, text in special.items() if backend.token_to_id(text) is not None}
    if "eos_token" in special and "eos_token" not in known:
        raise TokenizerError(
            f"{root.name}/tokenizer_config.json: eos_token {special['eos_token']!r} is not among "
            f"the {backend.get_vocab_size()} tokens of the vocabulary"
        )
    backend.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in known.values()]
    )
    ids = {
        role: id for role, text in known.items() if (id := backend.token_to_id(text)) is not None
    }
    prefix, suffix = _around(backend, rules, config, ids)
    return Tokenizer(
        backend,
        source=f"{root.name}/{rules.get('source', file)}",
        special_tokens=known,
        eos_ids=_ends(root, ids.get("eos_token")),
        prefix=prefix,
        suffix=suffix,
        chat_template=_templates(root, config),
    )


def _backend(
    root: Path, file: str, config: Mapping[str, Any]
) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Build the backend from the first supported file of the folder."""
    kind = (config.get("tokenizer_class") or "").removesuffix("Fast").removesuffix("Tokenizer")
    if (root / file).is_file():
        return read_backend(root / file), {}
    for name in SENTENCEPIECE:
        if (root / name).is_file():
            if kind not in PLAIN_SENTENCEPIECE:
                raise TokenizerError(
                    f"{root.name}/{name}: {kind}Tokenizer assigns ids of its own; save the "
                    "tokenizer with transformers to get a tokenizer.json"
                )
            return build_sentencepiece(root / name, legacy=config.get("legacy", True) is not False)
    if (root / "vocab.json").is_file() and (root / "merges.txt").is_file():
        return build_merges(root, kind)
    if (root / "vocab.txt").is_file():
        return build_wordpiece(root, kind, config)
    found = ", ".join(sorted(path.name for path in root.iterdir())[:20]) or "nothing"
    raise TokenizerError(
        f"{root.name}: no tokenizer; expected tokenizer.json, tokenizer.model, vocab.json with "
        f"merges.txt, or vocab.txt (found: {found}); set --tokenizer"
    )


def _add_tokens(backend: tokenizers.Tokenizer, root: Path, config: Mapping[str, Any]) -> None:
    """Add the tokens that only the configs contain, with the ids that they state."""
    stated: dict[int, AddedToken] = {}
    for content, id in _read(root / "added_tokens.json").items():
        stated[id] = AddedToken(content, normalized=False)
    for id, entry in (config.get("added_tokens_decoder") or {}).items():
        stated[int(id)] = AddedToken(**{k: v for k, v in entry.items() if k != "__type"})
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    for id, token in sorted(stated.items()):
        if token.content not in present:
            backend.add_tokens([token])
        if (actual := backend.token_to_id(token.content)) != id:
            raise TokenizerError(
                f"{root.name}: token {token.content!r} is declared with id {id} and would get "
                f"{actual}; the vocabulary has {backend.get_vocab_size()} tokens; the files are of "
                "different tokenizers"
            )


def _named(root: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the special tokens by role; those of tokenizer_config.json come last."""
    for source in (_read(root / "special_tokens_map.json"), config):
        for role in ROLES:
            value = source.get(role)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str) and text:
                yield role, text


def _around(
    backend: tokenizers.Tokenizer,
    rules: Mapping[str, Any],
    config: Mapping[str, Any],
    ids: Mapping[str, int],
) -> tuple[list[int], list[int]]:
    """The special ids before and after a text.

    tokenizer.json contains them. For older files the config's flags decide, and without any flag
    the default of the format, as in transformers 5.
    """
    if rules and ("add_bos_token" in config or "add_eos_token" in config):
        ends = []
        for flag, role in (("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")):
            if config.get(flag) and role not in ids:
                raise TokenizerError(f"tokenizer_config.json: {flag} is set without {role}")
            ends.append([ids[role]] if config.get(flag) else [])
        return ends[0], ends[1]
    if rules:
        return list(rules.get("prefix", [])), list(rules.get("suffix", []))
    encoding = backend.encode("a", add_special_tokens=True)
    mask = encoding.special_tokens_mask
    first = mask.index(0) if 0 in mask else len(mask)
    last = len(mask) - mask[::-1].index(0) if 0 in mask else len(mask)
    return encoding.ids[:first], encoding.ids[last:]


def _ends(root: Path, eos: int | None) -> set[int]:
    """The ids that end a generation: the tokenizer's eos, and those of the model's config."""
    model = _read(root / "config.json")
    ends: Any = _read(root / "generation_config.json").get("eos_token_id")
    if ends is None:
        ends = model.get("eos_token_id") or (model.get("text_config") or {}).get("eos_token_id")
    found = ends if isinstance(ends, list) else [ends]
    return {id for id in [*found, eos] if isinstance(id, int)}


def _templates(root: Path, config: Mapping[str, Any]) -> str | dict[str, str] | None:
    """The chat template, or several by name."""
    if (file := root / "chat_template.jinja").is_file():
        main = file.read_text(encoding="utf-8")
        named = {
            extra.stem: extra.read_text(encoding="utf-8")
            for extra in sorted(root.glob("additional_chat_templates/*.jinja"))
        }
        return {"default": main, **named} if named else main
    found = config.get("chat_template") or _read(root / "chat_template.json").get("chat_template")
    if isinstance(found, list):
        return {entry["name"]: entry["template"] for entry in found}
    return found


def _read(path: Path) -> dict[str, Any]:
    """Read a JSON object, {} without a file. Raises TokenizerError if it is malformed."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path.name}: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path.name}: expected an object, found {type(value).__name__}")
    return value
