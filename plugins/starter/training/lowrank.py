"""LoRA linears and the X-LoRA classifier for training, with loading and saving.

The files have the format of PEFT (0.21.2), so that every reader of PEFT adapters reads them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import LlamaForCausalLM

BASE = "ostro/starter"
RANK, ALPHA = 8, 16
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CLASSIFIER_SIZE = 128
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX, CLASSIFIER_PREFIX = "base_model.model.", "base_model.internal_xlora_classifier."


class Adapted(nn.Module):
    """A linear with the LoRA adapters of its `blend`.

    y = W x + s sum_i g_i B_i A_i x, A_i [rank, in], B_i [out, rank], s = alpha / rank; g_i is the
    gate of adapter i in this linear, per token.
    """

    blend: "Blend"

    def __init__(self, base: nn.Linear, blend: "Blend", number: int) -> None:
        super().__init__()
        self.base, self.number = base, number
        # Bypasses nn.Module, since the blend refers to the model that contains this module.
        object.__setattr__(self, "blend", blend)
        self.a, self.b = nn.ParameterDict(), nn.ParameterDict()
        for name in blend.names:
            self.a[name] = nn.Parameter(torch.empty(RANK, base.in_features))
            self.b[name] = nn.Parameter(torch.zeros(base.out_features, RANK))
            nn.init.kaiming_uniform_(self.a[name], math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x)
        if self.blend.gates is None:
            return y
        # one matmul for the stacked A and one for the stacked B of all adapters
        gates = self.blend.gates[..., self.number, :].repeat_interleave(RANK, dim=-1)
        low = linear(x, torch.cat(list(self.a.values()))) * (ALPHA / RANK * gates)
        return y + linear(low, torch.cat(list(self.b.values()), dim=1))


class Blend:
    """A model with the adapters `names`, and their gates per token.

    `gates` is [..., linears, adapters] float32, broadcast over the rows and tokens of a batch; None
    disables all adapters. The linears are numbered in the order of the model's modules, as in
    PEFT's X-LoRA.
    """

    def __init__(self, model: LlamaForCausalLM, names: Sequence[str]) -> None:
        self.model, self.names = model, tuple(names)
        self.gates: Tensor | None = None
        self.linears: dict[str, Adapted] = {}
        for name, module in list(model.named_modules()):
            for child, base in list(module.named_children()):
                if child in TARGETS and isinstance(base, nn.Linear):
                    adapted = Adapted(base, self, len(self.linears))
                    self.linears[f"{name}.{child}"] = adapted
                    setattr(module, child, adapted)

    @classmethod
    def read(cls, model: LlamaForCausalLM, names: Sequence[str], home: Path) -> "Blend":
        """Load adapters from the folders of `home` with their names."""
        blend = cls(model, names)
        for name in names:
            blend.load(name, home / name)
        return blend

    def choose(self, *names: str) -> None:
        """Set the gates of the named adapters to 1 and of the others to 0, for all tokens."""
        chosen = torch.tensor([float(name in names) for name in self.names])
        self.gates = chosen.expand(len(self.linears), -1)

    def freeze(self) -> None:
        """Freeze all parameters; training enables those it needs."""
        self.model.requires_grad_(False)

    def parameters(self, name: str) -> list[nn.Parameter]:
        """The factors of one adapter."""
        return [side[name] for each in self.linears.values() for side in (each.a, each.b)]

    def load(self, name: str, folder: Path) -> None:
        """Load the factors of one adapter."""
        tensors = load_file(folder / WEIGHTS)
        for path, each in self.linears.items():
            each.a[name].data.copy_(tensors[f"{PREFIX}{path}.lora_A.weight"])
            each.b[name].data.copy_(tensors[f"{PREFIX}{path}.lora_B.weight"])

    def save(self, name: str, folder: Path) -> None:
        """Save one adapter in PEFT's format, in bfloat16."""
        tensors = {}
        for path, each in self.linears.items():
            tensors[f"{PREFIX}{path}.lora_A.weight"] = each.a[name]
            tensors[f"{PREFIX}{path}.lora_B.weight"] = each.b[name]
        facts = dict(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, bias="none")
        facts |= dict(peft_type="LORA", target_modules=sorted(TARGETS))
        _write(folder, facts, tensors)


class Classifier(nn.Module):
    """X-LoRA's classifier (Buehler and Buehler 2024): gates from the base's last hidden states.

    hidden [..., d] -> gates [..., linears, adapters]. There is no softmax, so the gates of a token
    can be 0 for all adapters, or 1 for two.
    """

    def __init__(self, width: int, linears: int, names: Sequence[str]) -> None:
        super().__init__()
        self.names, self.shape = tuple(names), (linears, len(names))
        self.layers = nn.Sequential(
            nn.Linear(width, CLASSIFIER_SIZE),
            nn.ReLU(),
            nn.Linear(CLASSIFIER_SIZE, linears * len(names)),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        gates: Tensor = self.layers(hidden)
        return gates.unflatten(-1, self.shape)

    def attach(self, blend: Blend) -> None:
        """Run the base model before each forward pass, and set the gates from its states."""

        def decide(inner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            blend.gates = None
            with torch.no_grad():
                hidden = inner.forward(*args, **kwargs).last_hidden_state
            blend.gates = self(hidden)

        blend.model.model.register_forward_pre_hook(decide, with_kwargs=True)

    def load(self, folder: Path) -> None:
        """Load the classifier's weights."""
        tensors = load_file(folder / WEIGHTS)
        self.load_state_dict({key.removeprefix(CLASSIFIER_PREFIX): t for key, t in tensors.items()})

    def save(self, folder: Path) -> None:
        """Save the mixture in PEFT's format, in bfloat16; its adapters are sibling folders."""
        facts: dict[str, Any] = dict(
            # PEFT requires the adapters' indices as their names.
            adapters={str(i): f"../{name}" for i, name in enumerate(self.names)},
            enable_softmax=False,
            enable_softmax_topk=False,
            global_scaling_weight=1.0,
            hidden_size=self.layers[0].in_features,
            layerwise_scalings=True,
            peft_type="XLORA",
            scaling_pass_value=0.0,
            softmax_temperature=1.0,
            top_k_lora=None,
            use_trainable_adapters=False,
            xlora_depth=2,
            xlora_dropout_p=0.0,
            xlora_size=CLASSIFIER_SIZE,
        )
        _write(folder, facts, {CLASSIFIER_PREFIX + k: t for k, t in self.state_dict().items()})


def _write(folder: Path, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write config and weights; weights last, so that a folder with weights is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    config = dict(base_model_name_or_path=BASE, inference_mode=True, task_type="CAUSAL_LM", **facts)
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    rounded = {key: t.detach().to(torch.bfloat16).contiguous() for key, t in tensors.items()}
    save_file(rounded, folder / WEIGHTS, metadata={"format": "pt"})
