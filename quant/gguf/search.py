"""The search for the scales with the least squared error of a group of weights.

In every ggml format w = scale q - minimum for the weights of a group, with codes q of a few
levels; in a K format scale = d s and minimum = m t, with low-bit integers s and t for each group
and d and m for the block. Codes follow from the rest (`Levels.nearest`), and for given codes the
best scale and minimum are a least squares fit. So the search tries many starting points, fits each,
and keeps the best; d and s are found from the scales in the same way, m and t from the minima; in
the end each group tries the neighbours of its integers.

Weights are [n, groups, blocks], the n of a group first: sums over a group then run along whole
vectors. Importances w, of the same shape or None, weight each square.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from ostro.quant.gguf.schemes import Levels, Scheme

TINY = 2.0**-40
"""Groups below this fraction of the largest weight of their block count as zero."""

FEW = 8
"""Starting points that are fitted together."""

REFITS = 2
"""How often the best fit becomes a starting point itself."""

BEYOND_SCALES = (-1, -0.5, 0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5)
"""`Scheme.beyond` for the integers of scales."""


class Fit(NamedTuple):
    """Scales and minima of groups, and the squared errors that they leave; all of one shape."""

    error: Tensor
    scale: Tensor
    minimum: Tensor


class Found(NamedTuple):
    """d and m [blocks], s and t [groups, blocks], float32; m t is 0 where there are no minima."""

    d: Tensor
    s: Tensor
    m: Tensor
    t: Tensor

    def scaled(self) -> tuple[Tensor, Tensor]:
        """The groups' scales and minima."""
        return self.d * self.s, self.m * self.t


def search(x: Tensor, w: Tensor | None, unit: Tensor, scheme: Scheme) -> tuple[Found, Tensor]:
    """Find d, s, m, t of blocks, and their codes.

    x, float32 [n, groups, blocks], and what is found are in units of the blocks' `unit` [blocks],
    powers of two near their largest weights: then squares neither overflow nor vanish.
    """
    block = Block(x, w, unit, scheme)
    found = block.one_group() if scheme.scales is None else block.many_groups(scheme.scales)
    return found, block.group.codes(*found.scaled())[0]


