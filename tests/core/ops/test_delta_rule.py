"""The gated delta rule: its kernels against each other."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from tiny.states import state_layout
from torch import Tensor

from ostro.core.ops import Op, Target
from ostro.core.ops.chunked_scan import triton as chunks
from ostro.core.ops.delta_rule import KERNELS, naive, native, triton
from ostro.core.ops.state_layout import StateLayout
from ostro.plugins.conformance.kernels import DEVICE, compile_for, poison, targets

BATCHES: dict[str, tuple[list[int], list[int], list[int | list[int]]]] = {
    "one": ([7], [-1], [3]),
    "decode": ([1, 1, 1, 1], [0, -1, 4, 3], [0, 1, 4, 2]),
    "mixed": ([1, 5, 2, 11], [5, -1, 4, 0], [5, 1, 3, 0]),
    "shared": ([3, 1], [4, 4], [0, 1]),
    "idle": ([0, 1, 4, 1], [-1, 3, -1, -1], [-1, 3, 0, -1]),
    "nothing": ([0, 0], [-1, -1], [-1, -1]),
    "bucket": ([37, 1, 19, 0, 0], [-1, 4, -1, -1, -1], [2, 4, -1, -1, -1]),
    "prompt": ([70], [-1], [2]),
    "prompts": ([1, 37, 0, 32, 5, 17], [5, -1, 2, 4, 0, -1], [5, 1, -1, 3, 0, -1]),
    "drafts": ([3, 1, 2, 4, 0], [5, -1, 4, 0, -1], [[5, 1, 2], 3, [4, 6], [7, -1, 8, 0], -1]),
    "bucket of drafts": ([4, 1, 1, 0, 19], [2, -1, -1, -1, 4], [[2, 1, 5, 8], 7, -1, -1, 4]),
}
"""Rows of each sequence, the blocks they go on from, and those that take their last states."""


def arguments(
    name: str, key_heads: int, heads: int, dk: int, dv: int, dtype: torch.dtype = torch.float32
) -> list[object]:
    """A delta rule's arguments; rows are views of wider rows."""
    torch.manual_seed(0)
    rows, before, after = BATCHES[name]
    widths = (key_heads * dk, key_heads * dk, heads * dv, heads, heads)
    wide = torch.randn(sum(rows), sum(widths) + 3, device=DEVICE).to(dtype)
    q, k, v, b, a = wide[:, 3:].split(widths, 1)
    q, k, v = q.unflatten(1, (-1, dk)), k.unflatten(1, (-1, dk)), v.unflatten(1, (-1, dv))
    rate, dt_bias = torch.randn(2, heads, device=DEVICE)
    dt_bias[0] = -12  # a time step so small that 1 + e^x forgets it
    places = state_layout(rows, before, after, DEVICE)
    state = torch.randn(9, heads, dk, dv, device=DEVICE)
    return [q, k, v, b, a, -rate.exp(), dt_bias, state, places]


def both(module: ModuleType, ours: list[object], theirs: list[object]) -> tuple[Tensor, Tensor]:
    with poison():
        y = module.delta_rule(*ours)
    return y, naive.delta_rule(*theirs)


MODULES = pytest.mark.parametrize("module", [triton, native], ids=["triton", "native"])


SHAPES = [(2, 4, 24, 16), (1, 3, 7, 5), (2, 2, 128, 20), (1, 1, 600, 2), (1, 2, 8, 140)]


def is_slow(module: ModuleType, name: str, shape: tuple[int, ...]) -> bool:
    """Whether the interpreter takes long: for prompts, two shapes are quick."""
    return module is triton and name.startswith(("prompt", "bucket")) and shape in SHAPES[2:]


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("module", "name", "shape"),
    [
        pytest.param(
            module,
            name,
            shape,
            id=f"{module.__name__.rpartition('.')[2]}-{name}-{shape}",
            marks=pytest.mark.slow if is_slow(module, name, shape) else (),
        )
        for module in (triton, native)
        for name in BATCHES
        for shape in SHAPES
    ],
)
def test_delta_rule(module: ModuleType, name: str, shape: tuple[int, int, int, int]) -> None:
    ours, theirs = arguments(name, *shape), arguments(name, *shape)
    y, expected = both(module, ours, theirs)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[7], theirs[7], rtol=1e-4, atol=1e-5)


