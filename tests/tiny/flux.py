"""A tiny FLUX in a folder, as diffusers writes it, with random weights and real tokenizers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers.processors import TemplateProcessing

from ostro.architectures.flux import TINY
from ostro.plugins.conformance.parity import reinitialise
from tiny.model import make_tokenizer


def make_flux(folder: Path, shape: Mapping[str, Any] = TINY, std: float = 0.1) -> Path:
    """Write the folder and return it."""
    import diffusers
    import transformers

    clip = {**shape["text_encoder"], "vocab_size": 304, "eos_token_id": 301}
    t5 = {**shape["text_encoder_2"], "vocab_size": 304}
    parts = {
        "transformer": diffusers.FluxTransformer2DModel(**shape["transformer"]),
        "vae": diffusers.AutoencoderKL(**shape["vae"], **BLOCKS),
        "text_encoder": transformers.CLIPTextModel(transformers.CLIPTextConfig(**clip)),
        "text_encoder_2": transformers.T5EncoderModel(transformers.T5Config(**t5)),
    }
    for name, part in parts.items():
        reinitialise(part, std)
        part.save_pretrained(folder / name)
    made = diffusers.FlowMatchEulerDiscreteScheduler(**shape["scheduler"])
    made.save_pretrained(folder / "scheduler")
    words = make_tokenizer()
    end = words.token_to_id("<|im_end|>")
    words.post_processor = TemplateProcessing(
        single="$A <|im_end|>", special_tokens=[("<|im_end|>", end)]
    )
    for name in ("tokenizer", "tokenizer_2"):
        (folder / name).mkdir()
        words.save(str(folder / name / "tokenizer.json"))
    classes = {
        name: [type(part).__module__.split(".")[0], type(part).__name__]
        for name, part in parts.items()
    }
    index = {
        "_class_name": "FluxPipeline",
        **classes,
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "T5TokenizerFast"],
    }
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


BLOCKS = {
    "down_block_types": ("DownEncoderBlock2D",) * 3,
    "up_block_types": ("UpDecoderBlock2D",) * 3,
}
