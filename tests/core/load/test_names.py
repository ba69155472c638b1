"""Names: every pair and transform of every architecture reads back what it writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.errors import CheckpointError
from ostro.core.load.names import Add, HeadRows, Names, Pair, Transform, Unpermute, apply
from ostro.core.load.weights import weight_slots
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, resolve
from ostro.core.settings import Settings

PLUGINS = PluginManager()
PLUGINS.load(Settings())
ARCHITECTURES = {
    record.name: record
    for record in PLUGINS.collect("architectures").values()
    if record.names is not None and record.conformance.tiny is not None
}
SPACES = [
    pytest.param(record, space, id=f"{name}-{space}")
    for name, record in ARCHITECTURES.items()
    for space in ("hub", "gguf")
    if space == "hub" or record.gguf
]


def tensors(record: Architecture) -> tuple[Names, dict[str, tuple[int, ...]]]:
    """The name spaces of an architecture, and its tiny model's tensors with their shapes."""
    config = resolve(record.config).from_hf(record.conformance.tiny)
    model = resolve(record.model)(config)
    shapes = {
        slot.name if slot.kind == "tensor" else f"{slot.name}.weight": slot.shape
        for slot in weight_slots(model)
    }
    return resolve(record.names)(config), shapes


def stacked(names: Names, ours: str) -> bool:
    """Whether a tensor may lie in a stack of all experts, which is read and not written."""
    pairs = getattr(names, "stacks", ())
    return any(Pair("x", p.ours.replace("*", "{e}")).match(ours, write=True) for p in pairs)


@pytest.mark.parametrize(("record", "space"), SPACES)
def test_every_name_reads_back(record: Architecture, space: str) -> None:
    names, shapes = tensors(record)
    written = {o: names.write(o, space) for o in shapes if not stacked(names, o)}
    whole = [n.theirs for n in written.values() if not isinstance(n.transform, HeadRows)]
    assert len(set(whole)) == len(whole), "two tensors have one name"
    theirs = {named.theirs for named in written.values()}
    named, left = names.read(theirs, space)
    assert not left
    assert {n.name: (n.theirs, n.transform) for n in named} == {
        ours: (n.theirs, n.transform) for ours, n in written.items()
    }
    if space == "gguf":
        assert not set(theirs) & set(shapes), "a name without a pair"


@pytest.mark.parametrize(("record", "space"), SPACES)
def test_every_transform_reads_back(record: Architecture, space: str) -> None:
    names, shapes = tensors(record)
    shapes = {ours: shape for ours, shape in shapes.items() if not stacked(names, ours)}
    generator = torch.Generator().manual_seed(0)
    for ours, shape in shapes.items():
        transform = names.write(ours, space).transform
        tensor = torch.randn(shape, generator=generator).round(decimals=3)
        same(transform, tensor)
        if transform is not None and transform.packed:
            same(transform, torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator))


def same(transform: Transform | None, tensor: Tensor) -> None:
    """Reading undoes writing, and writing reading."""
    if transform is None:
        return
    written = transform.write(tensor).contiguous()
    torch.testing.assert_close(apply(transform, written), tensor)
    torch.testing.assert_close(transform.write(apply(transform, written)), written)


def test_transforms_do_something() -> None:
    tensor = torch.arange(8.0)
    assert Unpermute(2).read(tensor).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert Unpermute(1).read(tensor).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert Add(1.0).read(tensor.half()).dtype == torch.float32
    assert torch.equal(Add(1.0).read(tensor), tensor + 1)


def test_the_parts_of_a_tensor_sum_to_the_whole() -> None:
    tensor = torch.randn(2 * 5, 3)
    low, high = HeadRows(2, 5, 0, 2), HeadRows(2, 5, 2, 5)
    assert torch.equal(low.read(tensor), tensor[[0, 1, 5, 6]])
    assert torch.equal(low.write(low.read(tensor)) + high.write(high.read(tensor)), tensor)
    with pytest.raises(CheckpointError, match=r"shape \(9, 3\) does not contain 2 heads of 5 rows"):
        low.read(tensor[:9])


def test_rows_that_are_no_heads_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"shape \(6, 4\) does not contain 2 heads"):
        Unpermute(2).read(torch.zeros(6, 4))


@pytest.mark.parametrize(
    ("pair", "name", "found"),
    [
        (Pair("blk.{i}.attn_q", "layers.{i}.q"), "blk.3.attn_q.weight", "layers.3.q.weight"),
        (Pair("blk.{i}.attn_q", "layers.{i}.q"), "blk.3.attn_q", "layers.3.q"),
        (Pair("blk.{i}.attn_q", "layers.{i}.q"), "blk.3.attn_q_norm.weight", None),
        (Pair("blk.{i}.attn_q", "layers.{i}.q"), "blk.3.4.attn_q.weight", None),
        (Pair("blk.{i}.attn_q", "layers.{i}.q"), "x.blk.3.attn_q.weight", None),
        (Pair("output", "lm_head"), "output_norm.weight", None),
        (Pair("a.b", "c"), "aXb.weight", None),
        (Pair("{i}.{e}.w", "m.{e}.{i}"), "1.2.w.scales", "m.2.1.scales"),
        (Pair("a", "b"), "a..weight", None),
    ],
)
def test_whole_components_are_compared(pair: Pair, name: str, found: str | None) -> None:
    assert pair.match(name) == found
    if found is not None:
        assert pair.match(found, write=True) == name


def test_names_without_a_pair() -> None:
    """A hub checkpoint keeps the name, in a GGUF file nobody claims it; tables are ignored."""
    names = Names(hub=(Pair("a", "b"),), gguf=(Pair("a", "b"),))
    given = ["a.weight", "c.weight", "model.layers.0.rotary_emb.inv_freq", "rope_freqs.weight"]
    named, left = names.read(given, "hub")
    assert [n.name for n in named] == ["b.weight", "c.weight"] and left == []
    named, left = names.read(given, "gguf")
    assert [n.name for n in named] == ["b.weight"] and left == ["c.weight"]


def test_the_first_pair_that_matches_is_taken() -> None:
    first: Any = Names(hub=(Pair("a.b", "x", Add(1.0)), Pair("a", "y")))
    assert [n.name for n in first.read(["a.b.weight", "a.c.weight"])[0]] == [
        "x.weight",
        "y.c.weight",
    ]
