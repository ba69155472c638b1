"""A folder of folders, as diffusers writes a pipeline: each part's tensors under the part's name.

`model_index.json` says of every part which library and class it is of; parts without weights
(tokenizers, schedulers) give their config alone.
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
    """Open all parts of a folder. Tensors are called "part.name"; so are the configs of the parts.

    Raises CheckpointError for a part that is named and not there, and what its files raise.
    """
    config: dict[str, Any] = read_config(path / PARTS)
    places = dict[str, TensorLocation]()
    for part, named in list(config.items()):
        if not isinstance(named, list) or named[:1] == [None] or len(named) != 2:
            continue
        folder = path / part
        if not folder.is_dir() or folder.resolve().parent != path.resolve():
            raise CheckpointError(
                f"{PARTS} names the part {part!r:.60}, and {path.name} has no such folder; "
                "download the model again"
            )
        file = next((folder / name for name in CONFIGS if (folder / name).is_file()), None)
        config[part] = {} if file is None else read_config(file)
        if any(entry.suffix == ".safetensors" for entry in folder.iterdir()):
            for name, place in open_shards(folder, INDICES, SINGLES).items():
                info = replace(place.info, name=f"{part}.{name}", file=f"{part}/{place.info.file}")
                places[info.name] = replace(place, info=info)
    return MappedContainer(path, places, {}, config=config)
