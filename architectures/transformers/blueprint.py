"""Build a transformers model on the meta device, and replace torch's modules by ostro's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ostro import nn
from ostro.architectures.transformers import mixtures
from ostro.architectures.transformers.config import Config, fault, no_body
from ostro.architectures.transformers.modules import Call, Embedding, Head, Linear, ScaledEmbedding
from ostro.architectures.transformers.trial import BODY

REFUSED = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.RNNBase)
"""Module classes that no weight format supports, or that mix rows."""


def draw(config: Config) -> Any:
    """The module tree of the class, without weights. Raises Unsupported for unsupported modules."""
    name = config.body.__name__
    config.hf._attn_implementation = BODY
    with torch.device("meta"):
        try:
            top: Any = config.body(config.hf)
        except Exception as error:  # a class may raise any exception for a config
            why, needs = f"it cannot be built from this config: {fault(error)}", ""
            if isinstance(error, KeyError) and error.args == (BODY,):
                why = "its attention does not use transformers' attention interface"
                needs = "its attention"
            raise no_body(name, why, needs) from error
    for path, module in top.named_modules():
        if isinstance(module, REFUSED):
            why = f"{path} is a {type(module).__name__}"
            raise no_body(name, why, needs="convolutions or recurrence")
    if top.get_output_embeddings() is None or decoder_of(top) is top:
        raise no_body(name, "it is not a decoder with a head")
    for path, _ in (*top.named_parameters(recurse=False), *top.named_buffers(recurse=False)):
        raise no_body(name, f"it has {path} outside of its decoder and head")
    return top.eval()


def decoder_of(top: Any) -> Any:
    """The decoder below the head. Some classes use the name `decoder` for a linear of the head."""
    found = top.get_decoder()
    if not isinstance(found, PreTrainedModel):
        found = top.base_model
    # Classes whose `base_model_prefix` names no child (Llama 4, Mllama) return themselves.
    below = getattr(top, "model", None)
    return below if found is top and isinstance(below, PreTrainedModel) else found


def takes_positions(module: nn.Module) -> bool:
    """Whether the forward of a module has the parameter `position_ids`."""
    return "position_ids" in signature(module.forward).parameters


def position_tables(top: Any) -> Iterator[nn.Module]:
    """The modules of BART's line that look up positions, which they count from 0 by default."""
    for module in top.modules():
        if type(module).__name__.endswith("PositionalEmbedding") and takes_positions(module):
            yield module


def replace(top: Any, call: Call) -> None:
    """Replace linears, embeddings, experts and head by ostro's, with the same ties."""
    table, head, name = top.get_input_embeddings(), top.get_output_embeddings(), type(top).__name__
    if not isinstance(table, torch.nn.Embedding) or type(head) is not torch.nn.Linear:
        raise no_body(
            name, f"its embedding is a {type(table).__name__}, its head a {type(head).__name__}"
        )
    embedding = embed(table, name)
    tied = embedding if head.weight is table.weight else None
    for path, module in list(top.named_modules()):  # a list, since setattr changes the tree
        bias = getattr(module, "bias", None) is not None
        made: Linear | Embedding
        if module is head:
            made = Head(module.in_features, module.out_features, tied=tied, bias=bias)
        elif type(module) is torch.nn.Linear:
            made = Linear(module.in_features, module.out_features, bias=bias)
        elif isinstance(module, Conv1D):
            made = Linear(*module.weight.shape, bias=bias)
        elif type(module) is torch.nn.Embedding or is_scaled(module):
            made = embedding if module is table else embed(module, name)
        else:
            if mixtures.is_mixture(module):
                mixtures.replace(module, call, name)
            continue
        made.call = call
        parent, _, last = path.rpartition(".")
        setattr(top.get_submodule(parent), last, made)


