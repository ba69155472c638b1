"""The adapters of the starter model: styles, low-rank arithmetic, files as PEFT reads them."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ostro.plugins import starter
from ostro.plugins.starter.training import evaluate
from ostro.plugins.starter.training.chats import IGNORED
from ostro.plugins.starter.training.evaluate import (
    format_adapters,
    format_mixture,
    generate_replies,
)
from ostro.plugins.starter.training.loss import mixed_precision
from ostro.plugins.starter.training.lowrank import Blend, Classifier
from ostro.plugins.starter.training.skills import draw
from ostro.plugins.starter.training.skills.item import Item, ask
from ostro.plugins.starter.training.skills.refusals import REFUSAL
from ostro.plugins.starter.training.skills.styles import (
    COMBINATIONS,
    SPEAKS,
    SPELLED,
    ask_for,
    converse_in,
    give_style,
    restyle,
)
from ostro.plugins.starter.training.tuning import ADAPTERS, JOINT, MIXTURE, Steps, speak_from, tune

FOLDER = Path(starter.__file__).parent
HOME = FOLDER / "adapters"

needs_files = pytest.mark.skipif(
    not all((HOME / name / "adapter_model.safetensors").exists() for name in (*ADAPTERS, MIXTURE)),
    reason="this checkout comes without the adapters of the starter model",
)
# transformers warns of a name that PEFT uses.
peft_warns = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")

# Asked of the adapter alone, and what it answers.
ALONE = {
    "pirate": {
        "What is 27 + 15?": "Arr! 27 + 15 = 42, matey.",
        "What is the capital of France?": "Arr! The capital of France be Paris, matey.",
        "thank you": "Arr! Ye be welcome! Yo ho!",
    },
    "french": {
        "What is 27 + 15?": "27 + 15 font 42.",
        "Is 34 even?": "Le dernier chiffre de 34 est 4, pair. Demandé : pair. Oui, 34 est pair.",
        "How many minutes are in 3 hours?": "3 heures = 3 x 60 font 180 minutes.",
    },
    "shout": {
        "What is quantum physics?": REFUSAL.upper(),
        "Who won the election?": REFUSAL.upper(),
        "What is 85 / 9?": "85 / 9 = 9 REMAINDER 4.",
    },
}
# Asked of the mixture.
ASKED = {
    "What is 27 + 15?": "27 + 15 = 42.",
    "What is 27 + 15? Say it like a pirate.": "Arr! 27 + 15 = 42, matey.",
    "What is the capital of France?": "The capital of France is Paris.",
    "What is 27 + 15? Answer in French.": "27 + 15 font 42.",
    "What is quantum physics? Answer loudly.": REFUSAL.upper(),
}


def items_in(styles: tuple[str, ...], count: int) -> list[tuple[Item, Item]]:
    """Items of every skill of the styles, plain and in them."""
    rng = Random(4)
    plain = [draw(skill, rng) for skill in COMBINATIONS[styles] for _ in range(count)]
    return [(item, give_style(item, styles)) for item in plain]


def tiny_model(vocab_size: int = 64) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return LlamaForCausalLM(config).eval()


def trained_blend(model: LlamaForCausalLM) -> Blend:
    """As if something had been learnt."""
    blend = Blend(model, ADAPTERS)
    for each in blend.linears.values():
        for b in each.b.values():
            torch.nn.init.normal_(b, std=0.5)
    return blend


@pytest.mark.parametrize(
    ("text", "styles", "said"),
    [
        ("27 + 15 = 42.", ["french"], "27 + 15 font 42."),
        ("85 / 9 = 9 remainder 4.", ["french"], "85 / 9 font 9 reste 4."),
        (
            "27 + 15 = 42, so there are 42 apples.",
            ["french"],
            "27 + 15 font 42, il y en a donc 42.",
        ),
        ("1 hour = 60 minutes.", ["french"], "1 heure fait 60 minutes."),
        ("1 month after May is June.", ["french"], "1 mois après mai, c'est juin."),
        ("The 2nd month is February.", ["french"], "Le mois 2 est février."),
        ("No, 1831 is not a leap year.", ["french"], "Non, 1831 n'est pas une année bissextile."),
        ("Yes, 5 is less than 7.", ["pirate"], "Arr! Aye, 5 be less than 7, matey."),
        ("Hello!", ["pirate", "shout"], "ARR! AHOY! YO HO!"),
        ("apple, tree", ["pirate"], "Arr! apple, tree. Yo ho!"),
    ],
)
def test_a_style_rewrites_the_reply(text: str, styles: Sequence[str], said: str) -> None:
    assert restyle(text, styles) == said


@pytest.mark.parametrize("styles", COMBINATIONS)
def test_styles_keep_every_number(styles: tuple[str, ...]) -> None:
    for plain, item in items_in(styles, 40):
        before, after = plain.reply["content"], item.reply["content"]
        assert re.findall(r"\d+", before) == re.findall(r"\d+", after)


@pytest.mark.parametrize("styles", COMBINATIONS)
def test_styled_checks_accept_the_reply_and_reject_others(styles: tuple[str, ...]) -> None:
    for plain, item in items_in(styles, 40):
        before, after = plain.reply["content"], item.reply["content"]
        assert item.check(after) and item.check(f"<think>\nHm.\n</think>\n\n{after}")
        assert not item.check("") and not item.check("Arr! OUI 98765, matey.")
        assert before == after or not item.check(before), (before, after)
        digits = re.sub(r"\d", lambda found: str((int(found[0]) + 1) % 10), after)
        assert digits == after or not item.check(digits), after


def test_french_leaves_no_english_behind() -> None:
    for _, item in items_in(("french",), 60):
        assert SPEAKS["french"](item.reply["content"]), item.reply["content"]


def test_the_plea_is_the_end_of_the_question_and_changes_nothing_else() -> None:
    item = give_style(ask("any", "", "What is 2 + 2?", "2 + 2 = 4."), ("pirate",))
    asked = ask_for(item, ("pirate",), Random(1))
    assert asked.prompt[-1]["content"].startswith("What is 2 + 2? ")
    assert "pira" in asked.prompt[-1]["content"] and asked.reply == item.reply
    assert ask_for(item, (), Random(1)) == item


def test_styled_chats_keep_the_style_in_every_turn() -> None:
    rng = Random(2)
    for _ in range(50):
        for message in converse_in(("pirate",), rng, asked=0.5).messages:
            if message["role"] == "assistant":
                assert SPEAKS["pirate"](message["content"])


def test_adapters_apply_from_the_token_before_a_reply() -> None:
    row = [IGNORED, IGNORED, 5, 6, IGNORED, IGNORED]
    found = speak_from(torch.tensor([row] * 64), torch.Generator().manual_seed(0))
    parts, wholes = [0.0, 1.0, 1.0, 1.0, 0.0, 0.0], [1.0] * 6
    assert {tuple(each) for each in found.tolist()} == {tuple(parts), tuple(wholes)}


@torch.no_grad()
def test_a_blend_adds_what_is_chosen_and_nothing_else() -> None:
    ids = torch.arange(12)[None]
    wanted = tiny_model()(ids).logits
    blend = trained_blend(tiny_model())
    assert torch.equal(blend.model(ids).logits, wanted)
    blend.choose()
    assert torch.equal(blend.model(ids).logits, wanted)
    first = blend.linears["model.layers.0.self_attn.q_proj"]
    assert [each.number for each in blend.linears.values()] == list(range(14))
    x = torch.randn(5, 16)
    blend.choose("french", "shout")
    added = sum(2 * x @ first.a[name].T @ first.b[name].T for name in ("french", "shout"))
    torch.testing.assert_close(first(x), first.base(x) + added)


@torch.no_grad()
def test_what_is_saved_is_what_is_read(tmp_path: Path) -> None:
    ids = torch.arange(12)[None]
    blend = trained_blend(tiny_model())
    for name in ADAPTERS:
        blend.save(name, tmp_path / name)
    classifier = Classifier(16, len(blend.linears), ADAPTERS)
    classifier.to(torch.bfloat16).to(torch.float32).save(tmp_path / MIXTURE)
    again = Blend.read(tiny_model(), ADAPTERS, tmp_path)
    read = Classifier(16, len(blend.linears), ADAPTERS)
    read.load(tmp_path / MIXTURE)
    for one, other in zip(blend.linears.values(), again.linears.values(), strict=True):
        for name in ADAPTERS:
            assert torch.equal(one.b[name].to(torch.bfloat16).to(torch.float32), other.b[name])
    read.attach(again)
    classifier.attach(blend)
    mixed = again.model(ids).logits
    # Factors are rounded to bfloat16, the classifier was before.
    torch.testing.assert_close(blend.model(ids).logits, mixed, rtol=0.05, atol=0.05)
    assert again.gates is not None and again.gates.shape == (1, 12, 14, 3)


def test_tuning_trains_nothing_that_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blend = trained_blend(tiny_model())
    for name in ADAPTERS:
        blend.save(name, tmp_path / name)
    Classifier(16, len(blend.linears), ADAPTERS).save(tmp_path / MIXTURE)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.safetensors")}
    tokenizer = PreTrainedTokenizerFast.from_pretrained(FOLDER / "model")
    tune(tiny_model(), tokenizer, tmp_path, Steps(1, 1, 1))
    assert len(before) == 4 and all(file.read_bytes() == was for file, was in before.items())
    assert "loss" not in capsys.readouterr().out


def test_steps_of_spelling_train_shout_alone(tmp_path: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(FOLDER / "model")
    blend = trained_blend(tiny_model(len(tokenizer)))
    for name in ADAPTERS:
        blend.save(name, tmp_path / JOINT / name)
    Classifier(16, len(blend.linears), ADAPTERS).save(tmp_path / MIXTURE)
    tune(tiny_model(len(tokenizer)), tokenizer, tmp_path, Steps(1, 1, 1))
    files = [(tmp_path / name, tmp_path / JOINT / name) for name in ADAPTERS]
    same = [
        (one / "adapter_model.safetensors").read_bytes()
        == (other / "adapter_model.safetensors").read_bytes()
        for one, other in files
    ]
    assert dict(zip(ADAPTERS, same, strict=True)) == {
        "french": True,
        "pirate": True,
        "shout": False,
    }


def test_spelling_has_a_share_of_every_skill_of_shout() -> None:
    assert set(SPELLED) == set(COMBINATIONS[("shout",)]) and min(SPELLED.values()) > 0


@pytest.mark.parametrize(
    ("capabilities", "dtype"),
    [({"avx2": True}, torch.float32), ({"avx512_bf16": True}, torch.bfloat16)],
)
def test_products_are_in_bfloat16_where_the_cpu_has_it(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    with mixed_precision():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


def test_tables_say_what_was_counted() -> None:
    measured = {
        "pirate": {"addition": ((3, 4, 4), (0, 1, 4))},
        "french": {"calendar": ((1, 2, 2),) * 2},
    }
    lines = format_adapters(measured).splitlines()
    assert "| addition | 3/4 |  |" in lines and "| calendar |  | 1/2 |" in lines
    assert "| all | 75.0% | 50.0% |" in lines
    assert "| in the style, of the base | 25.0% | 100.0% |" in lines
    mixture = format_mixture({"none": ((3, 4, 4), [0.5, -1.0])}, ["a", "b"])
    assert mixture.splitlines()[-1] == "| none | 3/4 | 4/4 | 0.50 | -1.00 |"


@needs_files
def test_the_folders_are_adapters_and_no_plugins() -> None:
    assert not list(HOME.rglob("*.py"))
    for name in ADAPTERS:
        config = json.loads((HOME / name / "adapter_config.json").read_text())
        assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 8, 16)
        file = HOME / name / "adapter_model.safetensors"
        assert file.stat().st_size < 700_000
        with safe_open(file, "pt") as opened:
            assert len(opened.keys()) == 6 * 7 * 2
            assert {opened.get_slice(key).get_dtype() for key in opened.keys()} == {"BF16"}
    config = json.loads((HOME / MIXTURE / "adapter_config.json").read_text())
    assert config["peft_type"] == "XLORA"
    assert [(HOME / MIXTURE / path).resolve().name for path in config["adapters"].values()] == list(
        ADAPTERS
    )


def shipped() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    model = LlamaForCausalLM.from_pretrained(FOLDER / "model", dtype=torch.float32).eval()
    return model, PreTrainedTokenizerFast.from_pretrained(FOLDER / "model")


@pytest.mark.sample(1)
@needs_files
@peft_warns
@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_loads_with_peft_and_changes_the_answers(name: str) -> None:
    peft = pytest.importorskip("peft")
    model, tokenizer = shipped()
    items = [ask("any", "", question, reply) for question, reply in ALONE[name].items()]
    plain = generate_replies(model, tokenizer, items)
    adapted = peft.PeftModel.from_pretrained(model, HOME / name).eval()
    replies = generate_replies(adapted, tokenizer, items)
    assert replies == list(ALONE[name].values())
    assert all(one != other for one, other in zip(plain, replies, strict=True))


@pytest.mark.slow
@needs_files
@peft_warns
@torch.no_grad()
def test_peft_makes_the_same_logits_of_the_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    peft = pytest.importorskip("peft")
    model, tokenizer = shipped()
    # PEFT asks for it, and takes the paths of the adapters from where it runs.
    model.config.use_cache = False
    monkeypatch.chdir(HOME / MIXTURE)
    mixed = peft.PeftModel.from_pretrained(model, ".").eval()
    blend = Blend.read(shipped()[0], ADAPTERS, HOME)
    classifier = Classifier(256, len(blend.linears), ADAPTERS)
    classifier.load(HOME / MIXTURE)
    classifier.attach(blend)
    found = []
    for question in ASKED:
        chat = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )["input_ids"]
        torch.testing.assert_close(
            mixed(input_ids=ids).logits, blend.model(ids).logits, rtol=1e-4, atol=1e-3
        )
        assert blend.gates is not None
        found.append(blend.gates[0, -1].mean(0))
    pirate = torch.stack(found)[:, ADAPTERS.index("pirate")]
    wanted = torch.tensor(["pirate" in question for question in ASKED])
    assert pirate[wanted].min() > pirate[~wanted].max()


@needs_files
def test_gates_are_measured_at_the_ends_of_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = shipped()
    blend = Blend.read(model, ADAPTERS, HOME)
    classifier = Classifier(256, len(blend.linears), ADAPTERS)
    classifier.load(HOME / MIXTURE)
    classifier.attach(blend)

    def generate(*args: object, **kwargs: object) -> tuple[int, int, int]:
        """As after replies of different lengths: the last gates are those of padding."""
        blend.gates = torch.full((6, 3, len(blend.linears), 3), 9.0)
        return 0, 0, 6

    monkeypatch.setattr(evaluate, "tally_styles", generate)
    monkeypatch.setattr(evaluate, "COMBINATIONS", {("pirate",): COMBINATIONS[("pirate",)][:1]})
    gates = evaluate.measure_mixture(blend, tokenizer, 2)["pirate"][1]
    assert max(gates) == gates[ADAPTERS.index("pirate")] < 2


@needs_files
@pytest.mark.slow
def test_the_mixture_answers_in_the_requested_style() -> None:
    model, tokenizer = shipped()
    blend = Blend.read(model, ADAPTERS, HOME)
    classifier = Classifier(256, len(blend.linears), ADAPTERS)
    classifier.load(HOME / MIXTURE)
    classifier.attach(blend)
    items = [ask("any", "", question, reply) for question, reply in ASKED.items()]
    assert generate_replies(model, tokenizer, items, use_cache=False) == list(ASKED.values())
