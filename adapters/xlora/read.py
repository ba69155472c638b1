"""Read X-LoRA folders of PEFT (version 0.21), and those of mistral.rs with an xlora_config.json.

Both contain a config, a classifier and members, which are LoRA folders: at the path in the config,
inside the folder's parent only, else in a sub-folder with the member's name.

Behaviour of mistral.rs 0.9 that is not copied: dropout in its classifier at inference, inner layers
of width 1 without xlora_size (here the width of their tensors), and its refusal of
enable_softmax_topk. `tgt_non_granular_index`, the number of tokens after which scalings are frozen,
is a setting of its server, and here a key of either config. Adapters to be swapped in later, which
its ordering files can list, are ignored.
"""

from __future__ import annotations

from dataclasses import asdict

from ostro import AdapterSource, AdapterWeights, Mixer, errors
from ostro.adapters.xlora import classifier
from ostro.adapters.xlora.config import PEFT, Settings
from ostro.adapters.xlora.numbering import numbered, ordering


def read(source: AdapterSource) -> AdapterWeights:
    """Read the members of a folder and their classifier. Raises AdapterError with file and key."""
    order = ordering(source)
    settings = Settings.of(source, order.order)
    file = f"{'adapter_model' if settings.file == PEFT else 'xlora_classifier'}.safetensors"
    if file not in source.files.names:
        raise errors.AdapterError(f"{source.files.root.name}: there is no {file} in it")
    network, tensors = classifier.read(settings, file, source.open(file))
    members = [member(source, name, path) for name, path in settings.members.items()]
    names = sorted({name for each in members for name in each.weights})
    rows = len(network.layers[-1][0]) // len(members)
    if settings.layerwise:
        layers = numbered(names, rows, order.layers)
    else:
        layers = dict.fromkeys(names, 0)
    facts = asdict(settings) | {"members": list(settings.members), "layers": layers}
    facts.pop("base")
    return AdapterWeights(
        kind="xlora",
        members=members,
        mixer=Mixer(
            scalings=network.scalings,
            layers=layers,
            tensors=tensors,
            width=settings.hidden,
            held_after=settings.held_after,
        ),
        config=facts,
        base=settings.base,
    )


def member(source: AdapterSource, name: str, path: str) -> AdapterWeights:
    """A member's weights. Raises AdapterError for members that X-LoRA does not support."""
    try:
        found = source.member(path)
    except (errors.AdapterForbidden, errors.AdapterNotFound):
        # configs often have paths of the training machine, which do not exist here
        if name not in source.files.names:
            raise
        found = source.member(name)
    if found.kind != "lora" or found.space != "tree" or found.invocation:
        what = "an activated LoRA" if found.invocation else f"a {found.kind} in {found.space} names"
        raise errors.AdapterError(f"the member {name!r} is {what}; X-LoRA mixes PEFT's plain LoRA")
    special = [n for n, each in found.weights.items() if each.a.dim() != 2 or len(each.tensors) > 2]
    if special or found.whole:
        raise errors.AdapterError(
            f"the member {name!r} changes {next(iter([*special, *found.whole]))} by more than two "
            "factors (DoRA, a bias, stacked experts, a whole tensor), which X-LoRA does not mix; "
            "train it as plain LoRA, and save it with save_embedding_layers=False"
        )
    return found
