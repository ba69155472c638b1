"""Adapters on the command line: the options of `run` and `serve`, and /adapter in a chat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny.adapters import save
from tiny.model import CONFIG

from ostro.core.adapters.weights import AdapterWeights, LowRank
from ostro.entrypoints.cli import main
from ostro.entrypoints.http import server
from ostro.entrypoints.python.load import load
from ostro.entrypoints.python.model import LocalModel

GREEDY = ("--temperature", "0", "-n", "12")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two adapters for the tiny model."""
    root, d = tmp_path_factory.mktemp("adapters"), CONFIG["hidden_size"]
    for seed, name in enumerate(("pirate", "sql")):
        random = torch.Generator().manual_seed(seed)
        weights = {
            f"model.layers.{i}.self_attn.{part}_proj": LowRank(
                a=torch.randn(4, d, generator=random) / d**0.5,
                b=torch.randn(d, 4, generator=random),
                scale=0.5,
            )
            for i in range(CONFIG["num_hidden_layers"])
            for part in "qo"
        }
        save(AdapterWeights(kind="lora", weights=weights), root / name)
    return root


@pytest.fixture(scope="module")
def model(tiny: str, adapters: Path) -> Iterator[LocalModel]:
    with load(tiny, adapter_folder=adapters) as loaded:
        yield loaded


def reply_of(model: LocalModel, mixed: Any = (), text: str = "hello") -> str:
    turns = [{"role": "user", "content": text}]
    return model.generate(turns, adapters=mixed, temperature=0, max_tokens=12)


def test_adapters_that_are_named_apply(ostro, tiny: str, adapters: Path, model: LocalModel) -> None:
    words = ("run", "-m", tiny, *GREEDY, "-i", "hello")
    one, both = (
        ostro(*words, "--adapter", f"pirate={adapters / 'pirate'}"),
        ostro(
            *words, "--adapter", f"a={adapters / 'pirate'}", "--adapter", f"b={adapters / 'sql'}"
        ),
    )
    assert (one.code, one.err) == (0, "")
    assert one.out == reply_of(model, ["pirate"]) + "\n"
    assert both.out == reply_of(model, ["pirate", "sql"]) + "\n"
    assert len({one.out, both.out, reply_of(model) + "\n"}) == 3


def test_those_of_a_folder_are_only_known(
    ostro, tiny: str, adapters: Path, model: LocalModel
) -> None:
    ran = ostro("run", "-m", tiny, *GREEDY, "-i", "hello", "--adapters", str(adapters))
    assert ran.out == reply_of(model) + "\n"


@pytest.fixture
def chat(ostro, tiny: str, adapters: Path, typed):
    """Type lines into `ostro run`; returns what it answered."""

    def run(lines: Sequence[str], *words: str):
        typed(lines)
        return ostro("run", "-m", tiny, *GREEDY, *words)

    return run


def test_adapters_are_chosen_in_a_chat(chat, adapters: Path, model: LocalModel) -> None:
    ran = chat(
        [
            "/adapter pirate",
            "hello",
            "/clear",
            "/adapter pirate=0.5 sql=0.7",
            "hello",
            "/clear",
            "/adapter none",
            "hello",
            "/adapter",
        ],
        "--adapters",
        str(adapters),
    )
    expected = [reply_of(model, mixed) for mixed in (["pirate"], {"pirate": 0.5, "sql": 0.7}, ())]
    assert ran.code == 0 and ran.out == "".join(f"{text}\n" for text in expected)
    assert len(set(expected)) == 3
    assert "pirate = 1: lora, rank 4\nsql\n" in ran.err
    assert "pirate = 0.5: lora, rank 4\nsql = 0.7: lora, rank 4\n" in ran.err
    assert ran.err.endswith("pirate: lora, rank 4\nsql: lora, rank 4\n")


def test_an_adapter_is_loaded_in_a_chat(chat, adapters: Path, model: LocalModel) -> None:
    ran = chat(["/adapter", f"/adapter add p {adapters / 'pirate'}", "hello"])
    assert ran.out == reply_of(model, ["pirate"]) + "\n"
    assert "no adapters; /adapter add NAME REF adds one" in ran.err


