"""Evaluate: accuracy per skill on items that training never draws."""

from collections import Counter
from collections.abc import Iterator
from random import Random

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from ostro.plugins.starter.chats import IGNORED, draw_batch
from ostro.plugins.starter.skills import SKILLS, converse, draw
from ostro.plugins.starter.skills.item import Item, ask_to_think
from ostro.plugins.starter.tokenizer import END

EVALUATION_SEED = 7


def held_out_items(count: int) -> Iterator[tuple[str, Item]]:
    """`count` held-out items of each skill, then arithmetic with thoughts, then long chats."""
    rng = Random(EVALUATION_SEED)
    for skill in SKILLS:
        for _ in range(count):
            item = draw(skill, rng, held_out=True)
            yield item.skill, item
    for i in range(count):
        yield "thinking", ask_to_think(draw(SKILLS[i % 3], rng, held_out=True), rng)
    for _ in range(count):
        while len((item := converse(rng, held_out=True)).messages) < 4 or item.tools:
            pass
        yield "in a longer chat", item


@torch.inference_mode()
def generate_replies(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, items: list[Item]
) -> list[str]:
    """Greedy replies, marks included, without the token that ends the turn."""
    prompts = [
        tokenizer.apply_chat_template(
            item.prompt,
            tools=item.tools,
            enable_thinking=item.thinking,
            add_generation_prompt=True,
            tokenize=False,
        )
        for item in items
    ]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    inputs.pop("token_type_ids", None)
    output = model.generate(
        **inputs,
        max_new_tokens=160,
        do_sample=False,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.pad_token_id,
    )
    texts = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :])
    return [text.partition(END)[0] for text in texts]


def measure_accuracy(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int, show: bool = False
) -> dict[str, tuple[int, int]]:
    """Right replies and items per skill; `show` prints the wrong ones."""
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    # A skill at a time: replies of like length end together.
    pairs = sorted(held_out_items(count), key=lambda pair: pair[0])
    for start in range(0, len(pairs), count):
        batch = pairs[start : start + count]
        replies = generate_replies(model, tokenizer, [item for _, item in batch])
        for (name, item), reply in zip(batch, replies, strict=True):
            total[name] += 1
            right[name] += item.check(reply)
            if show and not item.check(reply):
                print(f"{name}: {item.prompt[-1]['content']!r} -> {reply!r}")
    return {name: (right[name], total[name]) for name in sorted(total)}


@torch.inference_mode()
def measure_agreement(
    model: LlamaForCausalLM, draft: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> float:
    """The share of reply tokens of held-out chats where model and draft choose the same."""
    ids, labels = draw_batch(tokenizer, step=0, rank=EVALUATION_SEED, held_out=True)
    chosen = [
        net.lm_head(net.model(input_ids=ids).last_hidden_state[:, :-1]).argmax(-1)
        for net in (model, draft)
    ]
    same = (chosen[0] == chosen[1])[labels[:, 1:] != IGNORED]
    return same.float().mean().item()


def format_table(accuracy: dict[str, tuple[int, int]]) -> str:
    """The accuracy as the table of the card."""
    rows = [
        f"| {name} | {right}/{total} | {100 * right / total:.1f} % |"
        for name, (right, total) in accuracy.items()
    ]
    return "\n".join(["| skill | right | accuracy |", "| --- | --- | --- |", *rows])