class Group:
    """Weights x [n, ...], of which each n share a scale and perhaps a minimum."""

    def __init__(self, x: Tensor, w: Tensor | None, scheme: Scheme) -> None:
        self.x, self.w, self.scheme = x, w, scheme
        self.minima = scheme.minimum != "none"
        self.total = x.new_full(x.shape[1:], len(x)) if w is None else w.sum(0)
        # All results go to the same buffers: allocating memory costs more than arithmetic.
        self.q, self.r, self.wq, self.wr, self.product = x.new_empty(5, *x.shape)

    def fit(self) -> Fit:
        """The best of all starting points, and of what follows from it."""
        starts = self.starts()
        best = self.best(*next(starts))
        for start in starts:
            best = better(best, self.best(*start))
        for _ in range(REFITS):
            inverse = 1 / torch.where(best.scale.abs() < TINY, TINY, best.scale)[None]
            best = better(best, self.best(inverse, best.minimum * inverse))
        return best

    def starts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """1 / scale and minimum / scale of starting points, [FEW or less, ...] at a time."""
        levels, beyond = self.scheme.levels, self.scheme.beyond
        if self.minima:
            high, low = self.x.amax(0), self.x.amin(0)
            low = low if self.scheme.minimum == "any" else low.clamp(max=0)
            width = (high - low).clamp(min=TINY)
            for few in column(product(beyond, beyond), like=low).split(FEW):
                below, above = few.unbind(-1)
                inverse = (levels.last + below + above) / width
                yield inverse, -low * inverse - below
        else:
            largest = self.largest()
            places = (end + (b if end > 0 else -b) for end, b in product(levels.ends, beyond))
            for few in column(places, like=largest).split(FEW):
                inverse = few / largest
                yield inverse, torch.zeros_like(inverse)

    def largest(self) -> Tensor:
        """Of each group the weight farthest from 0: its size, where the levels have no sides."""
        high, low = self.x.amax(0), self.x.amin(0)
        largest = torch.where(high > -low, high, low)
        largest = largest.abs() if len(self.scheme.levels.ends) == 1 else largest
        return torch.where(largest.abs() < TINY, TINY, largest)

    def best(self, inverse: Tensor, shift: Tensor) -> Fit:
        """The best of the least squares fits for the codes nearest to y = inverse x + shift.

        inverse, shift: [starts, ...]. What is fitted, a q + b, is what rounding leaves of y: small
        numbers, so that float32 tells errors apart which are a millionth of the squares of y.
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
        return Fit(*least(error / inverse.square(), (1 + a) / inverse, (shift - b) / inverse))

    def sums(self, inverse: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        """`products` of the codes nearest to y = inverse x + shift."""
        if self.minima:
            y = torch.addcmul(shift, self.x, inverse, out=self.r)
        else:
            y = torch.mul(self.x, inverse, out=self.r)
        q = self.scheme.levels.nearest(y, out=self.q)
        return self.products(q, y.sub_(q))

    def products(self, q: Tensor, r: Tensor) -> tuple[Tensor, ...]:
        """Weighted sums over each group: r r, q r, q q, and where there are minima q and r."""
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
        """The squared error that the nearest codes leave of each group."""
        _, r = self.codes(scale, minimum)
        return torch.mul(self.weighted(r, self.wr), r, out=self.product).sum(0)

    def weighted(self, x: Tensor, out: Tensor) -> Tensor:
        return x if self.w is None else torch.mul(x, self.w, out=out)


class Block:
    """The groups of blocks, whose scales are to be stored."""

    def __init__(self, x: Tensor, w: Tensor | None, unit: Tensor, scheme: Scheme) -> None:
        self.group, self.unit, self.scheme = Group(x, w, scheme), unit, scheme

    def stored(self, d: Tensor) -> list[Tensor]:
        """Numbers near d that a file can hold."""
        return [each / self.unit for each in self.scheme.stored(d * self.unit)]

    def one_group(self) -> Found:
        """d and m are the group's own scale and minimum, as near as they can be stored."""
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

    def many_groups(self, levels: Levels) -> Found:
        """Round the scales and minima to integers, then try their neighbours."""
        fit = self.group.fit()
        q, r = self.group.codes(fit.scale, fit.minimum)
        _, _, qq, *_ = self.group.products(q, r)
        d, s = self.integers(fit.scale, qq, levels)
        m, t = torch.zeros_like(d), torch.zeros_like(s)
        if self.group.minima:
            m, t = self.integers(fit.minimum, self.group.total, levels)
        found = Found(d, s, m, t)
        return self.better(found, self.refit(self.moved(found, levels)))

    def integers(self, scale: Tensor, weight: Tensor, levels: Levels) -> tuple[Tensor, Tensor]:
        """Scales [groups, blocks] as a number [blocks] times integers."""
        fit = Group(scale, weight, Scheme(levels=levels, beyond=BEYOND_SCALES)).fit()
        d = self.stored(fit.scale)[-1]
        return d, levels.nearest(scale * reciprocal(d))

    def moved(self, found: Found, levels: Levels) -> Found:
        """Each group takes those neighbours of its integers that leave the least error."""
        steps = (-1, 0, 1)
        near = column(product(steps, steps if self.group.minima else (0,)), like=found.s)
        s, t = (
            (integer + step).clamp_(levels.first, levels.last)
            for integer, step in zip((found.s, found.t), near.unbind(-1), strict=True)
        )
        pairs = zip(found.d * s, found.m * t, strict=True)
        _, s, t = least(torch.stack([self.group.error(*pair) for pair in pairs]), s, t)
        return found._replace(s=s, t=t)

    def refit(self, found: Found) -> Found:
        """The least squares d and m for the integers and codes at hand."""
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
    return Fit(*least(*(torch.stack(pair) for pair in zip(one, other, strict=True))))


def least(error: Tensor, *others: Tensor) -> list[Tensor]:
    """The least of [choices, ...] errors, and what the others have in its place."""
    found, at = error.min(0, keepdim=True)
    return [found[0], *(other.gather(0, at)[0] for other in others)]


def column(numbers: Iterable[object], like: Tensor) -> Tensor:
    """Numbers, or tuples of them, as [numbers, 1, ..., tuple], to go with `like`."""
    values = torch.tensor(list(numbers), dtype=like.dtype, device=like.device)
    return values.view(len(values), *[1] * like.dim(), *values.shape[1:])


def reciprocal(x: Tensor) -> Tensor:
    """1 / x, and 0 of 0."""
    return torch.where(x == 0, x, 1 / x)


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0."""
    return a * reciprocal(b)


def solve(aa: Tensor, ab: Tensor, bb: Tensor, ay: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
    """The least squares u, v of y = u a + v b from sums of products; u is 0 if a and b are one."""
    determinant = aa * bb - ab * ab
    sound = determinant > 1e-6 * aa * bb
    by_determinant = reciprocal(determinant * sound)
    u = (ay * bb - by * ab) * by_determinant
    v = torch.where(sound, (by * aa - ay * ab) * by_determinant, ratio(by, bb))
    return u, v
