"""The check of text encoders: batches against single inputs."""

from __future__ import annotations

import torch

from ostro.plugins.conformance.checks import check, encodes
from ostro.plugins.conformance.parity import BAR, Subject, deviation, encode

LENGTHS = (1, 2, 7, 7, 7, 33, 50)
"""Input lengths of one batch: equal ones side by side, and different ones."""


@check(encodes)
def encoder_batches_match_single_inputs(tiny: Subject) -> None:
    engine = tiny.engine()
    cut = [(tiny.prompt[:n], tiny.kinds[:n]) for n in LENGTHS]
    together = encode(engine, [tokens for tokens, _ in cut], [kinds for _, kinds in cut])
    alone = torch.cat([encode(engine, [tokens], [kinds]) for tokens, kinds in cut])
    assert deviation(together, alone) <= BAR
    assert deviation(together, torch.cat([tiny.run_reference(*each) for each in cut])) <= BAR
