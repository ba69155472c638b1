"""Open a pipeline folder of diffusers: the tensors of each component, prefixed with its name.

`model_index.json` lists the library and class of each component; components without weights
(tokenizers, schedulers) contribute their config only.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ostro.checkpoints import MappedContainer, TensorLocation, read_config
from ostro.errors import CheckpointError
from ostro.plugins.checkpoints.safetensors import PARTS
from ostro.plugins.checkpoints.safetensors.reader import INDEX, open_shards

INDICES = ("diffusion_pytorch_model.safetensors.index.json", INDEX)
SINGLES = ("diffusion_pytorch_model.safetensors", "model.safetensors")
CONFIGS = ("config.json", "scheduler_config.json")


def open_parts(path: Path) -> MappedContainer:
    """Open all components of a folder. Tensors are "component.name"; configs are by component.

    Raises CheckpointError for a listed component without a folder, and the errors of its files.
    """
    config: dict[str, Any] = read_config(path / PARTS)
    locations = dict[str, TensorLocation]()
    for part, named in list(config.items()):
        if not isinstance(named, list) or named[:1] == [None] or len(named) != 2:
            continue
        folder = path / part
        if not folder.is_dir() or folder.resolve().parent != path.resolve():
            raise CheckpointError(
                f"{PARTS} lists the component {part!r:.60}, but {path.name} has no such folder; "
                "download the model again"
            )
        file = next((folder / name for name in CONFIGS if (folder / name).is_file()), None)
        config[part] = {} if file is None else read_config(file)
        if any(entry.suffix == ".safetensors" for entry in folder.iterdir()):
            for name, location in open_shards(folder, INDICES, SINGLES).items():
                info = replace(
                    location.info, name=f"{part}.{name}", file=f"{part}/{location.info.file}"
                )
                locations[info.name] = replace(location, info=info)
    return MappedContainer(path, locations, {}, config=config)
