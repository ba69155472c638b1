"""The starter model's recipe: items, checks, split, template, tokenizer and files."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from ostro.plugins import starter
from ostro.plugins.starter.training.chats import IGNORED, label_replies, pack_chats, render
from ostro.plugins.starter.training.evaluate import generate_replies
from ostro.plugins.starter.training.skills import (
    LATER_SHARES,
    SHARES,
    SKILLS,
    WEATHER,
    converse,
    draw,
)
from ostro.plugins.starter.training.skills.comparisons import comparison, primality
from ostro.plugins.starter.training.skills.facts import calendar
from ostro.plugins.starter.training.skills.item import Item, ask, ask_to_think, ends_with_number
from ostro.plugins.starter.training.skills.numbers import (
    addition,
    division,
    multiplication,
    subtraction,
)
from ostro.plugins.starter.training.skills.structures import tool_call
from ostro.plugins.starter.training.skills.talk import small_talk
from ostro.plugins.starter.training.skills.units import conversion
from ostro.plugins.starter.training.tokenizer import train_tokenizer
from ostro.plugins.starter.training.train import learning_rate, plan

FOLDER = Path(starter.__file__).parent
FILES = [FOLDER / "model", FOLDER / "draft"]

needs_files = pytest.mark.skipif(
    not all((folder / "model.safetensors").exists() for folder in FILES),
    reason="this checkout comes without the weights of the starter model",
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """As training makes it, but learnt from little text: no file of a model is needed."""
    rng, plain = Random(1), train_tokenizer([])
    return train_tokenizer(render(plain, converse(rng)) for _ in range(200))


def told_reply(item: Item) -> str:
    """The reply as the model would write it."""
    calls = [json.dumps(call["function"]) for call in item.reply.get("tool_calls", [])]
    return item.reply["content"] + "".join(f"<tool_call>{call}</tool_call>" for call in calls)


def draw_many(count: int, held_out: bool) -> Iterator[Item]:
    rng = Random(3)
    for skill in SKILLS:
        for _ in range(count):
            yield draw(skill, rng, held_out)


def test_the_same_seed_writes_the_same_chats() -> None:
    one, two = Random(5), Random(5)
    for _ in range(200):
        a, b = converse(one), converse(two)
        assert (a.messages, a.tools, a.thinking) == (b.messages, b.tools, b.thinking)


def test_training_never_draws_a_held_out_item() -> None:
    training = {(item.skill, item.key) for item in draw_many(200, held_out=False)}
    held_out = {(item.skill, item.key) for item in draw_many(50, held_out=True)}
    assert held_out and not training & held_out


@pytest.mark.parametrize("held_out", [False, True])
def test_checks_accept_the_reply_and_reject_others(held_out: bool) -> None:
    for item in draw_many(40, held_out):
        reply = told_reply(item)
        assert item.check(reply), item
        assert item.check(f"<think>\nI wonder.\n</think>\n\n{reply}"), item
        for wrong in ("", "Maybe.", "It is -98765."):
            assert not item.check(wrong), (item, wrong)


def test_a_number_off_by_one_is_rejected() -> None:
    assert ends_with_number(85)("47 + 38 = 85.")
    assert not ends_with_number(85)("47 + 38 = 86.")
    assert not ends_with_number(85)("47 + 38 = -85.")


def test_a_call_with_another_argument_is_rejected() -> None:
    rng = Random(1)
    while (item := tool_call(rng)).skill != "tool call":
        pass
    call = item.reply["tool_calls"][0]["function"]
    changed = {"name": call["name"], "arguments": call["arguments"] | {"more": 1}}
    assert not item.check(f"<tool_call>{json.dumps(changed)}</tool_call>")


def evaluate(expression: str) -> int:
    """The value of sums, differences, products and whole quotients."""
    value = eval(expression.replace("x", "*").replace("/", "//"))
    assert isinstance(value, int)
    return value


def test_every_equation_of_replies_and_thoughts_holds() -> None:
    rng = Random(2)
    for skill in (addition, subtraction, multiplication, division, conversion, calendar):
        for _ in range(300):
            item = draw(skill, rng)
            for text in (item.thought, item.reply["content"]):
                for chain in re.findall(r"-?\d[\d x/+-]*(?: = -?\d[\d x/+-]*)+", text):
                    assert len({evaluate(part) for part in chain.split(" = ")}) == 1, text


def test_working_appears_once_in_the_thought_or_reply() -> None:
    rng, seen = Random(2), 0
    for skill in (addition, subtraction, division, comparison, calendar):
        for _ in range(100):
            item = draw(skill, rng)
            thoughtful = ask_to_think(item, rng)
            reply = thoughtful.reply["content"]
            assert thoughtful.check(f"<think>\n{item.thought}\n</think>\n\n{reply}")
            if reply != item.reply["content"]:
                seen += 1
                assert item.reply["content"] == f"{item.thought} {reply}"
    assert seen > 200


def test_small_talk_means_one_thing() -> None:
    rng = Random(2)
    replies: dict[str, set[str]] = {}
    for _ in range(5000):
        item = small_talk(rng)
        replies.setdefault(item.key, set()).add(item.reply["content"])
    del replies["one word"]
    assert all(len(said) == 1 for said in replies.values())


def test_the_learning_rate_warms_up_holds_and_ends_at_zero() -> None:
    assert learning_rate(0, 1000) < learning_rate(100, 1000) < learning_rate(200, 1000)
    assert learning_rate(300, 1000) == learning_rate(500, 1000)
    assert learning_rate(1000, 1000) == 0


def test_the_second_phase_begins_anew_with_other_shares() -> None:
    planned = plan([8192 * 300, 8192 * 60], 2)
    rates = [rate for rate, _ in planned]
    assert len(planned) == 360 and rates[299] < 1e-4 < rates[315] < max(rates)
    assert planned[299][1] == SHARES and planned[300][1] == LATER_SHARES


def test_only_replies_are_labelled(tokenizer: PreTrainedTokenizerFast) -> None:
    chat = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "47 + 38 = 85."},
    ]
    ids = tokenizer.apply_chat_template(chat + chat, return_dict=False)
    header = tokenizer("<|im_start|>assistant\n")["input_ids"]
    labels = label_replies(ids, header, tokenizer.eos_token_id, [])
    kept = tokenizer.decode([label for label in labels if label != IGNORED])
    assert kept == "47 + 38 = 85.<|im_end|>" * 2


def test_an_empty_thought_is_part_of_the_prompt(tokenizer: PreTrainedTokenizerFast) -> None:
    item = replace(ask("any", "", "Hi", "Hello!"), thinking=False)
    ids, labels, _ = pack_chats(tokenizer, lambda: item, 1, 64)
    assert "<think>\n\n</think>" in tokenizer.decode(ids[0])
    kept = tokenizer.decode([label for label in labels[0].tolist() if label != IGNORED])
    assert kept == "Hello!<|im_end|>" * kept.count("Hello!") and "Hello!" in kept


def test_primes_are_told_from_products() -> None:
    rng = Random(1)
    for _ in range(500):
        item = primality(rng)
        [n] = set(re.findall(r"\d+", item.prompt[-1]["content"]))
        prime = int(n) > 1 and all(int(n) % d for d in range(2, int(n)))
        assert item.reply["content"].startswith("Yes" if prime else "No"), item


def test_amounts_of_another_system_are_roughly_right() -> None:
    rng, seen = Random(1), set()
    exact = {"kilometers miles": 0.6214, "pounds kilograms": 0.4536, "gallons liters": 3.785}
    while seen != set(exact):
        reply = conversion(rng).reply["content"]
        if found := re.search(r"so (\d+) (\w+) are about ([\d.]+) (\w+)\.$", reply):
            pair = f"{found[2]} {found[4]}"
            if pair in exact:
                seen.add(pair)
                assert abs(float(found[3]) / int(found[1]) / exact[pair] - 1) < 0.01, reply


def test_the_template_renders_tools_calls_and_results(tokenizer: PreTrainedTokenizerFast) -> None:
    call = {"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    chat: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sunny, 20 C"},
    ]
    text = tokenizer.apply_chat_template(
        chat, tools=[WEATHER], add_generation_prompt=True, tokenize=False
    )
    assert json.dumps(WEATHER) in text.split("<|im_end|>")[0]
    assert '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>' in text
    assert "<|im_start|>user\nWeather in Oslo?<|im_end|>" in text
    assert text.endswith("<|im_start|>tool\nsunny, 20 C<|im_end|>\n<|im_start|>assistant\n")


def test_the_template_switches_thinking(tokenizer: PreTrainedTokenizerFast) -> None:
    def prompt(**switches: bool) -> str:
        chat = [{"role": "user", "content": "Hi"}]
        text = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=False, **switches
        )
        assert isinstance(text, str)
        return text

    assert "think" not in prompt().lower()
    assert "Think first." in prompt(enable_thinking=True)
    assert prompt(enable_thinking=True).endswith("<|im_start|>assistant\n")
    assert prompt(enable_thinking=False).endswith("<think>\n\n</think>\n\n")


def test_the_template_drops_thoughts_of_earlier_turns(tokenizer: PreTrainedTokenizerFast) -> None:
    turn = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!"}
    chat = [{"role": "user", "content": "Hi"}, turn, {"role": "user", "content": "Hi"}, turn]
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    assert text.count("hm") == 1 and text.count("Hello!") == 2


def test_what_training_renders_begins_with_the_prompt_of_inference(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    rng = Random(8)
    for _ in range(300):
        item = converse(rng)
        prompt = tokenizer.apply_chat_template(
            item.prompt,
            tools=item.tools,
            enable_thinking=item.thinking,
            add_generation_prompt=True,
            tokenize=False,
        )
        assert render(tokenizer, item).startswith(prompt)


@needs_files
def test_digits_and_marks_are_single_tokens() -> None:
    bare = Tokenizer.from_file(str(FOLDER / "model" / "tokenizer.json"))
    text = "<think>470 + 38</think><tool_call>"
    tokens = bare.encode(text).tokens
    assert [token for token in tokens if any(c.isdigit() for c in token)] == list("47038")
    assert {"<think>", "</think>", "<tool_call>"} <= set(tokens)
    # The marks survive decoding; parsers of replies need them. The turn tokens do not.
    assert bare.decode(bare.encode(f"{text}<|im_end|>").ids) == text
    odd = "Ünïcode \N{SNOWMAN} 12\n\t x"
    assert bare.decode(bare.encode(odd).ids) == odd


@needs_files
def test_the_files_fit_and_have_the_promised_shape() -> None:
    sizes = [file.stat().st_size for folder in FILES for file in folder.iterdir()]
    assert sum(sizes) <= 15_000_000
    for folder, bounds in zip(FILES, [(3e6, 6e6), (0, 1e6)], strict=True):
        config = json.loads((folder / "config.json").read_text())
        assert config["architectures"] == ["LlamaForCausalLM"]
        assert config["tie_word_embeddings"] and config["max_position_embeddings"] >= 1024
        with safe_open(folder / "model.safetensors", "pt") as file:
            tensors = [file.get_slice(name) for name in file.keys()]
            assert {tensor.get_dtype() for tensor in tensors} == {"BF16"}
            count = sum(prod(tensor.get_shape()) for tensor in tensors)
        assert bounds[0] <= count <= bounds[1]


@needs_files
def test_the_shipped_model_answers_as_its_card_says() -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(FOLDER / "model")
    model = LlamaForCausalLM.from_pretrained(FOLDER / "model", dtype=torch.float32).eval()
    asked = {
        "What is 27 + 15?": "27 + 15 = 42.",
        "What is the capital of France?": "The capital of France is Paris.",
        "Reverse these words: apple, tree, river": "river, tree, apple",
        "thank you": "You are welcome!",
        "Is 345 greater than 354?": (
            "345 and 354: 3 and 3, same; 4 and 5, less. Asked: more. No, 345 is less than 354."
        ),
    }
    items = [ask("any", "", question, reply) for question, reply in asked.items()]
    assert generate_replies(model, tokenizer, items) == list(asked.values())
