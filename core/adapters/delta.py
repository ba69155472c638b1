"""Pages: where the factors of adapters lie on the device, beside the linears that they change.

A page is sixteen rank rows, the same numbers in every table; an adapter of rank 40 takes three,
a mixture is nothing but the pages of all its adapters. A table is made when the first adapter
touches its module, and is filled in place ever after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ostro.core.adapters.mixture_table import MixtureTable
from ostro.core.adapters.targets import Place
from ostro.core.adapters.weights import LowRank
from ostro.core.cache import zeros
from ostro.core.nn import Embedding, Linear, Storage
from ostro.core.nn.experts import ExpertLinear
from ostro.core.ops import Op, Target, lora
from ostro.core.step import Step

PAGE = 16
"""Rank rows of a page: what one tile of tensor cores takes."""

CHUNK = 64
"""Rows whose factors are gathered at a time where heads are multiplied one by one."""

Adaptable = Linear | Embedding | ExpertLinear
"""Modules whose weights adapters change."""

Factors = Mapping[Place, LowRank]
Filled = tuple[Tensor, Tensor]
"""Pages of A [pages, experts, parts, 16, k] and of B [pages, experts, 16, n]."""


class AdapterDelta:
    """The pages of one module: its delta.

    a [pages * experts, parts, 16, k], b [pages * experts, 16, n]; an embedding's b has a column for
    each token. `gains` [slots, 5, n] float32 are magnitude, two norms, bias of B, and what is added
    to the base's own bias, of the adapters that have some; `lengths` [n] are the squared norms of
    the base's rows; `whole` storages by slot.
    """

    def __init__(
        self,
        module: Adaptable,
        index: int,
        pages: int,
        slots: int,
        sheet: MixtureTable,
        target: Target,
    ) -> None:
        """`index` numbers the tables of a model; `target` says where the module computes, and
        `sheet` is the mixture table there.
        """
        self.module, self.index, self.sheet, self.slots = module, index, sheet, slots
        self.parts, self.experts, self.n, self.k = shape_of(module)
        self.widths = tuple(self.parts.values())
        self.device, self.dtype = target.device, target.dtype
        count = pages * self.experts
        self.a = zeros(count, len(self.parts), PAGE, self.k, dtype=self.dtype, device=self.device)
        self.b = zeros(count, PAGE, self.n, dtype=self.dtype, device=self.device)
        self.gains: Tensor | None = None
        self.lengths: Tensor | None = None
        self.whole: dict[int, Storage] = {}
        self.dirty: set[int] = set()
        self.heard = False  # since somebody last asked
        self.times = Op(lora.KERNELS)
        self.times.select(target)

    # What a linear calls

    def matmul(self, x: Tensor, y: Tensor, step: Step) -> Tensor:
        """x [..., k], y [..., n] -> y, changed."""
        if step.mixture is None:
            return y
        self.change(x.reshape(-1, self.k), y.view(-1, self.n), step.mixture)
        return y

    def grouped(self, x: Tensor, y: Tensor, expert_of_row: Tensor, step: Step) -> Tensor:
        """x [t, k], y [t, n], expert_of_row [t] -> y, changed."""
        if step.mixture is not None:
            self.heard = True
            self.add(x, y, step.mixture, self.sheet.of(self.index), expert_of_row)
        return y

    def rows(self, ids: Tensor, y: Tensor, step: Step) -> Tensor:
        """ids [t], y [t, d] -> y, changed: the rows of B A that the tokens name."""
        if step.mixture is None:
            return y
        self.heard, mixture = True, self.spread(step.mixture, len(ids))
        for slot, storage in self.whole.items():
            mine = (self.sheet.slots[mixture] == slot).any(-1)
            y = torch.where(mine[:, None], storage.rows(ids), y)
        total = y.float()
        for here, scale, _ in self.each(mixture, slice(None), None):
            h = self.b[here, :, ids].float() * scale[:, None]
            total = total + torch.einsum("tr,trk->tk", h, self.a[here, 0].float())
        return total.to(y.dtype)

    def matmul_t(self, x: Tensor, y: Tensor, step: Step) -> Tensor:
        """x [t, h, n/h], y [t, h, k] -> [t, h, k]."""
        if step.mixture is None:
            return y
        self.heard, mixture = True, self.spread(step.mixture, len(x))
        gains = self.gains_of(mixture)
        if gains is not None:
            assert isinstance(self.module, Linear), f"{self.module = } has heads"
            whole = 1 + (gains - 1).sum(0)
            y = self.module.whole.matmul_t((x * whole.view_as(x)).to(x.dtype))
        out = []
        for rows in chunks(len(x)):
            total = y[rows].float()
            for here, scale, gain in self.each(mixture[rows], rows, gains):
                left = x[rows].float() * (1 if gain is None else gain.view(x[rows].shape))
                b = self.b[here].float().unflatten(-1, (x.shape[1], -1))
                h = torch.einsum("thc,trhc->thr", left, b) * scale[:, None, None]
                total = total + torch.einsum("thr,trk->thk", h, self.a[here, 0].float())
            out.append(total.to(y.dtype))
        return torch.cat(out)

    def matmul_h(self, x: Tensor, y: Tensor, step: Step) -> Tensor:
        """x [t, h, k], y [t, h, n/h] -> [t, h, n/h]."""
        if step.mixture is None:
            return y
        self.heard, mixture = True, self.spread(step.mixture, len(x))
        gains, out = self.gains_of(mixture), []
        for rows in chunks(len(x)):
            total = y[rows].float()
            if gains is not None:
                total = total * (1 + (gains[:, rows] - 1).sum(0)).view(total.shape)
            for here, scale, gain in self.each(mixture[rows], rows, gains):
                h = torch.einsum("thk,trk->thr", x[rows].float(), self.a[here, 0].float())
                b = self.b[here].float().unflatten(-1, (x.shape[1], -1))
                part = torch.einsum("thr,trhc->thc", h * scale[:, None, None], b)
                total = total + (part if gain is None else part * gain.view(part.shape))
            out.append(total.to(y.dtype))
        return torch.cat(out)

    def each(
        self, mixture: Tensor, rows: slice, gains: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Of each page of these rows: which it is [t], its scale [t], 0 for none, and the gain
        [t, n] of the adapter that it belongs to.
        """
        table, scales = self.sheet, self.sheet.of(self.index)
        for j in range(table.width):
            page = table.pages[mixture, j].long()
            gain = None
            if gains is not None:
                mine, owner = gains[:, rows], table.owners[mixture, j].long()
                stack = torch.cat((mine, torch.ones_like(mine[:1])))
                gain = stack[owner % len(stack), torch.arange(len(page), device=page.device)]
            yield page.clamp(min=0), scales[mixture, j] * (page >= 0), gain

    # How

    def add(
        self, x: Tensor, y: Tensor, mixture: Tensor, scales: Tensor, expert: Tensor | None = None
    ) -> None:
        """y += what the pages make of x, in place."""
        pages = self.sheet.pages
        self.times(x, y, self.a, self.b, self.widths, pages, scales, mixture, expert, self.experts)

    def change(self, x: Tensor, y: Tensor, mixture: Tensor) -> None:
        """The whole algebra on rows x [t, k] and y [t, n], in place."""
        self.heard, table = True, self.sheet
        for slot, storage in self.whole.items():
            mine = (table.slots[mixture] == slot).any(-1)[:, None]
            y.copy_(torch.where(mine, storage.matmul(x), y))
        scales = table.of(self.index)
        if self.gains is None or self.lengths is None:
            self.add(x, y, mixture, scales)
            return
        # DoRA multiplies base and delta by a gain of its own, so each adapter's part is needed
        # alone: first the pages without a special slot, then those of one slot after the other.
        base, many = y.to(torch.float32, copy=True), self.spread(mixture, len(y))
        self.add(x, y, mixture, scales * (table.owners < 0))
        total, gains = y.float(), self.gains_of(many)
        assert gains is not None, "there are lengths"
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
        """DoRA's gains [SPECIAL, t, n] of rows: the length that a row of W + s B A shall have, by
        the one that it has, whatever s is; 1 where an adapter has none. None where nobody has any.
        """
        if self.gains is None or self.lengths is None:
            return None
        slot = self.sheet.slots[mixture].long().t()
        strength = self.sheet.strengths[mixture].t()[..., None]
        magnitude, n1, n2 = self.gains[slot.clamp(min=0)][..., :3, :].unbind(2)
        length = self.lengths + 2 * strength * n1 + strength * strength * n2
        gained = (slot >= 0)[..., None] & (magnitude != 0)
        return torch.where(gained, magnitude * length.rsqrt(), 1.0)

    def spread(self, mixture: Tensor, rows: int) -> Tensor:
        """The mixture of each of so many rows, int64."""
        return mixture.long().expand(rows) if len(mixture) == 1 else mixture.long()

    # Filling

    def prepare(self, factors: Factors, pages: int, sets: int) -> Filled:
        """The pages of an adapter's factors, on the host. With `sets` the parts lie apart, each in
        a set of pages of its own, so that each can have a scale of its own.
        """
        a = torch.zeros(pages, self.experts, len(self.parts), PAGE, self.k, dtype=self.dtype)
        b = torch.zeros(pages, self.experts, PAGE, self.n, dtype=self.dtype)
        for (part, expert), each in factors.items():
            number, columns = list(self.parts).index(part), self.columns(part)
            first = number * (pages // sets) if sets > 1 else 0
            for i, start in enumerate(range(0, each.rank, PAGE), first):
                down, up = each.a[start : start + PAGE], each.b[:, start : start + PAGE]
                a[i, expert, number, : len(down)] = down
                b[i, expert, : len(down), columns] = (each.scale * up.float()).t()
        return (a.pin_memory(), b.pin_memory()) if self.device.type == "cuda" else (a, b)

    def fill(self, pages: Sequence[int], filled: Filled | None) -> None:
        """Write an adapter's pages, or wipe them where it has none here."""
        if filled is None:
            for page in self.dirty.intersection(pages):
                rows = slice(page * self.experts, (page + 1) * self.experts)
                self.a[rows], self.b[rows] = 0, 0
            self.dirty.difference_update(pages)
            return
        # Before the copies: where one of them fails, the pages are wiped for their next adapter.
        self.dirty.update(pages)
        for page, a, b in zip(pages, *filled, strict=True):
            rows = slice(page * self.experts, (page + 1) * self.experts)
            self.a[rows].copy_(a, non_blocking=True)
            self.b[rows].copy_(b, non_blocking=True)

    def columns(self, part: str) -> slice:
        """Which columns of y belong to a part."""
        start = 0
        for name, width in self.parts.items():
            if name == part:
                return slice(start, start + width)
            start += width
        raise KeyError(part)

    def measure(self, factors: Factors, biases: Mapping[str, Tensor]) -> Tensor:
        """The gains [5, n] float32 of an adapter: magnitude, its rows with W, its own, biases."""
        out = torch.zeros(5, self.n, device=self.device)
        for (part, _), each in factors.items():
            here = self.columns(part)
            if each.bias is not None:
                out[3, here] = each.scale * each.bias.to(out)
            if each.magnitude is None:
                continue
            a, b = each.a.to(out), each.scale * each.b.to(out)
            seen = self.base(a)[:, here].t()
            out[0, here] = each.magnitude.to(out)
            out[1, here] = (b * seen).sum(-1)
            out[2, here] = ((b @ (a @ a.t())) * b).sum(-1)
        for part, bias in biases.items():
            here, module = self.columns(part), self.module
            assert isinstance(module, Linear) and module.bias is not None, f"{part = } has a bias"
            out[4, here] = bias.to(out) - module.bias[here].float()
        return out

    def base(self, x: Tensor) -> Tensor:
        """x [r, k] -> [r, n] float32 by the base's weights alone."""
        held = self.module.held
        return torch.cat([s.matmul(x.to(s.dtype)).float() for s in held], -1)

    def gain(self, slot: int, gains: Tensor) -> None:
        """Put an adapter's gains in their slot."""
        if self.gains is None or self.lengths is None:
            lengths = [storage.row_norms_sq().to(self.device) for storage in self.module.held]
            self.gains, self.lengths = (
                torch.zeros(self.slots, 5, self.n, device=self.device),
                torch.cat(lengths),
            )
        self.gains[slot] = gains

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        held = [self.a, self.b, self.gains, self.lengths]
        own = sum(tensor.nbytes for tensor in held if tensor is not None)
        return own + sum(storage.nbytes for storage in self.whole.values())


def shape_of(module: Adaptable) -> tuple[Mapping[str, int], int, int, int]:
    """Its parts, experts, rows n and columns k."""
    if isinstance(module, Linear):
        n, k = module.weight_shape
        return module.parts, 1, n, k
    if isinstance(module, ExpertLinear):
        return module.parts, module.experts, module.n_out, module.n_in
    return {"": module.n}, 1, module.n, module.d


def chunks(rows: int) -> Iterator[slice]:
    """So many rows, a few at a time."""
    return (slice(start, start + CHUNK) for start in range(0, rows, CHUNK))


def pages_of(ranks: Iterable[int]) -> int:
    """Pages for the largest of some ranks."""
    return -(-max(ranks, default=0) // PAGE)
