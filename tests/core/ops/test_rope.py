"""rope: the naive version and the rules against transformers, the kernel against the former."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.errors import ConfigError
from ostro.core.ops.rope import naive, native, triton
from ostro.core.ops.rope.scaling import rope_frequencies, rope_table
from ostro.plugins.conformance.kernels import DEVICE, poison

LONG = [1.0 + 0.1 * i for i in range(16)]
RULES: dict[str, dict[str, Any]] = {
    "linear": dict(rope_type="linear", factor=4.0),
    "linear-part": dict(rope_type="linear", factor=2.5, partial_rotary_factor=0.5),
    "dynamic": dict(rope_type="dynamic", factor=2.0),
    "dynamic-part": dict(rope_type="dynamic", factor=3.0, partial_rotary_factor=0.25),
    "yarn": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=512),
    "yarn-fast": dict(
        rope_type="yarn",
        factor=8.0,
        original_max_position_embeddings=256,
        beta_fast=16,
        beta_slow=2,
        truncate=False,
    ),
    "yarn-scaled": dict(rope_type="yarn", factor=40.0, mscale=0.7, mscale_all_dim=1.1),
    "yarn-fixed": dict(rope_type="yarn", factor=40.0, attention_factor=1.5),
    "yarn-ratio": dict(rope_type="yarn", factor=None, original_max_position_embeddings=512),
    "yarn-short": dict(rope_type="yarn", factor=2.0, original_max_position_embeddings=8),
    "longrope": dict(
        rope_type="longrope",
        short_factor=[1.0] * 16,
        long_factor=LONG,
        original_max_position_embeddings=1024,
    ),
    "longrope-fixed": dict(
        rope_type="longrope",
        short_factor=LONG[::-1],
        long_factor=LONG,
        factor=32.0,
        attention_factor=1.2,
    ),
    "longrope-unstretched": dict(
        rope_type="longrope", short_factor=LONG, long_factor=LONG, factor=0.5
    ),
    "llama3": dict(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=1024,
    ),
    "llama3-steep": dict(
        rope_type="llama3", factor=32.0, low_freq_factor=0.5, high_freq_factor=0.6
    ),
    "proportional": dict(rope_type="proportional", partial_rotary_factor=0.25),
    "proportional-half": dict(rope_type="proportional", partial_rotary_factor=0.5, factor=8.0),
}


@pytest.mark.parametrize("theta", [1e4, 5e5])
@pytest.mark.parametrize("context", [300, 2048, 9000])
@pytest.mark.parametrize("name", RULES)
def test_rules_match_transformers(name: str, context: int, theta: float) -> None:
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if RULES[name]["rope_type"] not in ROPE_INIT_FUNCTIONS:
        pytest.skip("this transformers has no such rule")
    rule = {**RULES[name], "rope_theta": theta}
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        max_position_embeddings=2048,
        rope_parameters=dict(rule),
    )
    inverse, factor = ROPE_INIT_FUNCTIONS[rule["rope_type"]](config, seq_len=context)
    ours, scale = rope_frequencies({**rule, "max_position_embeddings": 2048}, 32, context)
    torch.testing.assert_close(ours, inverse, rtol=2e-6, atol=0)
    assert scale == pytest.approx(factor, rel=1e-12)


def test_default_rule() -> None:
    inverse, factor = rope_frequencies({"rope_theta": 100.0, "partial_rotary_factor": 0.5}, 8, 10)
    assert factor == 1.0 and inverse.tolist() == pytest.approx([1.0, 0.1])


def test_table_holds_scaled_cosines_then_sines() -> None:
    rule = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=64)
    inverse, factor = rope_frequencies(rule, 16, 256)
    made = rope_table(rule, 16, 256)
    assert made.shape == (256, 16) and made.dtype == torch.float32 and factor > 1
    angle = 200 * inverse
    expected = torch.cat((angle.cos(), angle.sin())) * factor
    torch.testing.assert_close(made[200], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(rope_type="yarm"), "yarm.*nearest: yarn"),
        (dict(factor=None, rope_type="linear"), "lack 'factor'"),
        (dict(factor=float("nan")), "factor=nan"),
        (dict(factor="8"), "factor='8'"),
        (dict(factor=-1), "factor=-1"),
        (dict(rope_theta=float("inf")), "rope_theta=inf"),
        (dict(rope_theta=0.5), "rope_theta=0.5"),
        (dict(rope_theta=None), "lack 'rope_theta'"),
        (dict(partial_rotary_factor=2), "partial_rotary_factor=2"),
        (dict(partial_rotary_factor=0.01), "partial_rotary_factor=0.01"),
        (dict(rope_type="longrope", long_factor=[1.0] * 3), "long_factor is not a list of 16"),
        (dict(rope_type="longrope", long_factor=[0] * 16), "long_factor=0"),
        (dict(rope_type="llama3", low_freq_factor=4, high_freq_factor=4), "low_freq_factor=4"),
        (dict(original_max_position_embeddings=1), "context of 1"),
    ],
)
def test_bad_rules_are_named(changes: dict[str, Any], said: str) -> None:
    rule = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "max_position_embeddings": 64}
    with pytest.raises(ConfigError, match=said):
        rope_frequencies({**rule, **changes}, 32, 128)


def inputs(d: int, r: int, axes: int = 1, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """q with 5 heads and k with 2 as views of fused rows, positions, table."""
    torch.manual_seed(0)
    fused = torch.randn(6, 8 * d + 3, device=DEVICE).to(dtype)
    q = fused[:, 3 : 3 + 5 * d].unflatten(1, (5, d))
    k = fused[:, 3 + 5 * d : 3 + 7 * d].unflatten(1, (2, d))
    positions = torch.randint(0, 50, (axes, 6), device=DEVICE)
    made = rope_table({"rope_theta": 1e3, "partial_rotary_factor": r / d}, d, 50)
    return q, k, positions, made.to(DEVICE)


def turned(apply: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """transformers' rotation, which wants [1, h, T, d] and [1, T, d]."""
    pair = apply(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cos, sin)
    return pair[0][0].transpose(0, 1), pair[1][0].transpose(0, 1)


