"""The families of UQFF 1.2: which tensors a layer of each has, and how its quantizer is shown them.

A layer `key` is `key.weight`, `key.weight.format`, a number that says the family, and what that
family has beside it: `key.weight.shape` and so on. Source: mistral.rs, docs/reference/uqff-format
and the `serialize_uqff` of each of its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

from ostro.checkpoints import GGML_TYPES as TYPES
from ostro.checkpoints import GgmlType, TensorLocation
from ostro.errors import CheckpointError

Places = Mapping[str, TensorLocation]
"""The tensors of a layer, by suffix: "weight", "weight.format"..."""

FORMAT = "weight.format"
AGAIN = "the file is damaged, download it again or write it again"

GGML: Mapping[int, GgmlType] = {
    code: TYPES[code] for code in (0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 30)
}
"""The ggml types that family 0 has, by `weight.dtype`."""

MAX_EXPERTS = 1 << 14


@dataclass(frozen=True)
class TensorPart:
    """What a tensor must be: of one of these formats, and of `dims` dimensions if that is said."""

    formats: tuple[str, ...]
    dims: int | None = None


@dataclass(frozen=True)
class Family:
    """A way to store a weight: its tensors by suffix, `stacks` where experts may lie in it too.

    `show` gives them as the quantizer of the family claims them.
    """

    name: str
    parts: Mapping[str, TensorPart]
    stacks: bool = False
    show: Callable[[Places], Places] = dict


def show_ggml(parts: Places) -> Places:
    """Blocks with the name of their type and the shape of the weight, as in a GGUF file."""
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


def show_floats(parts: Places) -> Places:
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
"""By number."""


def show(key: str, parts: Places) -> dict[str, TensorLocation]:
    """The tensors of a layer by name, as its quantizer claims them; a stack expert by expert.

    Raises CheckpointError for what no layer of its family is.
    """
    family = family_of(key, parts)
    for suffix, part in family.parts.items():
        check(parts[suffix], part, family)
    dims = rank(parts)
    if dims != 2 and not (dims == 3 and family.stacks):
        known = "2, or 3 for experts," if family.stacks else "2"
        raise fault(
            parts["weight"],
            f"has {dims} dimensions, where {family.name} has {known} dimensions; {AGAIN}",
        )
    shown = family.show(parts)
    return named(key, shown) if dims == 2 else split(key, shown)


def family_of(key: str, parts: Places) -> Family:
    """The family that a layer says it is of, whose tensors it must have, and no others."""
    if FORMAT not in parts:
        some = next(iter(parts.values()))
        raise fault(some, f"has no {key}.{FORMAT} beside it, which says what it is; {AGAIN}")
    place = parts[FORMAT]
    check(place, BYTE)
    code = number(place)
    if code >= len(FAMILIES):
        names = ", ".join(f"{i} ({family.name})" for i, family in enumerate(FAMILIES))
        raise fault(place, f"is {code}; UQFF has {names}; {AGAIN}")
    family = FAMILIES[code]
    for suffix in family.parts:
        if suffix not in parts:
            what = f"says {family.name}, but there is no {key}.{suffix}; {AGAIN}"
            raise fault(place, what)
    for suffix in parts:
        if suffix not in family.parts and suffix != FORMAT:
            what = f"is no tensor of {family.name}, which {key}.{FORMAT} says; {AGAIN}"
            raise fault(parts[suffix], what)
    return family


def check(place: TensorLocation, part: TensorPart, family: Family | None = None) -> None:
    """Refuse a tensor that is not what it must be."""
    info = place.info
    if info.format in part.formats and part.dims in (None, len(info.shape)):
        return
    wanted = " or ".join(part.formats)
    dims = "" if part.dims is None else f" of {part.dims} dimensions"
    whose = f" in {family.name}" if family else ""
    raise fault(place, f"is {info.format} {list(info.shape)}, not {wanted}{dims}{whose}; {AGAIN}")


def rank(parts: Places) -> int:
    """Dimensions of the weight."""
    said = parts.get("weight.shape")
    return len(parts["weight"].info.shape) if said is None else said.info.shape[0]


def named(key: str, parts: Places) -> dict[str, TensorLocation]:
    """Tensors by name, which their infos have as well."""
    names = {f"{key}.{suffix}": place for suffix, place in parts.items()}
    return {
        name: replace(place, info=replace(place.info, name=name)) for name, place in names.items()
    }


def split(key: str, parts: Places) -> dict[str, TensorLocation]:
    """The stack `above.part` as `above.0.part`, `above.1.part`...; they share the scalars."""
    experts = parts["weight"].info.shape[0]
    above, _, last = key.rpartition(".")
    if not 0 < experts <= MAX_EXPERTS:
        weight = parts["weight"]
        raise fault(
            weight, f"is a stack of {experts} experts; 1 to {MAX_EXPERTS} are read; {AGAIN}"
        )
    found: dict[str, TensorLocation] = {}
    for i in range(experts):
        mine = {suffix: expert(place, i, experts) for suffix, place in parts.items()}
        found |= named(f"{above}.{i}.{last}", mine)
    return found


def expert(place: TensorLocation, i: int, experts: int) -> TensorLocation:
    """The share of one expert of a tensor."""
    info = place.info
    if not info.shape:
        return place
    if info.shape[0] != experts:
        raise fault(place, f"has shape {list(info.shape)} in a stack of {experts}; {AGAIN}")
    nbytes = info.nbytes // experts
    share = replace(info, shape=info.shape[1:], nbytes=nbytes)
    return TensorLocation(share, place.file, place.start + i * nbytes)


def number(place: TensorLocation) -> int:
    """A scalar."""
    raw = place.file.data[place.start : place.start + place.info.nbytes]
    return int.from_bytes(raw.tobytes(), "little")


def numbers(place: TensorLocation) -> tuple[int, ...]:
    """A vector of U32."""
    raw = place.file.data[place.start : place.start + place.info.nbytes]
    return tuple(int(value) for value in raw.copy().view("<u4"))


def fault(place: TensorLocation, what: str) -> CheckpointError:
    return CheckpointError(f"{place.info.file}: {place.info.name} {what}")
