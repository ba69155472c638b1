"""Multi-token heads of checkpoints: their names, and how a model gets one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ostro.core.config import ModelConfig
from ostro.core.errors import UsageError
from ostro.core.load.container import Container
from ostro.core.load.names import Named, Names, Pair
from ostro.core.nn import Model
from ostro.core.records import Architecture, resolve

HEADS = "heads"
"""The value of --speculate for the multi-token head of a checkpoint."""

MTP, LAYER = "mtp", "mtp.layer"
"""The paths of the head and of its decoder layer in the tree of the model."""

HUB = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head.norm": "norm"}
GGUF = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head_norm": "norm"}
"""The modules of a head beside its layer, in checkpoints and in the tree of the model."""


@dataclass(frozen=True, kw_only=True)
class MultiTokenNames(Names):
    """The names of a model and its multi-token head, which has a decoder layer at `mtp.layer`.

    The layer has the names of the layer at `path` of `model`, the names of the model with one layer
    more. Checkpoints of the hub may have it elsewhere: at `moved[0]` in the place of `moved[1]`.
    The pairs are those of the other modules of the head.
    """

    model: Names
    path: str
    moved: tuple[str, str] = ("", "")
    ignore: Sequence[str] = ()

    def read(self, names: Iterable[str], space: str = "hub") -> tuple[list[Named], list[str]]:
        named, left = list[Named](), list[str]()
        for name in names:
            own, missing = self.own(name, space), list[str]()
            if not own and not super().ignored(name):
                own, missing = self.model.read([self.to_model(name)], space)
            named += self.from_model(own, name)
            left += [name] * bool(missing)
        return named, left

    def find(self, name: str, space: str) -> list[Named]:
        if (own := self.own(name, space)) or super().ignored(name):
            return own
        return self.from_model(self.model.find(self.to_model(name), space), name)

    def write(self, name: str, space: str = "hub") -> Named:
        if name.startswith(f"{MTP}.") and not name.startswith(f"{LAYER}."):
            return super().write(name, space)
        written = self.model.write(renamed(name, LAYER, self.path), space)
        return replace(written, name=name, theirs=renamed(written.theirs, *reversed(self.moved)))

    def ignored(self, name: str) -> bool:
        return super().ignored(name) or self.model.ignored(self.to_model(name))

    def own(self, name: str, space: str) -> list[Named]:
        """The tensor of a module of the head beside its layer."""
        pairs = [(pair.match(name), pair) for pair in self.spaces[space]]
        return [Named(ours, name, pair.transform) for ours, pair in pairs if ours is not None]

    def to_model(self, name: str) -> str:
        """The name for `model` of a tensor in a checkpoint."""
        return renamed(name, *self.moved)

    def from_model(self, named: Iterable[Named], theirs: str) -> list[Named]:
        """What `model` found for a tensor, with its names in the tree and in the checkpoint."""
        return [
            replace(item, name=renamed(item.name, self.path, LAYER), theirs=theirs)
            for item in named
        ]


def multi_token_names(
    names: Names, layer: int, hub: Sequence[Pair] = (), moved: tuple[str, str] = ("", "")
) -> MultiTokenNames:
    """The names of a model and of a multi-token head with the modules enorm, hnorm, eh_proj, layer
    and norm.

    names: those of the model with the layer of the head, whose index is `layer`. hub: the pairs of
    the other modules on the hub; by default they are beside the weights of that layer, with the
    names of `HUB`. moved: see `MultiTokenNames`. Copies of the model's embedding and output head
    are ignored.
    """
    path, nextn = f"model.layers.{layer}", f"blk.{layer}.nextn"
    pairs = [Pair(f"{path}.{theirs}", f"{MTP}.{ours}") for theirs, ours in HUB.items()]
    linears = [Pair(name, name) for name in (LAYER, f"{MTP}.eh_proj")]
    return MultiTokenNames(
        hub=[*(hub or pairs), *linears],  # UQFF files have the names of the tree for linears
        gguf=[Pair(f"{nextn}.{theirs}", f"{MTP}.{ours}") for theirs, ours in GGUF.items()],
        model=names,
        path=path,
        moved=moved,
        ignore=(
            f"{path}.embed_tokens.{{any}}",
            f"{path}.shared_head.head.{{any}}",
            f"{nextn}.embed_tokens.{{any}}",
            f"{nextn}.shared_head_head.{{any}}",
        ),
    )


def renamed(name: str, old: str, new: str) -> str:
    """A name with the prefix `new` instead of `old`, if it has that one."""
    return f"{new}{name[len(old) :]}" if old and name.startswith(f"{old}.") else name


def add_head(
    model: Model, config: ModelConfig, architecture: Architecture, container: Container, space: str
) -> Names:
    """Add the multi-token head of a checkpoint to a model; returns the names of both.

    Raises UsageError if the checkpoint has none, or the architecture does not implement it.
    """
    if architecture.mtp is None or architecture.mtp_names is None:
        raise UsageError(
            f"--speculate {HEADS}: multi-token heads of {architecture.name} are not implemented; "
            "use ngram, a draft model, or the assistant that some models have"
        )
    names: Names = resolve(architecture.mtp_names)(config)
    if not any(item.name.startswith(f"{MTP}.") for item in names.read(container.tensors, space)[0]):
        raise UsageError(
            f"--speculate {HEADS}: {container.path.name} has no multi-token head; converters may "
            "have dropped it: use another file of this model, ngram or a draft model"
        )
    model.mtp = resolve(architecture.mtp)(config)
    return names
