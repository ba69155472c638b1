"""Tokenize and pack chats into training rows, with labels on replies only."""

from collections.abc import Callable
from functools import partial
from random import Random

import torch
from transformers import PreTrainedTokenizerFast

from ostro.plugins.starter.training.skills import SHARES, Shares, converse
from ostro.plugins.starter.training.skills.item import Item
from ostro.plugins.starter.training.skills.styles import converse_in
from ostro.plugins.starter.training.tokenizer import END, START

SEED = 20
CONTEXT = 1024
# Most rows are short; every eighth batch has rows of the full context, to train all positions.
ROW_LENGTH, TOKENS_PER_BATCH = 512, 4096
LONG_EVERY = 8
IGNORED = -100
# The template writes it into the prompt if thinking is disabled.
BLANK_THOUGHT = "<think>\n\n</think>\n\n"
# The share of chats that ask for capitals and get them: the model learns to spell in capitals.
SHOUTED_SHARE = 0.06


def write_chat(
    rng: Random,
    held_out: bool = False,
    shouted: float = SHOUTED_SHARE,
    shares: Shares = SHARES,
) -> Item:
    """A random chat of all skills; a share `shouted` of them asks for capitals."""
    if rng.random() < shouted:
        return converse_in(("shout",), rng, asked=1.0, held_out=held_out)
    return converse(rng, held_out, shares)


def render(tokenizer: PreTrainedTokenizerFast, item: Item) -> str:
    """The chat as text, in the chat template."""
    text = tokenizer.apply_chat_template(
        item.messages, tools=item.tools, enable_thinking=item.thinking, tokenize=False
    )
    assert isinstance(text, str)
    return text


def label_replies(ids: list[int], header: list[int], end: int, blank: list[int]) -> list[int]:
    """The ids of assistant turns and of the tokens that end them; `IGNORED` elsewhere.

    An assistant turn begins after the token ids `header`, and ends with the token `end`. The ids
    `blank` at its beginning are an empty thought: part of the prompt, never of a reply.
    """
    labels, inside, begin = [IGNORED] * len(ids), False, 0
    for i, token in enumerate(ids):
        if inside:
            labels[i] = token if i >= begin else IGNORED
            inside = token != end
        elif token == header[-1] and ids[max(0, i - len(header) + 1) : i + 1] == header:
            inside = True
            empty = ids[i + 1 : i + 1 + len(blank)] == blank
            begin = i + 1 + (len(blank) if empty else 0)
    return labels


def draw_batch(
    tokenizer: PreTrainedTokenizerFast,
    step: int,
    rank: int,
    held_out: bool = False,
    shares: Shares = SHARES,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels `[rows, length]` int64 of random chats of all skills."""
    rng = Random(f"{SEED} {step} {rank}")
    length = CONTEXT if step % LONG_EVERY == LONG_EVERY - 1 else ROW_LENGTH
    write = partial(write_chat, rng, held_out, shares=shares)
    ids, labels, _ = pack_chats(tokenizer, write, TOKENS_PER_BATCH // length, length)
    return ids, labels


def pack_chats(
    tokenizer: PreTrainedTokenizerFast, write: Callable[[], Item], count: int, length: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, labels and owners `[count, length]` int64: unsplit chats packed first-fit, then padding.

    The owner of a token is the index of its chat among all calls of `write`, -1 for padding.
    """
    rows: list[list[int]] = [[] for _ in range(count)]
    owners: list[list[int]] = [[] for _ in range(count)]
    written = misses = 0
    # chats that do not fit are dropped; the eighth one ends the packing
    while misses < 8:
        ids = tokenizer(render(tokenizer, write()))["input_ids"]
        room = next((i for i, row in enumerate(rows) if len(row) + len(ids) <= length), None)
        if room is None:
            misses += 1
        else:
            rows[room].extend(ids)
            owners[room].extend([written] * len(ids))
        written += 1
    header = tokenizer(f"{START}assistant\n")["input_ids"]
    blank = tokenizer(BLANK_THOUGHT)["input_ids"]
    end, pad = tokenizer.convert_tokens_to_ids(END), tokenizer.pad_token_id
    labels = [label_replies(row, header, end, blank) for row in rows]

    def fill(each: list[list[int]], filler: int) -> torch.Tensor:
        return torch.tensor([row + [filler] * (length - len(row)) for row in each])

    return fill(rows, pad), fill(labels, IGNORED), fill(owners, -1)
