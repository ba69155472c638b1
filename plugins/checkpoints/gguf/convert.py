"""A model folder of the hub as the source of a GGUF file, written with the `gguf` package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ostro import TokenizerSource, TokenizerWriter, nn, resolve
from ostro.checkpoints import GGML_BY_NAME, JoinedContainer, Maker, Saving
from ostro.errors import CheckpointError, Unsupported
from ostro.pipelines import load_tokenizer
from ostro.plugins.checkpoints.gguf.comparison import differences
from ostro.plugins.checkpoints.gguf.conversion import FLOATS, FULL, PROJECTOR, Conversion
from ostro.plugins.checkpoints.gguf.entries import (
    QUANTIZATION_VERSION,
    TensorEntry,
    blocks,
    ggml,
    one_format,
)
from ostro.plugins.checkpoints.gguf.keys import (
    ARCHITECTURE,
    config_keys,
    rope_tensors,
    text_config,
)
from ostro.plugins.checkpoints.gguf.keys import PROJECTOR as CLIP
from ostro.plugins.checkpoints.gguf.mmproj import MediaProjector, preprocessor
from ostro.plugins.checkpoints.gguf.projector import Projector
from ostro.plugins.checkpoints.gguf.reader import PART, open_gguf

if TYPE_CHECKING:
    from gguf import GGUFWriter


class Converted:
    """A model folder. Raises Unsupported without the gguf package, or for a model without names."""

    def __init__(self, saving: Saving) -> None:
        self.saving, found = saving, saving.outline
        self.gguf = import_gguf()
        self.conversion = Conversion(saving)
        raw = {**found.raw_config, "preprocessor_config": preprocessor(found.container.path)}
        keys = config_keys(found.architecture, found.config, raw, saving.plugins)
        media = {key: value for key, value in keys.items() if key.startswith(CLIP)}
        self.keys = {key: value for key, value in keys.items() if key not in media}
        if isinstance(getattr(found.model, "mtp", None), nn.MultiTokenHead):
            name = self.keys[ARCHITECTURE]
            self.keys[f"{name}.block_count"] += 1
            self.keys[f"{name}.nextn_predict_layers"] = 1
        turning = self.keys.get(f"{self.keys[ARCHITECTURE]}.rope.dimension_count", 0)
        self.extra = rope_tensors(text_config(found.config), turning)
        self.projector = MediaProjector(self.conversion, media) if media else None

    @property
    def lacks_projector(self) -> bool:
        """Whether the folder has an encoder of media that is not written."""
        return self.projector is None and any(
            n.startswith(PROJECTOR) for n in self.conversion.parts
        )

    def entries(self) -> list[TensorEntry]:
        """The tensors of the file: extra tensors of the rope, and those of the model's text."""
        every = [
            TensorEntry(name, tuple(tensor.shape), "F32", tensor.clone, "config")
            for name, tensor in self.extra.items()
        ]
        names = [name for name in self.conversion.parts if not name.startswith(PROJECTOR)]
        return every + [self.entry(name) for name in names]

    def entry(self, name: str) -> TensorEntry:
        conversion, shape = self.conversion, self.conversion.shape(name)
        parts = conversion.parts[name]
        source = conversion.source_format(name)
        if (maker := self.maker(name, shape)) is not None:
            found, reason = maker
            make: Callable[[], Tensor] = partial(self.quantized, name, found)
            return TensorEntry(name, shape, blocks(found), make, source, reason)
        if (kept := conversion.blocks(name)) is not None:
            make = partial(conversion.read_blocks, name, ggml)
            return TensorEntry(name, shape, kept, make, source, "stays as it is")
        format, reason = self.float_format(name, shape, source)
        notes = self.saving.plan.notes
        reason = next((notes[p.slot.name] for p in parts if p.slot.name in notes), reason)
        make = partial(conversion.read_as, name, FLOATS[format])
        return TensorEntry(name, shape, format, make, source, reason)

    def maker(self, name: str, shape: tuple[int, ...]) -> tuple[Maker, str] | None:
        """The format of a tensor in the plan, with a reason; None if it is not quantized."""
        parts = self.conversion.parts[name]
        if not is_weight(name, shape) or any(part.slot.kind != "storage" for part in parts):
            return None
        plan, plans = self.saving.plan, []
        for slot in (part.slot for part in parts):
            maker = plan.choose(slot)
            if maker is not None:
                # The file may hold the transpose, whose rows have another length.
                maker = plan.fit(replace(slot, shape=shape), maker)
            if maker is None:
                return None
            plans.append((slot, maker))
        return one_format(self.saving, name, plans)

    def float_format(self, name: str, shape: tuple[int, ...], source: str) -> tuple[str, str]:
        if not is_weight(name, shape):
            return "F32", "" if source == "F32" else "vectors, norms and routers are F32"
        if self.saving.dtype is not None:
            return next(key for key, dtype in FLOATS.items() if dtype == self.saving.dtype), ""
        if source in FLOATS and self.conversion.is_float(name):
            return source, ""
        return "BF16", "dequantized"

    def quantized(self, name: str, maker: Maker) -> Tensor:
        """The blocks of a tensor; the matrices of a stack are quantized one by one."""
        conversion = self.conversion
        weight, parts = conversion.read(name), conversion.parts[name]
        plan, made = self.saving.plan, []
        matrices = weight.flatten(0, -3) if weight.dim() > 2 else weight[None]
        for i, each in enumerate(matrices):
            slot = parts[i if parts[0].stacked else 0].slot
            importance = plan.importance.get(slot.name)
            if each.shape[-1] != slot.shape[-1]:
                importance = None
            made.append(ggml(maker.make(each, torch.float32, importance).save()))
        return torch.stack(made)

    def write_header(self, path: Path, entries: Sequence[TensorEntry], file_type: int) -> None:
        keys = {"general.type": "model", **self.keys, **self.tokenizer()}
        self.write_keys(path, keys, entries, file_type)

    def write_keys(
        self, path: Path, keys: Mapping[str, Any], entries: Sequence[TensorEntry], file_type: int
    ) -> None:
        """Write the header of a file with the gguf package."""
        writer = self.gguf.GGUFWriter(path, keys[ARCHITECTURE])
        general = {
            "general.name": self.saving.outline.container.path.name,
            "general.file_type": file_type,
            "general.quantization_version": QUANTIZATION_VERSION,
        }
        for key, value in {**general, **keys}.items():
            if key != ARCHITECTURE:
                add_key(self.gguf, writer, key, value)
        import numpy as np

        for each in entries:
            kind = self.gguf.GGMLQuantizationType(GGML_BY_NAME[each.format].id)
            dtype = np.dtype(np.float32)
            writer.add_tensor_info(each.name, each.shape, dtype, each.nbytes, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()

    def tokenizer(self) -> Mapping[str, Any]:
        """The tokenizer's keys. Raises TokenizerError for one that GGUF files cannot describe."""
        saving, root = self.saving, self.saving.outline.container.path
        folder = root if root.is_dir() else root.parent
        tokenizer = load_tokenizer(folder, plugins=saving.plugins)
        write = resolve(saving.plugins.get("tokenizers", "gguf").write or "")
        writer: TokenizerWriter = write
        return writer(tokenizer, TokenizerSource(root=folder), self.keys)

    def check(self, path: Path, projector: Path | None) -> None:
        """Raise CheckpointError if the files describe another model than the folder."""
        found, plugins = self.saving.outline, self.saving.plugins
        record, name = found.architecture, self.keys[ARCHITECTURE]
        container = open_gguf(path)
        if projector is not None:
            container = JoinedContainer(container, {PART: Projector(projector)})
        elif record.gguf_config is None or (record.gguf and name not in record.gguf):
            record = plugins.architecture_for(gguf=name)
        raw = resolve(record.gguf_config or "")(container)
        stated = resolve(record.model)(resolve(record.config).from_hf(raw)).eval()
        if wrong := differences(found.model, stated, self.conversion.partial()):
            raise CheckpointError(
                f"a GGUF file of {name} cannot state the config of {found.container.path.name}: "
                f"{'; '.join(wrong[:5])}; use --to uqff"
            )


def import_gguf() -> Any:
    """The gguf package. Raises Unsupported if it is not installed."""
    try:
        import gguf
    except ImportError:
        raise Unsupported(
            "writing a GGUF file from a model folder needs the package gguf: pip install "
            "'ostro[gguf]'"
        ) from None
    return gguf


def is_weight(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor may have another format than F32."""
    return len(shape) > 1 and name.endswith(".weight") and not name.endswith(FULL)


def add_key(gguf: Any, writer: GGUFWriter, key: str, value: Any) -> None:
    """Add a key with the type that llama.cpp expects: u32 for integers, i32 in arrays."""
    types = gguf.GGUFValueType
    kinds = {bool: types.BOOL, int: types.UINT32, float: types.FLOAT32, str: types.STRING}
    if isinstance(value, bytes):
        writer.add_key_value(key, value, types.ARRAY, types.UINT8)
    elif isinstance(value, list | tuple):
        inner = kinds[type(value[0])] if value else types.STRING
        inner = types.INT32 if inner is types.UINT32 else inner
        if value:
            writer.add_key_value(key, list(value), types.ARRAY, inner)
    else:
        writer.add_key_value(key, value, kinds[type(value)])
