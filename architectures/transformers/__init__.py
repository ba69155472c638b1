"""Bodies from transformers: any causal language model of the library whose only state is K/V.

What no plugin claims is served by transformers' own class: slower than by a plugin, and from the
day on which the class is released.
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
        names=f"{__name__}.config:names",
        claims=knows,
    )


def knows(files: Files, config: Mapping[str, Any]) -> bool:
    """Whether the first class that a config names is one of the installed transformers.

    That importing transformers imports none of its classes keeps this light.
    """
    classes = config.get("architectures")
    if not classes:
        return False
    import transformers

    return classes[0] in dir(transformers)
