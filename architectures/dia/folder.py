"""Where Dia's codec is: its checkpoint does not hold it, but says which it was trained with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ostro.errors import CheckpointError

BESIDE = "codec"
"""A folder within Dia's that is taken before any other."""

FILES = ("processor_config.json", "audio_tokenizer_config.json")
USUAL = "descript/dac_44khz"


def codec_of(folder: Path) -> str:
    """The folder or the hub's name of a Dia's codec.

    It is `codec` within its folder, or what its processor's config names. Raises CheckpointError
    where there is neither.
    """
    if (folder / BESIDE).is_dir():
        return str(folder / BESIDE)
    for name in FILES:
        said = read(folder / name)
        said = said.get("audio_tokenizer") or said
        reference = said.get("audio_tokenizer_name_or_path") if isinstance(said, dict) else None
        if isinstance(reference, str) and reference:
            within = folder / reference
            return str(within) if within.is_dir() else reference
    raise CheckpointError(
        f"{folder.name} does not say which codec turns its codes into sound ({FILES[0]} would); "
        f"fetch {USUAL} into {folder.name}/{BESIDE}"
    )


def read(file: Path) -> dict[str, Any]:
    """A file of JSON; empty where there is none. Raises CheckpointError where it is malformed."""
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file.name}: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{file.name} is not an object")
    return found


def companions(folder: Path) -> Mapping[str, str]:
    """What has to be loaded beside a folder: the codec, which comes as a model of its own."""
    return {"codec": codec_of(folder)}
