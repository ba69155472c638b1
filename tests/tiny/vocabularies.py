"""Small vocabularies of all kinds, made without downloads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from ostro.core.tokenizer import Tokenizer
from ostro.plugins.tokenizers.gguf import tokenizer_from_gguf

TEXTS = [
    "Hello, world! It's 3 o'clock; 12345 tokens.",
    "naïve café e\u0301 ﬁ ÀÉ",
    "日本語のテキスト 한국어 🙂🇫🇷 \u200d",
    "  two  spaces\n\n\nand\tlines \r\n end  ",
    "",
    " ",
    "def f(x):\n    return x ** 2  # ok",
]
WORDS = (Path(__file__).parents[2] / "LICENSE").read_text() * 2 + " ".join(TEXTS)


def train(**special: Any) -> tokenizers.Tokenizer:
    """A small byte-level BPE."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "</s>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([WORDS], trainer)
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    return backend


def write(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(fields))


def pieces(tokenizer: Tokenizer, ids: list[int], **how: Any) -> str:
    stream = tokenizer.detokenizer(**how)
    return "".join(stream.add([id]) for id in ids) + stream.finish()


def bert_folder(path: Path) -> Path:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able", ",", "!", "日"]
    (path / "vocab.txt").write_text("\n".join(words) + "\n")
    write(path / "tokenizer_config.json", tokenizer_class="BertTokenizer")
    return path


def header(**changes: Any) -> dict[str, Any]:
    """The GGUF metadata of a small byte-level vocabulary; None removes a key."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, "ab", "Ġab", "<|im_end|>", "<user>"]
    fields: dict[str, Any] = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": tokens,
        "token_type": [1] * (len(alphabet) + 2) + [3, 4],
        "merges": ["a b", "Ġ ab"],
        "eos_token_id": 0,
    }
    fields |= changes
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items() if value is not None}


def scored(*words: str) -> Tokenizer:
    """A tokenizer of a small SentencePiece vocabulary in GGUF metadata."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *words]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (1 + len(words))
    return tokenizer_from_gguf(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [0.0] * len(tokens),
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.add_bos_token": False,
        }
    )
