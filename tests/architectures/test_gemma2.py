"""Gemma2 against transformers."""

from transformers import Gemma2Config

from ostro.architectures.gemma2 import TINY
from ostro.architectures.gemma2.model import Config
from ostro.plugins.conformance.architecture import ArchitectureTests


class TestGemma2(ArchitectureTests):
    name = "gemma2"


def test_layers_slide_as_in_configs_of_older_versions() -> None:
    """transformers before 4.53 saved no `layer_types`."""
    raw = {key: value for key, value in TINY.items() if key != "layer_types"}
    config = Config.from_hf({**raw, "num_hidden_layers": 5})
    kinds = Gemma2Config(num_hidden_layers=5).layer_types
    windows = [config.sliding_window if kind == "sliding_attention" else 0 for kind in kinds]
    assert [config.window(layer) for layer in range(5)] == windows
