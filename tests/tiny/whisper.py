"""A servable Whisper folder: random weights, all control tokens, short windows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

from ostro.architectures.whisper import TINY
from ostro.plugins.conformance.parity import reinitialise

CONTROLS = (
    "endoftext startoftranscript en de fr translate transcribe startoflm startofprev nospeech "
    "notimestamps"
).split()
WORDS = 256
IDS = {name: WORDS + i for i, name in enumerate(CONTROLS)}
TIMES = WORDS + len(CONTROLS)
END = IDS["endoftext"]
GENERATION: dict[str, Any] = {
    "eos_token_id": END,
    "pad_token_id": END,
    "bos_token_id": END,
    "decoder_start_token_id": IDS["startoftranscript"],
    "no_timestamps_token_id": IDS["notimestamps"],
    "prev_sot_token_id": IDS["startofprev"],
    "lang_to_id": {f"<|{code}|>": IDS[code] for code in ("en", "de", "fr")},
    "task_to_id": {task: IDS[task] for task in ("translate", "transcribe")},
    "is_multilingual": True,
    "max_initial_timestamp_index": 20,
    "max_length": 48,
    "suppress_tokens": [5, 6, IDS["startoftranscript"], IDS["startofprev"], IDS["nospeech"]],
    "begin_suppress_tokens": [32, END],
}


def make_tokenizer(seconds: int = 1) -> Tokenizer:
    """Return a tokenizer of bytes, the control tokens, and the timestamps of a window."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=WORDS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["a"], trainer)
    assert tokenizer.get_vocab_size() == WORDS
    tokenizer.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in CONTROLS])
    times = [f"<|{i * 0.02:.2f}|>" for i in range(50 * seconds + 1)]
    tokenizer.add_tokens([AddedToken(time, special=False) for time in times])
    return tokenizer


def make_whisper(
    folder: Path, seed: int = 0, *, seconds: int = 1, **generation: Any
) -> WhisperForConditionalGeneration:
    """Write a folder with windows of `seconds`. Return transformers' model."""
    rows = 50 * seconds
    config: dict[str, Any] = {**TINY, "begin_suppress_tokens": None}
    config |= {"vocab_size": TIMES + rows + 1, "max_source_positions": rows}
    config |= {"max_target_positions": GENERATION["max_length"]}
    config |= {key: GENERATION[key] for key in GENERATION if key.endswith("_token_id")}
    model = WhisperForConditionalGeneration(WhisperConfig(**config)).eval()
    reinitialise(model, 0.3, seed)
    model.generation_config = GenerationConfig(**{**GENERATION, **generation})
    model.save_pretrained(folder)
    make_tokenizer(seconds).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    fields = {"feature_size": TINY["num_mel_bins"], "chunk_length": seconds}
    (folder / "preprocessor_config.json").write_text(json.dumps(fields))
    return model


def sound(seconds: float, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return noisy tones that change twice a second: float32 at 16 kHz."""
    random, n = np.random.default_rng(seed), int(16000 * seconds)
    pitches = random.uniform(100, 4000, n // 8000 + 1).repeat(8000)[:n]
    tone = np.sin(np.cumsum(pitches) * 2 * np.pi / 16000)
    loud = random.uniform(0, 0.5, n // 8000 + 1).repeat(8000)[:n]
    return (loud * tone + 0.02 * random.standard_normal(n)).astype(np.float32)


@torch.inference_mode()
def reference_segments(
    model: WhisperForConditionalGeneration, spectrum: np.ndarray[Any, Any], **how: Any
) -> list[dict[str, Any]]:
    """Return transformers' segments of a spectrum [bins, frames]: start, end and tokens."""
    features = torch.from_numpy(spectrum)[None]
    found = model.generate(features, return_timestamps=True, return_segments=True, **how)
    return [
        {
            "start": float(each["start"]),
            "end": float(each["end"]),
            "tokens": each["tokens"].tolist(),
        }
        for each in found["segments"][0]
    ]
