"""A servable Qwen2.5-VL folder: random weights, control tokens, a template with media."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken

from ostro import Array
from ostro.architectures.qwen2_5_vl import TEXT, TOWER, shape
from ostro.entrypoints.python.model import LocalModel
from ostro.plugins.conformance.parity import reinitialise
from tiny.model import make_tokenizer

CONTROLS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
IDS = {name: 302 + i for i, name in enumerate(CONTROLS)}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}"
    "{% else %}<|vision_start|><|{{ part.type }}_pad|><|vision_end|>{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SEES = {"patch_size": 4, "size": {"shortest_edge": 64, "longest_edge": 4096}}


def make_vision(folder: Path, **sees: Any) -> Path:
    """Write the folder and return it. `sees` are fields of its preprocessor_config.json."""
    import transformers

    text = {**TEXT, "vocab_size": 320, "max_position_embeddings": 2048, "eos_token_id": 301}
    text["bos_token_id"] = None
    places = {
        "image_token_id": IDS["<|image_pad|>"],
        "video_token_id": IDS["<|video_pad|>"],
        "vision_start_token_id": IDS["<|vision_start|>"],
        "vision_end_token_id": IDS["<|vision_end|>"],
    }
    config = transformers.Qwen2_5_VLConfig(**{**shape(text, TOWER, [2, 3, 3]), **places})
    made = transformers.Qwen2_5_VLForConditionalGeneration(config).eval()
    reinitialise(made, 0.3)
    made.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    words = make_tokenizer()
    words.add_special_tokens([AddedToken(name, special=True) for name in CONTROLS])
    words.save(str(folder / "tokenizer.json"))
    fields = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    (folder / "preprocessor_config.json").write_text(json.dumps({**SEES, **sees}))
    return folder


def answer(model: LocalModel, text: str, *pixels: np.ndarray[Any, Any], count: int = 12) -> str:
    """Return a model's greedy answer to a text with placeholders, computed from logits only.

    `pixels` are images [h, w, 3], or videos [f, h, w, 3] of ten frames per second.
    """
    inputs, tokens = model.inputs, model.tokenizer.encode(text, special=False, parse_special=True)
    assert inputs is not None
    items = [inputs.image(p) if p.ndim == 3 else inputs.video(p, 10.0) for p in pixels]
    prompt, said = inputs.expand_placeholders(tokens, items), list[int]()
    counted = np.arange(len(prompt.tokens), dtype=np.int32)
    places = np.stack([counted] * 3) if prompt.positions is None else prompt.positions.numpy()
    while len(said) < count:
        more = places.max() + 1 + np.arange(len(said), dtype=np.int32)
        positions = Array.of(np.concatenate([places, np.stack([more] * 3)], 1))
        logits = model.engine.runner.logits(
            prompt.tokens + said, items=prompt.items, positions=positions
        )
        said.append(int(logits[-1].argmax()))
        if said[-1] in model.tokenizer.eos_ids:
            break
    return model.tokenizer.decode(said)