def test_an_adapter_is_scaled_and_removed_in_a_chat(
    chat, adapters: Path, model: LocalModel
) -> None:
    lines = [f"/adapter add p {adapters / 'pirate'} 0.3", "hello", "/clear"]
    lines += ["/adapter scale p 0.8", "hello", "/clear", "/adapter remove p", "hello", "/adapter p"]
    ran = chat(lines)
    expected = [reply_of(model, {"pirate": scale}) for scale in (0.3, 0.8)] + [reply_of(model)]
    assert ran.out == "".join(f"{text}\n" for text in expected)
    assert len(set(expected)) == 3 and "no adapter 'p'" in ran.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/adapter nobody", "no adapter 'nobody'"),
        ("/adapter pirate=much", "'pirate=much': invalid scale"),
        ("/adapter pirate=1e9", "not within -100..100"),
        ("/adapter add x", "expected /adapter add NAME REF"),
        ("/adapter add x /nowhere/at/all", "x"),
        ("/adapter add a/b /tmp", "not a valid adapter name"),
    ],
)
def test_a_wrong_choice_changes_nothing(
    chat, adapters: Path, model: LocalModel, line: str, message: str
) -> None:
    ran = chat(["/adapter sql", line, "hello"], "--adapters", str(adapters))
    assert ran.code == 0 and message in ran.err
    assert ran.out == reply_of(model, ["sql"]) + "\n"


def test_an_adapter_that_cannot_be_read_does_not_end_a_chat(
    chat, tmp_path: Path, model: LocalModel
) -> None:
    lines = ["hello", "/adapter none", "hello"]
    ran = chat(lines, "--adapter", f"empty={tmp_path}")
    assert ran.code == 0 and "/adapter none disables adapters" in ran.err
    assert ran.out == reply_of(model) + "\n"


def test_an_adapter_that_cannot_be_read_ends_one_answer(ostro, tiny: str, tmp_path: Path) -> None:
    ran = ostro("run", "-m", tiny, *GREEDY, "-i", "hello", "--adapter", f"empty={tmp_path}")
    assert ran.code == 10 and ran.err.startswith("ostro: ") and not ran.out


@pytest.mark.parametrize("entry", ["pirate", "pirate=", "=x", "a/b=x"])
def test_adapters_that_are_none(ostro, tiny: str, entry: str) -> None:
    ran = ostro("run", "-m", tiny, *GREEDY, "-i", "hello", "--adapter", entry)
    assert ran.code in (2, 10) and "adapter" in ran.err


def test_help_says_what_adapters_are_chosen_with(chat) -> None:
    assert "add NAME REF [SCALE]" in chat(["/help"]).err


def test_the_options_of_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        server, "serve", lambda models, **more: seen.append((models[0].settings, more))
    )
    words = "--adapter a=x --adapter b=y --adapters dir --adapter-slots 7 --adapter-memory 1GB"
    words += " --max-adapters 9 --max-adapter-rank 64 --adapter-resolvers"
    main(["serve", *words.split(), "--adapter-root", "root", "--admin-key", "boss"])
    [(settings, more)] = seen
    assert settings.adapters == ("a=x", "b=y") and settings.adapter_folder == "dir"
    assert (settings.adapter_slots, settings.adapter_memory) == (7, "1GB")
    assert (settings.max_adapters, settings.max_adapter_rank) == (9, 64)
    assert settings.adapter_resolvers is True
    assert (settings.adapter_root, more["admin_key"]) == ("root", "boss")
    main(["serve"])
    plain, _ = seen[1]
    assert plain.adapters == () and plain == type(plain)(reference=plain.reference)


def test_a_root_that_is_none(capsys: pytest.CaptureFixture[str], tiny: str) -> None:
    assert main(["serve", "-m", tiny, "-p", "0", "--adapter-root", "/nowhere/at/all"]) == 2
    assert "--adapter-root" in capsys.readouterr().err
