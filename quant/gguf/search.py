"""Search for the scales with the least squared error of a group of weights.

In every ggml format w = scale * q - minimum for the weights of a group, with codes q of a few
levels. In a K format scale = d s and minimum = m t, with low-bit integers s and t per group, and d
and m per block. The nearest codes follow from scale and minimum (`Levels.nearest`), and for given
codes the best scale and minimum are a least squares fit. The search fits many starting points and
keeps the best. It determines d and s from the scales in the same way, and m and t from the minima;
finally each group tries the neighbours of its integers.

Weights are [n, groups, blocks], with the n weights of a group first, so that sums over a group are
vectorized. Importances w, of the same shape or None, weight each squared error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from ostro.quant.gguf.schemes import Levels, Scheme

TINY = 2.0**-40
"""Groups below this fraction of the largest weight of their block are treated as zero."""

BATCH = 8
"""Starting points that are fitted together."""

REFITS = 2
"""How often the best fit is used as a starting point again."""

BEYOND_SCALES = (-1, -0.5, 0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5)
"""`Scheme.beyond` for the integers of scales."""


class Fit(NamedTuple):
    """Scales and minima of groups, and their squared errors; all of the same shape."""

    error: Tensor
    scale: Tensor
    minimum: Tensor


class Found(NamedTuple):
    """d and m [blocks], s and t [groups, blocks], float32; m t is 0 in formats without minima."""

    d: Tensor
    s: Tensor
    m: Tensor
    t: Tensor

    def scaled(self) -> tuple[Tensor, Tensor]:
        """The groups' scales and minima."""
        return self.d * self.s, self.m * self.t


def search(x: Tensor, w: Tensor | None, unit: Tensor, scheme: Scheme) -> tuple[Found, Tensor]:
    """Find d, s, m, t of blocks, and their codes.

    x, float32 [n, groups, blocks], and the results are in units of `unit` [blocks], powers of two
    near the largest weights, so that squares neither overflow nor underflow.
    """
    block = Block(x, w, unit, scheme)
    found = block.fit_single_group() if scheme.scales is None else block.fit_groups(scheme.scales)
    return found, block.group.codes(*found.scaled())[0]


