"""The starter: a small chat model that comes inside the wheel; `training/` made it.

It is what `ostro run` and `ostro serve` use when no model is named. `CARD.md` says what it can do,
as measured.
"""

from pathlib import Path

from ostro import Settings, errors, hookimpl

HOME = Path(__file__).parent
FOLDERS = {
    "model": {"starter": HOME / "model", "starter-draft": HOME / "draft"},
    "adapter": {
        f"starter/{name}": HOME / "adapters" / name for name in ("pirate", "french", "shout", "mix")
    },
}
"""Where what comes with ostro lies, by kind and reference."""

WEIGHTS = {"model": "model.safetensors", "adapter": "adapter_model.safetensors"}


@hookimpl
def ostro_locate(reference: str, kind: str, settings: Settings) -> Path | None:
    """Know the names of the models and adapters that come with ostro."""
    folder = FOLDERS.get(kind, {}).get(reference)
    if folder is not None and not (folder / WEIGHTS[kind]).exists():
        raise errors.ModelNotFound(
            f"this checkout of ostro comes without the weights of {reference!r}; train them with "
            "python -m ostro.plugins.starter.training.train, or name a model with -m"
        )
    return folder
