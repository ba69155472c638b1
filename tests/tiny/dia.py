"""A tiny Dia and its codec in folders, as transformers writes them, with random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DacConfig,
    DacModel,
    DiaConfig,
    DiaForConditionalGeneration,
    DiaProcessor,
    GenerationConfig,
)

from ostro.architectures.dia import CODEC, TINY
from ostro.plugins.conformance.parity import reinitialise

SHAPE: dict[str, Any] = {**TINY}
DELAYS: list[int] = SHAPE["delay_pattern"]
MARKS = {name: SHAPE["decoder_config"][name] for name in ("eos_token_id", "pad_token_id")}
START = SHAPE["decoder_config"]["bos_token_id"]


@dataclass
class Dia:
    """transformers' model and codec, saved in `folder`."""

    folder: Path
    model: Any
    codec: Any

    @torch.inference_mode()
    def states(self, texts: Tensor) -> Tensor:
        """texts [n, T] -> states of the encoder [n, T, d]."""
        found: Tensor = self.model.model.encoder(input_ids=texts).last_hidden_state
        return found

    @torch.inference_mode()
    def logits(self, texts: Tensor, codes: Tensor) -> Tensor:
        """texts [n, T], codes [places, channels] -> logits [n, places, channels, V]."""
        n = len(texts)
        given = codes.expand(n, -1, -1)
        found: Tensor = self.model(input_ids=texts, decoder_input_ids=given).logits
        return found.unflatten(0, (n, -1)).transpose(1, 2)

    @torch.inference_mode()
    def codes(self, tokens: list[int], steps: int, **how: Any) -> Tensor:
        """Return the codes of a text: [positions, channels], special codes and delays included."""
        start = torch.full((1, 1 + max(DELAYS), len(DELAYS)), MARKS["pad_token_id"])
        start[:, 0] = START
        index = DiaProcessor.build_indices(1, start.shape[1], len(DELAYS), DELAYS)
        delayed = DiaProcessor.apply_audio_delay(start, MARKS["pad_token_id"], START, index)
        text = torch.tensor([tokens])
        found: Tensor = self.model.generate(
            input_ids=text,
            attention_mask=torch.ones_like(text),
            decoder_input_ids=delayed,
            decoder_attention_mask=torch.ones(1, 1 + max(DELAYS), dtype=torch.long),
            max_new_tokens=steps,
            **how,
        )
        return found[0]

    @torch.inference_mode()
    def samples(self, codes: Tensor) -> Tensor:
        """codes [channels, frames] -> samples [n]."""
        found: Tensor = self.codec.decode(audio_codes=codes[None]).audio_values[0]
        return found

    def sound(self, codes: Tensor) -> Tensor:
        """Return the processor's audio for codes [positions, channels]."""
        processor = object.__new__(DiaProcessor)
        processor.audio_tokenizer = self.codec
        processor._merge_kwargs = lambda **_: {
            "audio_kwargs": {"delay_pattern": DELAYS, "bos_token_id": START, **MARKS}
        }
        found: Tensor = processor.batch_decode(codes[None])[0]
        return found


def make_dia(
    folder: Path, shape: Mapping[str, Any] = SHAPE, *, std: float = 0.15, beside: bool = True
) -> Dia:
    """Write both folders. The codec is in `codec`, or at a path of the processor's config.

    Attention scores are not scaled: a larger standard deviation amplifies rounding errors.
    """
    model = DiaForConditionalGeneration(DiaConfig(**shape)).eval()
    reinitialise(model, std)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.3, top_p=0.95, top_k=12, guidance_scale=2.5, **MARKS,
        bos_token_id=START, decoder_start_token_id=START,
    )  # fmt: skip
    model.save_pretrained(folder)
    codec = DacModel(DacConfig(**CODEC)).eval()
    loosen(codec)
    where = folder / "codec" if beside else folder.parent / f"{folder.name}-codec"
    codec.save_pretrained(where)
    if not beside:
        said = {"audio_tokenizer_class": "DacModel", "audio_tokenizer_name_or_path": str(where)}
        (folder / "processor_config.json").write_text(json.dumps({"audio_tokenizer": said}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "DiaTokenizer"}))
    return Dia(folder, model, codec)


@torch.no_grad()
def loosen(codec: Any) -> None:
    """Set weights for audio that is neither silent nor clipped, with different snake alphas."""
    random = torch.Generator().manual_seed(1)
    for name, weight in codec.named_parameters():
        if name.endswith("alpha"):
            weight.uniform_(0.4, 2.5, generator=random)
        elif name.endswith("bias"):
            weight.normal_(0, 0.1, generator=random)
        else:
            inputs = weight[0].numel() if "codebook" not in name else 1
            weight.normal_(0, 0.7 * inputs**-0.5, generator=random)
