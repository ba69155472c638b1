"""Train the adapters of the starter model, each on top of the previous ones, and their mixture.

An adapter is trained with prompts computed with and without it; `shout` also on top of the others,
so that they can be combined. Then the classifier of `mix` learns the gates of each token from the
user's request.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from ostro.plugins.starter.training.chats import IGNORED, ROW_LENGTH, SEED, pack_chats
from ostro.plugins.starter.training.loss import reply_loss
from ostro.plugins.starter.training.lowrank import WEIGHTS, Blend, Classifier
from ostro.plugins.starter.training.skills.item import Item
from ostro.plugins.starter.training.skills.styles import COMBINATIONS, converse_in

ADAPTERS = ("french", "pirate", "shout")
MIXTURE = "mix"
STEPS = {"french": 1300, "pirate": 400, "shout": 2200, MIXTURE: 500}
ROWS, LEARNING_RATE, WARMUP_STEPS = 4, 4e-3, 20
# The style combinations in the training of each adapter: those that end with it.
LESSONS = {
    name: [styles for styles in COMBINATIONS if styles and styles[-1] == name] for name in ADAPTERS
}
ASKED_SHARE = 0.4


def find_replies(labels: Tensor) -> Tensor:
    """Mask `[rows, length]` bool of replies, with the token before, which predicts the first."""
    replies = labels != IGNORED
    return replies | replies.roll(-1, 1)


def speak_from(labels: Tensor, rng: torch.Generator) -> Tensor:
    """Mask `[rows, length]` float32 of tokens with adapters: replies, and half of the prompts."""
    whole = torch.rand(len(labels), 1, generator=rng) < 0.5
    return (find_replies(labels) | whole).float()


def tune(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Train the adapters and the mixture that `out` lacks, and save them there."""
    torch.manual_seed(SEED)
    blend = Blend(model.train(), ADAPTERS)
    for name in ADAPTERS:
        if not (out / name / WEIGHTS).exists():
            tune_adapter(name, blend, tokenizer)
            blend.save(name, out / name)
        blend.load(name, out / name)
    if not (out / MIXTURE / WEIGHTS).exists():
        tune_mixture(blend, tokenizer).save(out / MIXTURE)


def tune_adapter(name: str, blend: Blend, tokenizer: PreTrainedTokenizerFast) -> None:
    """Train one adapter; others of its style combinations are active but frozen."""
    lessons, generator = LESSONS[name], torch.Generator().manual_seed(SEED)

    def lesson_loss(step: int) -> Tensor:
        styles, rng = lessons[step % len(lessons)], Random(f"{SEED} {name} {step}")
        write = partial(converse_in, styles, rng, ASKED_SHARE)
        ids, labels, _ = pack_chats(tokenizer, write, ROWS, ROW_LENGTH)
        blend.choose(*styles)
        assert blend.gates is not None
        blend.gates = speak_from(labels, generator)[:, :, None, None] * blend.gates
        return reply_loss(blend.model, ids, labels)

    blend.freeze()
    own = blend.parameters(name)
    for parameter in own:
        parameter.requires_grad_()
    descend(name, own, lesson_loss)


def tune_mixture(blend: Blend, tokenizer: PreTrainedTokenizerFast) -> Classifier:
    """Train the classifier on chats whose questions end with a request for styles.

    The loss is that of the replies plus the mean squared distance of the gates from 1, for
    requested styles within replies, and from 0 elsewhere.
    """
    width = blend.model.config.hidden_size
    classifier = Classifier(width, len(blend.linears), blend.names)
    classifier.attach(blend)

    def mixture_loss(step: int) -> Tensor:
        rng = Random(f"{SEED} {MIXTURE} {step}")
        wanted: list[list[float]] = []

        def write() -> Item:
            styles = rng.choice(list(COMBINATIONS))
            wanted.append([float(name in styles) for name in blend.names])
            return converse_in(styles, rng, asked=1.0)

        ids, labels, owners = pack_chats(tokenizer, write, ROWS, ROW_LENGTH)
        loss = reply_loss(blend.model, ids, labels)
        assert blend.gates is not None
        target = torch.tensor(wanted)[owners] * find_replies(labels)[..., None]
        off = (blend.gates - target[:, :, None])[owners >= 0]
        return loss + off.square().mean()

    blend.freeze()
    descend(MIXTURE, list(classifier.parameters()), mixture_loss)
    return classifier


def descend(name: str, parameters: list[nn.Parameter], loss_of: Callable[[int], Tensor]) -> None:
    """Run the steps of `name` with AdamW; the learning rate decays linearly to zero."""
    steps = STEPS[name]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0)
    started = time.monotonic()
    for step in range(steps):
        loss = loss_of(step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min((step + 1) / WARMUP_STEPS, 1 - step / steps)
        optimizer.step()
        optimizer.zero_grad()
        if step % 25 == 0 or step == steps - 1:
            seconds = time.monotonic() - started
            print(f"{name} {step + 1}/{steps} loss {loss.item():.4f} {seconds:.0f} s", flush=True)
