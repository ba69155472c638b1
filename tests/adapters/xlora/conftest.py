"""X-LoRA folders written by PEFT over tiny bases, and the logits of PEFT's model."""

from __future__ import annotations

import copy
import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

import ostro

STARTER = Path(ostro.__file__).resolve().parents[2] / "plugins/starter/model"
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 3072,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 2,
    "use_cache": False,
}
MEMBERS: Sequence[Mapping[str, Any]] = (
    {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    {"r": 20, "lora_alpha": 10, "target_modules": ["q_proj", "k_proj", "gate_proj", "o_proj"]},
    {"r": 8, "lora_alpha": 8, "target_modules": ["v_proj", "up_proj", "embed_tokens"]},
)

Settings = Mapping[str, Any]


def base_of(family: str) -> Any:
    config = getattr(transformers, f"{family}Config")
    more = {"head_dim": 16} if family == "Qwen3" else {}
    made = getattr(transformers, f"{family}ForCausalLM")(config(**SIZES, **more))
    return made.eval()


@torch.no_grad()
def scatter(module: nn.Module, std: float = 0.2, among: str = "") -> None:
    """Set the parameters with `among` in their name to random values."""
    for name, parameter in module.named_parameters():
        if among in name:
            parameter.normal_(0 if parameter.dim() > 1 else 1, std)


@dataclass
class Mixed:
    """A PEFT X-LoRA over a base, saved in `folder`, with members in subfolders."""

    base: Path
    folder: Path
    model: Any

    @torch.no_grad()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """The logits [T, vocab], computed without a cache."""
        return self.model(torch.tensor([list(tokens)])).logits[0]

    def change(self, **keys: Any) -> None:
        """Overwrite keys of the config."""
        file = self.folder / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | keys))


Make = Callable[..., Mixed]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Make an X-LoRA with these PEFT settings. The classifier is random, with uneven scalings."""
    bases: dict[str, tuple[Path, Any]] = {}

    def run(
        family: str = "Llama", members: Sequence[Mapping[str, Any]] = MEMBERS, **settings: Any
    ) -> Mixed:
        torch.manual_seed(1)
        if family not in bases:
            model, folder = base_of(family), tmp_path_factory.mktemp(family) / "base"
            scatter(model)
            model.save_pretrained(folder)
            for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
                shutil.copy(STARTER / file, folder / file)
            bases[family] = folder, model
        base, model = bases[family]
        root = tmp_path_factory.mktemp("mixed") / "mixed"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for i, config in enumerate(members):
                tuned = peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(**config))
                scatter(tuned, 0.15, "lora_")
                tuned.save_pretrained(str(root / f"member{i}"), save_embedding_layers=False)
            config = peft.XLoraConfig(
                task_type="CAUSAL_LM",
                hidden_size=64,
                adapters={str(i): str(root / f"member{i}") for i in range(len(members))},
                **settings,
            )
            mixed = peft.get_peft_model(copy.deepcopy(model), config).eval()
            scatter(mixed, 0.3, "internal_xlora_classifier")
            mixed.save_pretrained(str(root))
        # PEFT 0.21 omits classifier layers with an index that equals the name of a member.
        whole = {n: t for n, t in mixed.state_dict().items() if "internal_xlora_classifier" in n}
        save_file(whole, root / "adapter_model.safetensors")
        return Mixed(base, root, mixed)

    return run
