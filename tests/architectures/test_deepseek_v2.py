"""DeepSeek-V2 against transformers, and the layout of k_b in GGUF files."""

import pytest
import torch

from ostro.architectures.deepseek_v2 import TINY
from ostro.architectures.deepseek_v2.model import Config
from ostro.architectures.deepseek_v2.transposed import TransposedHeads, TransposedStorage
from ostro.core.errors import CheckpointError, ConfigError
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.quant.dense.storage import Dense

HEADS, ROWS, K = 3, 5, 7


class TestDeepseekV2(ArchitectureTests):
    name = "deepseek_v2"


@pytest.mark.parametrize("best", [-1, 3])
def test_the_best_groups_are_at_most_all_groups(best: int) -> None:
    grouped = {**TINY, "n_group": 2, "topk_method": "group_limited_greedy"}
    assert Config.from_hf({**grouped, "topk_group": 2}).best_groups == 2
    with pytest.raises(ConfigError, match="topk_group"):
        Config.from_hf({**grouped, "topk_group": best})


def test_a_transposed_storage_computes_as_the_weight() -> None:
    weight = torch.randn(HEADS * ROWS, K, dtype=torch.float64)
    transform = TransposedHeads(HEADS)
    file = transform.write(weight)
    assert file.shape == (HEADS, K, ROWS)
    torch.testing.assert_close(transform.read(file), weight)

    stored = Dense(transform.stored.read(file))
    assert tuple(stored.shape) == transform.stored_shape(tuple(weight.shape))
    turned, plain = transform.wrap(stored), Dense(weight)
    assert isinstance(turned, TransposedStorage) and turned.shape == tuple(plain.shape)
    torch.testing.assert_close(turned.dequantize(2, 9), weight[2:9])
    torch.testing.assert_close(turned.row_norms_sq(), plain.row_norms_sq())
    x, heads = torch.randn(2, 4, K).double(), torch.randn(4, HEADS, K).double()
    torch.testing.assert_close(turned.matmul(x), plain.matmul(x))
    torch.testing.assert_close(turned.matmul_h(heads), plain.matmul_h(heads))
    queries = torch.randn(4, HEADS, ROWS).double()
    torch.testing.assert_close(turned.matmul_t(queries), plain.matmul_t(queries))


@pytest.mark.parametrize("shape", [(HEADS * ROWS, K), (HEADS + 1, K, ROWS), (K,)])
def test_a_weight_without_a_matrix_per_head_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(CheckpointError, match="matrix for each of 3 heads"):
        TransposedHeads(HEADS).read(torch.zeros(shape))
