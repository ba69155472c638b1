"""The starter: a small chat model of our own, inside the wheel, and the script that made it.

It is what `ostro run` and `ostro serve` use when no model is named. `CARD.md` says what it can do,
as measured.
"""

from pathlib import Path

from ostro import Settings, errors, hookimpl

HOME = Path(__file__).parent
FOLDERS = {"starter": HOME / "model", "starter-draft": HOME / "draft"}


@hookimpl
def ostro_locate(reference: str, kind: str, settings: Settings) -> Path | None:
    """Know the names of the models that come with ostro."""
    folder = FOLDERS.get(reference) if kind == "model" else None
    if folder is not None and not (folder / "model.safetensors").exists():
        raise errors.ModelNotFound(
            f"this checkout of ostro comes without the weights of {reference!r}; train them with "
            "python -m ostro.plugins.starter.train, or name a model with -m"
        )
    return folder
