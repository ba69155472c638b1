"""Golden logits: the outputs of a reference that the test environment cannot import.

    python -m ostro.plugins.conformance.golden ARCHITECTURE REFERENCE FILE [--plugin PATH]

runs REFERENCE (an import string, as in a record) on the architecture's tiny config and writes FILE
into the plugin's package; the record then has `reference="package:FILE"`. The file holds `tokens`
[T] int64 and, for each standard deviation of the weights, `logits@STD` [T, V] float32. The weights
are drawn again from a seed: the metadata lists their names, shapes and means, and digests, which
detect a version of torch that draws other numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ostro.core.errors import PluginError
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, resolve
from ostro.core.settings import Settings
from ostro.plugins.conformance.weights import construct, draw, mean_of, read_config, reinitialise

SPREADS = (0.2, 0.02)
"""Standard deviations of matrices: one for most bugs, and a small one for epsilons."""

LENGTH = 60
"""Tokens of a prompt: more than windows, cache blocks and chunks hold."""


class WeightSpec(NamedTuple):
    """A weight: the mean of its values, and the earlier weight that shares its memory, if any."""

    name: str
    shape: list[int]
    mean: float
    shares: str | None


class Golden:
    """A reference's logits [T, V] for `prompt`, and its weights."""

    def __init__(self, prompt: list[int], logits: Tensor, weights: dict[str, Tensor]) -> None:
        self.prompt, self.logits, self.weights = prompt, logits, weights

    def __call__(self, ids: Tensor) -> Tensor:
        """ids [1, T], a prefix of the prompt -> logits [1, T, V]. Raises LookupError for others."""
        tokens = ids[0].tolist()
        if tokens != self.prompt[: len(tokens)]:
            raise LookupError("golden logits exist for prefixes of one prompt only")
        return self.logits[None, : len(tokens)]

    def state_dict(self) -> dict[str, Tensor]:
        return self.weights


def read(reference: str, std: float) -> Golden:
    """Read "package:FILE" for one standard deviation.

    Raises PluginError for a missing file or entry, and if this torch draws other weights than the
    torch that wrote the file.
    """
    package, _, name = reference.partition(":")
    with as_file(files(package) / name) as path:
        if not path.is_file():
            raise PluginError(f"{reference}: the package {package} has no file {name}")
        with safe_open(path, "pt") as file:
            metadata = json.loads((file.metadata() or {}).get("golden", "null"))
            if metadata is None or f"logits@{std}" not in file.keys():
                raise PluginError(
                    f"{reference}: no golden logits for weights N(0, {std}); write the file again"
                )
            prompt, logits = file.get_tensor("tokens"), file.get_tensor(f"logits@{std}")
    weights = redraw([WeightSpec(*each) for each in metadata["weights"]], std)
    if digest(weights) != metadata["digests"][str(std)]:
        raise PluginError(
            f"{reference}: torch {torch.__version__} draws other weights than torch "
            f"{metadata['torch']}, which wrote the file; write the file again"
        )
    return Golden(prompt.tolist(), logits, weights)


def write(record: Architecture, reference: str, file: Path, plugins: PluginManager) -> None:
    """Run a reference on the record's tiny config and write its logits to a file."""
    shape = dict(record.conformance.tiny or {})
    ids = prompt(read_config(record, shape, plugins)[0].vocab_size)
    golden = {"tokens": torch.tensor(ids)}
    digests: dict[str, str] = {}
    for std in SPREADS:
        model = construct(record, resolve(reference), shape, plugins)
        weights = weight_specs(model)
        reinitialise(model, std)
        digests[str(std)] = digest(model.state_dict())
        with torch.inference_mode():
            output = model(torch.tensor([ids]))
        golden[f"logits@{std}"] = getattr(output, "logits", output)[0].float().clone()
    metadata = {"weights": weights, "digests": digests, "torch": torch.__version__}
    save_file(golden, file, {"golden": json.dumps(metadata)})


def prompt(vocab: int) -> list[int]:
    """`LENGTH` random token ids from 3 to `vocab` - 1."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, vocab, (LENGTH,), generator=generator).tolist()


def weight_specs(model: torch.nn.Module) -> list[WeightSpec]:
    """The specs of a model's weights."""
    found: list[WeightSpec] = []
    owners: dict[int, str] = {}
    for name, tensor in model.state_dict().items():
        owner = owners.setdefault(tensor.data_ptr(), name)
        shares = None if owner == name else owner
        found.append(WeightSpec(name, list(tensor.shape), mean_of(name, tensor), shares))
    return found


def redraw(weights: Sequence[WeightSpec], std: float) -> dict[str, Tensor]:
    """The weights as `reinitialise` draws them."""
    tensors: dict[str, Tensor] = {}
    for each in weights:
        tensors[each.name] = tensors[each.shares] if each.shares else torch.empty(each.shape)
    draw([(tensors[each.name], each.mean) for each in weights], std)
    return tensors


def digest(weights: dict[str, Tensor]) -> str:
    """A hash of the names and values of weights."""
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in weights.items():
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


def main(arguments: Sequence[str] | None = None) -> None:
    """The command in this module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m ostro.plugins.conformance.golden")
    parser.add_argument("architecture")
    parser.add_argument("reference", help="package.module:Class")
    parser.add_argument("file", type=Path)
    parser.add_argument("--plugin", action="append", default=[], type=Path)
    options: Any = parser.parse_args(arguments)
    plugins = PluginManager()
    plugins.load(Settings(), options.plugin)
    write(
        plugins.get("architectures", options.architecture), options.reference, options.file, plugins
    )


if __name__ == "__main__":
    main()