@pytest.mark.sample(1)
@MODULES
def test_delta_rule_of_halves_rounds_once(module: ModuleType) -> None:
    ours, theirs = (arguments("mixed", 2, 4, 24, 16, torch.float16) for _ in range(2))
    y, expected = both(module, ours, theirs)
    assert y.dtype == torch.float16
    torch.testing.assert_close(y, expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(ours[7], theirs[7], rtol=1e-4, atol=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("rows", [32, 64])
def test_chunks_of_any_length(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        tiles = (chunks.Tiles(rows, 16, 1, 1),) * 2
        monkeypatch.setitem(chunks.TILES, "interpreter", tiles)
    ours, theirs = arguments("prompts", 1, 2, 24, 40), arguments("prompts", 1, 2, 24, 40)
    y, expected = both(triton, ours, theirs)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[7], theirs[7], rtol=1e-4, atol=1e-5)


@pytest.mark.sample(1)
@MODULES
@pytest.mark.parametrize("keys", ["any", "one"])
def test_gates_at_their_ends(keys: str, module: ModuleType) -> None:
    """Some rows forget all and others nothing, some write all and others nothing.

    Where all keys are one, powers of what rows know of each other would overflow.
    """
    ours, theirs = (arguments("prompt", 2, 4, 24, 16) for _ in range(2))
    write = torch.where(torch.rand(70, 4, device=DEVICE) < 0.7, 30.0, -30.0)
    step = torch.where(torch.rand(70, 4, device=DEVICE) < 0.1, 90.0, -15.0)
    for given in (ours, theirs):
        given[3], given[4], given[6] = write, step, torch.zeros(4, device=DEVICE)
        if keys == "one":
            given[1] = given[1][:1].expand(70, -1, -1)  # type: ignore[index]
    y, expected = both(module, ours, theirs)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[7], theirs[7], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_rows_of_bfloat16() -> None:
    ours, theirs = (arguments("prompts", 2, 4, 24, 16, torch.bfloat16) for _ in range(2))
    y, expected = both(triton, ours, theirs)
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=1e-2)
    torch.testing.assert_close(ours[7], theirs[7], rtol=2e-3, atol=2e-3)


@pytest.mark.slow
def test_long_sequences_alone_go_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = BATCHES["prompts"][0]
    monkeypatch.setattr(triton, "advance_chunks", lambda *given: None)
    with poison():
        y = triton.delta_rule(*arguments("prompts", 2, 4, 24, 16, torch.float16))
        fixed = triton.delta_rule_deterministic(*arguments("prompts", 2, 4, 24, 16, torch.float16))
    for part, count in zip(y.split(rows), rows, strict=True):
        assert count == 0 or bool(part.isnan().all()) == (count > chunks.SHORT_SEQUENCE)
    assert not fixed.isnan().any()


def test_reproducible_rows_go_one_by_one() -> None:
    for deterministic, name in ((False, "triton"), (True, "triton_deterministic")):
        target = Target(
            device=torch.device("cuda"), dtype=torch.bfloat16, deterministic=deterministic
        )
        assert Op(KERNELS).select(target).kernel.name == name


def test_native_bits_do_not_depend_on_the_cut() -> None:
    whole, single = (arguments("prompt", 1, 2, 24, 140) for _ in range(2))
    expected, rows = native.delta_rule(*whole), []
    for t in range(70):
        at = [x[t : t + 1] if i < 5 else x for i, x in enumerate(single[:8])]  # type: ignore[index]
        rows.append(native.delta_rule(*at, places(1, 2 if t else -1, 2)))
    assert torch.equal(torch.cat(rows), expected)
    assert torch.equal(single[7], whole[7])  # type: ignore[arg-type]


def places(rows: int, before: int, after: int) -> StateLayout:
    return state_layout([rows], [before], [after])


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launch(rows: int, sequences: int) -> list[object]:
    """The 80B: 16 key heads and 32 value heads of 128."""
    q, k, v = meta(rows, 8192).split((2048, 2048, 4096), 1)
    q, k, v = (each.unflatten(1, (-1, 128)) for each in (q, k, v))
    floats = [meta(32, dtype=torch.float32) for _ in range(2)]
    ints = [meta(i, dtype=torch.int64) for i in (sequences + 1, sequences, rows)]
    state = meta(1000, 32, 128, 128, dtype=torch.float32)
    return [q, k, v, meta(rows, 32), meta(rows, 32), *floats, state, StateLayout(*ints)]


LAUNCHES = {"decode": launch(64, 64), "prefill": launch(300, 5)}


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("name", LAUNCHES)
def test_compiles_without_spills(name: str, target: str) -> None:
    call = "ostro.core.ops.delta_rule.triton:delta_rule"
    steps, *rest = compile_for(target, call, *LAUNCHES[name])
    assert steps.spills == 0
    assert steps.registers <= 128
    assert steps.shared <= 16384
    in_chunks = name != "decode" and target not in ("sm_75", "gfx1100")
    assert len(rest) == 2 * in_chunks
    for build in rest:
        assert build.spills == 0, f"{build.kernel}: {build.registers} registers"
        assert build.shared <= 64 << 10, f"{build.kernel}: {build.shared >> 10} KiB"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_a_chunk_takes_fewer_instructions(target: str) -> None:
    """Per row and element of a state; what goes row by row takes at least eight."""
    call = "ostro.core.ops.delta_rule.triton:delta_rule"
    steps, _, advance = compile_for(target, call, *LAUNCHES["prefill"])
    _, tiles = chunks.TILES[target]
    each = advance.instructions_per(tiles.rows * tiles.values * 128)
    assert each <= 2.2
    assert each <= steps.instructions_per(triton.ELEMENTS) / 4
