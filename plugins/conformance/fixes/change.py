"""Tools that build candidate fixes, apply them to a model and revert them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any

from ostro.core.nn import Model, Module
from ostro.core.ops import Op
from ostro.core.records import Mutant

Raw = Mapping[str, Any]


@contextmanager
def applied(mutant: Mutant, model: Model) -> Iterator[None]:
    """Apply a mutant to a model within the context.

    The exit restores the attributes of modules and operations, and the values of parameters.
    """
    ops = [op for module in model.modules() for op in vars(module).values() if isinstance(op, Op)]
    saved = [(holder, saved_attributes(holder)) for holder in (*model.modules(), *ops)]
    tensors = [(t, t.detach().clone()) for t in (*model.parameters(), *model.buffers())]
    try:
        mutant.apply(model)
        yield
    finally:
        for holder, attributes in saved:
            vars(holder).clear()
            vars(holder).update(attributes)
        for tensor, values in tensors:
            tensor.data = values


def saved_attributes(holder: object) -> dict[str, Any]:
    return {k: copy(v) if isinstance(v, dict | list) else v for k, v in vars(holder).items()}


def modules_of(model: Model, *kinds: type[Module]) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, kinds)]


def change(name: str, modules: Iterable[Any], do: Callable[[Any], object]) -> Iterator[Mutant]:
    """A change that calls `do` on all these modules or operations, if there are any."""
    found = list(modules)

    def apply(model: Model) -> None:
        for module in found:
            do(module)

    if found:
        yield Mutant(name=name, apply=apply)


def settings(modules: Iterable[Any], attribute: str, values: Mapping[str, Any]) -> Iterator[Mutant]:
    """Changes that set an attribute to each value, by name, that some module does not have.

    A value may be a function of the module.
    """
    found = list(modules)
    for meaning, value in values.items():
        make = value if callable(value) else lambda module, value=value: value
        if any(getattr(module, attribute) != make(module) for module in found):
            set_it = partial(set_value, attribute=attribute, make=make)
            yield from change(meaning, found, set_it)


def set_value(module: Any, *, attribute: str, make: Callable[[Any], Any]) -> None:
    setattr(module, attribute, make(module))


def wrap(module: Any, method: str, around: Callable[..., Any]) -> None:
    """Replace a method, or an op's kernel, by `around(inner, *args, **kwargs)`."""
    setattr(module, method, partial(around, getattr(module, method)))


def config_numbers(raw: Raw, *keys: str) -> list[Any]:
    """The nonzero numbers of these keys in config.json, at its top or in rope parameters."""
    rules = raw.get("rope_parameters") or {}
    mappings = [raw, rules, *(rule for rule in rules.values() if isinstance(rule, Mapping))]
    found = [mapping[key] for key in keys for mapping in mappings if key in mapping]
    return [value for value in found if isinstance(value, int | float) and value]
