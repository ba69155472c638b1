"""Select the kernel of each operation, once, at load, with the reason for the choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ostro.core.errors import Unsupported
from ostro.core.records import Import, resolve


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One implementation of an operation.

    `fits(facts)` checks shapes known at load ("head_dim": 128, ...). `quantizes_activations` marks
    a kernel that quantizes its inputs, which an exact target rejects. `layout` is a type that
    converts a weight to the kernel's layout: a storage creates it once and passes it to the kernel
    instead of the weight.
    """

    name: str
    call: Import
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[torch.dtype, ...] | None = None
    deterministic: bool = False
    quantizes_activations: bool = False
    layout: Import | None = None
    fits: Callable[[Mapping[str, Any]], bool] | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A selected kernel and the reason; `ostro inspect --explain` prints it."""

    op: str
    kernel: Kernel
    reason: str


@dataclass(frozen=True, kw_only=True)
class Target:
    """The device, dtype and guarantees for which kernels are selected."""

    device: torch.device
    dtype: torch.dtype
    deterministic: bool = False
    exact: bool = False
    only: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class Op:
    """An operation of a module: runs its naive kernel until `select` chooses another.

    `kernels` are in order of preference, the naive kernel last. `facts` are shapes known when the
    module is built, the input of a kernel's `fits`.
    """

    def __init__(self, kernels: tuple[Kernel, ...], **facts: Any) -> None:
        self.kernels = kernels
        self.facts = facts
        self.kernel: Callable[..., Any] = resolve(kernels[-1].call)

    @property
    def name(self) -> str:
        return self.kernels[0].call.rpartition(":")[2]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kernel(*args, **kwargs)

    def select(self, target: Target) -> Choice:
        """Select the first kernel that fits the target. Raises Unsupported if there is none."""
        refused = []
        for kernel in [k for k in self.kernels if target.device.type in k.devices]:
            if reason := refusal(kernel, target, self.facts):
                refused.append(f"{kernel.name}: {reason}")
                continue
            try:  # the import fails if Triton or a C++ compiler is not installed
                self.kernel = resolve(kernel.call)
            except ImportError as error:
                refused.append(f"{kernel.name}: {error}")
                continue
            why = "first choice" if not refused else "; ".join(refused)
            return Choice(op=self.name, kernel=kernel, reason=why)
        raise Unsupported(
            f"{self.name}: no kernel for {target.dtype} on {target.device.type} "
            f"({'; '.join(refused)}); try another --dtype or --device"
        )


class Fused(Op):
    """A fused operation that replaces several operations if one of its kernels fits.

    The last kernel is the naive reference, which only tests run. If no other kernel fits, `on` is
    False and the module runs the separate operations.
    """

    on = False

    def select(self, target: Target) -> Choice:
        # Select among the fused kernels only: the naive reference, the last kernel, is left out.
        fused = Op.__new__(Op)
        fused.kernels, fused.facts = self.kernels[:-1], self.facts
        try:
            choice = fused.select(target)
        except Unsupported as error:
            self.on = False
            plain = Kernel(name="plain composition", call=self.kernels[-1].call)
            return Choice(op=self.name, kernel=plain, reason=str(error))
        self.kernel, self.on = fused.kernel, True
        return Choice(op=self.name, kernel=choice.kernel, reason=choice.reason)


def refusal(kernel: Kernel, target: Target, facts: Mapping[str, Any]) -> str | None:
    """Return why a kernel does not fit a target, or None if it fits."""
    if target.only not in (None, kernel.name):
        return f"only {target.only} is allowed"
    if target.device.type not in kernel.devices:
        return f"not for {target.device.type}"
    if kernel.dtypes is not None and target.dtype not in kernel.dtypes:
        return f"not for {target.dtype}"
    if target.deterministic and not kernel.deterministic:
        return "not deterministic"
    if target.exact and kernel.quantizes_activations:
        return "quantizes activations to 8 bits"
    if kernel.fits is not None and not kernel.fits({**facts, **target.facts}):
        return "shape does not fit"
    return None
