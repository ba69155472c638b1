"""bitsandbytes: NF4 and FP4 with four bits (Dettmers et al., 2023), and LLM.int8() (2022)."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Quantizer, TensorInfo, hookimpl

STATE = "weight.quant_state.bitsandbytes__"
PLAIN = frozenset({"weight", "weight.absmax", "weight.quant_map"})
NESTED = PLAIN | {"weight.nested_absmax", "weight.nested_quant_map"}
INT8 = frozenset({"weight", "SCB"})
FORMAT = "weight_format"


def claims_four_bits(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> bool:
    """The tensors that bitsandbytes saves for a Params4bit, with float or nested absmax."""
    states = [name for name in tensors if name in (f"{STATE}nf4", f"{STATE}fp4")]
    return len(states) == 1 and tensors.keys() - states in (PLAIN, NESTED)


def claims_int8(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> bool:
    """The tensors that bitsandbytes saves for an Int8Params."""
    return tensors.keys() - {FORMAT} == INT8 and tensors["weight"].format == "I8"


@hookimpl
def ostro_quantizers() -> Iterable[Quantizer]:
    yield Quantizer(
        name="bitsandbytes-4bit", claims=claims_four_bits, storage=f"{__name__}.bits4:Bits4"
    )
    yield Quantizer(name="bitsandbytes-int8", claims=claims_int8, storage=f"{__name__}.bits8:Bits8")
