"""Dia's names: gate and up are one tensor, and the codec's encoder is unused."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import HeadRows, Names, Pair
from ostro.architectures.dia.config import Config

UNUSED = ("codec.encoder.{any}", "codec.quantizer.quantizers.{i}.in_proj.{any}")


def names(config: Config) -> Names:
    return Names(hub=tuple(halves(config)), ignore=(*Names().ignore, *UNUSED))


def halves(config: Config) -> Iterator[Pair]:
    sides = {"encoder": config.encoder_config, "decoder": config.decoder_config}
    for side, its in sides.items():
        mlp, rows = f"model.{side}.layers.{{i}}.mlp", its.intermediate_size
        for i, half in enumerate(("gate_proj", "up_proj")):
            part = HeadRows(1, 2 * rows, i * rows, (i + 1) * rows)
            yield Pair(f"{mlp}.gate_up_proj", f"{mlp}.{half}", part)
