"""Checkpoints with multi-token heads, and their reference: transformers' layers, put together as in
vLLM, since transformers drops the heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, cast

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ostro.core.engine.engine import Engine
from ostro.core.engine.proposers.multi_token import MultiTokenProposer
from ostro.core.engine.speculation import DraftRequest
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.parity import Subject, deviation, reinitialise, subject
from tiny.drafts import Oracle, speculation_of

Names = Mapping[str, str]
"""The names of a head's parts in a checkpoint: enorm, hnorm, eh_proj, norm and layer, and those of
copies of tables of the model.
"""

TABLES = {"embed_tokens": "model.embed_tokens.weight", "head": "lm_head.weight"}
"""The tables of the model that some checkpoints contain once more, in the head."""

QWEN = {
    "eh_proj": "mtp.fc",
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "norm": "mtp.norm",
    "layer": "mtp.layers.0",
}


class ReferenceHead(nn.Module):
    """A head: norms, a linear, and a model of one layer."""

    def __init__(self, reference: Any, **config: Any) -> None:
        """reference: a decoder with an output layer. config: further fields of the layer's."""
        super().__init__()
        changed = deepcopy(reference.config)
        for name, value in {"num_hidden_layers": 1, **config}.items():
            setattr(changed, name, value)
        self.body = type(reference)(changed).eval().model
        self.norm = self.body.norm
        self.enorm, self.hnorm = deepcopy(self.norm), deepcopy(self.norm)
        d = changed.hidden_size
        self.eh_proj = nn.Linear(2 * d, d, bias=False)
        del self.body.embed_tokens

    def forward(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        """embeddings and hidden [T, d] -> hidden states [T, d]."""
        x = self.eh_proj(torch.cat((self.enorm(embeddings), self.hnorm(hidden)), -1))
        states: Tensor = self.body(inputs_embeds=x[None]).last_hidden_state[0]
        return states

    def tensors(self, names: Names) -> dict[str, Tensor]:
        """The tensors of a checkpoint."""
        found = {}
        for name, tensor in self.state_dict().items():
            if name.startswith("body.layers.0."):
                there = f"{names['layer']}{name.removeprefix('body.layers.0')}"
            elif not name.startswith("body."):
                part, _, rest = name.partition(".")
                there = f"{names[part]}.{rest}"
            else:
                continue  # the norm, once more
            found |= (
                separate(there, tensor) if ".experts." in there else {there: tensor.contiguous()}
            )
        return found


def separate(name: str, stack: Tensor) -> dict[str, Tensor]:
    """The matrices of stacked experts by name, as in published files."""
    stem, _, part = name.rpartition(".")
    parts = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
    return {
        f"{stem}.{i}.{each}.weight": matrix.contiguous()
        for i, expert in enumerate(stack)
        for each, matrix in zip(parts, expert.chunk(len(parts)), strict=True)
    }


@contextmanager
def with_head(
    plugins: PluginManager, name: str, config: Mapping[str, Any] | None = None
) -> Iterator[tuple[Subject, ReferenceHead]]:
    """A checkpoint of an architecture of `HEADS` with a head, and the head.

    config: see `subject`.
    """
    with subject(plugins, name, config=config) as tiny:
        head, names = HEADS[name](tiny.reference)
        reinitialise(head, tiny.std, seed=5)
        file = tiny.folder / "model.safetensors"
        tensors = load_file(file) | head.tensors(names)
        for part, table in TABLES.items():
            if part in names:
                tensors[f"{names[part]}.weight"] = tensors[table].clone()
        save_file(tensors, file, {"format": "pt"})
        yield tiny, head


def qwen(reference: Any) -> tuple[ReferenceHead, Names]:
    """The head of Qwen3-Next and Qwen3.5."""
    types = ["full_attention"]
    return ReferenceHead(reference, layer_types=types, mlp_only_layers=[]), QWEN


def nextn(reference: Any) -> tuple[ReferenceHead, Names]:
    """The head of DeepSeek-V3 and GLM-4 MoE."""
    path = f"model.layers.{reference.config.num_hidden_layers}"
    parts = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "norm": "shared_head.norm"}
    parts |= {"embed_tokens": "embed_tokens", "head": "shared_head.head"}
    names = {ours: f"{path}.{theirs}" for ours, theirs in parts.items()} | {"layer": path}
    config = {"first_k_dense_replace": 0, "mlp_layer_types": ["sparse"]}
    return ReferenceHead(reference, **config), names


def qwen_with_media(reference: Any) -> tuple[ReferenceHead, Names]:
    """The head of Qwen3.5 with media."""
    text = deepcopy(reference.config.text_config)
    return qwen(getattr(transformers, TEXT_CLASSES[type(reference).__name__])(text))


TEXT_CLASSES = {
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
}

HEADS: Mapping[str, Callable[[Any], tuple[ReferenceHead, Names]]] = {
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_moe"), qwen),
    **dict.fromkeys(("qwen3_5_vl", "qwen3_5_moe_vl"), qwen_with_media),
    **dict.fromkeys(("deepseek_v3", "glm4_moe", "glm4_moe_lite"), nextn),
}
"""The heads of architectures, for a reference model without one."""


@torch.inference_mode()
def reference_logits(
    tiny: Subject, head: ReferenceHead, tokens: Sequence[int], drafts: Sequence[int]
) -> Tensor:
    """The logits [k, V] from which k drafts after `tokens` are chosen, each after the ones before.

    The head computes all rows anew for each draft.
    """
    table, output = tiny.reference.get_input_embeddings(), tiny.reference.lm_head
    hidden = tiny.reference.model(torch.tensor([list(tokens[:-1])])).last_hidden_state[0]
    embeddings = table(torch.tensor(list(tokens[1:])))
    found = []
    for draft in drafts:
        states = head(embeddings, hidden)
        found.append(output(states[-1]))
        embeddings = torch.cat((embeddings, table(torch.tensor([draft]))))
        hidden = torch.cat((hidden, states[-1:]))
    return torch.stack(found)


Proposals = list[tuple[list[int], list[int], Tensor]]


def record_proposals(engine: Engine, oracle: Oracle | None = None) -> Proposals:
    """The tokens, the drafts and the drafts' logits [k, V] of all proposals from now on.

    With `oracle` the engine gets its drafts instead, of which more are accepted.
    """
    proposer = cast(MultiTokenProposer, speculation_of(engine).proposer)
    proposals, passes = Proposals(), list[Tensor]()
    propose, logits = proposer.propose, proposer.head.logits

    def record_logits(*args: Any) -> Tensor:
        passes.append(logits(*args))
        return passes[-1]

    def record(requests: Sequence[DraftRequest]) -> list[list[int]]:
        passes.clear()
        drafts = propose(requests)
        rows: list[list[Tensor]] = [[] for _ in requests]
        for place, found in enumerate(passes):
            longer = [i for i, tokens in enumerate(drafts) if len(tokens) > place]
            for i, row in zip(longer, found, strict=True):
                rows[i].append(row)
        for request, tokens, found in zip(requests, drafts, rows, strict=True):
            if tokens:
                proposals.append((list(request.tokens), tokens, torch.stack(found)))
        return drafts if oracle is None else oracle.propose(requests)

    proposer.propose, proposer.head.logits = record, record_logits  # type: ignore[method-assign]
    return proposals


def deviation_of(tiny: Subject, head: ReferenceHead, proposals: Proposals) -> float:
    """The largest deviation of the logits of proposals from the reference."""
    return max(
        deviation(logits, reference_logits(tiny, head, tokens, drafts))
        for tokens, drafts, logits in proposals
    )
