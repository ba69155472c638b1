"""X-LoRA folders: PEFT's (version 0.21), and those with an xlora_config.json, as mistral.rs reads.

Both hold a config, a classifier and members, LoRA folders: at the path that the config gives, which
may lead beside the folder and no further, else in a sub-folder of the member's name.

mistral.rs 0.9 does some of it otherwise, which is not repeated here: its classifier drops out
numbers at random when it answers, has inner layers of width 1 where xlora_size is not said (here
they are as wide as their tensors), and refuses enable_softmax_topk. `tgt_non_granular_index`, a
setting of its server after so many tokens of which scalings stay as they are, is a key here of
either config. What its orderings say of adapters to be swapped in later is not looked at.
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
    made, tensors = classifier.read(settings, file, source.open(file))
    members = [member(source, name, path) for name, path in settings.members.items()]
    names = sorted({name for each in members for name in each.weights})
    rows = len(made.layers[-1][0]) // len(members)
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
            scalings=made.scalings,
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
