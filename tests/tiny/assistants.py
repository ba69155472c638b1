"""Checkpoints of Gemma 4's assistants, and the tokens that transformers proposes with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4TextConfig,
    Gemma4UnifiedAssistantConfig,
    Gemma4UnifiedAssistantForCausalLM,
    Gemma4UnifiedTextConfig,
    GenerationConfig,
)
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

from ostro.core.engine.engine import Engine
from ostro.core.engine.proposers.assistant import AssistantProposer
from ostro.core.engine.speculation import DraftRequest
from ostro.core.engine.startup.warm_up import make_ready
from ostro.core.load.model import LoadedModel, load_model
from ostro.core.settings import Settings
from ostro.plugins.conformance.parity import Subject, deviation, reinitialise
from tiny.drafts import Oracle, speculation_of

ORDERED = {"use_ordered_embeddings": True, "num_centroids": 16, "centroid_intermediate_top_k": 5}
PLAIN = (Gemma4TextConfig, Gemma4AssistantConfig, Gemma4AssistantForCausalLM)
UNIFIED = (
    *(Gemma4UnifiedTextConfig, Gemma4UnifiedAssistantConfig),
    Gemma4UnifiedAssistantForCausalLM,
)
REMOVED = {
    *("architectures", "model_type", "per_layer_config", "enable_moe_block", "num_experts"),
    *("top_k_experts", "moe_intermediate_size"),
    *("hidden_size_per_layer_input", "vocab_size_per_layer_input"),
}
"""Fields of a target's config that its assistant has not."""

FIELDS = {"rows": 40, "blocks": 64, "max_seqs": 4}
LAYERS = ["sliding_attention", "sliding_attention", "full_attention"]


@contextmanager
def without_own_keys(config: type[Gemma4TextConfig]) -> Iterator[None]:
    """Let transformers build models of this config that share the K/V of all layers.

    Version 5.23 refuses them, those of the hub included (`kv_sharing_modes`).
    """

    def modes(config: Gemma4TextConfig) -> list[str | None]:
        return ["reuse"] * config.num_hidden_layers

    with patch.object(config, "kv_sharing_modes", property(modes)):
        yield


def assistant_of(target: Any, folder: Path, *, unified: bool = False, **fields: Any) -> Any:
    """An assistant of a reference model, with random weights, saved to a folder.

    unified: of the class for the unified model. fields: further ones of its config.
    """
    own_text, own_config, own_model = UNIFIED if unified else PLAIN
    text = target.config.get_text_config()
    own = {name: value for name, value in text.to_dict().items() if name not in REMOVED}
    own |= {
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": len(LAYERS),
        "layer_types": LAYERS,
        "num_kv_shared_layers": len(LAYERS),
        "use_double_wide_mlp": False,
    }
    if not unified:
        own |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    heads = {i: text.per_layer_config[i] for i in range(text.num_hidden_layers)}
    kinds = dict(zip(text.layer_types, heads.values(), strict=True))
    own["per_layer_config"] = {
        i: {name: getattr(kinds[kind], name) for name in ("head_dim", "num_key_value_heads")}
        for i, kind in enumerate(LAYERS)
    }
    with without_own_keys(own_text):
        config = own_config(
            text_config=own_text(**own), backbone_hidden_size=text.hidden_size, **fields
        )
        assistant = own_model(config).eval()
    reinitialise(assistant, 0.3, seed=7)
    if assistant.masked_embedding is not None:
        order = torch.randperm(text.vocab_size, generator=torch.Generator().manual_seed(3))
        assistant.masked_embedding.token_ordering.copy_(order)
    assistant.save_pretrained(folder)
    return assistant


