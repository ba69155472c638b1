"""Data parallelism on one machine: processes of one thread each, gradients averaged."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

PROCESSES = 2


def spawn(name: str, out: Path, processes: int, work: Callable[..., None], *args: Any) -> None:
    """Run `work(rank, *args)` in so many processes of one group, and wait for them."""
    # a file of an interrupted run would make the processes wait for its peers
    rendezvous = out.resolve() / f"{name}.rendezvous"
    rendezvous.unlink(missing_ok=True)
    mp.spawn(_start, (rendezvous, processes, work, args), nprocs=processes)  # type: ignore[attr-defined,no-untyped-call]


def _start(
    rank: int, rendezvous: Path, processes: int, work: Callable[..., None], args: tuple[Any, ...]
) -> None:
    # the processes are the parallelism, one core each
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=processes
    )
    work(rank, *args)
    dist.destroy_process_group()


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace each gradient by its mean over the processes, with one all-reduce."""
    if not dist.is_initialized():
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
