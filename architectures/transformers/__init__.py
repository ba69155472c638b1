"""The transformers backend: any causal language model of the library with a K/V cache only.

Models that no plugin claims run with the class of transformers: slower than a plugin, but
supported as soon as the library supports them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Architecture, Files, hookimpl


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="transformers",
        api=(0, 2),
        config=f"{__name__}.config:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        claims=knows,
    )


def knows(files: Files, config: Mapping[str, Any]) -> bool:
    """Whether the first architecture of a config is a class of the installed transformers.

    Importing transformers imports no model class, so the check is light.
    """
    classes = config.get("architectures")
    if not classes:
        return False
    import transformers

    return classes[0] in transformers.__all__  # `dir` would take half a second
