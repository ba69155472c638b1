"""A dry run of a transformers model on the meta device, which finds its attention layers.

The properties of layers come from calls, not from the config: the attention interface receives the
shapes of queries, keys and values, and the mask interface receives the mask function.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from ostro import CacheSpec, nn
from ostro.architectures.transformers.config import no_body
from ostro.architectures.transformers.modules import attend
from ostro.errors import Unsupported

BODY, TRIAL = "ostro", "ostro_trial"
"""The names of ostro's attention in transformers' registry; only that of the trial builds masks."""

SHAPED = "batched_mm"
"""The implementation of experts in transformers that depends on shapes only."""

ROWS = 4
FAR = 2**30

KNOWN = {"scaling", "softcap", "s_aux", "sliding_window", "is_causal"}
NEUTRAL = {"dropout", "position_ids", "use_cache", "return_dict"}
"""Keywords of the attention interface: implemented ones, and ones without effect.

Keywords with the prefix "output_" have no effect either.
"""

AttentionInterface.register(BODY, attend)


class Trial:
    """The attention layers of a class, in the order of calls, with their cache specs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.layers: list[tuple[nn.Module, CacheSpec]] = []
        self.masks: list[tuple[Tensor, int]] = []

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
            raise no_body(self.name, f"its attention uses {', '.join(sorted(strange))}")
        causal = options.get("is_causal")
        if not (getattr(module, "is_causal", True) if causal is None else causal):
            raise no_body(self.name, "its attention is not causal")
        if any(module is known for known, _ in self.layers):
            raise no_body(self.name, "a layer calls attention twice")
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
        """The window of a mask that `mask` built, or of a layer without a mask."""
        if mask is None:
            return said or 0
        found = [window for made, window in self.masks if made is mask]
        if not found:
            raise no_body(self.name, "it builds its own masks")
        return found[0]

    def mask(
        self, *, mask_function: Callable[..., Any], local_size: int | None = None, **rest: Any
    ) -> Tensor:
        """The function in transformers' mask interface: analyses the mask function."""

        def sees(query: int, key: int) -> bool:
            return bool(mask_function(*map(torch.tensor, (0, 0, query, key))))

        w = local_size or 0
        if sees(0, 1):
            raise no_body(self.name, "its masks are not causal")
        # the edges of the window, at a near and a far query, stand for the whole mask
        plain = sees(FAR, 0) if not w else all(sees(q, q - w + 1) for q in (w, FAR))
        if not plain or (w and any(sees(q, q - w) for q in (w, FAR))):
            raise no_body(self.name, f"its masks are neither causal nor windows of {local_size}")
        made = torch.empty(1, 1, ROWS, ROWS, dtype=torch.bool, device="meta")
        self.masks.append((made, w))
        return made


def run(top: Any) -> list[tuple[nn.Module, CacheSpec]]:
    """The attention modules of a class on the meta device, with their cache specs.

    Raises Unsupported if the backend cannot run the class.
    """
    trial = Trial(type(top).__name__)
    AttentionInterface.register(TRIAL, trial.attend)
    AttentionMaskInterface.register(TRIAL, trial.mask)
    config, experts = top.config, top.config._experts_implementation
    config._attn_implementation, config._experts_implementation = TRIAL, SHAPED
    ids = torch.zeros(1, ROWS, dtype=torch.int64, device="meta")
    try:
        top(input_ids=ids, attention_mask=ids + 1, position_ids=ids, use_cache=False)
    except Unsupported:
        raise
    except Exception as error:  # a class may raise any exception
        raise no_body(trial.name, f"a dry run of it fails ({error!r:.200})") from error
    finally:
        config._attn_implementation, config._experts_implementation = BODY, experts
        seen, trial.layers = trial.layers, []  # the registries keep the trial, not the modules
    layers = config.get_text_config().num_hidden_layers
    if len(seen) != layers:
        raise no_body(
            trial.name,
            f"{len(seen)} of its {layers} layers attend through transformers' attention interface",
        )
    if "position_ids" not in signature(top.get_decoder().forward).parameters:
        raise no_body(trial.name, "it does not accept position_ids")
    return seen
