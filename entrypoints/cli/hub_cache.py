"""The models in the Hugging Face cache, and the aliases of hub models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ostro.core.errors import ModelNotFound, UsageError, nearest
from ostro.core.records import Alias
from ostro.core.settings import HubReference

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, CachedRevisionInfo, HFCacheInfo

GGUF_TYPE = re.compile(r"(?i)[-._]((i?q|tq)\d\w*|bf16|f16|f32|mxfp4\w*)(?=[-.])")
"""The format in the name of a GGUF file."""

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@cache
def aliases() -> Mapping[str, Alias]:
    """The aliases of all plugins by name."""
    from ostro.core.plugins.manager import PluginManager

    plugins = PluginManager()
    plugins.load()
    return plugins.collect("aliases")


def parse(reference: str) -> HubReference:
    """The hub reference of a text or an alias; other text is an id that no model has."""
    full = aliases()[reference].reference if reference in aliases() else reference
    return HubReference.parse(full) or HubReference(id=full)


def names_of(id: str) -> list[str]:
    """The aliases of a hub id."""
    return [name for name in aliases() if parse(name).id == id]


def scan() -> HFCacheInfo:
    """The content of the cache; no repositories if the folder does not exist."""
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    try:
        return scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        with TemporaryDirectory() as empty:
            return scan_cache_dir(empty)


def models(info: HFCacheInfo) -> list[CachedRepoInfo]:
    """The cached models, the last used first."""
    found = [repo for repo in info.repos if repo.repo_type == "model"]
    return sorted(found, key=lambda repo: (-repo.last_accessed, repo.repo_id))


def find(info: HFCacheInfo, reference: str) -> tuple[CachedRepoInfo, list[CachedRevisionInfo]]:
    """A cached model and its revisions, or the one of the reference.

    Raises ModelNotFound for a model or revision that is not in the cache.
    """
    wanted = parse(reference)
    id, revision = wanted.id, wanted.revision
    cached = {repo.repo_id: repo for repo in models(info)}
    repo = cached.get(id)
    if repo is None:
        near = nearest(id, cached)
        raise ModelNotFound(f"{id} is not in the cache{near}; `ostro list` lists its models")
    chosen = [
        each
        for each in repo.revisions
        if not revision or revision in each.refs or each.commit_hash.startswith(revision)
    ]
    if not chosen:
        known = ", ".join(sorted(each.commit_hash[:8] for each in repo.revisions))
        raise ModelNotFound(f"{id} has no revision {revision} in the cache; it has {known}")
    return repo, chosen


def describe(repo: CachedRepoInfo) -> dict[str, Any]:
    """A cached model as plain data: sizes in bytes, the time of the last use in seconds."""
    return {
        "model": repo.repo_id,
        "aliases": names_of(repo.repo_id),
        "formats": formats(repo.revisions),
        "bytes": repo.size_on_disk,
        "last_used": repo.last_accessed,
        "revisions": sorted(each.commit_hash for each in repo.revisions),
        "path": str(repo.repo_path),
    }


def formats(revisions: Iterable[CachedRevisionInfo]) -> list[str]:
    """The formats of cached weights, by the names of the files and their config.json."""
    found: set[str] = set()
    for revision in revisions:
        names = {str(file.file_path.relative_to(revision.snapshot_path)) for file in revision.files}
        found.update(formats_of(names, revision.snapshot_path))
    return sorted(found)


def formats_of(names: set[str], folder: Path) -> Iterator[str]:
    """The formats of a folder with these files."""
    if any(name.endswith(".safetensors") for name in names):
        adapter = "adapter_config.json" in names
        yield "adapter" if adapter else f"safetensors {stored(folder / 'config.json')}".strip()
    for name in names:
        if name.endswith(".gguf") and "mmproj" not in name.lower():
            kind = GGUF_TYPE.search(name)
            yield f"gguf {kind[1].upper()}" if kind else "gguf"
        elif name.endswith(".uqff"):
            yield "uqff"
    if all(name.endswith((*PICKLES, ".json", ".txt", ".md")) for name in names):
        yield "pickle" if any(name.endswith(PICKLES) for name in names) else "no weights"


def stored(config: Path) -> str:
    """The quantization method or the dtype that a config.json states, "" if it states none."""
    try:
        found = json.loads(config.read_text("utf-8"))
        method = (found.get("quantization_config") or {}).get("quant_method")
        return str(method or found.get("dtype") or found.get("torch_dtype") or "")
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""


def size(nbytes: float) -> str:
    """A size in decimal units, for tables."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.2f} {unit}"
    return f"{nbytes:.0f} bytes"


def refuse_selector(reference: str) -> None:
    """Raise UsageError for a file in a reference: the cache is deleted by revisions."""
    if reference not in aliases() and parse(reference).selector:
        raise UsageError(
            f"{reference}: the cache deletes whole revisions; give {reference.partition(':')[0]}"
        )
