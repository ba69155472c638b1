"""Each text model type of transformers: `python -m sweep.types [TYPE ...]`, from `tests`.

A config.json may have the `model_type` of a part (gemma3_text), with a class of that part. Each of
its classes is described from a tiny config; no weights are read.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import torch
import transformers
from safetensors.torch import save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

from ostro.core.errors import OstroError
from ostro.core.load.describe import outline
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from sweep.configs import FIELDS, defaults_of, tiny

PARTS = ("text", "decoder", "talker", "thinker", "language")
"""Parts of the names of model types of text models within others."""


def text_types() -> list[str]:
    """The model types of causal language models, of text parts and of decoders."""
    return [
        kind
        for kind in CONFIG_MAPPING
        if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or any(part in kind for part in PARTS)
    ]


def classes_of(kind: str) -> list[str]:
    """The classes of a model type: those of the auto classes, and others with its config."""
    named = [table.get(kind) for table in (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES)]
    known = [n for names in named for n in ([names] if isinstance(names, str) else names or ())]
    config = CONFIG_MAPPING[kind]
    path = config.__module__.replace("configuration_", "modeling_")
    if find_spec(path) is None:  # a config that a plugin of ostro has registered
        return known
    module = importlib.import_module(path)
    own = [
        name
        for name, each in vars(module).items()
        if inspect.isclass(each)
        and issubclass(each, transformers.PreTrainedModel)
        and each.config_class is config
        and name in transformers.__all__
    ]
    return list(dict.fromkeys([*known, *own]))


def outcomes(kind: str, plugins: PluginManager) -> Iterator[tuple[str, str]]:
    """What happens to each class of a model type: "class", and the architecture or the error.

    The first outcome is that of a config without a class.
    """
    config = CONFIG_MAPPING[kind]
    shape = tiny(SimpleNamespace(config_class=config), defaults_of(config))
    with TemporaryDirectory() as parent:
        folder = Path(parent, "tiny")
        folder.mkdir()
        # Of the least size that a config with so many layers and weights may have.
        tensors = {f"x.{i}": torch.zeros(1 << 13) for i in range(400)}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        for name in ("", *classes_of(kind)):
            raw = {**shape, **FIELDS.get(name, {}), "model_type": kind}
            raw |= {"architectures": [name]} if name else {}
            (folder / "config.json").write_text(json.dumps(raw, default=str))
            yield name, described(folder, plugins).replace(parent, "")


def described(folder: Path, plugins: PluginManager) -> str:
    """The architecture of a checkpoint, or the error that refuses it."""
    try:
        return outline(folder, Settings(dtype="float32"), plugins).architecture.name
    except OstroError as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    warnings.simplefilter("ignore")
    plugins = PluginManager()
    plugins.load(Settings())
    for kind in sys.argv[1:] or text_types():
        for name, outcome in outcomes(kind, plugins):
            print(f"{kind}\t{name or '-'}\t{outcome}", flush=True)


if __name__ == "__main__":
    main()