@pytest.mark.parametrize("family", ["llama", "cohere"])
def test_layouts_match_transformers(family: str) -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    cohere = pytest.importorskip("transformers.models.cohere.modeling_cohere")
    module, rotary = {
        "llama": (llama, llama.LlamaRotaryEmbedding),
        "cohere": (cohere, cohere.CohereRotaryEmbedding),
    }[family]
    q, k, positions, angles = (x.cpu() for x in inputs(32, 32))
    rule = {"rope_theta": 1e3, "rope_type": "default"}
    config = SimpleNamespace(rope_parameters=rule, head_dim=32, max_position_embeddings=50)
    cos, sin = rotary(config)(q, positions)
    expected = turned(module.apply_rotary_pos_emb, q, k, cos, sin)
    ours = naive.rope(q, k, positions, angles, interleaved=family == "cohere")
    torch.testing.assert_close(ours, expected)


def test_sections_match_transformers() -> None:
    qwen = pytest.importorskip("transformers.models.qwen2_vl.modeling_qwen2_vl")
    q, k, positions, angles = (x.cpu() for x in inputs(32, 32, axes=3))
    rule = {"rope_theta": 1e3, "rope_type": "default", "mrope_section": [4, 5, 7]}
    config = SimpleNamespace(rope_parameters=rule, head_dim=32, max_position_embeddings=50)
    cos, sin = qwen.Qwen2VLRotaryEmbedding(config)(q, positions[:, None])
    expected = turned(qwen.apply_rotary_pos_emb, q, k, cos, sin)
    torch.testing.assert_close(naive.rope(q, k, positions, angles, sections=(4, 5, 7)), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize(("d", "r"), [(2, 2), (32, 32), (20, 12), (80, 80), (96, 24)])
@pytest.mark.parametrize("sectioned", [False, True], ids=["one", "three"])
def test_triton(d: int, r: int, interleaved: bool, sectioned: bool, dtype: torch.dtype) -> None:
    q, k, positions, angles = inputs(d, r, 3 if sectioned else 1, dtype)
    parts = (r // 8, r // 4, r // 2 - r // 8 - r // 4) if sectioned else None
    with poison():
        ours = triton.rope(q, k, positions, angles, interleaved, parts)
    expected = naive.rope(q, k, positions, angles, interleaved, parts)
    torch.testing.assert_close(ours, expected)
    assert torch.equal(ours[0][..., r:], q[..., r:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize(("d", "r"), [(32, 32), (20, 12), (96, 24)])
@pytest.mark.parametrize("sectioned", [False, True], ids=["one", "three"])
def test_native(d: int, r: int, interleaved: bool, sectioned: bool, dtype: torch.dtype) -> None:
    q, k, positions, angles = (x.cpu() for x in inputs(d, r, 3 if sectioned else 1, dtype))
    parts = (r // 8, r // 4, r // 2 - r // 8 - r // 4) if sectioned else None
    before = q.clone()
    with poison():
        ours = native.rope(q, k, positions, angles, interleaved, parts)
    expected = naive.rope(q, k, positions, angles, interleaved, parts)
    torch.testing.assert_close(ours, expected)
    assert torch.equal(q, before)
