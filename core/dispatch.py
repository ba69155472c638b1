"""The base of torch dispatch modes, which see the operations that a thread runs."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """A dispatch mode that does not import torch._dynamo."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would import torch._dynamo at the first operation: as long as all of torch takes.
        return False
