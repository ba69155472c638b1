"""Read an adapter folder's chat template and added tokens, and refuse pickles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro import AdapterSource, errors
from ostro.adapters.lora import PICKLES
from ostro.checkpoints import read_regular

TEMPLATE = "chat_template.jinja"
TEMPLATE_BYTES = 1_000_000


def parsed(source: AdapterSource, name: str) -> Mapping[str, Any]:
    """A JSON file of the folder; empty if it does not exist."""
    if name not in source.files.names:
        return {}
    found = source.files.json.get(name)
    if not isinstance(found, Mapping):
        raise errors.AdapterError(f"{name}: is not a valid JSON object")
    return found


def template(source: AdapterSource) -> str | None:
    """The chat template from chat_template.jinja, else from tokenizer_config.json, else None.

    Of several named templates the one named "default".
    """
    if TEMPLATE in source.files.names:
        return _template_file(source)
    template = parsed(source, "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        entries = [each for each in template if isinstance(each, dict)]
        named = {entry.get("name"): entry.get("template") for entry in entries}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise errors.AdapterError(
            f"tokenizer_config.json: chat_template must be a text, not {template!r:.80}"
        )
    return template


def _template_file(source: AdapterSource) -> str:
    try:
        return read_regular(source.files.root / TEMPLATE, TEMPLATE_BYTES).decode()
    except OSError as error:
        raise errors.AdapterError(f"{TEMPLATE}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise errors.AdapterError(f"{TEMPLATE}: cannot be read: {error}") from None


def added_tokens(source: AdapterSource) -> dict[str, int]:
    """Ids by token from added_tokens.json, which may repeat tokens of the base."""
    found = parsed(source, "added_tokens.json")
    for token, id in found.items():
        if isinstance(id, bool) or not isinstance(id, int) or id < 0:
            raise errors.AdapterError(
                f"added_tokens.json: {token!r:.80}: {id!r:.80} is not a token id"
            )
    return dict(found)


def refuse_pickles(source: AdapterSource) -> None:
    """Raise AdapterError if a folder's weights are pickles."""
    if found := [name for name in PICKLES if name in source.files.names]:
        raise errors.AdapterError(
            f"{found[0]}: is a pickle or an archive, which is never opened; save the adapter "
            "again as safetensors"
        )
