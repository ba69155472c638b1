"""The results of a model's methods. Wrong ones are errors that name its class and its plugin."""

from __future__ import annotations

from torch import Tensor

from ostro.core.nn import EncoderModel, TokenModel
from ostro.core.results import InvalidResult
from ostro.core.step import Step


def hidden_of(model: EncoderModel, step: Step) -> Tensor:
    """The hidden states [T, d] of the rows of a step. Raises InvalidResult for a wrong one."""
    hidden = model.hidden(step)
    rows = len(step.tokens)
    if not is_floats(hidden) or hidden.ndim != 2 or len(hidden) != rows:
        raise wrong(model, "hidden", hidden, f"floats [{rows}, width], the rows of the step")
    return hidden


def logits_of(model: TokenModel, hidden: Tensor, step: Step, vocab: int) -> Tensor:
    """The logits [W, vocab] of the rows `step.logits_indices`, or of all.

    Raises InvalidResult for a wrong one.
    """
    logits = model.logits(hidden, step)
    rows = len(hidden) if step.logits_indices is None else len(step.logits_indices)
    if not is_floats(logits) or logits.shape != (rows, vocab):
        raise wrong(model, "logits", logits, f"floats [{rows}, {vocab}], rows and vocabulary")
    return logits


def is_floats(value: object) -> bool:
    """Whether a value is a tensor of floats."""
    return isinstance(value, Tensor) and value.is_floating_point()


def wrong(model: EncoderModel, method: str, value: object, expected: str) -> InvalidResult:
    """The error for a wrong result of a method."""
    return InvalidResult(type(model), method, value, f"{expected} ({model.origin})")
