"""DeepSeek-V3 against transformers, and what GGUF files do not say of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ostro.architectures.deepseek_v2.names import gguf_config
from ostro.plugins.conformance.architecture import ArchitectureTests


class TestDeepseekV3(ArchitectureTests):
    name = "deepseek_v3"


@pytest.mark.parametrize(
    ("keys", "tensors", "scoring"),
    [
        ({}, ("blk.1.exp_probs_b.bias",), "sigmoid"),
        ({}, (), "softmax"),
        ({"expert_gating_func": 1}, ("blk.1.exp_probs_b.bias",), "softmax"),
    ],
)
def test_files_that_do_not_say_how_experts_are_scored(
    keys: dict[str, Any], tensors: tuple[str, ...], scoring: str
) -> None:
    """So the converter writes them of what transformers saved; published configs say it."""
    said = {f"deepseek2.{key}": value for key, value in keys.items()}
    infos = {name: SimpleNamespace(format="F32", nbytes=32) for name in tensors}
    metadata = {"general.architecture": "deepseek2", **said}
    container: Any = SimpleNamespace(path=Path("x.gguf"), metadata=metadata, tensors=infos)
    assert gguf_config(container)["scoring_func"] == scoring
