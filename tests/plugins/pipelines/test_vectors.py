"""Preparation of texts to embed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from echo.model import END, END_ID, START, START_ID, make_model, served_echo

from ostro.core.errors import ContextLengthExceeded, RequestError
from ostro.core.tokenizer import load_tokenizer
from ostro.plugins.pipelines.vectors.pipeline import Vectors, probabilities, shorten


@pytest.fixture
def vectors(tmp_path: Path) -> Vectors:
    """A model with a context of 6 tokens, whose texts end with a control token."""
    tokenizer = load_tokenizer(make_model(tmp_path / "echo"))
    tokenizer.suffix = [END_ID]
    engine: Any = None
    return Vectors(served_echo(tokenizer, context=6), engine)


def test_longer_inputs_are_truncated_before_the_suffix(vectors: Vectors) -> None:
    text, ids = "abcdefghij", list(b"abcdefghij")
    for truncate, kept in ((-1, 6), (6, 6), (3, 3), (1, 1)):
        (found, given) = vectors.encode([text, ids], "", vectors.limit(truncate))
        assert found == [*ids[: kept - 1], END_ID] and given == ids[:kept]
    assert vectors.encode(["ab"], ">", vectors.limit(-1)) == [[*b">ab", END_ID]]
    with pytest.raises(ContextLengthExceeded, match=r"input\[0\]: .* is 6 tokens.* in 11 tokens"):
        vectors.encode([text], "", vectors.limit(None))
    assert vectors.limit(0) is None
    assert vectors.encode(["ab" * 10**7], "", vectors.limit(-1)) == [[*b"ababa", END_ID]]
    for wrong in (-2, 7):
        with pytest.raises(RequestError, match=rf"={wrong} is not within -1\.\.6"):
            vectors.limit(wrong)


def test_control_tokens_in_texts_are_parsed(vectors: Vectors) -> None:
    assert vectors.encode([f"a{START}b"], "") == [[97, START_ID, 98, END_ID]]
    assert vectors.encode([f"a{START}" * 9], "", vectors.limit(4)) == [[97, START_ID, 97, END_ID]]
    assert vectors.encode_pairs([(START, None), ("a", f"{END}b")]) == [
        ([START_ID], [0]),
        ([97, END_ID, 98], [0, 0, 0]),
    ]


def test_texts_are_cut_after_a_token(vectors: Vectors) -> None:
    texts = ["abcde", "abc", "ab", ""]
    assert vectors.truncate(texts, 3) == ["abc", "abc", "ab", ""]


def test_vectors_are_shortened_to_at_most_their_length() -> None:
    rows = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
    assert np.allclose(shorten(rows, 2), [[0.6, 0.8], [0, 0]])
    assert np.allclose(shorten(rows, 1), [[1], [0]])
    assert shorten(rows, None) is rows
    for wrong in (0, 3):
        with pytest.raises(RequestError, match=r"is not within 1\.\.2"):
            shorten(rows, wrong)


def test_large_scores_have_probabilities() -> None:
    scores = np.array([[1000.0, 1000.0, -1000.0], [-2000.0, -1000.0, -1000.0]], np.float32)
    assert np.allclose(probabilities(scores), [[0.5, 0.5, 0], [0, 0.5, 0.5]])
