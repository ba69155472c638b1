"""Construction of tiny models, and random weights at which bugs show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from ostro.core.config import ModelConfig
from ostro.core.load.describe import parts
from ostro.core.load.names import Names
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture
from ostro.core.settings import Settings

SEED = 0


def read_config(
    record: Architecture,
    raw: Mapping[str, Any],
    plugins: PluginManager,
    allow: Sequence[str] = (),
) -> tuple[ModelConfig, Names]:
    """The config and names that a record makes of a config.json, also for the transformers
    backend.
    """
    settings = Settings(allow_config=allow)
    config, _, names = parts(record, raw, torch.float32, settings, plugins)
    return config, names


def construct(
    record: Architecture, cls: Any, shape: Mapping[str, Any], plugins: PluginManager
) -> Any:
    """Build a transformers class from its own config, or a plain module from the plugin's."""
    if hasattr(cls, "config_class"):
        # Config classes of transformers write into the mappings that they are given.
        return cls(cls.config_class(**deepcopy(dict(shape)))).eval().float()
    return cls(read_config(record, shape, plugins)[0]).eval().float()


def reinitialise(model: torch.nn.Module, std: float, seed: int = SEED) -> None:
    """Draw weights at which bugs show: matrices and biases N(0, std), norms and single factors
    N(1, std), or N(0, std) if the model adds the 1 itself. Persistent buffers count as weights.
    """
    named = model.state_dict(keep_vars=True).items()
    draw([(tensor, mean_of(name, tensor)) for name, tensor in named], std, seed)


def mean_of(name: str, tensor: Tensor) -> float:
    """The mean of a weight's distribution: 1 for norms and single factors that are 1 initially,
    and -1 or 1 for bounds that are infinite initially.
    """
    if tensor.dim() == 0 and tensor.is_floating_point() and tensor.isinf():
        return float(tensor.sign())
    factor = tensor.dim() == 1 and ("norm" in name.lower() or tensor.numel() == 1)
    return 1.0 if factor and float(tensor.detach().float().mean()) > 0.5 else 0.0


@torch.no_grad()
def draw(tensors: Iterable[tuple[Tensor, float]], std: float, seed: int = SEED) -> None:
    """Fill floating-point tensors in order, each from N(mean, std), with one generator."""
    generator = torch.Generator().manual_seed(seed)
    for tensor, mean in tensors:
        if tensor.is_floating_point():
            tensor.normal_(mean, std, generator=generator)
