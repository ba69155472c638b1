"""Save a model as a UQFF folder: weights as layers, other tensors as the residual."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from pathlib import Path

from ostro import Storage
from ostro.checkpoints import Saving, SavingProgress, WeightSlot
from ostro.errors import CheckpointError, Unsupported, UsageError
from ostro.plugins.checkpoints.uqff.write import Entry, write

ASSETS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "modules.json",
)

Make = Callable[[], Storage]


def save_uqff(saving: Saving, progress: SavingProgress) -> Path:
    """Write the folder of a saving, see `write`. Raises Unsupported for other than hub folders."""
    found = saving.outline
    if found.space != "hub" or not found.container.path.is_dir():
        raise Unsupported(
            f"{found.container.path.name} is not a model folder with a config.json, which UQFF "
            "needs; "
            "quantize the model's folder, or use --to gguf"
        )
    if found.plan is None:
        raise UsageError("no format to quantize to; add --quant q4k or --topology RULES")
    layers = stacks(saving)
    total = sum(prod(slot.shape) for slots in layers.values() for slot, _ in slots)
    done = 0

    def make(parts: Sequence[tuple[WeightSlot, Make]]) -> Storage:
        nonlocal done
        storages = [read() for _, read in parts]
        done += sum(prod(slot.shape) for slot, _ in parts)
        progress(done, total)
        return storages[0] if parts[0][0].expert is None else stacked(parts[0][0], storages)

    others = saving.other_tensors()
    biases = {f"{key}.bias" for key in layers}
    write(
        saving.folder,
        saving.name,
        [
            Entry(key, partial(make, parts), others.get(f"{key}.bias"))
            for key, parts in layers.items()
        ],
        residual={name: tensor for name, tensor in others.items() if name not in biases},
        config=found.raw_config,
        assets=assets(found.container.path),
        base_model=found.container.path.resolve().name,
    )
    return saving.folder


def assets(folder: Path) -> dict[str, Path]:
    """The files of a model folder that are copied, by name."""
    paths = [path for pattern in ASSETS for path in sorted(folder.glob(pattern))]
    return {path.relative_to(folder).as_posix(): path for path in paths}


def stacks(saving: Saving) -> dict[str, list[tuple[WeightSlot, Make]]]:
    """The weights by key; experts `parent.3.part` are grouped under `parent.part`."""
    found: dict[str, list[tuple[WeightSlot, Make]]] = defaultdict(list)
    for slot, read in saving.weights():
        above, _, last = slot.name.rpartition(".")
        key = slot.name if slot.expert is None else f"{above.rpartition('.')[0]}.{last}"
        found[key].append((slot, read))
    return found


def stacked(slot: WeightSlot, storages: Sequence[Storage]) -> Storage:
    """The stacked storage of all experts."""
    stack = type(storages[0]).stack(storages)
    if stack is None:
        formats = ", ".join(sorted({storage.format for storage in storages}))
        raise CheckpointError(
            f"{slot.name}: its experts are {formats}, which cannot be stack; use one format for all"
        )
    return stack
