"""A dry run of a transformers model on the meta device, which finds its attention layers.

The properties of layers come from calls, not from the config: the attention interface receives the
shapes of queries, keys and values, and the mask interface receives the mask function.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from ostro import CacheSpec, nn
from ostro.architectures.transformers import mixtures
from ostro.architectures.transformers.config import fault, no_body
from ostro.architectures.transformers.modules import Call, attend
from ostro.errors import Unsupported

BODY, TRIAL = "ostro", "ostro_trial"
"""The names of ostro's attention in transformers' registry; only that of the trial builds masks."""

ROWS = 4
FAR = 2**30

KNOWN = {"scaling", "softcap", "s_aux", "sliding_window", "is_causal"}
NEUTRAL = {"dropout", "position_ids", "use_cache", "return_dict"}
"""Keywords of the attention interface: implemented ones, and ones without effect.

Keywords with the prefix "output_" have no effect either.
"""

UNSHARED = re.compile(r"'(\w*(?:Linear|Embedding|Head))' object has no attribute '(\w+)'")
"""torch's error for an attribute that ostro's modules do not have."""
UNKNOWN_VALUES = ("meta tensor", "register_meta")
"""Parts of torch's errors for a tensor without values."""

AttentionInterface.register(BODY, attend)


class Trial:
    """The attention layers of a class, in the order of calls, with their cache specs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.layers: list[tuple[nn.Module, CacheSpec]] = []
        self.masks: list[tuple[Tensor, int | str]] = []

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """The function in transformers' attention interface."""
        asked = {option for option, given in options.items() if given is not None}
        strange = {o for o in asked - KNOWN - NEUTRAL if not o.startswith("output_")}
        if strange:
            why = f"its attention uses {', '.join(sorted(strange))}"
            raise no_body(self.name, why, needs="its attention")
        causal = options.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        if attention_mask is None and not causal:
            raise no_body(self.name, "its attention is not causal", needs="its attention")
        if any(module is known for known, _ in self.layers):
            raise no_body(
                self.name, "a layer calls attention twice", needs="several caches per layer"
            )
        (_, heads, rows, d), (_, kv, keys, _) = query.shape, key.shape
        if rows != ROWS or keys != ROWS or heads % kv:
            raise no_body(
                self.name, f"{heads} heads of {rows} rows attend to {kv} heads of {keys} rows"
            )
        window = self.window(attention_mask, options.get("sliding_window"))
        dv = value.shape[-1]
        spec = CacheSpec(heads=kv, key_dim=d, value_dim=dv, window=window)
        self.layers.append((module, spec))
        return query.new_empty(1, rows, heads, dv), None

    def window(self, mask: Any, said: int | None) -> int:
        """The window of a mask that `mask` built, or of a layer without a mask.

        Raises Unsupported for masks that `mask` rejected. A class may build masks that it does not
        use, for the states of an encoder that it does not have.
        """
        if mask is None:
            return said or 0
        found = next(
            (window for made, window in self.masks if made is mask), "it builds its own masks"
        )
        if isinstance(found, str):
            raise no_body(self.name, found, needs="its masks")
        return found

    def mask(
        self, *, mask_function: Callable[..., Any], local_size: int | None = None, **rest: Any
    ) -> Tensor:
        """The function in transformers' mask interface: a mask that stands for its function."""
        made = torch.empty(1, 1, ROWS, ROWS, dtype=torch.bool, device="meta")
        self.masks.append((made, width(mask_function, local_size or 0)))
        return made


def width(mask_function: Callable[..., Any], w: int) -> int | str:
    """The window of a mask function, 0 if it is causal without one, or why it is neither.

    `w` is the local size that transformers passes beside the function.
    """

    def visible(query: int, key: int) -> bool:
        return bool(mask_function(*map(torch.tensor, (0, 0, query, key))))

    if visible(0, 1):
        return "its masks are not causal"
    # the edges of the window, at a near and a far query, stand for the whole mask
    plain = visible(FAR, 0) if not w else all(visible(q, q - w + 1) for q in (w, FAR))
    if not plain or (w and any(visible(q, q - w) for q in (w, FAR))):
        return f"its masks are neither causal nor windows of {w or None}"
    return w


def run(top: Any, base: nn.Module) -> tuple[list[tuple[nn.Module, CacheSpec]], Tensor]:
    """The attention modules of a class on the meta device, with their cache specs.

    Also returns the hidden states of its decoder `base`, for `run_head`. Raises Unsupported if the
    backend cannot run the class.
    """
    trial = Trial(type(top).__name__)
    AttentionInterface.register(TRIAL, trial.attend)
    AttentionMaskInterface.register(TRIAL, trial.mask)
    config = top.config
    config._attn_implementation, config._experts_implementation = TRIAL, mixtures.EXPERTS
    ids = torch.zeros(1, ROWS, dtype=torch.int64, device="meta")
    outputs: list[Any] = []
    hook = base.register_forward_hook(lambda module, args, output: outputs.append(output))
    try:
        top(input_ids=ids, attention_mask=ids + 1, position_ids=ids, use_cache=False)
    except Unsupported:
        raise
    except Exception as error:  # a class may raise any exception
        why, needs = missing(error)
        raise no_body(trial.name, f"a dry run of it fails: {why}", needs) from error
    finally:
        hook.remove()
        config._attn_implementation = BODY
        seen, trial.layers = trial.layers, []  # the registries keep the trial, not the modules
    layers = config.get_text_config().num_hidden_layers
    if len(seen) != layers or len(outputs) != 1:
        raise no_body(
            trial.name,
            f"{len(seen)} of its {layers} layers attend through transformers' attention interface",
            needs="its attention",
        )
    return seen, outputs[0][0]


def run_head(top: Any, call: Call, hidden: Tensor) -> None:
    """Run the head of a class on the meta device, with the hidden states of its decoder.

    Raises Unsupported if it needs more than these.
    """
    with call.bound(None, hidden):
        try:
            top(use_cache=False)
        except Exception as error:  # a class may raise any exception
            why = f"its head uses more than hidden states: {missing(error)[0]}"
            raise no_body(type(top).__name__, why, needs="its head") from error


def missing(error: Exception) -> tuple[str, str]:
    """Why a call on the meta device failed, and what a plugin for the class must have."""
    text = fault(error)
    if reads := UNSHARED.search(text):
        module, attribute = reads.groups()
        return f"it reads the {attribute} of its {module} module by itself", "its layers"
    if any(each in text for each in UNKNOWN_VALUES):
        return f"its computation depends on the values of tensors ({text})", "its forward pass"
    return text, "its forward pass"
