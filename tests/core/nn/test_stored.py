"""What a checkpoint holds of one weight: numbers in tensors of their own, and faults by name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ostro.core.errors import CheckpointError
from ostro.core.nn.storage import Stored
from ostro.core.records import TensorInfo


def stored(held: Tensor) -> Stored:
    info = TensorInfo(name="w.bits", shape=(1,), format="U8", nbytes=1, file="a.safetensors")
    return Stored(
        tensors={"bits": held},
        infos={"bits": info},
        shape=(8, 32),
        device=torch.device("cpu"),
        dtype=torch.float32,
    )


@pytest.mark.parametrize(
    ("held", "number"),
    [
        (torch.tensor(4, dtype=torch.uint8), 4),
        (torch.tensor([[64]]).to(torch.uint32), 64),
        (torch.tensor([0.5], dtype=torch.bfloat16), 0.5),
        (torch.tensor(True), 1),
    ],
)
def test_a_tensor_of_one_number_is_it(held: Tensor, number: float) -> None:
    found = stored(held).number("bits")
    assert found == number and isinstance(found, float) == held.is_floating_point()


@pytest.mark.parametrize(
    "held", [torch.zeros(0), torch.ones(2), torch.tensor(torch.nan), torch.tensor([-torch.inf])]
)
def test_a_value_other_than_one_finite_number_is_an_error(held: Tensor) -> None:
    with pytest.raises(
        CheckpointError, match=r"^a\.safetensors: w\.bits is .* expected one finite number"
    ):
        stored(held).number("bits")