def embed(table: torch.nn.Embedding, name: str) -> Embedding:
    """Ostro's embedding in place of torch's, or of one that multiplies its rows by a scale.

    Raises Unsupported for other subclasses of torch's.
    """
    if type(table) is torch.nn.Embedding:
        return Embedding(*table.weight.shape)
    if not is_scaled(table):
        raise no_body(name, f"its embedding is a {type(table).__name__}")
    scale: Any = table.embed_scale
    # Gemma's line stores the factor as a tensor, and rounds it to the dtype of the weight.
    rounded = isinstance(scale, Tensor)
    factor: Any = getattr(table, "scalar_embed_scale", None) if rounded else scale
    if factor is None:
        raise no_body(name, f"its {type(table).__name__} has its scale as a tensor only")
    return ScaledEmbedding(*table.weight.shape, scale=float(factor), rounded=rounded)


def is_scaled(module: nn.Module) -> bool:
    """Whether an embedding multiplies its rows by `embed_scale`."""
    return type(module).__name__.endswith("ScaledWordEmbedding")


def tabulate(top: Any) -> None:
    """Initialise non-persistent buffers (rope frequencies...).

    The class's own initialisation computes them, as transformers does after loading weights.
    Raises Unsupported for buffers that it does not set.
    """
    models = {path: each for path, each in top.named_modules() if isinstance(each, PreTrainedModel)}
    for path, module in top.named_modules():
        loose = [name for name, value in vars(module).items() if is_meta(value)]
        names = [name for name, _ in buffers(module, stored=False)]
        for name in names:
            module._buffers[name] = blank(module._buffers[name])
        if names:
            # As transformers: the method of the nearest model, which may read its own attributes.
            owner = path
            while owner not in models:
                owner = owner.rpartition(".")[0]
            initialise(models[owner], module, type(top).__name__)
        loose += [name for name in names if is_blank(module._buffers[name])]
        if loose:
            raise no_body(type(top).__name__, f"the buffer {path}.{loose[0]} has no initialisation")


def initialise(model: Any, module: nn.Module, name: str) -> None:
    """Set the buffers of a module by the initialisation of its model."""
    try:
        with torch.no_grad():
            model._init_weights(module)
    except Exception as error:  # a class may raise any exception
        why = f"the initialisation of its {type(module).__name__} fails: {fault(error)}"
        raise no_body(name, why) from error


def materialise(top: Any, dtype: torch.dtype) -> None:
    """Allocate on the CPU all parameters outside of ostro's modules that a checkpoint fills.

    Persistent buffers become parameters, because the loader fills parameters.
    """
    wide = set(top._keep_in_fp32_modules_strict or ())
    if dtype == torch.float16:
        wide |= set(top._keep_in_fp32_modules or ())
    exact = re.compile("|".join(rf"(^|\.){re.escape(name)}(\.|$)" for name in wide) or "(?!)")
    for path, module in top.named_modules():
        held = [*module.named_parameters(recurse=False), *buffers(module, stored=True)]
        for name, tensor in held:
            if not tensor.is_meta:
                continue
            kind = tensor.dtype
            if tensor.is_floating_point():
                kind = torch.float32 if exact.search(f"{path}.{name}") else dtype
            room = torch.empty(tensor.shape, dtype=kind)
            module._buffers.pop(name, None)
            module.register_parameter(name, nn.Parameter(room, requires_grad=False))


def buffers(module: nn.Module, *, stored: bool) -> list[tuple[str, Tensor]]:
    """A module's own persistent buffers, or its other ones."""
    loose = module._non_persistent_buffers_set
    own = module.named_buffers(recurse=False)
    return [(name, buffer) for name, buffer in own if (name not in loose) is stored]


def is_meta(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_meta


def blank(tensor: Tensor) -> Tensor:
    """A tensor on the CPU, filled with a marker value."""
    return torch.full(tensor.shape, marker(tensor), dtype=tensor.dtype)


def is_blank(tensor: Tensor) -> bool:
    """Whether a tensor still contains the marker value of `blank`; booleans, nothing else."""
    if tensor.dtype == torch.bool:
        return bool(tensor.all())
    left = tensor.isnan() if tensor.is_floating_point() else tensor == marker(tensor)
    return bool(left.any())


def marker(tensor: Tensor) -> float:
    """A value that no buffer contains; True for booleans, which masks may contain."""
    if tensor.is_floating_point():
        return float("nan")
    return True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).min
