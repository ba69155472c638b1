"""A plugin with one logits processor, which raises if a request's parameter selects an error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ostro.core.engine.processors import AddedRequest
from ostro.core.hooks import hookimpl
from ostro.core.records import LogitsProcessor
from ostro.core.tokenizer.vocabulary import Vocabulary

ERRORS = {
    "check": lambda: KeyError("no such key"),
    "update": lambda: IndexError("no such row"),
    "apply": lambda: ValueError("no such value"),
    "third apply": lambda: ValueError("no third value"),
    "memory": lambda: MemoryError("no such room"),
}
RESULTS: dict[str, Any] = {
    "fewer rows": lambda logits: logits[:0],
    "fewer columns": lambda logits: logits[:, :7],
    "another dtype": lambda logits: logits.half(),
    "None": lambda logits: None,
    "a list": lambda logits: logits.tolist(),
}


class Faulty:
    """A processor that leaves logits unchanged; the parameter selects the call and the error.

    With "ban" it bans every token, with one of `RESULTS` it returns a wrong result.
    """

    def __init__(self, rows: int, vocabulary: Vocabulary, device: torch.device) -> None:
        self.asked = [""] * rows
        self.calls = [0] * rows

    @staticmethod
    def check(parameter: Any, vocab: int) -> None:
        if parameter == "check":
            raise ERRORS[parameter]()

    def update(
        self,
        added: Sequence[AddedRequest],
        removed: Sequence[int],
        moved: Sequence[tuple[int, int]],
    ) -> None:
        for each in added:
            if each.parameter == "update":
                raise ERRORS[each.parameter]()
            self.asked[each.row], self.calls[each.row] = each.parameter, 0

    def apply(self, logits: Tensor, rows: Tensor, last_ids: Tensor) -> Tensor:
        for row in rows.tolist():
            self.calls[row] += 1
            third = self.asked[row] == "third apply" and self.calls[row] == 3
            if third or self.asked[row] in ("apply", "memory"):
                raise ERRORS[self.asked[row]]()
        for row in rows.tolist():
            if self.asked[row] in RESULTS:
                return RESULTS[self.asked[row]](logits)
        bans = [self.asked[row] == "ban" for row in rows.tolist()]
        return logits.masked_fill(torch.tensor(bans)[:, None], float("-inf"))


@hookimpl
def ostro_logits_processors() -> Iterator[LogitsProcessor]:
    yield LogitsProcessor(name="faulty", processor=f"{__name__}:Faulty")
