"""Pooling of hidden states to one vector per input, as in sentence-transformers.

`modules.json` lists the modules after the model: a pooling, dense layers and a normalisation, each
with its own folder. A GGUF file has the pooling type in its header. Without either, the vector is
the mean of an encoder's states or the last state of a decoder, normalised.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from ostro.core.errors import CheckpointError, ConfigError
from ostro.core.load.container import CONFIG_BYTES, Container
from ostro.core.load.names import FLOATS
from ostro.core.paths import read_regular, reason_of

MODES = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt",
    "pooling_mode_weightedmean_tokens": "weighted",
}
"""Modes by the switch in a pooling's config.json."""

WORDS = {
    "cls": "first",
    "lasttoken": "last",
    "mean": "mean",
    "max": "max",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": "weighted",
}
"""Modes by `pooling_mode` in the config.json of sentence-transformers 5.4 and later."""

HEADER_MODES = {1: "mean", 2: "first", 3: "last"}
"""Modes by the number of llama.cpp's `llama_pooling_type`."""

ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": lambda x: x,
    "torch.nn.modules.activation.Tanh": torch.tanh,
    "torch.nn.modules.activation.GELU": F.gelu,
}


@dataclass(frozen=True)
class Dense:
    """A dense layer after the pooling: weight [n, k], bias [n] or None, name of an activation."""

    weight: Tensor
    bias: Tensor | None
    activation: str

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = ACTIVATIONS[self.activation](F.linear(x, self.weight, self.bias))
        return y


@dataclass(frozen=True)
class Pooling:
    """Maps hidden states to vectors: a mode (a value of MODES), dense layers, normalisation."""

    mode: str
    layers: tuple[Dense, ...] = ()
    normalize: bool = True

    def __call__(self, hidden: Tensor, bounds: Sequence[int]) -> Tensor:
        """hidden [T, d], inputs i at rows bounds[i]..bounds[i + 1] -> [B, n] float32."""
        rows = [hidden[start:stop].float() for start, stop in pairwise(bounds)]
        x = torch.stack([pool(self.mode, row) for row in rows])
        for layer in self.layers:
            x = layer(x)
        return F.normalize(x, dim=-1) if self.normalize else x


def pool(mode: str, rows: Tensor) -> Tensor:
    """Rows [n, d] of one input -> [d]."""
    if mode == "first":
        return rows[0]
    if mode == "last":
        return rows[-1]
    if mode == "max":
        return rows.amax(0)
    if mode == "weighted":
        weights = torch.arange(1, len(rows) + 1, dtype=rows.dtype, device=rows.device)
        return weights @ rows / weights.sum()
    return rows.sum(0) / (len(rows) ** 0.5 if mode == "mean_sqrt" else len(rows))


def read_pooling(
    folder: Path, default: str, device: torch.device, container: Container | None = None
) -> Pooling:
    """Read the pooling of a folder (modules.json), or of the header of a GGUF container.

    `default` is the mode without either. Raises ConfigError or CheckpointError with the file.
    """
    modules = folder / "modules.json"
    if not modules.exists():
        return Pooling(default) if container is None else header_pooling(container, default, device)
    mode, layers, normalize = default, [], False
    for entry in read_json(modules, list):
        kind = str(entry.get("type", "")).rpartition(".")[2]
        path = folder / str(entry.get("path", ""))
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{modules}: path {entry['path']!r:.80} is outside of the folder")
        if kind == "Pooling":
            mode = read_mode(path / "config.json")
        elif kind == "Dense":
            layers.append(read_dense(path, device))
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise ConfigError(f"{modules}: module type {entry.get('type')!r:.80} is not supported")
    return Pooling(mode, tuple(layers), normalize)


def header_pooling(container: Container, default: str, device: torch.device) -> Pooling:
    """The pooling of a GGUF header, with the dense layers in the file, if any."""
    metadata, layers = container.metadata, []
    number = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
    for name in ("dense_2.weight", "dense_3.weight"):
        if info := container.tensors.get(name):
            if info.format not in FLOATS:
                raise CheckpointError(
                    f"{info.file}: {name} is {info.format}; dense layers must be floats, use a "
                    "file that does not quantize them"
                )
            weight = container.read(name).float().to(device)
            layers.append(Dense(weight, None, "torch.nn.modules.linear.Identity"))
    mode = HEADER_MODES.get(number, default) if isinstance(number, int) else default
    return Pooling(mode, tuple(layers))


def read_mode(file: Path) -> str:
    config = read_json(file, dict)
    if config.get("include_prompt") is False:
        raise ConfigError(
            f"{file}: include_prompt=false (exclude the tokens of the prompt) is not supported"
        )
    if (word := config.get("pooling_mode")) is not None:
        if word not in [*WORDS]:
            raise ConfigError(
                f"{file}: pooling_mode={word!r:.80} is not supported; expected one of "
                f"{', '.join(WORDS)}"
            )
        return WORDS[word]
    modes = [MODES[key] for key, value in config.items() if value is True and key in MODES]
    if len(modes) != 1:
        raise ConfigError(f"{file}: {len(modes)} pooling modes are enabled, expected one")
    return modes[0]


def read_dense(folder: Path, device: torch.device) -> Dense:
    config = read_json(folder / "config.json", dict)
    activation = str(config.get("activation_function", "torch.nn.modules.linear.Identity"))
    if activation not in ACTIVATIONS:
        raise ConfigError(
            f"{folder / 'config.json'}: activation {activation!r:.80} is not supported"
        )
    file = folder / "model.safetensors"
    if not file.is_file():
        raise CheckpointError(f"{file} is missing; other formats than safetensors are not read")
    tensors = {name: tensor.float().to(device) for name, tensor in load_file(file).items()}
    shape = config.get("out_features"), config.get("in_features")
    weight = tensors.get("linear.weight")
    if weight is None or tuple(weight.shape) != shape:
        found = None if weight is None else list(weight.shape)
        raise CheckpointError(f"{file}: linear.weight is {found}, config.json requires {shape}")
    return Dense(weight, tensors.get("linear.bias"), activation)


def read_json(file: Path, kind: type) -> Any:
    """Parse a JSON file whose root is of type `kind`, list or dict. Raises ConfigError."""
    try:
        found = json.loads(read_regular(file, CONFIG_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: {reason_of(error)}") from None
    if not isinstance(found, kind):
        raise ConfigError(f"{file}: not a JSON {'list' if kind is list else 'object'}")
    return found
