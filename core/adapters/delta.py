"""Adapter deltas: what adapters add to a module, computed from factors in pages on the device.

A page is sixteen rank rows. An adapter has the same page numbers in every delta: one of rank 40 has
three. A mixture is the list of the pages of its adapters. A delta is allocated when the first
adapter changes its module; adapters are written to its pages in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ostro.core.adapters.mixture_table import MixtureTable, MixtureTables
from ostro.core.adapters.targets import WeightPart
from ostro.core.adapters.weights import LowRank
from ostro.core.cache import zeros
from ostro.core.nn import Embedding, Linear
from ostro.core.nn.experts import ExpertLinear
from ostro.core.nn.linear import part_slice
from ostro.core.nn.storage import Storage
from ostro.core.ops import Op, Target, lora
from ostro.core.step import Step

PAGE = 16
"""Rank rows of a page: what one tile of tensor cores takes."""

CHUNK = 64
"""Rows whose factors are gathered at a time in per-head products: gathering all rows of a prompt
would copy the factors once per row."""

Adaptable = Linear | Embedding | ExpertLinear
"""Modules whose weights adapters change."""

Factors = Mapping[WeightPart, LowRank]
PackedFactors = tuple[Tensor, Tensor]
"""Pages of A [pages, experts, parts, 16, k] and of B [pages, experts, 16, n]."""


class AdapterDelta:
    """The delta of one module; implements `nn.Delta`.

    a [pages * experts, parts, 16, k], b [pages * experts, 16, n]; an embedding's b has a column for
    each token. Both are empty before `allocate`. Of adapters with DoRA or biases, `gains`
    [slots, 5, n] float32 are the magnitude, the two norms of `compute_gains`, the bias of B, and
    the difference to the base's bias; `base_norms_sq` [n] are the squared norms of the base's rows.
    `whole` are storages by slot. `applied` is set by every call that has a mixture.
    """

    def __init__(
        self,
        module: Adaptable,
        index: int,
        pages: int,
        slots: int,
        mixtures: MixtureTables,
        target: Target,
    ) -> None:
        """`index` numbers the deltas of a model; `target` has the device and dtype of the module.
        Uses no device: the reader thread makes deltas.
        """
        self.module, self.index, self.pages, self.slots = module, index, pages, slots
        self.mixtures = mixtures
        self.parts, self.experts, self.n, self.k = shape_of(module)
        self.widths = tuple(self.parts.values())
        self.device, self.dtype = target.device, target.dtype
        self.a, self.b = torch.empty(0), torch.empty(0)
        self.gains: Tensor | None = None
        self.base_norms_sq: Tensor | None = None
        self.whole: dict[int, Storage] = {}
        self.written: set[int] = set()  # pages that are not all zeros
        self.applied = False
        self.op = Op(lora.KERNELS)
        self.op.select(target)

    @property
    def table(self) -> MixtureTable:
        """The mixture table on the module's device."""
        return self.mixtures.table(self.device)

    def allocate(self) -> None:
        """Allocate the pages, if they are not allocated yet."""
        if not self.a.numel():
            count, dtype, device = self.pages * self.experts, self.dtype, self.device
            # One assignment: if memory runs out, the delta still has neither.
            self.a, self.b = (
                zeros(count, len(self.parts), PAGE, self.k, dtype=dtype, device=device),
                zeros(count, PAGE, self.n, dtype=dtype, device=device),
            )

    # nn.Delta: what the module calls

    def matmul(self, x: Tensor, y: Tensor, step: Step) -> Tensor:
        """x [..., k], y [..., n] -> y with the delta added, in place."""
        if step.mixture is None:
            return y
        self.apply(x.reshape(-1, self.k), y.view(-1, self.n), step.mixture)
        return y

    def grouped(self, x: Tensor, y: Tensor, expert_of_row: Tensor, step: Step) -> Tensor:
        """x [t, k], y [t, n], expert_of_row [t] -> y with the delta added, in place."""
        if step.mixture is not None:
            self.applied = True
            self.add(x, y, step.mixture, self.table.scales_of(self.index), expert_of_row)
        return y

    def rows(self, ids: Tensor, y: Tensor, step: Step) -> Tensor:
        """ids [t], y [t, d] -> y plus the rows `ids` of B A."""
        if step.mixture is None:
            return y
        self.applied, mixture = True, per_row(step.mixture, len(ids))
        for slot, storage in self.whole.items():
            uses = (self.table.slots[mixture] == slot).any(-1)
            y = torch.where(uses[:, None], storage.rows(ids), y)
        total = y.float()
        for page, scale, _ in self.pages_of_rows(mixture, slice(None), None):
            h = self.b[page, :, ids].float() * scale[:, None]
            total = total + torch.einsum("tr,trk->tk", h, self.a[page, 0].float())
        return total.to(y.dtype)

    def matmul_t(self, x: Tensor, y: Tensor, step: Step) -> Tensor:
        """The product by the transpose, per head: x [t, h, n/h], y [t, h, k] -> [t, h, k]."""
        if step.mixture is None:
            return y
        self.applied, mixture = True, per_row(step.mixture, len(x))
        gains = self.gains_of(mixture)
        if gains is not None:
            # A gain scales rows of W, which the transpose sums over: it must scale x, before the
            # product, so the base's product is computed again.
            assert isinstance(self.module, Linear), f"{self.module = } has heads"
            whole = 1 + (gains - 1).sum(0)
            y = self.module.whole.matmul_t((x * whole.view_as(x)).to(x.dtype))
        out = []
        for rows in chunks(len(x)):
            total = y[rows].float()
            for page, scale, gain in self.pages_of_rows(mixture[rows], rows, gains):
                left = x[rows].float() * (1 if gain is None else gain.view(x[rows].shape))
                b = self.b[page].float().unflatten(-1, (x.shape[1], -1))
                h = torch.einsum("thc,trhc->thr", left, b) * scale[:, None, None]
                total = total + torch.einsum("thr,trk->thk", h, self.a[page, 0].float())
            out.append(total.to(y.dtype))
        return torch.cat(out)

    def matmul_h(self, x: Tensor, y: Tensor, step: Step) -> Tensor:
        """The product per head: x [t, h, k], y [t, h, n/h] -> [t, h, n/h]."""
        if step.mixture is None:
            return y
        self.applied, mixture = True, per_row(step.mixture, len(x))
        gains, out = self.gains_of(mixture), []
        for rows in chunks(len(x)):
            total = y[rows].float()
            if gains is not None:
                total = total * (1 + (gains[:, rows] - 1).sum(0)).view(total.shape)
            for page, scale, gain in self.pages_of_rows(mixture[rows], rows, gains):
                h = torch.einsum("thk,trk->thr", x[rows].float(), self.a[page, 0].float())
                b = self.b[page].float().unflatten(-1, (x.shape[1], -1))
                part = torch.einsum("thr,trhc->thc", h * scale[:, None, None], b)
                total = total + (part if gain is None else part * gain.view(part.shape))
            out.append(total.to(y.dtype))
        return torch.cat(out)

    def pages_of_rows(
        self, mixture: Tensor, rows: slice, gains: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """For each page of the mixtures of these rows: its number [t], its scale [t], 0 for none,
        and the gain [t, n] of its adapter.
        """
        table, scales = self.table, self.table.scales_of(self.index)
        for j in range(table.width):
            page = table.pages[mixture, j].long()
            gain = None
            if gains is not None:
                of_rows, owner = gains[:, rows], table.owners[mixture, j].long()
                # Pages without a special slot have owner -1: the last entry, a gain of 1.
                stack = torch.cat((of_rows, torch.ones_like(of_rows[:1])))
                gain = stack[owner % len(stack), torch.arange(len(page), device=page.device)]
            # Without a branch on page >= 0: captured steps cannot branch on the device's values.
            yield page.clamp(min=0), scales[mixture, j] * (page >= 0), gain

    # The formula

    def add(
        self, x: Tensor, y: Tensor, mixture: Tensor, scales: Tensor, expert: Tensor | None = None
    ) -> None:
        """y += scale * B A x for all pages of each row, in place."""
        pages = self.table.pages
        self.op(x, y, self.a, self.b, self.widths, pages, scales, mixture, expert, self.experts)

    def apply(self, x: Tensor, y: Tensor, mixture: Tensor) -> None:
        """Apply whole weights, low-rank deltas, gains and biases to x [t, k], y [t, n], in place.

        `mixture` [t] or [1] has the row of the mixture table for each row, or one for all.
        """
        self.applied, table = True, self.table
        # All rows compute every whole weight and select: captured steps cannot gather rows.
        for slot, storage in self.whole.items():
            uses = (table.slots[mixture] == slot).any(-1)[:, None]
            y.copy_(torch.where(uses, storage.matmul(x), y))
        scales = table.scales_of(self.index)
        if self.gains is None or self.base_norms_sq is None:
            self.add(x, y, mixture, scales)
            return
        # DoRA multiplies base and delta by a gain of its own, so each adapter's part is needed
        # alone: first the pages without a special slot, then those of one slot after the other.
        # float32, as each part is rounded to y's dtype once already.
        base, many = y.to(torch.float32, copy=True), per_row(mixture, len(y))
        self.add(x, y, mixture, scales * (table.owners < 0))
        total, gains = y.float(), self.gains_of(many)
        assert gains is not None, "the gains have just been found"
        for i, gain in enumerate(gains):
            part = torch.zeros_like(y)
            self.add(x, part, mixture, scales * (table.owners == i))
            owner = table.slots[many, i].long()
            of_b, of_base = self.gains[owner.clamp(min=0)][:, 3:].unbind(1)
            bias = (gain * of_b + of_base) * table.strengths[many, i][:, None]
            total += (gain - 1) * base + gain * part.float()
            total += torch.where((owner >= 0)[:, None], bias, 0.0)
        y.copy_(total)

    def gains_of(self, mixture: Tensor) -> Tensor | None:
        """DoRA's gains [SPECIAL, t, n] of rows: the magnitude of a row of W + s B A over its norm,
        for the scale s of the row; 1 for adapters without DoRA. None if no adapter has any.
        """
        if self.gains is None or self.base_norms_sq is None:
            return None
        slot = self.table.slots[mixture].long().t()
        strength = self.table.strengths[mixture].t()[..., None]
        magnitude, n1, n2 = self.gains[slot.clamp(min=0)][..., :3, :].unbind(2)
        # |w + s d|^2 = |w|^2 + 2 s (w . d) + s^2 |d|^2: right for every scale without W or B A.
        norm_sq = self.base_norms_sq + 2 * strength * n1 + strength * strength * n2
        has_gain = (slot >= 0)[..., None] & (magnitude != 0)
        return torch.where(has_gain, magnitude * norm_sq.rsqrt(), 1.0)

    # Writing adapters

    def pack(self, factors: Factors, pages: int, sets: int) -> PackedFactors:
        """The pages of an adapter's factors, on the host. With `sets` > 1 each part of a fused
        module has its own set of pages, so that each part can have its own scale.
        """
        a = torch.zeros(pages, self.experts, len(self.parts), PAGE, self.k, dtype=self.dtype)
        b = torch.zeros(pages, self.experts, PAGE, self.n, dtype=self.dtype)
        for (part, expert), each in factors.items():
            number, columns = list(self.parts).index(part), part_slice(self.parts, part)
            first = number * (pages // sets) if sets > 1 else 0
            for i, start in enumerate(range(0, each.rank, PAGE), first):
                down, up = each.a[start : start + PAGE], each.b[:, start : start + PAGE]
                a[i, expert, number, : len(down)] = down
                b[i, expert, : len(down), columns] = (each.scale * up.float()).t()
        return a, b

    def pin(self, packed: PackedFactors) -> PackedFactors:
        """Packed factors in pinned memory if the device is a GPU."""
        # From pageable memory `write` would block the host until the device is idle.
        a, b = packed
        return (a.pin_memory(), b.pin_memory()) if self.device.type == "cuda" else packed

    def write(self, pages: Sequence[int], packed: PackedFactors | None) -> None:
        """Copy an adapter's pages to the device, or zero them if it does not change this module."""
        if packed is None:
            # The last adapter with these page numbers may have left its factors.
            for page in self.written.intersection(pages):
                rows = slice(page * self.experts, (page + 1) * self.experts)
                for tensor in (self.a, self.b):
                    tensor[rows].zero_()  # an assignment of a number waits for a GPU
            self.written.difference_update(pages)
            return
        # Before the copies: if one of them fails, the pages are zeroed for their next adapter.
        self.written.update(pages)
        for page, a, b in zip(pages, *packed, strict=True):
            rows = slice(page * self.experts, (page + 1) * self.experts)
            self.a[rows].copy_(a, non_blocking=True)
            self.b[rows].copy_(b, non_blocking=True)

    def compute_gains(self, factors: Factors, biases: Mapping[str, Tensor]) -> Tensor:
        """The gains [5, n] float32 of an adapter: the magnitude, the products of the rows of s B A
        with those of W, their squared norms, the bias of B, and the difference to the base's bias.
        """
        out = torch.zeros(5, self.n, device=self.device)
        for (part, _), each in factors.items():
            here = part_slice(self.parts, part)
            if each.bias is not None:
                out[3, here] = each.scale * each.bias.to(out)
            if each.magnitude is None:
                continue
            a, b = each.a.to(out), each.scale * each.b.to(out)
            # The base multiplies A's rows: a quantized W is never dequantized whole.
            product = self.base_matmul(a)[:, here].t()
            out[0, here] = each.magnitude.to(out)
            out[1, here] = (b * product).sum(-1)
            out[2, here] = ((b @ (a @ a.t())) * b).sum(-1)
        for part, bias in biases.items():
            here, module = part_slice(self.parts, part), self.module
            assert isinstance(module, Linear) and module.bias is not None, f"{part = } has a bias"
            out[4, here] = bias.to(out) - module.bias[here].float()
        return out

    def base_matmul(self, x: Tensor) -> Tensor:
        """x [r, k] -> [r, n] float32 by the base's weights alone."""
        storages = self.module.active_storages
        return torch.cat([s.matmul(x.to(s.dtype)).float() for s in storages], -1)

    def write_gains(self, slot: int, gains: Tensor) -> None:
        """Write an adapter's gains to its slot; the first call allocates the slots."""
        if self.gains is None or self.base_norms_sq is None:
            norms = [
                storage.row_norms_sq().to(self.device) for storage in self.module.active_storages
            ]
            # One assignment: if memory runs out, the delta still has neither.
            self.gains, self.base_norms_sq = (
                torch.zeros(self.slots, 5, self.n, device=self.device),
                torch.cat(norms),
            )
        self.gains[slot] = gains

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        tensors = (self.a, self.b, self.gains, self.base_norms_sq)
        own = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        return own + sum(storage.nbytes for storage in self.whole.values())


def shape_of(module: Adaptable) -> tuple[Mapping[str, int], int, int, int]:
    """The parts of a module, its number of experts, rows n and columns k."""
    if isinstance(module, Linear):
        n, k = module.weight_shape
        return module.parts, 1, n, k
    if isinstance(module, ExpertLinear):
        return module.parts, module.experts, module.n_out, module.n_in
    return {"": module.n}, 1, module.n, module.d


def per_row(mixture: Tensor, rows: int) -> Tensor:
    """The row of the mixture table for each of `rows` rows, int64."""
    return mixture.long().expand(rows) if len(mixture) == 1 else mixture.long()


def chunks(rows: int) -> Iterator[slice]:
    """Slices of at most `CHUNK` rows."""
    return (slice(start, start + CHUNK) for start in range(0, rows, CHUNK))


def pages_of(ranks: Iterable[int]) -> int:
    """The number of pages for the largest of some ranks."""
    return -(-max(ranks, default=0) // PAGE)
