"""The border to the `tokenizers` library, whose failures are bare exceptions and Rust panics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ostro.core.errors import OstroError, TokenizerError


@contextmanager
def guard(place: str) -> Iterator[None]:
    """Turn whatever the library raises inside into a TokenizerError that begins with `place`."""
    try:
        yield
    except (OstroError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of the library is no Exception
        raise TokenizerError(f"{place}: {str(error) or type(error).__name__:.300}") from error
