"""The length at which sentence-transformers truncates texts, from the files of its folders."""

from __future__ import annotations

from pathlib import Path

from ostro.checkpoints import read_config
from ostro.errors import ConfigError

KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
LIMITS = (
    *((f"sentence_{kind}_config.json", "max_seq_length") for kind in KINDS),
    ("tokenizer_config.json", "model_max_length"),
)
"""Files and keys of the limit, the first that states one wins."""


def text_limit(folder: Path, context: int) -> int | None:
    """The most tokens of a text, special tokens included, None for other folders.

    sentence-transformers always truncates; `context` is the limit of a folder that states none.
    Raises ConfigError for a limit that is not a positive integer.
    """
    if not (folder / "modules.json").is_file():
        return None
    for name, key in LIMITS:
        stated = read_config(folder / name, missing_ok=True).get(key)
        if stated is not None:
            if type(stated) not in (int, float) or stated < 1:
                raise ConfigError(f"{name}: {key}={stated!r:.80} is not a number of tokens")
            return int(min(stated, context))
    return context
