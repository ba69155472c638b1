"""Results of plugins that are not what the caller needs."""

from __future__ import annotations

from typing import Any

from ostro.core.errors import PluginError


class InvalidResult(PluginError):
    """A method of a plugin's class has returned a wrong value: it is a fault of that plugin.

    A check of the value raises it outside of the plugin, whose code is not in the traceback.
    `module` is that of the class.
    """

    def __init__(self, owner: type, method: str, value: object, expected: str) -> None:
        name = f"{owner.__module__}.{owner.__qualname__}.{method}"
        super().__init__(f"{name} returned {describe_value(value)}, expected {expected}")
        self.module = owner.__module__


def describe_value(value: Any) -> str:
    """A tensor by its shape and dtype, another value by its type: "[3, 7] float32"."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{[*value.shape]} {str(value.dtype).removeprefix('torch.')}"
    return "None" if value is None else f"a value of type {type(value).__name__}"
