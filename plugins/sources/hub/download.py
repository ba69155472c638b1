"""Download from the hub the files that a model needs, and use the cache offline."""

from __future__ import annotations

import glob
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi, constants, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name

from ostro import HubReference, Settings
from ostro.errors import ModelNotFound, OstroError, UsageError
from ostro.plugins.sources.files import Selection, listed, missing, select

log = logging.getLogger(__name__)

ABBREVIATION = re.compile("[0-9a-f]{7,39}")
"""The first digits of a commit, which `ostro rm` and `ostro list` print."""


def fetch(reference: HubReference, kind: str, settings: Settings) -> Path:
    """The folder or file of a hub model, downloaded unless it is cached.

    Raises ModelNotFound with the next step: gated, private, missing, no connection, not cached.
    """
    if revision := reference.revision or settings.revision:
        revision = full_commit(reference.id, revision)
        reference = HubReference(id=reference.id, revision=revision, selector=reference.selector)
    token = token_from(settings.token_source)
    if settings.offline or constants.HF_HUB_OFFLINE:
        return cached(reference, kind, "offline mode is set; run once with a connection")
    try:
        names = listing(reference, token)
    except OstroError:
        raise
    except Exception as error:
        if not _is_outage(error):
            raise explained(reference, error) from error
        path = cached(reference, kind, f"{_host()} cannot be reached ({_brief(error)})")
        log.warning("%s cannot be reached; using the cached %s", _host(), reference.id)
        return path
    selection = select(names, kind, reference.selector, reference.id)
    try:
        return download(reference, selection, token)
    except OstroError:
        raise
    except Exception as error:
        raise explained(reference, error) from error


def full_commit(id: str, revision: str) -> str:
    """The cached commit that a revision abbreviates; the revision if there is not exactly one."""
    folder = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=id, repo_type="model"))
    if not ABBREVIATION.fullmatch(revision) or (folder / "refs" / revision).exists():
        return revision
    found = [path.name for path in (folder / "snapshots").glob(f"{revision}*")]
    return found[0] if len(found) == 1 else revision


def token_from(source: str | None) -> str | bool | None:
    """The access token of a source: env:NAME, file:PATH, literal:TEXT, cache or none.

    None applies the rules of huggingface_hub (HF_TOKEN, or the token of `hf auth login`), False
    sends no token. Raises UsageError for a source without a token.
    """
    how, _, rest = (source or "cache").partition(":")
    if how in ("cache", "none") and not rest:
        return None if how == "cache" else False
    if how == "env":
        found = os.environ.get(rest, "")
    elif how in ("file", "path"):
        try:
            found = Path(rest).expanduser().read_text("utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(f"--token-source {how}:{rest}: {error}") from None
    elif how == "literal":
        found = rest
    else:
        raise UsageError("--token-source is one of env:NAME, file:PATH, literal:TOKEN, cache, none")
    if not found.strip():
        named = "" if how == "literal" else rest
        raise UsageError(f"--token-source {how}:{named} holds no token")
    return found.strip()


def listing(reference: HubReference, token: str | bool | None) -> list[str]:
    """The names of all files of a hub model. Raises ModelNotFound for unsafe names."""
    info = HfApi(endpoint=constants.ENDPOINT, token=token).model_info(
        reference.id, revision=reference.revision
    )
    names = [sibling.rfilename for sibling in info.siblings or ()]
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or not name.isprintable():
            raise ModelNotFound(f"{reference.id} lists a file with the unsafe name {name!r:.100}")
    return names


def download(reference: HubReference, selection: Selection, token: str | bool | None) -> Path:
    """Fetch the selected files, weights last: complete weights imply a complete model."""
    folder = Path()
    for names in filter(None, (selection.small, selection.weights)):
        folder = Path(
            snapshot_download(
                reference.id,
                revision=reference.revision,
                allow_patterns=[glob.escape(name) for name in names],
                token=token,
                endpoint=constants.ENDPOINT,
            )
        )
    lacking = [n for n in (*selection.small, *selection.weights) if not (folder / n).is_file()]
    if lacking:
        raise ModelNotFound(
            f"{reference.id} is incomplete after the download: {listed(lacking)} missing; try again"
        )
    return folder / selection.target


def cached(reference: HubReference, kind: str, reason: str) -> Path:
    """The cached path of a hub model. Raises ModelNotFound, with `reason`, if it is incomplete."""
    try:
        folder = Path(
            snapshot_download(
                reference.id,
                revision=reference.revision,
                allow_patterns=[],
                local_files_only=True,
            )
        )
    except (LocalEntryNotFoundError, OSError, ValueError):
        wanted = f"{reference.id}@{reference.revision}" if reference.revision else reference.id
        raise ModelNotFound(f"{wanted} is not in the cache, and {reason}") from None
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    selection = select(names, kind, reference.selector, f"{reference.id} in the cache")
    if lacking := missing(selection, _shards(folder, selection)):
        raise ModelNotFound(
            f"{reference.id} is only partly in the cache (without {listed(lacking)}), and {reason}"
        )
    return folder / selection.target


def cached_file(reference: HubReference, settings: Settings) -> Path | None:
    """The cached blob of the file that a reference names, or of its config.json.

    None if the file is not cached.
    """
    found = try_to_load_from_cache(
        reference.id,
        reference.selector or "config.json",
        cache_dir=constants.HF_HUB_CACHE,
        revision=reference.revision or settings.revision,
    )
    return Path(found).resolve() if isinstance(found, str) else None


def explained(reference: HubReference, error: Exception) -> ModelNotFound:
    """The error for a failed request to the hub, with the next step."""
    page = f"{_host()}/{reference.id}"
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, GatedRepoError):
        text = f"is gated: accept its terms at {page}, then run `hf auth login`"
    elif isinstance(error, RevisionNotFoundError):
        text = f"has no revision {reference.revision!r}; {page} lists its branches and tags"
    elif isinstance(error, RepositoryNotFoundError) or status == 401:
        text = f"does not exist at {_host()}, or is private: check the name, or run `hf auth login`"
    elif status == 403:
        text = f"is not accessible with this token; request access at {page}"
    elif status == 429:
        text = "was refused for too many requests; try again later, or with a token"
    else:
        text = (
            f"could not be fetched ({_brief(error)}); run the command again, "
            "complete files are kept"
        )
    return ModelNotFound(f"{reference.id} {text}{_token_hint(error)}{_local_hint(reference)}")


def _token_hint(error: Exception) -> str:
    needs_token = isinstance(error, GatedRepoError | RepositoryNotFoundError)
    return ", or give a token with --token-source env:HF_TOKEN" if needs_token else ""


def _local_hint(reference: HubReference) -> str:
    meant = Path(reference.id).parent.is_dir()
    return f"; there is no local folder {reference.id} either" if meant else ""


def _is_outage(error: Exception) -> bool:
    """Whether the hub is unreachable, so that the cache may be used."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code >= 500
    return isinstance(error, OfflineModeIsEnabled | OSError) or "httpx" in type(error).__module__


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _host() -> str:
    return str(constants.ENDPOINT)


def _shards(folder: Path, selection: Selection) -> Iterator[str]:
    """The weight files that the indexes among the selected files name."""
    for name in selection.small:
        if name.endswith(".safetensors.index.json"):
            try:
                shards = set(json.loads((folder / name).read_text("utf-8"))["weight_map"].values())
                named = [PurePosixPath(name).with_name(shard).as_posix() for shard in shards]
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue  # the reader of the weights reports a malformed index
            yield from named
