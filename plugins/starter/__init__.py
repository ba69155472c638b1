"""The starter: a small chat model that comes inside the wheel; `training/` made it.

`ostro run` and `ostro serve` use it if no model is named. `CARD.md` lists its measured abilities.
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
"""The folders of the models and adapters that come with ostro, by kind and reference."""

WEIGHTS = {"model": "model.safetensors", "adapter": "adapter_model.safetensors"}


@hookimpl
def ostro_locate(reference: str, kind: str, settings: Settings) -> Path | None:
    """Return the folder of a model or adapter that comes with ostro."""
    folder = FOLDERS.get(kind, {}).get(reference)
    if folder is not None and not (folder / WEIGHTS[kind]).exists():
        raise errors.ModelNotFound(
            f"this checkout of ostro comes without the weights of {reference!r}; train them with "
            "python -m ostro.plugins.starter.training.train, or name a model with -m"
        )
    return folder
