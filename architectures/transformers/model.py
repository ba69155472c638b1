"""A causal language model of transformers, with ostro's linears, embeddings and attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.modeling_outputs import MoeModelOutputWithPast

from ostro import Step, nn
from ostro.architectures.transformers import blueprint, trial
from ostro.architectures.transformers.config import Config, no_body
from ostro.architectures.transformers.modules import MEMORY, Call, PagedCache


class Model(nn.TokenModel):
    """The modules of the class `config.body`, with their names."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.call = Call(config.first_position)
        top = blueprint.draw(config)
        blueprint.replace(top, self.call)
        base = blueprint.decoder_of(top)
        layers, rows = trial.run(top, base)
        for layer, (module, spec) in enumerate(layers):
            module.add_module(MEMORY, PagedCache(layer, spec, self.call))
        self.positioned = blueprint.takes_positions(base)
        tables = [] if self.positioned else list(blueprint.position_tables(top))
        if not self.positioned and not tables:
            raise no_body(config.body.__name__, "it does not accept position_ids")
        for table in tables:
            table.forward = positioned(table.forward, self.call)
        base.forward = handing(base.forward, self.call)
        trial.run_head(top, self.call, rows)
        blueprint.tabulate(top)
        blueprint.materialise(top, config.hf.dtype)
        # in tuples, because their children are already children of this module
        self.top, self.base, self.embedding = (top,), (base,), (top.get_input_embeddings(),)
        for name, child in top.named_children():
            self.add_module(name, child)

    def embed(self, step: Step) -> Tensor:
        with self.call.bound(step):
            rows: Tensor = self.embedding[0](step.tokens)
        return rows

    def hidden(self, step: Step) -> Tensor:
        with self.call.bound(step):
            positions = {"position_ids": self.call.positions} if self.positioned else {}
            out = self.base[0](input_ids=step.tokens[None], use_cache=False, **positions)
        states: Tensor = out.last_hidden_state[0]
        return states

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        """The logits of the class's forward, whose decoder returns the computed hidden states."""
        if step.logits_indices is not None:
            hidden, step = hidden[step.logits_indices], step.rows(step.logits_indices)
        with self.call.bound(step, hidden[None]):
            logits: Tensor = self.top[0](use_cache=False).logits[0]
        return logits


def handing(forward: Callable[..., Any], call: Call) -> Callable[..., Any]:
    """A decoder's forward that returns the hidden states of the call, if there are any."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if call.hidden is None:
            return forward(*args, **kwargs)
        return Output(last_hidden_state=call.hidden)

    return run


@dataclass
class Output(MoeModelOutputWithPast):  # type: ignore[misc]
    """The output of a decoder, with the fields that the heads of all classes read."""

    cross_attentions: Any = None
    router_probs: Any = None
    pooler_output: Any = None


def positioned(forward: Callable[..., Any], call: Call) -> Callable[..., Any]:
    """A position table's forward with the positions of the step instead of 0..T-1."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs | {"position_ids": call.positions[0]})

    return run
