"""The families (formats) of UQFF 1.2: the tensors of a layer, and their mapping to quantizers.

A layer `key` has `key.weight`, `key.weight.format`, the number of the family, and the further
tensors of the family: `key.weight.shape` and so on. Source: mistral.rs, docs/reference/uqff-format
and the `serialize_uqff` of each of its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

from ostro.checkpoints import GGML_TYPES, GgmlType, TensorLocation
from ostro.errors import CheckpointError

Locations = Mapping[str, TensorLocation]
"""The tensors of a layer, by suffix: "weight", "weight.format"..."""

FORMAT = "weight.format"
AGAIN = "the file is damaged; download or write it again"

GGML: Mapping[int, GgmlType] = {
    code: GGML_TYPES[code] for code in (0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 30)
}
"""The ggml types of family 0, by `weight.dtype`."""

MAX_EXPERTS = 1 << 14


@dataclass(frozen=True)
class TensorPart:
    """The valid formats of a tensor, and its number of dimensions, or None for any."""

    formats: tuple[str, ...]
    dims: int | None = None


@dataclass(frozen=True)
class Family:
    """A format of UQFF: its tensors by suffix; `stacks` says whether it stores stacked experts.

    `show` converts the tensors to those that the quantizer of the format claims.
    """

    name: str
    parts: Mapping[str, TensorPart]
    stacks: bool = False
    show: Callable[[Locations], Locations] = dict


def show_ggml(parts: Locations) -> Locations:
    """ggml blocks with the type and shape of the weight, as in a GGUF file."""
    weight, code = parts["weight"], number(parts["weight.dtype"])
    kind, shape = GGML.get(code), numbers(parts["weight.shape"])
    if kind is None:
        names = ", ".join(f"{kind.id} ({kind.name})" for kind in GGML.values())
        raise fault(parts["weight.dtype"], f"is {code}; UQFF has {names}; {AGAIN}")
    held = weight.info.nbytes
    if not shape or shape[-1] % kind.block or prod(shape) // kind.block * kind.nbytes != held:
        raise fault(
            weight,
            f"has {held} bytes, which are not {list(shape)} weights in {kind.name} blocks of "
            f"{kind.block} in {kind.nbytes} bytes; {AGAIN}",
        )
    info = replace(weight.info, shape=shape, format=kind.name)
    return {"weight": replace(weight, info=info)}


def show_floats(parts: Locations) -> Locations:
    return {"weight": parts["weight"]}


BYTE, WORD, SHAPE = TensorPart(("U8",), 0), TensorPart(("U32",), 0), TensorPart(("U32",), 1)
REAL = TensorPart(("F32",), 0)
FLOATS = ("F32", "F16", "BF16")

FAMILIES = (
    Family(
        "Gguf",
        {"weight": TensorPart(("U8",), 1), "weight.dtype": WORD, "weight.shape": SHAPE},
        stacks=True,
        show=show_ggml,
    ),
    Family("Unquant", {"weight": TensorPart(FLOATS)}, stacks=True, show=show_floats),
    Family(
        "Hqq",
        {
            "weight": TensorPart(("U8",), 2),
            "weight.scales": TensorPart(FLOATS, 2),
            "weight.zeros": TensorPart(FLOATS, 2),
            "weight.shape": SHAPE,
            "weight.bits": BYTE,
            "weight.group_size": WORD,
            "weight.axis": BYTE,
            "weight.optimization_steps": WORD,
            "weight.round_zeros": BYTE,
            "weight.channel_wise": BYTE,
        },
    ),
    Family(
        "Fp8",
        {
            "weight": TensorPart(("F8_E4M3",)),
            "weight.dequant_w_scale": REAL,
            "weight.dequant_x_scale": REAL,
            "weight.quant_scale": REAL,
            "weight.dtype": WORD,
        },
    ),
    Family(
        "Afq",
        {
            "weight": TensorPart(("U32",)),
            "weight.scales": TensorPart(FLOATS),
            "weight.biases": TensorPart(FLOATS),
            "weight.bits": BYTE,
            "weight.group_size": BYTE,
        },
        stacks=True,
    ),
    Family(
        "F8Q8",
        {"weight": TensorPart(("U8",), 1), "weight.num_blocks": WORD, "weight.shape": SHAPE},
    ),
    Family(
        "Mxfp4",
        {"weight": TensorPart(("U8",)), "weight.scales": TensorPart(("U8",))},
        stacks=True,
    ),
)
"""The families by number."""


def show(key: str, parts: Locations) -> dict[str, TensorLocation]:
    """The tensors of a layer by name, as its quantizer claims them; stacks are split by expert.

    Raises CheckpointError for tensors that do not fit the family.
    """
    family = family_of(key, parts)
    for suffix, part in family.parts.items():
        check(parts[suffix], part, family)
    dims = rank(parts)
    if dims != 2 and not (dims == 3 and family.stacks):
        known = "2, or 3 for experts," if family.stacks else "2"
        raise fault(
            parts["weight"],
            f"has {dims} dimensions, expected {known} for {family.name}; {AGAIN}",
        )
    shown = family.show(parts)
    return named(key, shown) if dims == 2 else split(key, shown)


def family_of(key: str, parts: Locations) -> Family:
    """The family of a layer. Raises CheckpointError unless the layer has exactly its tensors."""
    if FORMAT not in parts:
        some = next(iter(parts.values()))
        raise fault(some, f"has no {key}.{FORMAT}, which names its family; {AGAIN}")
    location = parts[FORMAT]
    check(location, BYTE)
    code = number(location)
    if code >= len(FAMILIES):
        names = ", ".join(f"{i} ({family.name})" for i, family in enumerate(FAMILIES))
        raise fault(location, f"is {code}; UQFF has {names}; {AGAIN}")
    family = FAMILIES[code]
    for suffix in family.parts:
        if suffix not in parts:
            what = f"is {family.name}, but {key}.{suffix} is missing; {AGAIN}"
            raise fault(location, what)
    for suffix in parts:
        if suffix not in family.parts and suffix != FORMAT:
            what = f"is not a tensor of {family.name}, the family in {key}.{FORMAT}; {AGAIN}"
            raise fault(parts[suffix], what)
    return family


def check(location: TensorLocation, part: TensorPart, family: Family | None = None) -> None:
    """Raise CheckpointError for a tensor of the wrong format or number of dimensions."""
    info = location.info
    if info.format in part.formats and part.dims in (None, len(info.shape)):
        return
    wanted = " or ".join(part.formats)
    dims = "" if part.dims is None else f" of {part.dims} dimensions"
    owner = f" in {family.name}" if family else ""
    raise fault(
        location, f"is {info.format} {list(info.shape)}, expected {wanted}{dims}{owner}; {AGAIN}"
    )


def rank(parts: Locations) -> int:
    """The number of dimensions of the weight."""
    shape = parts.get("weight.shape")
    return len(parts["weight"].info.shape) if shape is None else shape.info.shape[0]


def named(key: str, parts: Locations) -> dict[str, TensorLocation]:
    """The tensors by name, with infos of that name."""
    names = {f"{key}.{suffix}": location for suffix, location in parts.items()}
    return {
        name: replace(location, info=replace(location.info, name=name))
        for name, location in names.items()
    }


def split(key: str, parts: Locations) -> dict[str, TensorLocation]:
    """Split the stack `parent.part` into `parent.0.part`, `parent.1.part`..., with shared
    scalars.
    """
    experts = parts["weight"].info.shape[0]
    above, _, last = key.rpartition(".")
    if not 0 < experts <= MAX_EXPERTS:
        weight = parts["weight"]
        raise fault(
            weight, f"is a stack of {experts} experts, expected 1 to {MAX_EXPERTS}; {AGAIN}"
        )
    found: dict[str, TensorLocation] = {}
    for i in range(experts):
        mine = {suffix: expert(location, i, experts) for suffix, location in parts.items()}
        found |= named(f"{above}.{i}.{last}", mine)
    return found


def expert(location: TensorLocation, i: int, experts: int) -> TensorLocation:
    """The location of one expert in a stacked tensor."""
    info = location.info
    if not info.shape:
        return location
    if info.shape[0] != experts:
        raise fault(location, f"has shape {list(info.shape)} in a stack of {experts}; {AGAIN}")
    nbytes = info.nbytes // experts
    share = replace(info, shape=info.shape[1:], nbytes=nbytes)
    return TensorLocation(share, location.file, location.start + i * nbytes)


def number(location: TensorLocation) -> int:
    """The value of a scalar."""
    raw = location.file.data[location.start : location.start + location.info.nbytes]
    return int.from_bytes(raw.tobytes(), "little")


def numbers(location: TensorLocation) -> tuple[int, ...]:
    """The values of a vector of U32."""
    raw = location.file.data[location.start : location.start + location.info.nbytes]
    return tuple(int(value) for value in raw.copy().view("<u4"))


def fault(location: TensorLocation, what: str) -> CheckpointError:
    return CheckpointError(f"{location.info.file}: {location.info.name} {what}")
