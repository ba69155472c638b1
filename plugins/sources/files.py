"""Select the files that a model needs, by name, and find missing ones.

Names are relative to the model's folder, with forward slashes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from ostro.errors import ModelNotFound, PickleRefused, nearest

CONFIGS = ("config.json", "model_index.json", "params.json")
"""Files of which a model folder has at least one, unless it holds a GGUF file."""

SMALL = (".json", ".jinja", ".txt", ".model", ".tiktoken")
"""Suffixes of configs, tokenizers and templates."""

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
ELSEWHERE = {"original", "onnx", "openvino", "coreml", "flax", "tf", "runs"}
"""Folders in which repositories hold copies of the model for other programs."""

RESIDUAL = "residual.safetensors"
"""The file of UQFF repositories with the tensors that are not quantized."""

PRECISIONS = ("bf16", "f16", "f32", "q8_0")
"""The order of preference of several projectors. bf16 is the published precision, and f32 takes
twice the bytes without more information. The choice does not depend on the text's format, so that a
cache holds one projector.
"""

UQFF = re.compile(r"-\d+\.uqff$")
_SPLIT = re.compile(r"(?P<stem>.*)-\d{5}-of-(?P<total>\d{5})(?P<suffix>\.\w+)")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The files that a model needs: `small` ones, and its `weights`.

    `target` is the file to open, or "" to open the folder.
    """

    small: tuple[str, ...]
    weights: tuple[str, ...]
    target: str = ""


def select(names: Iterable[str], kind: str, selector: str | None, where: str) -> Selection:
    """Choose the files of a model or adapter from `names`.

    `selector` is a file or a format ("Q4_K_M"); `where` names the source in messages. Raises
    ModelNotFound, or PickleRefused if the only weights are pickles.
    """
    names = sorted(name for name in names if not _ignored(name))
    small = tuple(name for name in names if name.endswith(SMALL))
    if selector:
        return _selected(names, small, selector, where)
    weights = _tensors(names)
    if weights == (RESIDUAL,):
        stems = sorted({stem for name in names if (stem := UQFF.sub("", name)) != name})
        if len(stems) == 1:
            return _selected(names, small, stems[0], where)
        if stems:
            raise ModelNotFound(
                f"{where} holds {listed(stems)} as UQFF; name one, as in {where}:{stems[0]}"
            )
    if weights and (kind == "adapter" or any(name in names for name in CONFIGS)):
        return Selection(small=small, weights=weights)
    models = gguf_models(names)
    if len(models) == 1:
        return _gguf(models[0], names)
    if models:
        files = listed(model[0] for model in models)
        raise ModelNotFound(f"{where} holds several models: {files}; name one, as in {where}:FILE")
    if any(name.endswith(PICKLES) for name in names):
        raise PickleRefused(
            f"{where} has its weights only as pickles, which can run code when they are opened; "
            "use a safetensors or GGUF version of the model"
        )
    expected = "safetensors" if kind == "adapter" else "safetensors beside a config.json"
    raise ModelNotFound(f"{where} holds no {expected}, and no .gguf; {contents_of(names)}")


def gguf_models(names: Iterable[str]) -> list[tuple[str, ...]]:
    """The GGUF models among sorted names, each with all its splits, the first split first.

    Projectors (mmproj) of images and audio do not count as models.
    """
    models: dict[object, list[str]] = {}
    for name in names:
        if name.endswith(".gguf") and not _is_projector(name):
            split = _SPLIT.fullmatch(name)
            models.setdefault(split.group("stem", "total") if split else name, []).append(name)
    return [tuple(model) for model in models.values()]


def projector(names: Iterable[str], model: str) -> str | None:
    """The projector of a GGUF model: in its folder, the first by `PRECISIONS`."""
    folder = PurePosixPath(model).parent
    beside = [n for n in sorted(names) if _is_projector(n) and PurePosixPath(n).parent == folder]
    return min(beside, key=_precision, default=None)


def missing(selection: Selection, shards: Iterable[str]) -> list[str]:
    """The missing files of a folder: `shards` that its indexes list, and splits of a file."""
    lacking = [shard for shard in shards if shard not in selection.weights]
    for name in selection.weights:
        if parts := _SPLIT.fullmatch(name):
            stem, total, suffix = parts.groups()
            every = (f"{stem}-{i:05}-of-{total}{suffix}" for i in range(1, int(total) + 1))
            lacking += [split for split in every if split not in selection.weights]
    if not selection.weights:
        lacking.append("its weights")
    return sorted(set(lacking))


def listed(names: Iterable[str], limit: int = 10) -> str:
    """The first `limit` names, for a message."""
    every = list(names)
    text = ", ".join(every[:limit])
    return f"{text} and {len(every) - limit} more" if len(every) > limit else text


def contents_of(names: Sequence[str]) -> str:
    """The contents of a folder, as the last clause of a message."""
    return f"it holds {listed(names)}" if names else "it is empty"


def _is_projector(name: str) -> bool:
    return name.endswith(".gguf") and "mmproj" in PurePosixPath(name).name.lower()


def _precision(name: str) -> int:
    """The index in `PRECISIONS` of the precision in a file's name."""
    parts = re.split(r"[-.]", name.lower())
    return next(
        (i for i, precision in enumerate(PRECISIONS) if precision in parts), len(PRECISIONS)
    )


def _gguf(model: tuple[str, ...], names: Iterable[str]) -> Selection:
    beside = projector(names, model[0])
    weights = model if beside is None else (*model, beside)
    return Selection(small=(), weights=weights, target=model[0])


def _ignored(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return any(part.startswith(".") for part in parts) or bool(ELSEWHERE & set(parts[:-1]))


def _tensors(names: Sequence[str]) -> tuple[str, ...]:
    """The safetensors files, without copies (consolidated files, other precisions)."""
    tensors = [name for name in names if name.endswith(".safetensors")]
    if "model_index.json" in names:
        tensors = [name for name in tensors if "/" in name]
    plain = [name for name in tensors if not name.rpartition("/")[2].startswith("consolidated")]
    kept = plain or tensors
    variant = re.compile(r"\.(fp16|bf16|fp32|non_ema)(?=[.-])")
    return tuple(n for n in kept if not variant.search(n) or variant.sub("", n, 1) not in kept)


def _selected(names: Sequence[str], small: tuple[str, ...], text: str, where: str) -> Selection:
    """The files of a selector: a file's name, or a format between separators."""
    offered = [name for name in names if name.endswith((".gguf", ".uqff", ".safetensors"))]
    tag = re.compile(rf"(^|[-._/]){re.escape(text)}(?=[-._/])", re.IGNORECASE)
    found = [model for model in gguf_models(names) if text in model or tag.search(model[0])]
    if text in offered and not found:
        found = [(text,)]
    if uqff := tuple(name for name in offered if name.endswith(".uqff") and tag.search(name)):
        found.append(uqff)
    if not found:
        near = nearest(text, offered)
        raise ModelNotFound(f"{where} has no {text!r}{near}; it offers {listed(offered) or 'none'}")
    if len(found) > 1:
        several = listed(model[0] for model in found)
        raise ModelNotFound(f"{text!r} fits several files of {where}: {several}; name one")
    weights = found[0]
    if weights[0].endswith(".gguf"):
        return _gguf(weights, names)
    rest = tuple(n for n in names if n == RESIDUAL and n not in weights)
    return Selection(small=small, weights=weights + rest, target=weights[0])
