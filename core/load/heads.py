"""Heads that share the table of an embedding, and checkpoints that contain a head nevertheless."""

from __future__ import annotations

import torch
from torch import Tensor

from ostro.core.load.container import Container
from ostro.core.load.names import Named, Names
from ostro.core.nn import Head, Model


def tied_heads(model: Model) -> dict[str, Head]:
    """The heads that share the table of an embedding, by path."""
    return {n: m for n, m in model.named_modules() if isinstance(m, Head) and m.tied}


def tied_names(model: Model, names: Names, space: str) -> list[str]:
    """Names of tied heads' weights, which a checkpoint may contain although they are unused."""
    heads = tied_heads(model)
    theirs = [names.write(f"{path}.weight", space).theirs for path in heads]
    return [*theirs, *(f"{path}.weight" for path in heads), *["output.weight"] * bool(heads)]


def untie_own_heads(
    model: Model, container: Container, names: Names, space: str
) -> list[tuple[str, str]]:
    """Untie each head for which the checkpoint contains a weight that differs from the embedding's,
    as transformers 5 does.

    Returns the names of a tensor of each such head and of its embedding.
    """
    untied, heads = list[tuple[str, str]](), tied_heads(model)
    named = names.read(container.tensors, space)[0] if heads else []
    paths = {module: path for path, module in model.named_modules()}
    for (path, head), table in ((item, table) for item in heads.items() for table in item[1].tied):
        own, shared = (weight_of(named, p) for p in (path, paths[table]))
        if own and shared and not equal(container, own, shared):
            head.tied = ()
            untied.append((min(own.values()), min(shared.values())))
    return untied


def weight_of(named: list[Named], path: str) -> dict[str, str]:
    """The checkpoint's tensors of a module's weight, by suffix."""
    own = {n.name.removeprefix(path): n.theirs for n in named if n.name.startswith(f"{path}.")}
    return {suffix: theirs for suffix, theirs in own.items() if suffix != ".bias"}


def equal(container: Container, ours: dict[str, str], theirs: dict[str, str]) -> bool:
    if ours.keys() != theirs.keys():
        return False
    read = container.read
    return all(equal_values(read(ours[suffix]), read(theirs[suffix])) for suffix in ours)


def equal_values(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype:
        a, b = a.float(), b.float()
    return torch.equal(a, b)
