"""GLM-4-0414: GLM-4-9b with norms before and after both branches."""

from __future__ import annotations

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.glm import model as glm
from ostro.architectures.llama import model as llama


class Block(glm.Block):
    """post_attention_layernorm is the norm before the MLP, as in Llama."""

    def __init__(self, config: glm.Config, layer: int, rope: nn.Rope) -> None:
        super().__init__(config, layer, rope)
        d, eps = config.hidden_size, config.rms_norm_eps
        self.post_self_attn_layernorm = nn.RMSNorm(d, eps)
        self.post_mlp_layernorm = nn.RMSNorm(d, eps)

    def forward(self, x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
        x, residual = self.input_layernorm(x, residual)
        x = self.post_self_attn_layernorm(self.self_attn(x, step))[0]
        x, residual = self.post_attention_layernorm(x, residual)
        return self.post_mlp_layernorm(self.mlp(x, step))[0], residual


class Model(llama.Model):
    block = Block
