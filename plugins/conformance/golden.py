"""Logits written down once, where the reference cannot be imported where the plugin is tested.

    python -m ostro.plugins.conformance.golden ARCHITECTURE REFERENCE FILE [--plugin PATH]

runs REFERENCE (an import string, as in a record) on the architecture's tiny config and writes FILE,
which belongs into the plugin's package; the record then says `reference="package:FILE"`. It holds
`tokens` [T] int64 and, for each spread of the weights, `logits@SPREAD` [T, V] float32. The weights
are not in it but drawn anew from a seed: its metadata lists their names, shapes and centres, and
digests, by which a torch that draws other numbers is noticed.
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
from ostro.core.records import Architecture, Settings, resolve
from ostro.plugins.conformance.weights import centre, construct, draw, read_config, reinitialise

SPREADS = (0.2, 0.02)
"""Of matrices: one at which most bugs show, and a small one for epsilons."""

LENGTH = 60
"""Tokens of a prompt: more than windows, blocks and chunks hold."""


class Listed(NamedTuple):
    """A weight: what it is drawn around, and which earlier one it shares its memory with."""

    name: str
    shape: list[int]
    centre: float
    shares: str | None


class Golden:
    """What a reference said to `prompt`, and the weights with which it said so."""

    def __init__(self, prompt: list[int], logits: Tensor, weights: dict[str, Tensor]) -> None:
        self.prompt, self.logits, self.weights = prompt, logits, weights

    def __call__(self, ids: Tensor) -> Tensor:
        """ids [1, T], a beginning of the prompt -> logits [1, T, V]. LookupError for others."""
        tokens = ids[0].tolist()
        if tokens != self.prompt[: len(tokens)]:
            raise LookupError("golden logits know one prompt and its beginnings, and no other")
        return self.logits[None, : len(tokens)]

    def state_dict(self) -> dict[str, Tensor]:
        return self.weights


def read(reference: str, std: float) -> Golden:
    """Read "package:FILE" for one spread. Raises PluginError where it does not hold what it must.

    A torch that draws other weights than the one that wrote the file is refused as well.
    """
    package, _, name = reference.partition(":")
    with as_file(files(package) / name) as path:
        if not path.is_file():
            raise PluginError(f"{reference}: the package {package} has no file {name}")
        with safe_open(path, "pt") as file:
            told = json.loads((file.metadata() or {}).get("golden", "null"))
            if told is None or f"logits@{std}" not in file.keys():
                raise PluginError(f"{reference}: it holds no golden logits at the spread {std}")
            prompt, logits = file.get_tensor("tokens"), file.get_tensor(f"logits@{std}")
    weights = redrawn([Listed(*each) for each in told["weights"]], std)
    if digest(weights) != told["digests"][str(std)]:
        raise PluginError(
            f"{reference}: torch {torch.__version__} draws other weights than torch "
            f"{told['torch']}, which wrote the file; write it anew"
        )
    return Golden(prompt.tolist(), logits, weights)


def write(record: Architecture, reference: str, file: Path, plugins: PluginManager) -> None:
    """Run a reference on the record's tiny config and write down what it says."""
    shape = dict(record.tiny or {})
    ids = prompt(read_config(record, shape, plugins)[0].vocab_size)
    held = {"tokens": torch.tensor(ids)}
    digests: dict[str, str] = {}
    for std in SPREADS:
        model = construct(record, resolve(reference), shape, plugins)
        weights = listed(model)
        reinitialise(model, std)
        digests[str(std)] = digest(model.state_dict())
        with torch.inference_mode():
            said = model(torch.tensor([ids]))
        held[f"logits@{std}"] = getattr(said, "logits", said)[0].float().clone()
    told = {"weights": weights, "digests": digests, "torch": torch.__version__}
    save_file(held, file, {"golden": json.dumps(told)})


def prompt(vocab: int) -> list[int]:
    """Tokens to compare logits on."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, vocab, (LENGTH,), generator=generator).tolist()


def listed(model: torch.nn.Module) -> list[Listed]:
    """A model's weights before they are drawn."""
    found: list[Listed] = []
    owners: dict[int, str] = {}
    for name, tensor in model.state_dict().items():
        owner = owners.setdefault(tensor.data_ptr(), name)
        shares = None if owner == name else owner
        found.append(Listed(name, list(tensor.shape), centre(name, tensor), shares))
    return found


def redrawn(weights: Sequence[Listed], std: float) -> dict[str, Tensor]:
    """The weights as `reinitialise` draws them."""
    made: dict[str, Tensor] = {}
    for each in weights:
        made[each.name] = made[each.shares] if each.shares else torch.empty(each.shape)
    draw([(made[each.name], each.centre) for each in weights], std)
    return made


def digest(weights: dict[str, Tensor]) -> str:
    """A hash of names and numbers."""
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
    asked: Any = parser.parse_args(arguments)
    plugins = PluginManager()
    plugins.load(Settings(), asked.plugin)
    write(plugins.get("architectures", asked.architecture), asked.reference, asked.file, plugins)


if __name__ == "__main__":
    main()
