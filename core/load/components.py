"""Models that lie in several places: one of them, and companions that its record names, or that a
container finds beside it.

A companion's tensors are called "part.name", its config lies in the model's under the part's name,
and its metadata, where the model's own does not say otherwise, in the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostro.core.load.container import Container
from ostro.core.load.open import gguf_name, open_container
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, Settings, TensorInfo, resolve

if TYPE_CHECKING:
    import torch


class JoinedContainer:
    """A `Container` of a model and its companions."""

    def __init__(self, main: Container, parts: Mapping[str, Container]) -> None:
        self.main, self.parts = main, parts
        self.tensors: dict[str, TensorInfo] = dict(main.tensors)
        self.homes = {name: (main, name) for name in main.tensors}
        self.metadata: dict[str, Any] = {}
        for part, container in parts.items():
            for name, info in container.tensors.items():
                full = f"{part}.{name}"
                self.tensors[full] = replace(info, name=full, file=f"{part}/{info.file}")
                self.homes[full] = container, name
            self.metadata |= container.metadata
        self.metadata |= main.metadata

    @property
    def path(self) -> Path:
        return self.main.path

    def read(self, name: str) -> torch.Tensor:
        """As `Container.read`."""
        container, theirs = self.homes.get(name, (self.main, name))
        return container.read(theirs)

    def config(self) -> dict[str, Any] | None:
        """As `Container.config`, with those of the parts."""
        config = self.main.config()
        parts = {part: container.config() or {} for part, container in self.parts.items()}
        return None if config is None else {**config, **parts}

    def close(self) -> None:
        """As `Container.close`."""
        for container in (self.main, *self.parts.values()):
            container.close()


def join(
    container: Container,
    raw: dict[str, Any],
    architecture: Architecture,
    settings: Settings,
    plugins: PluginManager,
) -> tuple[Container, dict[str, Any]]:
    """A model's container and config, with those of its companions where it has some.

    Companions are found, and fetched if need be, as models are. Those that a container found are
    let go of where the architecture is one of the model alone. Raises an OstroError where one is
    not there.
    """
    if isinstance(container, JoinedContainer) and gguf_name(container) not in architecture.gguf:
        container = container.main
    if architecture.companions is None:
        return container, raw
    asked = replace(settings, revision=None)
    found = {
        part: open_container(plugins.locate(reference, asked), plugins)
        for part, reference in resolve(architecture.companions)(container.path).items()
    }
    joined = JoinedContainer(container, found)
    return joined, joined.config() or raw
