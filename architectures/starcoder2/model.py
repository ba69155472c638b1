"""StarCoder2: a decoder with layer norms, biases, an ungated MLP and windows.

Lozhkov et al. 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostro.architectures.phi.model import LayerNormConfig, TrunkModel
from ostro.config import WindowConfig


@dataclass(frozen=True, kw_only=True)
class Config(WindowConfig, LayerNormConfig):
    num_key_value_heads: int = 2
    hidden_act: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 4096
    norm_epsilon: float = 1e-5
    use_bias: bool = True
    tie_word_embeddings: bool = True

    @property
    def norm_eps(self) -> float:
        return self.norm_epsilon

    @property
    def bias(self) -> bool:
        return self.use_bias


class Model(TrunkModel):
    """The trunk as it is: attention, then the MLP, each after a norm of its own."""
