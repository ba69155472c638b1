"""Train the adapters of the starter model together, then spelling in capitals, then their mixture.

Every row of a batch is in one combination of styles and passes through the adapters of that
combination alone, so that one step trains them all, also for use together. Names and words in
capitals have tokens of their own, which `shout` sees too rarely in these steps: further steps train
it alone, with more names and words. Then the classifier of `mix` learns the gates of each token
from the user's request.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from ostro.plugins.starter.training.chats import IGNORED, ROW_LENGTH, SEED, pack_chats
from ostro.plugins.starter.training.loss import mixed_precision, reply_loss
from ostro.plugins.starter.training.lowrank import WEIGHTS, Blend, Classifier
from ostro.plugins.starter.training.parallel import average_gradients
from ostro.plugins.starter.training.skills import SHARES, Shares
from ostro.plugins.starter.training.skills.item import Item
from ostro.plugins.starter.training.skills.styles import COMBINATIONS, SPELLED, converse_in

ADAPTERS = ("french", "pirate", "shout")
MIXTURE = "mix"
# The folder of the adapters before the steps of spelling.
JOINT = "joint"
# The peaks of the learning rate: of all parts, and of the small batches of spelling.
LEARNING_RATE, SPELLING_RATE, WARMUP_STEPS = 4e-3, 2e-3, 20
# The combination of each row of a batch of the adapters; the mixture also has rows in no style.
LESSONS = [styles for styles in COMBINATIONS if styles]
ROWS = len(LESSONS)
ASKED_SHARE = 0.4


class Part(NamedTuple):
    """A part of the training of the adapters: names, rows and skills.

    A batch has a row for each of the `lessons`, the combinations of styles.
    """

    name: str
    trained: Sequence[str]
    lessons: Sequence[tuple[str, ...]]
    shares: Shares
    rate: float


TOGETHER = Part("adapters", ADAPTERS, LESSONS, SHARES, LEARNING_RATE)
SPELLING = Part("spelling", ["shout"], [("shout",)], SPELLED, SPELLING_RATE)


class Steps(NamedTuple):
    """The steps of each part of the training."""

    adapters: int
    spelling: int
    mixture: int


def find_replies(labels: Tensor) -> Tensor:
    """Mask `[rows, length]` bool of replies, with the token before, which predicts the first."""
    replies = labels != IGNORED
    return replies | replies.roll(-1, 1)


def speak_from(labels: Tensor, rng: torch.Generator) -> Tensor:
    """Mask `[rows, length]` float32 of tokens with adapters: replies, and half of the prompts."""
    whole = torch.rand(len(labels), 1, generator=rng) < 0.5
    return (find_replies(labels) | whole).float()


def tune(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    out: Path,
    steps: Steps,
    rank: int = 0,
) -> None:
    """Train the adapters and the mixture that `out` lacks, in the given steps, and save them.

    All processes of the group call it with their rank; rank 0 logs and saves.
    """
    torch.manual_seed(SEED)
    blend = Blend(model.train(), ADAPTERS)
    if not _complete(out):
        if not _complete(out / JOINT):
            tune_adapters(blend, tokenizer, steps.adapters, rank, TOGETHER)
            _save(blend, out / JOINT, rank)
        _load(blend, out / JOINT)
        tune_adapters(blend, tokenizer, steps.spelling, rank, SPELLING)
        _save(blend, out, rank)
    _load(blend, out)
    if not (out / MIXTURE / WEIGHTS).exists():
        classifier = tune_mixture(blend, tokenizer, steps.mixture, rank)
        if rank == 0:
            classifier.save(out / MIXTURE)
        _wait()


def _complete(home: Path) -> bool:
    return all((home / name / WEIGHTS).exists() for name in ADAPTERS)


def _save(blend: Blend, home: Path, rank: int) -> None:
    for name in ADAPTERS if rank == 0 else ():
        blend.save(name, home / name)
    _wait()


def _load(blend: Blend, home: Path) -> None:
    for name in ADAPTERS:
        blend.load(name, home / name)


def _wait() -> None:
    if dist.is_initialized():
        dist.barrier()


def tune_adapters(
    blend: Blend, tokenizer: PreTrainedTokenizerFast, steps: int, rank: int, part: Part
) -> None:
    """Train the adapters of a part; each row of a batch is in the styles of its lesson."""
    generator = torch.Generator().manual_seed(SEED + rank)

    def lesson_loss(step: int) -> Tensor:
        packed = []
        for row, styles in enumerate(part.lessons):
            rng = Random(f"{SEED} {part.name} {row} {step} {rank}")
            write = partial(converse_in, styles, rng, ASKED_SHARE, shares=part.shares)
            packed.append(pack_chats(tokenizer, write, 1, ROW_LENGTH))
        ids, labels, _ = (torch.cat(parts) for parts in zip(*packed, strict=True))
        chosen = torch.tensor(
            [[float(n in styles) for n in blend.names] for styles in part.lessons]
        )
        gates = speak_from(labels, generator)[:, :, None, None] * chosen[:, None, None]
        blend.gates = gates.expand(-1, -1, len(blend.linears), -1)
        return reply_loss(blend.model, ids, labels)

    blend.freeze()
    own = [parameter for name in part.trained for parameter in blend.parameters(name)]
    for parameter in own:
        parameter.requires_grad_()
    descend(part.name, own, lesson_loss, steps, rank, part.rate)


def tune_mixture(
    blend: Blend, tokenizer: PreTrainedTokenizerFast, steps: int, rank: int
) -> Classifier:
    """Train the classifier on chats whose questions end with a request for styles.

    The loss is that of the replies plus the mean squared distance of the gates from 1, for
    requested styles within replies, and from 0 elsewhere.
    """
    width = blend.model.config.hidden_size
    classifier = Classifier(width, len(blend.linears), blend.names)
    classifier.attach(blend)

    def mixture_loss(step: int) -> Tensor:
        rng = Random(f"{SEED} {MIXTURE} {step} {rank}")
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
    descend(MIXTURE, list(classifier.parameters()), mixture_loss, steps, rank)
    return classifier


def descend(
    name: str,
    parameters: list[nn.Parameter],
    loss_of: Callable[[int], Tensor],
    steps: int,
    rank: int,
    rate: float = LEARNING_RATE,
) -> None:
    """Run the steps with AdamW; the learning rate decays linearly to zero."""
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)
    started = time.monotonic()
    for step in range(steps):
        with mixed_precision():
            loss = loss_of(step)
        loss.backward()
        average_gradients(parameters)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate * min((step + 1) / WARMUP_STEPS, 1 - step / steps)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and (step % 25 == 0 or step == steps - 1):
            seconds = time.monotonic() - started
            print(f"{name} {step + 1}/{steps} loss {loss.item():.4f} {seconds:.0f} s", flush=True)
