"""Building blocks of model files: linears, attention, experts, norms, rope, model base classes."""

from torch.nn import Module, ModuleList, Parameter

from ostro.core.nn.attention import Attention, CachedLayer, EncoderAttention, RecurrentLayer
from ostro.core.nn.cross import CrossAttention
from ostro.core.nn.dequantized import Dequantized
from ostro.core.nn.embedding import Embedding, Head
from ostro.core.nn.experts import ExpertLinear, Experts, Float32Router, Router
from ostro.core.nn.filters import Filters
from ostro.core.nn.latent import LatentAttention
from ostro.core.nn.linear import Delta, Linear
from ostro.core.nn.mlp import MLP, GatedMLP
from ostro.core.nn.model import (
    AssistantModel,
    EncoderModel,
    JobModel,
    Model,
    MultiTokenHead,
    TokenModel,
)
from ostro.core.nn.norm import LayerNorm, RMSNorm
from ostro.core.nn.rope import Rope

__all__ = [
    "MLP",
    "AssistantModel",
    "Attention",
    "CachedLayer",
    "CrossAttention",
    "Delta",
    "Dequantized",
    "Embedding",
    "EncoderAttention",
    "EncoderModel",
    "ExpertLinear",
    "Experts",
    "Filters",
    "Float32Router",
    "GatedMLP",
    "Head",
    "JobModel",
    "LatentAttention",
    "LayerNorm",
    "Linear",
    "Model",
    "Module",
    "ModuleList",
    "MultiTokenHead",
    "Parameter",
    "RMSNorm",
    "RecurrentLayer",
    "Rope",
    "Router",
    "TokenModel",
]