class Group:
    """Weights x [n, ...]; each n weights share a scale and, in some formats, a minimum."""

    def __init__(self, x: Tensor, w: Tensor | None, scheme: Scheme) -> None:
        self.x, self.w, self.scheme = x, w, scheme
        self.minima = scheme.minimum != "none"
        self.total = x.new_full(x.shape[1:], len(x)) if w is None else w.sum(0)
        # Reuse buffers: allocating memory is slower than the arithmetic.
        self.q, self.r, self.wq, self.wr, self.product = x.new_empty(5, *x.shape)

    def fit(self) -> Fit:
        """The best fit of all starting points and refits."""
        starts = self.starts()
        best = self.best(*next(starts))
        for start in starts:
            best = better(best, self.best(*start))
        for _ in range(REFITS):
            inverse = 1 / torch.where(best.scale.abs() < TINY, TINY, best.scale)[None]
            best = better(best, self.best(inverse, best.minimum * inverse))
        return best

    def starts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """1 / scale and minimum / scale of starting points, [BATCH or less, ...] at a time."""
        levels, beyond = self.scheme.levels, self.scheme.beyond
        if self.minima:
            high, low = self.x.amax(0), self.x.amin(0)
            low = low if self.scheme.minimum == "any" else low.clamp(max=0)
            width = (high - low).clamp(min=TINY)
            for batch in broadcastable(product(beyond, beyond), like=low).split(BATCH):
                below, above = batch.unbind(-1)
                inverse = (levels.last + below + above) / width
                yield inverse, -low * inverse - below
        else:
            largest = self.largest()
            targets = (end + (b if end > 0 else -b) for end, b in product(levels.ends, beyond))
            for batch in broadcastable(targets, like=largest).split(BATCH):
                inverse = batch / largest
                yield inverse, torch.zeros_like(inverse)

    def largest(self) -> Tensor:
        """The weight with the largest magnitude per group; its magnitude for symmetric levels."""
        high, low = self.x.amax(0), self.x.amin(0)
        largest = torch.where(high > -low, high, low)
        largest = largest.abs() if len(self.scheme.levels.ends) == 1 else largest
        return torch.where(largest.abs() < TINY, TINY, largest)

    def best(self, inverse: Tensor, shift: Tensor) -> Fit:
        """The best least squares fit for the codes nearest to y = inverse x + shift.

        inverse, shift: [starts, ...]. The fit a q + b is applied to the rounding residual of y: its
        values are small, so that float32 resolves errors of a millionth of the squares of y.
        """
        sums = [self.sums(*start) for start in zip(inverse, shift, strict=True)]
        rr, qr, qq, *rest = (torch.stack(each) for each in zip(*sums, strict=True))
        if self.minima:
            q1, r1 = rest
            a, b = solve(qq, q1, self.total, qr, r1)
            if self.scheme.minimum == "positive":
                a = torch.where(b > shift, ratio(qr - shift * q1, qq), a)
                b = torch.minimum(b, shift)
            error = rr + a * (a * qq - 2 * qr) + b * (b * self.total - 2 * r1) + 2 * a * b * q1
        else:
            a, b = ratio(qr, qq), shift
            error = rr - a * qr
        return Fit(*take_best(error / inverse.square(), (1 + a) / inverse, (shift - b) / inverse))

    def sums(self, inverse: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        """`products` of the codes nearest to y = inverse x + shift."""
        if self.minima:
            y = torch.addcmul(shift, self.x, inverse, out=self.r)
        else:
            y = torch.mul(self.x, inverse, out=self.r)
        q = self.scheme.levels.nearest(y, out=self.q)
        return self.products(q, y.sub_(q))

    def products(self, q: Tensor, r: Tensor) -> tuple[Tensor, ...]:
        """Weighted sums over each group of r r, q r, q q, and in formats with minima of q and r."""
        wq, wr = self.weighted(q, self.wq), self.weighted(r, self.wr)
        rr, qr, qq = (
            torch.mul(a, b, out=self.product).sum(0) for a, b in ((wr, r), (wq, r), (wq, q))
        )
        return (rr, qr, qq, wq.sum(0), wr.sum(0)) if self.minima else (rr, qr, qq)

    def codes(self, scale: Tensor, minimum: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest codes and their errors; valid until the next call."""
        x = torch.add(self.x, minimum, out=self.r) if self.minima else self.x
        y = torch.mul(x, reciprocal(scale), out=self.product)
        q = self.scheme.levels.nearest(y, out=self.q)
        return q, torch.addcmul(x, q, scale, value=-1, out=self.r)

    def error(self, scale: Tensor, minimum: Tensor) -> Tensor:
        """The squared error of each group with the nearest codes."""
        _, r = self.codes(scale, minimum)
        return torch.mul(self.weighted(r, self.wr), r, out=self.product).sum(0)

    def weighted(self, x: Tensor, out: Tensor) -> Tensor:
        return x if self.w is None else torch.mul(x, self.w, out=out)


class Block:
    """The groups of blocks, with scales rounded to the values that a file can store."""

    def __init__(self, x: Tensor, w: Tensor | None, unit: Tensor, scheme: Scheme) -> None:
        self.group, self.unit, self.scheme = Group(x, w, scheme), unit, scheme

    def stored(self, d: Tensor) -> list[Tensor]:
        """Values near d that a file can store."""
        return [each / self.unit for each in self.scheme.stored(d * self.unit)]

    def fit_single_group(self) -> Found:
        """Fit blocks of one group: d and m are its scale and minimum, rounded for the file."""
        group, fit = self.group, self.group.fit()
        scales = [fit.scale]
        if not group.minima:
            # Exact for a constant block, where the fit may need a scale that cannot be stored.
            scales.append(group.largest() / self.scheme.levels.ends[0])
        one, best = torch.ones_like(fit.scale), None
        for d in (near for scale in scales for near in self.stored(scale[0])):
            minima = [torch.zeros_like(d)]
            if group.minima:
                *_, r1 = group.products(*group.codes(d[None], fit.minimum))
                minima = self.stored(fit.minimum[0] - (r1 / group.total)[0])
            for m in minima:
                found = Found(d, one, m, one)
                best = found if best is None else self.better(best, found)
        assert best is not None
        return best

    def fit_groups(self, levels: Levels) -> Found:
        """Fit blocks of several groups: round scales and minima to integers, then refine them."""
        fit = self.group.fit()
        q, r = self.group.codes(fit.scale, fit.minimum)
        _, _, qq, *_ = self.group.products(q, r)
        d, s = self.integers(fit.scale, qq, levels)
        m, t = torch.zeros_like(d), torch.zeros_like(s)
        if self.group.minima:
            m, t = self.integers(fit.minimum, self.group.total, levels)
        found = Found(d, s, m, t)
        return self.better(found, self.refit(self.refine_integers(found, levels)))

    def integers(self, scale: Tensor, weight: Tensor, levels: Levels) -> tuple[Tensor, Tensor]:
        """Factor scales [groups, blocks] into a value [blocks] times integers."""
        fit = Group(scale, weight, Scheme(levels=levels, beyond=BEYOND_SCALES)).fit()
        d = self.stored(fit.scale)[-1]
        return d, levels.nearest(scale * reciprocal(d))

    def refine_integers(self, found: Found, levels: Levels) -> Found:
        """Replace the integers of each group by the neighbours with the least error."""
        steps = (-1, 0, 1)
        near = broadcastable(product(steps, steps if self.group.minima else (0,)), like=found.s)
        s, t = (
            (integer + step).clamp_(levels.first, levels.last)
            for integer, step in zip((found.s, found.t), near.unbind(-1), strict=True)
        )
        pairs = zip(found.d * s, found.m * t, strict=True)
        _, s, t = take_best(torch.stack([self.group.error(*pair) for pair in pairs]), s, t)
        return found._replace(s=s, t=t)

    def refit(self, found: Found) -> Found:
        """Least squares d and m for given integers and codes."""
        d, s, m, t = found
        _, qr, qq, *rest = self.group.products(*self.group.codes(*found.scaled()))
        ss, sr = (s * s * qq).sum(0), (s * qr).sum(0)
        if not self.group.minima:
            return found._replace(d=self.stored(d + ratio(sr, ss))[-1])
        q1, r1 = rest
        st, tt, tr = (s * t * q1).sum(0), (t * t * self.group.total).sum(0), (t * r1).sum(0)
        more_d, less_m = solve(ss, st, tt, sr, tr)
        return Found(self.stored(d + more_d)[-1], s, self.stored(m - less_m)[-1], t)

    def better(self, one: Found, other: Found) -> Found:
        """The better of two results for each block."""
        errors = [self.group.error(*found.scaled()).sum(0) for found in (one, other)]
        wins = errors[1] < errors[0]
        return Found(*(torch.where(wins, new, old) for old, new in zip(one, other, strict=True)))


def better(one: Fit, other: Fit) -> Fit:
    """The better of two fits for each group."""
    return Fit(*take_best(*(torch.stack(pair) for pair in zip(one, other, strict=True))))


def take_best(error: Tensor, *others: Tensor) -> list[Tensor]:
    """The least error of [choices, ...], and the values of `others` for the same choice."""
    found, at = error.min(0, keepdim=True)
    return [found[0], *(other.gather(0, at)[0] for other in others)]


def broadcastable(numbers: Iterable[object], like: Tensor) -> Tensor:
    """Values, or tuples of values, as a tensor [values, 1, ..., tuple] to broadcast to `like`."""
    values = torch.tensor(list(numbers), dtype=like.dtype, device=like.device)
    return values.view(len(values), *[1] * like.dim(), *values.shape[1:])


def reciprocal(x: Tensor) -> Tensor:
    """1 / x, and 0 for x = 0."""
    return torch.where(x == 0, x, 1 / x)


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0."""
    return a * reciprocal(b)


def solve(aa: Tensor, ab: Tensor, bb: Tensor, ay: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
    """Least squares u, v of y = u a + v b from sums of products; u is 0 if a and b are parallel."""
    determinant = aa * bb - ab * ab
    valid = determinant > 1e-6 * aa * bb
    by_determinant = reciprocal(determinant * valid)
    u = (ay * bb - by * ab) * by_determinant
    v = torch.where(valid, (by * aa - ay * ab) * by_determinant, ratio(by, bb))
    return u, v
