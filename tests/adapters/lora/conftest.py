"""Fixtures that write adapter folders and read them with the plugin, as the engine does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from torch import Tensor

from ostro import AdapterSource, AdapterWeights, Files
from ostro.adapters.lora import claims
from ostro.adapters.lora.read import read as read_lora
from ostro.core.load.open import open_container
from ostro.core.plugins.manager import PluginManager

CONFIG = "adapter_config.json"

Read = Callable[[Path], AdapterWeights]
Write = Callable[..., AdapterWeights]


@pytest.fixture
def read(plugins: PluginManager) -> Read:
    """Read a folder, after checking that the plugin claims it."""

    def run(folder: Path) -> AdapterWeights:
        names = tuple(sorted(path.name for path in folder.iterdir()))
        parsed = {n: json.loads((folder / n).read_text()) for n in names if n.endswith(".json")}
        files, config = Files(root=folder, names=names, json=parsed), parsed.get(CONFIG, {})
        assert claims(files, config)
        return read_lora(
            AdapterSource(
                files=files, config=config, open=lambda n: open_container(folder / n, plugins)
            )
        )

    return run


@pytest.fixture
def write(tmp_path: Path, read: Read) -> Write:
    """Write a folder with one weight file and an optional config, and read it."""

    def run(
        tensors: Mapping[str, Tensor],
        config: Mapping[str, Any] | None = None,
        *,
        name: str = "adapter_model.safetensors",
        metadata: Mapping[str, str] | None = None,
    ) -> AdapterWeights:
        whole = {key: tensor.contiguous() for key, tensor in tensors.items()}
        save_file(whole, tmp_path / name, metadata=dict(metadata) if metadata else None)
        if config is not None:
            (tmp_path / CONFIG).write_text(json.dumps(config))
        return read(tmp_path)

    return run
