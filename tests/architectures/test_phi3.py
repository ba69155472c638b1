"""Phi-3 against transformers, and folders as published."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny.published import Tensors, publish, published_deviation, refuse_or_run

from ostro.architectures.phi3.names import gguf_config
from ostro.core.errors import ConfigError
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject, deviation, subject

ORIGINAL = 32
ROPE = ("rope_parameters", "original_max_position_embeddings")
UNUSED = {
    "attention_bias": False,
    "embd_pdrop": 0.0,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "mlp_bias": False,
    "resid_pdrop": 0.0,
}


class TestPhi3(ArchitectureTests):
    name = "phi3"

    @pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
    def test_published_names_of_longrope(self, tiny: Subject, tmp_path: Path, kind: str) -> None:
        """Phi-3-mini-128k says "su" or "yarn"; Phi-4-mini has its factor at the top."""
        given = tiny.raw_config["rope_parameters"]
        factors = {key: given[key] for key in ("short_factor", "long_factor")}
        config = {
            **UNUSED,
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": ORIGINAL,
            "rope_scaling": {"type": kind, **factors},
        }
        loaded = publish(tiny, tmp_path, config, dropped=ROPE)
        assert published_deviation(tiny, loaded) <= BAR

    def test_short_factors_up_to_the_original_context(self, tiny: Subject) -> None:
        """transformers switches by the length at hand, ostro by the context that is served."""
        prompt = tiny.prompt[:ORIGINAL]
        expected = tiny.run_reference(prompt)
        short = tiny.engine(tiny.load(context=ORIGINAL)).runner.logits(prompt)
        assert deviation(short, expected) <= BAR
        assert deviation(tiny.engine().runner.logits(prompt), expected) > 0.1

    def test_a_tied_head_without_longrope(self, plugins: PluginManager) -> None:
        """The head of Phi-4-mini, and the rope of Phi-3-mini-4k and Phi-4."""
        rule = {"rope_type": "default", "rope_theta": 10000.0}
        shape = {
            **plugins.get("architectures", self.name).conformance.tiny,
            "rope_parameters": rule,
            "sliding_window": None,
            "tie_word_embeddings": True,
        }
        with subject(plugins, self.name, config=shape) as tied:
            assert tied.off(tied.engine()) <= BAR

    def test_other_rope_rules_are_refused(self, tiny: Subject) -> None:
        config = resolve(tiny.record.config)
        with pytest.raises(ConfigError, match="rope_type='linear' is not implemented"):
            config.from_hf({**tiny.shape, "rope_parameters": {"rope_type": "linear"}})

    @pytest.mark.parametrize(
        "field", ["original_max_position_embeddings", "sliding_window", "attention_bias"]
    )
    def test_hostile_configs(self, tiny: Subject, tmp_path: Path, field: str) -> None:
        refuse_or_run(tiny, tmp_path, field)

    @pytest.mark.parametrize(
        "factors", [None, [], [1.0], [0.0] * 6, [float("nan")] * 6, ["x"] * 6, "long", [1e300] * 6]
    )
    def test_hostile_factors(self, tiny: Subject, tmp_path: Path, factors: Any) -> None:
        rule = {**tiny.raw_config["rope_parameters"], "long_factor": factors}
        with pytest.raises(ConfigError, match="long_factor"):
            publish(tiny, tmp_path, {"rope_parameters": rule})


KEYS = {
    "general.architecture": "phi3",
    "phi3.embedding_length": 64,
    "phi3.attention.head_count": 4,
    "phi3.rope.dimension_count": 12,
    "phi3.attention.sliding_window": 0,
    "phi3.rope.scaling.original_context_length": 32,
    "phi3.rope.scaling.attn_factor": 1.25,
}
FACTORS = ("rope_factors_long.weight", "rope_factors_short.weight")


def container(keys: dict[str, Any], shape: tuple[int, ...], names: tuple[str, ...]) -> Any:
    """A GGUF container with keys, and tensors of ones, twos, ..."""
    tensors = {
        name: SimpleNamespace(file="x.gguf", format="F32", shape=shape, nbytes=24) for name in names
    }
    values = {name: torch.full(shape, i + 1.0) for i, name in enumerate(names)}
    path = Path("x.gguf")
    return SimpleNamespace(path=path, metadata=keys, tensors=tensors, read=values.__getitem__)


def test_longrope_of_a_gguf_file() -> None:
    raw = gguf_config(container(KEYS, (6,), FACTORS))
    assert raw["rope_parameters"] == {
        "rope_theta": 10000.0,
        "rope_type": "longrope",
        "partial_rotary_factor": 0.75,
        "long_factor": [1.0] * 6,
        "short_factor": [2.0] * 6,
        "attention_factor": 1.25,
        "original_max_position_embeddings": 32,
    }
    assert raw["sliding_window"] is None and raw["original_max_position_embeddings"] == 32


@pytest.mark.parametrize(
    ("shape", "names", "keys", "message"),
    [
        ((6,), FACTORS[:1], {}, "rope_factors_short.weight is missing"),
        ((5,), FACTORS, {}, r"rope_factors_long.weight is F32 \[5\]"),
        ((6,), FACTORS, {"phi3.rope.scaling.type": "yarn"}, "with rope scaling 'yarn'"),
        ((6,), (), {}, "attn_factor=1.25 is implemented for files with the tensors"),
    ],
)
def test_gguf_files_that_are_refused(
    shape: tuple[int, ...], names: tuple[str, ...], keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        gguf_config(container({**KEYS, **keys}, shape, names))


@pytest.mark.parametrize("scales", ["tensor", "row", "block"])
def test_fused_tensors_in_fp8(plugins: PluginManager, tmp_path: Path, scales: str) -> None:
    """Parts of a quantized tensor are read from its storage, whatever the shape of its scales."""
    wide = plugins.get("architectures", "phi3").conformance.wide
    with subject(plugins, "phi3", config=wide) as tiny:
        weights = {
            f"{name}.weight": module.weight.data
            for name, module in tiny.reference.model.named_modules(prefix="model")
            if isinstance(module, torch.nn.Linear)
        }

        def quantize(tensors: Tensors) -> Tensors:
            for name, weight in weights.items():
                q, scale, values = to_fp8(weight, scales)
                tensors[name] = q
                tensors[f"{name}_scale"] = scale
                weight.copy_(values)
            return tensors

        settings = {"quant_method": "fp8", "activation_scheme": "dynamic"}
        if scales == "block":
            settings["weight_block_size"] = [128, 128]
        loaded = publish(tiny, tmp_path, {"quantization_config": settings}, quantize)
        expected = tiny.run_reference(tiny.prompt)
        assert deviation(tiny.answer(tiny.engine(loaded)), expected) <= BAR


def to_fp8(weight: torch.Tensor, scales: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes of a weight, its scales by tensor, row or block of 128 x 128, and its values."""
    n, k = weight.shape
    rows, columns = {"tensor": (n, k), "row": (1, k), "block": (128, 128)}[scales]
    blocks = weight.view(n // rows, rows, k // columns, columns)
    scale = blocks.abs().amax((1, 3)) / 448
    whole = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    q = (weight / whole).to(torch.float8_e4m3fn)
    return q, scale.reshape(()) if scales == "tensor" else scale, q.float() * whole
