"""Signatures say which argument of which kernel is wrong, and examine a combination once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ostro.core.errors import InvalidTensor
from ostro.core.native import Arg, Signature, signature

SIGNATURE = Signature(
    "example",
    {"an even width": lambda n: n["width"] % 2 == 0},
    starts=Arg("batch+1", torch.int32),
    x=Arg("rows width", strided="rows"),
    scale=Arg("width", optional=True),
)
STARTS, X, SCALE = torch.zeros(4, dtype=torch.int32), torch.zeros(5, 6), torch.zeros(6)

WRONG: list[tuple[Tensor | None, Tensor | None, Tensor | None, str]] = [
    (STARTS[:3], X, SCALE, "starts has shape [3], expected [batch+1=4]"),
    (STARTS.long(), X, SCALE, "starts has dtype torch.int64, expected torch.int32"),
    (STARTS, X.double(), SCALE, "x has dtype torch.float64, expected a float type"),
    (STARTS, None, SCALE, "x is None, expected a tensor"),
    (STARTS, X[0], SCALE, "x has shape [6], expected [rows=5, width]"),
    (STARTS, X[:4], SCALE, "x has shape [4, 6], expected [rows=5, width]"),
    (STARTS, torch.zeros(6, 5).t(), SCALE, "x has shape [5, 6] and strides [1, 5], expected"),
    (STARTS, X.to("meta"), SCALE, "x is on meta, expected cpu"),
    (STARTS, X, SCALE[:5], "scale has shape [5], expected [width=6]"),
    (STARTS, X, SCALE.half(), "scale has dtype torch.float16, expected torch.float32"),
    (STARTS, X[:, :5], None, "expected an even width"),
]


@pytest.mark.parametrize(("starts", "x", "scale", "fault"), WRONG)
def test_names_the_kernel_and_the_argument(
    starts: Tensor | None, x: Tensor | None, scale: Tensor | None, fault: str
) -> None:
    for _ in range(2):
        with pytest.raises(InvalidTensor) as caught:
            SIGNATURE(starts, x, scale, batch=3, rows=5)
        assert "a module calls the native kernel example" in str(caught.value)
        assert fault in str(caught.value)


def test_matching_arguments_are_accepted() -> None:
    SIGNATURE(STARTS, X, SCALE, batch=3, rows=5)
    SIGNATURE(STARTS, X, None, batch=3, rows=5)
    SIGNATURE(STARTS, torch.zeros(5, 9)[:, 1:7], SCALE, batch=3, rows=5)
    SIGNATURE(STARTS, X.half(), SCALE.half(), batch=3, rows=5)
    SIGNATURE(STARTS, X[:1].expand(5, 6), SCALE, batch=3, rows=5)
    SIGNATURE(STARTS[:1], X[:0], SCALE, batch=0, rows=0)


def test_leading_dimensions_agree() -> None:
    pair = Signature("pair", x=Arg("... n"), y=Arg("... n"), z=Arg("... 2 m", optional=True))
    for shape in ((4,), (3, 4), (2, 3, 4)):
        pair(torch.zeros(shape), torch.zeros(shape), torch.zeros(*shape[:-1], 2, 7))
    for shape in ((4,), (1, 3, 4), (3, 5), (2, 4)):
        with pytest.raises(InvalidTensor, match="y has shape"):
            pair(torch.zeros(3, 4), torch.zeros(shape), None)
    with pytest.raises(InvalidTensor, match="x has shape"):
        pair(torch.zeros(()), torch.zeros(()), None)


def test_a_strided_dimension_carries_those_outside_of_it() -> None:
    pages = Signature("pages", x=Arg("blocks heads block d", strided="block"))
    cache = torch.zeros(3, 2, 4, 8)
    pages(cache[..., :5])
    for x in (
        cache[:, :, :3],
        cache[:, :1].expand_as(cache),
        cache[..., ::2],
        cache.transpose(1, 2),
    ):
        with pytest.raises(InvalidTensor, match="strides"):
            pages(x)


def test_a_combination_is_examined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature, "LIMIT", 3)
    fresh = Signature("fresh", x=Arg("rows", torch.int64))
    seen: list[int] = []
    monkeypatch.setattr(fresh, "check", lambda tensors, sizes: seen.append(len(tensors[0])))
    for rows in (1, 1, 2, 2, 1, 3, 3, 4, 4, 1):
        fresh(torch.zeros(rows, dtype=torch.int64))
    assert seen == [1, 2, 3, 4, 1] and len(fresh.known) <= 3
