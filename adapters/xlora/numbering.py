"""Map weights to the layers of a layerwise X-LoRA classifier.

A layer here is one adapted weight. PEFT numbers them as it meets them among the modules of the
base, which is the order in which its class declares them. A file of an ordering, as mistral.rs
takes one, says it instead: {"order": [names of members], "layers": {path of a weight: number}}.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ostro import AdapterSource, errors

ORDER = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "dense"),
    *("gate_proj", "up_proj", "gate_up_proj", "down_proj", "fc1", "fc2", "c_fc", "c_proj"),
)
"""Weights of a layer in the order in which transformers' classes declare them, wherever they have
some of these: Llama, Mistral, Qwen, Gemma, Phi, Starcoder2."""

FRONT, BEHIND = "embed_tokens", "lm_head"
PLACE = re.compile(r"(?:[^.\d][^.]*\.)+(?P<layer>\d+)\.[^.\d][^.]*\.(?P<last>[^.]+)")


@dataclass(frozen=True)
class Ordering:
    """The order of the members, and the number of each weight; empty where none is said."""

    order: Sequence[str] = ()
    layers: Mapping[str, int] = field(default_factory=dict)


def ordering(source: AdapterSource) -> Ordering:
    """The ordering of a folder: the one file whose name ends so. Raises AdapterError."""
    names = [name for name in source.files.names if name.endswith("ordering.json")]
    if not names:
        return Ordering()
    if len(names) > 1:
        raise errors.AdapterError(f"{', '.join(names)}: leave one ordering in the folder")
    said = source.files.json.get(names[0])
    order = said.get("order") if isinstance(said, Mapping) else None
    if not isinstance(order, list) or not all(isinstance(name, str) for name in order):
        raise errors.AdapterError(f"{names[0]}: order must be the list of the members' names")
    layers = said.get("layers") or {} if isinstance(said, Mapping) else {}
    if not isinstance(layers, Mapping) or not all(type(n) is int for n in layers.values()):
        raise errors.AdapterError(f"{names[0]}: layers must give a number for each weight")
    return Ordering(order, {n.removeprefix("base_model.model."): i for n, i in layers.items()})


def numbered(names: Collection[str], many: int, said: Mapping[str, int]) -> dict[str, int]:
    """The number of each weight, below `many`: as `said`, else in the order of transformers.

    Raises AdapterError for a weight whose number is not known, and where they are not `many`.
    """
    if not said:
        found = {name: i for i, name in enumerate(sorted(names, key=place))}
        if len(found) != many:
            raise errors.AdapterError(
                f"the classifier has scalings for {many} weights, the members change {len(found)}: "
                "one of them is another than it was trained with"
            )
        return found
    for name in sorted(names):
        if not 0 <= said.get(name, -1) < many:
            raise errors.AdapterError(
                f"the ordering has {said.get(name)} as the number of {name}; a number below {many} "
                "belongs there"
            )
    return {name: said[name] for name in names}


def place(name: str) -> tuple[int, int, int]:
    """The sort key of a weight's name in the module order of a model."""
    last = name.rpartition(".")[2]
    if last in (FRONT, BEHIND):
        return (0 if last == FRONT else 2), 0, 0
    found = PLACE.fullmatch(name)
    if found is None or found["last"] not in ORDER:
        raise errors.AdapterError(
            f"the classifier has scalings of its own for each weight, and which are those of {name}"
            ' is not known; put an ordering.json beside it: {"order": [names of members], '
            '"layers": {name: number}}'
        )
    return 1, int(found["layer"]), ORDER.index(found["last"])
