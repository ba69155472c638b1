"""References: the models with which architectures are compared.

`Conformance.reference` is one of

- `transformers:LlamaForCausalLM`: a class with `config_class` and `save_pretrained`, built from
  the config `tiny`.
- `ostro_arch_x.reference:Plain`: a `torch.nn.Module` of the plugin, built from the plugin's
  Config. The names of its state dict are those of checkpoints; called with ids [1, T] int64 it
  returns logits [1, T, V], or an object with the attribute `logits`.
- `ostro_arch_x:golden.safetensors`: logits in a file of the plugin's package, see `golden`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.version import Version
from safetensors.torch import save_file

from ostro.core.errors import PluginError
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, resolve
from ostro.plugins.conformance import golden
from ostro.plugins.conformance.weights import construct, reinitialise

TESTED = "5.23.0"
"""The version of transformers that builds every reference of the built-in architectures."""


class NoReference(PluginError):
    """The installed transformers is older than `TESTED` and cannot build a reference."""


def build(
    record: Architecture, shape: Mapping[str, Any], std: float, plugins: PluginManager
) -> Any:
    """The reference of a record, built from the config `shape`, with weights drawn from N(0, std).

    Raises PluginError if the record has no reference, or golden logits and examples; NoReference if
    the installed transformers lacks its class, or fields of its config.
    """
    named = record.conformance.reference
    if named is None or not shape:
        lacking = "reference" if named is None else "tiny config"
        raise PluginError(
            f"{record.name}: its record has no {lacking}, so it cannot be tested; "
            "add one, see docs/testing.md"
        )
    if named.endswith(".safetensors"):
        if record.conformance.examples:
            raise PluginError(
                f"{record.name}: golden logits support text only, and the record has examples; "
                "declare a reference that takes media"
            )
        return golden.read(named, std)
    try:
        model = construct(record, resolve(named), shape, plugins)
    except Exception as error:  # a class may raise any exception for fields that it does not know
        installed = version("transformers")
        if Version(installed) >= Version(TESTED):
            raise
        why = f"{type(error).__name__}: {error}"
        raise NoReference(
            f"transformers {installed} cannot build {named} ({why}); {TESTED} can"
        ) from error
    reinitialise(model, std)
    return model


def save(record: Architecture, reference: Any, shape: Mapping[str, Any], folder: Path) -> None:
    """Write a reference as a checkpoint: config.json and safetensors."""
    if hasattr(reference, "save_pretrained"):
        reference.save_pretrained(folder)
        return
    config = {**shape, "architectures": list(record.classes[:1])}
    (folder / "config.json").write_text(json.dumps(config))
    weights = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
