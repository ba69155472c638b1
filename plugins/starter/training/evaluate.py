"""Evaluate the starter model and its adapters: accuracy per skill on held-out items."""

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from ostro.plugins.starter.training.chats import IGNORED, draw_batch
from ostro.plugins.starter.training.lowrank import Blend
from ostro.plugins.starter.training.skills import SKILLS, converse, draw
from ostro.plugins.starter.training.skills.item import Item, ask_to_think
from ostro.plugins.starter.training.skills.styles import COMBINATIONS, ask_for, give_style, speaks
from ostro.plugins.starter.training.tokenizer import END

EVALUATION_SEED = 7


def held_out_items(count: int) -> Iterator[tuple[str, Item]]:
    """`count` held-out items of each skill, then arithmetic with reasoning, then longer chats."""
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


def encode_prompts(tokenizer: PreTrainedTokenizerFast, items: Sequence[Item]) -> dict[str, Tensor]:
    """Ids and mask `[items, length]` int64 of the prompts, with padding on the left."""
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
    return {name: inputs[name] for name in ("input_ids", "attention_mask")}


@torch.inference_mode()
def generate_replies(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    items: list[Item],
    use_cache: bool = True,
) -> list[str]:
    """Greedy replies with reasoning and tool-call tokens, without the end-of-turn token.

    `use_cache` must be off if a classifier is attached: its pass of the base model would write to
    the same cache.
    """
    inputs = encode_prompts(tokenizer, items)
    output = model.generate(
        **inputs,
        max_new_tokens=160,
        do_sample=False,
        use_cache=use_cache,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.pad_token_id,
    )
    texts = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :])
    return [text.partition(END)[0] for text in texts]


def measure_accuracy(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int, show: bool = False
) -> dict[str, tuple[int, int]]:
    """(right replies, items) per skill; `show` prints wrong replies."""
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    # One skill per batch: its replies have similar lengths, so little padding is generated.
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
    """The fraction of reply tokens of held-out chats on which model and draft agree (argmax)."""
    ids, labels = draw_batch(tokenizer, step=0, rank=EVALUATION_SEED, held_out=True)
    chosen = [
        net.lm_head(net.model(input_ids=ids).last_hidden_state[:, :-1]).argmax(-1)
        for net in (model, draft)
    ]
    same = (chosen[0] == chosen[1])[labels[:, 1:] != IGNORED]
    return same.float().mean().item()


# Counts: right replies in the style, replies in the style, all replies.
Tally = tuple[int, int, int]


def tally_styles(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    items: list[Item],
    styles: Sequence[str],
    use_cache: bool = True,
) -> Tally:
    """The tally of the replies to items of `styles`."""
    replies = generate_replies(model, tokenizer, items, use_cache)
    right = sum(item.check(reply) for item, reply in zip(items, replies, strict=True))
    return right, sum(speaks(reply, styles) for reply in replies), len(items)


def measure_adapters(
    blend: Blend, tokenizer: PreTrainedTokenizerFast, count: int
) -> dict[str, dict[str, tuple[Tally, Tally]]]:
    """(tally with the adapter, tally of the base model) per adapter and skill."""
    measured: dict[str, dict[str, tuple[Tally, Tally]]] = {}
    for name in blend.names:
        rng, styles = Random(EVALUATION_SEED), (name,)
        measured[name] = {}
        for skill in COMBINATIONS[styles]:
            items = [give_style(draw(skill, rng, held_out=True), styles) for _ in range(count)]
            blend.choose(name)
            adapted = tally_styles(blend.model, tokenizer, items, styles)
            blend.choose()
            base = tally_styles(blend.model, tokenizer, items, styles)
            measured[name][items[0].skill] = adapted, base
    return measured


@torch.inference_mode()
def measure_mixture(
    blend: Blend, tokenizer: PreTrainedTokenizerFast, count: int
) -> dict[str, tuple[Tally, list[float]]]:
    """(tally, mean gates at the last token of prompts) per combination of requested styles."""
    measured = {}
    for styles, skills in COMBINATIONS.items():
        rng, items = Random(EVALUATION_SEED), []
        for i in range(count):
            item = draw(skills[i % len(skills)], rng, held_out=True)
            items.append(ask_for(give_style(item, styles), styles, rng))
        tally = tally_styles(blend.model, tokenizer, items, styles, use_cache=False)
        # Replies end at different tokens, prompts at the same one.
        blend.model(**encode_prompts(tokenizer, items))
        assert blend.gates is not None
        gates = blend.gates[:, -1].mean((0, 1)).tolist()
        measured[" and ".join(styles) or "none"] = tally, gates
    return measured


def format_adapters(measured: dict[str, dict[str, tuple[Tally, Tally]]]) -> str:
    """The model card's table of adapters: right replies per skill, then fractions in the style."""
    lines = [
        f"| right, in the style | {' | '.join(measured)} |",
        "| --- |" + " --- |" * len(measured),
    ]
    skills = sorted({skill for one in measured.values() for skill in one})
    for skill in skills:
        cells = (one[skill][0] if skill in one else None for one in measured.values())
        shown = (f"{cell[0]}/{cell[2]}" if cell else "" for cell in cells)
        lines.append(f"| {skill} | {' | '.join(shown)} |")
    for label, side, field in (
        ("all", 0, 0),
        ("all, of the base", 1, 0),
        ("in the style, right or wrong", 0, 1),
        ("in the style, of the base", 1, 1),
    ):
        pairs = [[pair[side] for pair in one.values()] for one in measured.values()]
        shares = [sum(t[field] for t in tallies) / sum(t[2] for t in tallies) for tallies in pairs]
        lines.append(f"| {label} | {' | '.join(f'{share:.1%}' for share in shares)} |")
    return "\n".join(lines)


def format_mixture(measured: dict[str, tuple[Tally, list[float]]], names: Sequence[str]) -> str:
    """The model card's table of the mixture."""
    lines = [
        f"| asked for | right, in the style | in the style | {' | '.join(names)} |",
        "| --- |" + " --- |" * (2 + len(names)),
    ]
    for asked, ((right, styled, total), gates) in measured.items():
        means = " | ".join(f"{gate:.2f}" for gate in gates)
        lines.append(f"| {asked} | {right}/{total} | {styled}/{total} | {means} |")
    return "\n".join(lines)


def format_table(accuracy: dict[str, tuple[int, int]]) -> str:
    """The model card's table of accuracy."""
    rows = [
        f"| {name} | {right}/{total} | {100 * right / total:.1f} % |"
        for name, (right, total) in accuracy.items()
    ]
    return "\n".join(["| skill | right | accuracy |", "| --- | --- | --- |", *rows])
