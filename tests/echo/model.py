"""A model folder for the echo engine: a tokenizer whose first 256 ids are bytes, and no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ostro.core.chat import load_template
from ostro.core.pipeline import ServedModel
from ostro.core.records import Architecture
from ostro.core.settings import Settings
from ostro.core.tokenizer import Tokenizer as OstroTokenizer

START, END = "<|im_start|>", "<|im_end|>"
START_ID, END_ID = 256, 257
TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>"
    "{{ message.role + '\n' + message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>{% endif %}{% endif %}"
)


def byte_alphabet() -> list[str]:
    """The character that byte-level tokenizers write for each byte (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(b) if b in shown else chr(256 + hidden.index(b)) for b in range(256)]


def make_tokenizer() -> Tokenizer:
    """Bytes, and two control tokens."""
    vocab = {char: byte for byte, char in enumerate(byte_alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in (START, END)])
    return tokenizer


def served_echo(tokenizer: OstroTokenizer, **fields: Any) -> ServedModel:
    """The model "echo" as pipelines see it, with a chat template unless `fields` say otherwise.

    It accepts budgets of reasoning, and ignores them as all logits processors.
    """
    fields.setdefault("processors", frozenset({"reasoning_budget"}))
    if "template" not in fields:
        fields["template"] = load_template(tokenizer)
    return ServedModel(
        settings=Settings(),
        path=Path("echo"),
        name="echo",
        architecture=Architecture(name="echo", api=(0, 2), config="", model=""),
        tokenizer=tokenizer,
        **fields,
    )


def make_model(folder: Path, *, template: str | None = TEMPLATE) -> Path:
    """Write the folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    config = {"eos_token": END, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    header += b" " * (-len(header) % 8)
    data = len(header).to_bytes(8, "little") + header + bytes(4)
    (folder / "model.safetensors").write_bytes(data)
    return folder
