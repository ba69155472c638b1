"""Locate Dia's codec, a separate checkpoint with its path in the processor config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ostro.checkpoints import read_config
from ostro.errors import CheckpointError

BESIDE = "codec"
"""The subfolder with the codec, which takes precedence."""

FILES = ("processor_config.json", "audio_tokenizer_config.json")
USUAL = "descript/dac_44khz"


def codec_of(folder: Path) -> str:
    """The path or hub id of the codec of a Dia folder.

    It is the subfolder `codec`, or the one in the processor's config. Raises CheckpointError if
    both are missing, ConfigError if the config is malformed.
    """
    if (folder / BESIDE).is_dir():
        return str(folder / BESIDE)
    for name in FILES:
        config = read_config(folder / name, missing_ok=True)
        config = config.get("audio_tokenizer") or config
        reference = config.get("audio_tokenizer_name_or_path") if isinstance(config, dict) else None
        if isinstance(reference, str) and reference:
            within = folder / reference
            return str(within) if within.is_dir() else reference
    raise CheckpointError(
        f"{folder.name} names no codec ({FILES[0]} is missing); download {USUAL} "
        f"into {folder.name}/{BESIDE}"
    )


def companions(folder: Path) -> Mapping[str, str]:
    """The further components to load with a folder: the codec, a separate model."""
    return {"codec": codec_of(folder)}
