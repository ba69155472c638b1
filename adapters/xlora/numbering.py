"""Map weights to the layers of a layerwise X-LoRA classifier.

A layer here is one adapted weight. PEFT numbers them in the order of the base's modules, which is
the order of declaration in its class. An ordering file, in the format of mistral.rs, replaces this:
{"order": [names of members], "layers": {path of a weight: number}}.
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
"""Weights of a layer in the order in which transformers' classes declare those that they have:
Llama, Mistral, Qwen, Gemma, Phi, Starcoder2."""

FRONT, BEHIND = "embed_tokens", "lm_head"
PLACE = re.compile(r"(?:[^.\d][^.]*\.)+(?P<layer>\d+)\.[^.\d][^.]*\.(?P<last>[^.]+)")


@dataclass(frozen=True)
class Ordering:
    """The order of the members, and the number of each weight; empty if not defined."""

    order: Sequence[str] = ()
    layers: Mapping[str, int] = field(default_factory=dict)


def ordering(source: AdapterSource) -> Ordering:
    """Read a folder's only *ordering.json; empty if there is none. Raises AdapterError."""
    names = [name for name in source.files.names if name.endswith("ordering.json")]
    if not names:
        return Ordering()
    if len(names) > 1:
        raise errors.AdapterError(f"{', '.join(names)}: leave one ordering in the folder")
    parsed = source.files.json.get(names[0])
    order = parsed.get("order") if isinstance(parsed, Mapping) else None
    if not isinstance(order, list) or not all(isinstance(name, str) for name in order):
        raise errors.AdapterError(f"{names[0]}: order must be the list of the members' names")
    layers = parsed.get("layers") or {} if isinstance(parsed, Mapping) else {}
    if not isinstance(layers, Mapping) or not all(type(n) is int for n in layers.values()):
        raise errors.AdapterError(f"{names[0]}: layers must give a number for each weight")
    return Ordering(order, {n.removeprefix("base_model.model."): i for n, i in layers.items()})


def numbered(names: Collection[str], many: int, layers: Mapping[str, int]) -> dict[str, int]:
    """The number of each weight, below `many`, from `layers`, else from transformers' order.

    Raises AdapterError for a weight without a known number, and without `layers` also if there are
    not `many` weights.
    """
    if not layers:
        found = {name: i for i, name in enumerate(sorted(names, key=place))}
        if len(found) != many:
            raise errors.AdapterError(
                f"the classifier has scalings for {many} weights, the members change {len(found)}: "
                "it was trained with other members"
            )
        return found
    for name in sorted(names):
        if not 0 <= layers.get(name, -1) < many:
            raise errors.AdapterError(
                f"the ordering has {layers.get(name)} as the number of {name}; expected a number "
                f"below {many}"
            )
    return {name: layers[name] for name in names}


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