@torch.inference_mode()
def reference_passes(
    target: Any, assistant: Any, tokens: Sequence[int], drafts: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """The logits [k, V] from which k drafts after `tokens` are chosen, each after the ones before,
    and the hidden states [k, d] of their passes.
    """
    text, outputs = target.config.get_text_config(), run_target(target, tokens[:-1])
    shared = dict(outputs.shared_kv_states)
    # The window of the last token, without itself. transformers reads up to two rows more.
    shared["sliding_attention"] = tuple(
        states[:, :, -(text.sliding_window - 1) :] for states in shared["sliding_attention"]
    )
    hidden, table = outputs.last_hidden_state[:, -1:], target.get_input_embeddings()
    logits, states = list[Tensor](), list[Tensor]()
    for token in [tokens[-1], *drafts[:-1]]:
        found = assistant(
            inputs_embeds=torch.cat((table(torch.tensor([[token]])), hidden), -1),
            position_ids=torch.tensor([[len(tokens) - 1]]),
            shared_kv_states=shared,
        )
        hidden = found.last_hidden_state
        logits.append(found.logits[0, 0])
        states.append(hidden[0, 0])
    return torch.stack(logits), torch.stack(states)


Proposals = list[tuple[list[int], list[int], Tensor]]


def record_proposals(engine: Engine, oracle: Oracle | None = None) -> Proposals:
    """The tokens, the drafts and the hidden states [k, d] of their passes, of all proposals from
    now on. With `oracle` the engine gets its drafts instead, of which more are accepted.
    """
    proposer = cast(AssistantProposer, speculation_of(engine).proposer)
    proposals, passes = Proposals(), list[Tensor]()
    propose, forward = proposer.propose, proposer.assistant.forward

    def record_pass(*args: Any) -> tuple[Tensor, Tensor]:
        tokens, hidden = forward(*args)
        passes.append(hidden)
        return tokens, hidden

    def record(requests: Sequence[DraftRequest]) -> list[list[int]]:
        passes.clear()
        drafts = propose(requests)
        pairs = zip(requests, drafts, strict=True)
        assert all(len(tokens) <= request.count for request, tokens in pairs)
        asked = [i for i, tokens in enumerate(drafts) if tokens]
        for row, i in enumerate(asked):
            states = torch.stack([found[row] for found in passes[: len(drafts[i])]])
            proposals.append((list(requests[i].tokens), drafts[i], states))
        return drafts if oracle is None else oracle.propose(requests)

    proposer.propose, proposer.assistant.forward = record, record_pass  # type: ignore[method-assign]
    return proposals


def deviation_of(target: Any, assistant: Any, proposals: Proposals) -> float:
    """The largest deviation of hidden states from the reference, and of the logits of drafts from
    the largest logit.
    """
    largest = 0.0
    for tokens, drafts, hidden in proposals:
        logits, states = reference_passes(target, assistant, tokens, drafts)
        chosen = logits[range(len(drafts)), drafts]
        behind = float((logits.max(-1).values - chosen).max() / logits.std())
        largest = max(largest, behind, deviation(hidden, states))
    return largest


def candidates(
    target: Any, assistant: Any, tokens: Sequence[int], count: int
) -> tuple[list[int], Tensor]:
    """`count` tokens that transformers' generator of candidates proposes, and their logits."""
    generation = GenerationConfig(num_assistant_tokens=count, max_length=len(tokens) + 2 * count)
    assistant.generation_config = generation
    generator = SinglePositionMultiTokenCandidateGenerator(
        assistant, target.get_input_embeddings(), generation
    )
    with torch.inference_mode():
        outputs = run_target(target, tokens[:-1])
        ids, logits = generator.get_candidates(
            torch.tensor([list(tokens)]),
            model_kwargs={},
            model_outputs=SimpleNamespace(
                hidden_states=[outputs.last_hidden_state],
                shared_kv_states=outputs.shared_kv_states,
            ),
            is_first_iteration=False,
            n_last_matches=0,
        )
    assert logits is not None
    return ids[0, len(tokens) :].tolist(), logits[0]


def run_target(target: Any, tokens: Sequence[int]) -> Any:
    """The hidden states of tokens in a reference model, and its K/V of each kind of layer."""
    decoder = target.get_decoder()
    if not decoder.config.num_kv_shared_layers:
        for layer in decoder.layers:
            layer.self_attn.store_full_length_kv = True  # 5.23 returns none of such models
    return decoder(torch.tensor([list(tokens)]), return_shared_kv_states=True)


@dataclass
class Pair:
    """A target, and the reference of its assistant, which is saved in `folder`."""

    tiny: Subject
    assistant: Any
    folder: Path

    def engine(self, loaded: LoadedModel | None = None, **options: Any) -> Engine:
        """An engine with the assistant, whatever its steps cost; `loaded` is the target."""
        loaded = loaded or self.tiny.load()
        loaded.draft = load_model(self.folder, Settings(device="cpu"), self.tiny.plugins)
        engine = self.tiny.engine(loaded, speculate=str(self.folder), **{**FIELDS, **options})
        make_ready(engine, loaded)
        speculation_of(engine)
        return engine

    def off(self, proposals: Proposals) -> float:
        """The deviation of proposals, apart from those with placeholders of media, which the
        reference embeds as text.
        """
        text = [each for each in proposals if not self.tiny.placeholders & {*each[0], *each[1]}]
        assert len(text) > len(proposals) / 2
        return deviation_of(self.tiny.reference, self.assistant, text)
