"""llama.cpp's mixtures of formats; `tests/peers/test_conversion.py` compares them with its own."""

from __future__ import annotations

import pytest

from ostro.quant.gguf.mixtures import Shape, fitting, format_of, gets_more

DENSE = Shape(layers=16, experts=0, values=16, tied=False)


@pytest.mark.parametrize(
    ("mixture", "kind", "index", "expected"),
    [
        ("Q4_K_M", "value", 0, "Q6_K"),
        ("Q4_K_M", "value", 2, "Q4_K"),
        ("Q4_K_M", "value", 4, "Q6_K"),
        ("Q4_K_M", "ffn_down", 15, "Q6_K"),
        ("Q4_K_M", "attn_output", 0, "Q4_K"),
        ("Q4_K_M", "output", 0, "Q6_K"),
        ("Q4_K_M", "embedding", 0, "Q4_K"),
        ("Q4_K_S", "ffn_down", 1, "Q5_K"),
        ("Q4_K_S", "ffn_down", 2, "Q4_K"),
        ("Q3_K_M", "value", 1, "Q5_K"),
        ("Q3_K_M", "attn_output", 9, "Q4_K"),
        ("Q3_K_L", "ffn_down", 9, "Q5_K"),
        ("Q5_K_S", "ffn_down", 0, "Q5_K"),
    ],
)
def test_formats_depend_on_the_tensor_and_its_layer(
    mixture: str, kind: str, index: int, expected: str
) -> None:
    assert format_of(mixture, kind, index, 256, DENSE) == expected


def test_eight_experts_and_tied_embeddings_get_more_bits() -> None:
    mixtral = Shape(layers=16, experts=8, values=16, tied=True)
    assert format_of("Q4_K_M", "attn_k", 0, 256, mixtral) == "Q8_0"
    assert format_of("Q4_K_M", "attn_output", 0, 256, mixtral) == "Q5_K"
    assert format_of("Q4_K_M", "embedding", 0, 256, mixtral) == "Q6_K"


def test_rows_that_are_no_whole_blocks_get_smaller_ones() -> None:
    found = [fitting("Q4_K", columns) for columns in (256, 288, 40)]
    assert found == ["q4k", "q5_0", "float"]


@pytest.mark.parametrize(
    ("layers", "more"), [(8, {0, 3, 6, 7}), (16, {0, 1, 4, 7, 10, 13, 14, 15}), (4, {2, 3})]
)
def test_the_outer_layers_and_each_third_get_more_bits(layers: int, more: set[int]) -> None:
    """As `use_more_bits` of llama.cpp's quantization."""
    assert {index for index in range(layers) if gets_more(index, layers)} == more
