"""A causal language model of transformers, with ostro's linears, embeddings and attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers.modeling_outputs import MoeModelOutputWithPast

from ostro import Step, nn
from ostro.architectures.transformers import blueprint, trial
from ostro.architectures.transformers.config import Config
from ostro.architectures.transformers.modules import MEMORY, Call, PagedCache


class Model(nn.TokenModel):
    """The modules of the class `config.body`, with their names."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.call = Call()
        top = blueprint.draw(config)
        blueprint.replace(top, self.call)
        for layer, (module, spec) in enumerate(trial.run(top)):
            module.add_module(MEMORY, PagedCache(layer, spec, self.call))
        blueprint.tabulate(top)
        blueprint.materialise(top, config.hf.dtype)
        base = top.get_decoder()
        base.forward = handing(base.forward, self.call)
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
            out = self.base[0](
                input_ids=step.tokens[None], position_ids=step.positions[:1], use_cache=False
            )
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
        return MoeModelOutputWithPast(last_hidden_state=call.hidden)

    return run
