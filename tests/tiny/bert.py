"""A servable BERT folder: random weights, the tokenizer of the tiny llama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ostro.plugins.conformance.parity import reinitialise
from tiny.model import make_tokenizer

SHAPE = dict(
    vocab_size=304,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
)


def make_bert(folder: Path, kind: str = "BertModel", **config: Any) -> Any:
    """Write the folder and return transformers' model."""
    import transformers

    made = getattr(transformers, kind)(transformers.BertConfig(**SHAPE, **config)).eval()
    reinitialise(made, 0.2)
    made.save_pretrained(folder)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return made
