"""The configs of a model folder: special tokens, ends of generation and chat templates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from ostro.core.errors import TokenizerError
from ostro.core.paths import read_regular, reason_of
from ostro.core.records import TokenizerSource
from ostro.core.tokenizer.tokenizer import Tokenizer

CONFIG_BYTES = 10_000_000
"""Limit on the file of a config or of a chat template, in bytes."""

ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


def build_tokenizer(
    backend: tokenizers.Tokenizer,
    source: TokenizerSource,
    *,
    file: str,
    special_tokens: Mapping[str, str] | None = None,
    prefix: Sequence[int] | None = None,
    suffix: Sequence[int] | None = None,
) -> Tokenizer:
    """Build the tokenizer of a model folder as transformers would: `backend` and the configs.

    file: name of the vocabulary, for messages. special_tokens: those that the vocabulary states,
    by role ("bos_token"); the configs' win. prefix, suffix: ids around a text where the config has
    no flags; None takes those of the backend's post-processor.
    Raises TokenizerError if a config is malformed or names a token that the vocabulary lacks.
    """
    root, config = source.root, source.config
    _add_tokens(backend, root, config)
    special = {**(special_tokens or {}), **dict(_named(root, config))}
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
    ends = _ends(root, ids.get("eos_token"))
    _mark_controls(backend, ends)
    if prefix is None and suffix is None:
        before, after = _around(backend)
    else:
        before, after = _flagged(config, ids) or (list(prefix or ()), list(suffix or ()))
    return Tokenizer(
        backend,
        source=f"{root.name}/{file}",
        special_tokens=known,
        eos_ids=ends,
        prefix=before,
        suffix=after,
        chat_template=_templates(root, config),
    )


def _add_tokens(backend: tokenizers.Tokenizer, root: Path, config: Mapping[str, Any]) -> None:
    """Add the tokens that only the configs contain, with the ids that they state."""
    stated: dict[int, AddedToken] = {}
    for content, id in read_json(root / "added_tokens.json").items():
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


def _mark_controls(backend: tokenizers.Tokenizer, ids: Iterable[int]) -> None:
    """Make added tokens control tokens, which some files do not mark as special."""
    added = backend.get_added_tokens_decoder()
    tokens = [added[id] for id in ids if id in added and not added[id].special]
    for token in tokens:
        token.special = True
    backend.add_special_tokens(tokens)


def _named(root: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the special tokens by role; those of tokenizer_config.json come last."""
    for source in (read_json(root / "special_tokens_map.json"), config):
        for role in ROLES:
            value = source.get(role)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str) and text:
                yield role, text


def _around(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the backend's post-processor adds before and after a text."""
    encoding = backend.encode("a", add_special_tokens=True)
    mask = encoding.special_tokens_mask
    first = mask.index(0) if 0 in mask else len(mask)
    last = len(mask) - mask[::-1].index(0) if 0 in mask else len(mask)
    return encoding.ids[:first], encoding.ids[last:]


def _flagged(
    config: Mapping[str, Any], ids: Mapping[str, int]
) -> tuple[list[int], list[int]] | None:
    """The ids around a text that the config's flags ask for, as in transformers 5; None without
    any flag.
    """
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return None
    ends = []
    for flag, role in (("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")):
        if config.get(flag) and role not in ids:
            raise TokenizerError(f"tokenizer_config.json: {flag} is set without {role}")
        ends.append([ids[role]] if config.get(flag) else [])
    return ends[0], ends[1]


def _ends(root: Path, eos: int | None) -> set[int]:
    """The ids that end a generation: the tokenizer's eos, and those of the model's config."""
    model = read_json(root / "config.json")
    ends: Any = read_json(root / "generation_config.json").get("eos_token_id")
    if ends is None:
        ends = model.get("eos_token_id") or (model.get("text_config") or {}).get("eos_token_id")
    found = ends if isinstance(ends, list) else [ends]
    return {id for id in [*found, eos] if isinstance(id, int)}


def _templates(root: Path, config: Mapping[str, Any]) -> str | dict[str, str] | None:
    """The chat template, or several by name."""
    main = _main_template(root, config)
    named = {
        extra.stem: _read_template(extra)
        for extra in sorted(root.glob("additional_chat_templates/*.jinja"))
    }
    if not named:
        return main
    return {**(main if isinstance(main, dict) else {"default": main} if main else {}), **named}


def _main_template(root: Path, config: Mapping[str, Any]) -> str | dict[str, str] | None:
    """The chat template outside of the folder of additional ones, or several by name."""
    if (file := root / "chat_template.jinja").exists():
        return _read_template(file)
    found = config.get("chat_template") or read_json(root / "chat_template.json").get(
        "chat_template"
    )
    if isinstance(found, list):
        return {entry["name"]: entry["template"] for entry in found}
    return found


def _read_template(file: Path) -> str:
    try:
        text = read_regular(file, CONFIG_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{file.name}: cannot be read: {reason_of(error)}") from None
    return text.replace("\r\n", "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, {} without a file. Raises TokenizerError if it is malformed."""
    if not path.exists():
        return {}
    try:
        value = json.loads(read_regular(path, CONFIG_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{path.name}: {reason_of(error)}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path.name}: expected an object, found {type(value).__name__}")
    return value
