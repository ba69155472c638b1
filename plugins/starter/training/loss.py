"""Training loss: cross entropy on the tokens of replies, and the precision of its products."""

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from ostro.plugins.starter.training.chats import IGNORED

COUNT_STEP = 256


def mixed_precision() -> torch.autocast:
    """Products in bfloat16 where the CPU has instructions for them, else in float32.

    Without the instructions PyTorch converts each element, which takes ten times as long.
    """
    capabilities = torch.cpu.get_capabilities()
    able = any(value for name, value in capabilities.items() if "bf16" in name)
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=able)


def reply_loss(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of the labelled tokens; logits are computed for few other tokens."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)
    targets = labels[:, 1:].flatten()
    # Sort labelled tokens first and round their number up: PyTorch caches a compiled matmul for
    # each shape, so memory would grow with every new number of tokens.
    order = (targets == IGNORED).int().argsort(stable=True)
    count = int((targets != IGNORED).sum())
    chosen = order[: -(-count // COUNT_STEP) * COUNT_STEP]
    return cross_entropy(model.lm_head(hidden[chosen]).float(), targets[chosen])
