"""Conversion of the `tokenizers` library's errors, which are bare exceptions and Rust panics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ostro.core.errors import OstroError, TokenizerError


@contextmanager
def tokenizer_errors(place: str) -> Iterator[None]:
    """Convert any exception raised inside to a TokenizerError whose message begins with `place`."""
    try:
        yield
    except (OstroError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a Rust panic is not an Exception
        kind = "" if type(error) is Exception else f"{type(error).__name__}: "
        raise TokenizerError(f"{place}: {kind}{error!s:.300}") from error
