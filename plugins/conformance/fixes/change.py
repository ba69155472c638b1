"""How changes are made and taken back."""

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
    """Within, the model is as the mutant leaves it; afterwards as it was.

    Restored are the attributes of modules and operations, and the numbers of parameters.
    """
    ops = [op for module in model.modules() for op in vars(module).values() if isinstance(op, Op)]
    held = [(holder, kept(holder)) for holder in (*model.modules(), *ops)]
    tensors = [(t, t.detach().clone()) for t in (*model.parameters(), *model.buffers())]
    try:
        mutant.apply(model)
        yield
    finally:
        for holder, attributes in held:
            vars(holder).clear()
            vars(holder).update(attributes)
        for tensor, numbers in tensors:
            tensor.data = numbers


def kept(holder: object) -> dict[str, Any]:
    return {k: copy(v) if isinstance(v, dict | list) else v for k, v in vars(holder).items()}


def of(model: Model, *kinds: type[Module]) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, kinds)]


def change(name: str, modules: Iterable[Any], do: Callable[[Any], object]) -> Iterator[Mutant]:
    """One change of all these modules or operations, if there are any."""
    found = list(modules)

    def apply(model: Model) -> None:
        for module in found:
            do(module)

    if found:
        yield Mutant(name=name, apply=apply)


def settings(modules: Iterable[Any], attribute: str, values: Mapping[str, Any]) -> Iterator[Mutant]:
    """An attribute at each of the values that some module does not have, by what it means.

    A value may be a function of the module.
    """
    found = list(modules)
    for meaning, value in values.items():
        make = value if callable(value) else lambda module, value=value: value
        if any(getattr(module, attribute) != make(module) for module in found):
            set_it = partial(put, attribute=attribute, make=make)
            yield from change(meaning, found, set_it)


def put(module: Any, *, attribute: str, make: Callable[[Any], Any]) -> None:
    setattr(module, attribute, make(module))


def wrap(module: Any, method: str, around: Callable[..., Any]) -> None:
    """Call `around(inner, *args, **kwargs)` in the place of a method or of an op's kernel."""
    setattr(module, method, partial(around, getattr(module, method)))


def told(raw: Raw, *keys: str) -> list[Any]:
    """What config.json says of these keys, at its top or in a rope rule; numbers only."""
    rules = raw.get("rope_parameters") or {}
    places = [raw, rules, *(rule for rule in rules.values() if isinstance(rule, Mapping))]
    found = [place[key] for key in keys for place in places if key in place]
    return [value for value in found if isinstance(value, int | float) and value]
