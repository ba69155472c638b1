"""One path for text: a seeded request gives the same answer in Python, `ostro run` and HTTP.

Kernels are deterministic here, and there is one thread: the three engines have other batches and
other prefix caches, and log probabilities are compared exactly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tiny.model import make_model
from tiny.pictures import address, picture, saved
from tiny.server import RunningServer, serving
from tiny.vision import make_vision

import ostro
from ostro.core.settings import STARTER, Settings
from ostro.core.tokenizer.detokenizer import token_name
from ostro.entrypoints.cli import main
from ostro.entrypoints.operations.tasks.text import CompletionChoice
from ostro.entrypoints.python.model import LocalModel

pytestmark = pytest.mark.process

EXACT: dict[str, Any] = {"dtype": "float32", "deterministic": True, "threads": 1}
ADAPTERS = tuple(f"{name}=starter/{name}" for name in ("pirate", "french", "shout"))
SUGGESTED = {"do_sample": True, "temperature": 0.8, "top_k": 40}
OPTIONS = {"max_tokens": "--max-tokens", "top_k": "--top-k", "top_p": "--top-p"}


@dataclass(frozen=True)
class Asked:
    """A request: a chat, or with `raw` a completion of its text."""

    text: str
    sampling: Mapping[str, Any]
    raw: bool = False
    n: int = 1
    logprobs: int | None = None
    adapters: Mapping[str, float] = field(default_factory=dict)
    images: int = 0

    @property
    def stop(self) -> list[str]:
        stop: list[str] = self.sampling.get("stop", [])
        return stop


@dataclass(frozen=True)
class Answer:
    """One choice. `tokens` are texts; `top` has the logprobs of alternatives by rank."""

    text: str
    finish: str
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class Served:
    """A model behind all three entry points; `images` are files."""

    reference: str
    model: LocalModel
    server: RunningServer
    images: Sequence[Path]
    adapters: Sequence[str] = ()

    def python(self, asked: Asked) -> list[Answer]:
        prompt: Any = asked.text
        if not asked.raw:
            media = [{"type": "image", "path": file} for file in self.images[: asked.images]]
            text = {"type": "text", "text": asked.text}
            prompt = [{"role": "user", "content": [*media, text] if media else asked.text}]
        stream = self.model.stream(
            prompt, adapters=asked.adapters, n=asked.n, logprobs=asked.logprobs, **asked.sampling
        )
        return [self.of_choice(choice) for choice in stream.collect()]

    def of_choice(self, choice: CompletionChoice) -> Answer:
        entries = [entry for entry in choice.logprobs or () if entry is not None]
        return Answer(
            text=choice.text,
            finish=choice.finish or "",
            tokens=[self.token_text(token) for token in choice.tokens],
            logprobs=[entry.logprob for entry in entries],
            top=[[value for _, value in entry.top] for entry in entries],
        )

    def token_text(self, token: int) -> str:
        return token_name(self.model.tokenizer.piece(token))

    def run(self, asked: Asked, capsys: pytest.CaptureFixture[str]) -> list[Answer]:
        words = ["run", "-m", self.reference, "-i", asked.text, "--json"]
        words += ["--dtype", "float32", "--deterministic", "--threads", "1"]
        words += ["--raw"] if asked.raw else []
        words += ["--choices", str(asked.n)] if asked.n > 1 else []
        words += ["--logprobs", str(asked.logprobs)] if asked.logprobs is not None else []
        for entry in self.adapters:
            words += ["--adapter", entry]
        for name, scale in asked.adapters.items():
            words += ["--apply", f"{name}={scale}"]
        if self.adapters and not asked.adapters:
            words += ["--apply", f"{self.adapters[0].partition('=')[0]}=0"]
        for file in self.images[: asked.images]:
            words += ["--image", str(file)]
        for stop in asked.stop:
            words += ["--stop", stop]
        for name, value in asked.sampling.items():
            if name != "stop":
                words += [OPTIONS.get(name, f"--{name}"), str(value)]
        capsys.readouterr()
        assert main(words) == 0
        return [self.printed(json.loads(line)) for line in capsys.readouterr().out.splitlines()]

    def printed(self, found: Mapping[str, Any]) -> Answer:
        entries = found.get("logprobs", [])
        return Answer(
            text=found["text"],
            finish=found["finish"],
            tokens=[self.token_text(token) for token in found["tokens"]] if entries else [],
            logprobs=[entry["logprob"] for entry in entries],
            top=[[value for _, value in entry["top"]] for entry in entries],
        )

    def http(self, asked: Asked) -> list[Answer]:
        body: dict[str, Any] = {**asked.sampling, "n": asked.n}
        body["adapters"] = [{"name": n, "scale": s} for n, s in asked.adapters.items()]
        if asked.raw:
            wide = {} if asked.logprobs is None else {"logprobs": asked.logprobs}
            answer = self.server.post("/v1/completions", prompt=asked.text, **body, **wide)
        else:
            content: Any = asked.text
            if asked.images:
                urls = [address(file.read_bytes()) for file in self.images[: asked.images]]
                content = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
                content.append({"type": "text", "text": asked.text})
            wide = {} if asked.logprobs is None else {"logprobs": True}
            wide |= {"top_logprobs": asked.logprobs} if asked.logprobs else {}
            messages = [{"role": "user", "content": content}]
            answer = self.server.post("/v1/chat/completions", messages=messages, **body, **wide)
        assert answer.status_code == 200, answer.text
        return [sent(choice, asked.logprobs) for choice in answer.json()["choices"]]


def sent(choice: Mapping[str, Any], wide: int | None) -> Answer:
    """An answer as HTTP words it. A completion adds the token itself to its alternatives."""
    logprobs, finish = choice["logprobs"], choice["finish_reason"]
    if "text" in choice and logprobs:
        tokens, values = logprobs["tokens"], logprobs["token_logprobs"]
        top = [list(entries.values())[:wide] for entries in logprobs["top_logprobs"]]
        return Answer(choice["text"], finish, tokens, values, top)
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    entries = logprobs["content"] if logprobs else []
    return Answer(
        text,
        finish,
        [entry["token"] for entry in entries],
        [entry["logprob"] for entry in entries],
        [[other["logprob"] for other in entry["top_logprobs"]] for entry in entries],
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Served]]:
    """A model by name, started with its first request."""
    root, known = tmp_path_factory.mktemp("models"), dict[str, Served]()
    images = [root / f"{i}.png" for i in range(2)]
    for i, file in enumerate(images):
        file.write_bytes(saved(picture(i)))

    def folder(name: str) -> str:
        if name == "starter":
            return STARTER
        made = make_vision(root / name) if name == "vision" else make_model(root / name)
        (made / "generation_config.json").write_text(json.dumps(SUGGESTED))
        return str(made)

    with ExitStack() as stack:

        def find(name: str) -> Served:
            if name not in known:
                reference = folder(name)
                adapters = ADAPTERS if name == "starter" else ()
                settings = Settings(reference=reference, adapters=adapters, **EXACT)
                model = stack.enter_context(ostro.load(reference, adapters=adapters, **EXACT))
                server = stack.enter_context(serving(settings))
                known[name] = Served(reference, model, server, images, adapters)
            return known[name]

        yield find


DRAWN: dict[str, Any] = {"seed": 7, "temperature": 1.5, "max_tokens": 16}
CASES: dict[str, tuple[str, Asked]] = {
    "starter-chat": ("starter", Asked("hello", DRAWN, logprobs=3)),
    "starter-suggested": ("starter", Asked("What is a cat?", {"max_tokens": 16}, logprobs=0)),
    "starter-completion": ("starter", Asked("Once upon", DRAWN, raw=True, logprobs=2)),
    "starter-n": ("starter", Asked("hello", DRAWN, n=2, logprobs=1)),
    "starter-adapter": ("starter", Asked("hello", DRAWN, adapters={"pirate": 1.0}, logprobs=1)),
    "starter-mixture": (
        "starter",
        Asked("hello", DRAWN, adapters={"french": 0.6, "shout": 0.5}, logprobs=1, n=2),
    ),
    "tiny-chat": ("tiny", Asked("hello", DRAWN, logprobs=4)),
    "tiny-suggested": ("tiny", Asked("hello", {"seed": 5, "max_tokens": 12}, logprobs=1)),
    "tiny-completion": ("tiny", Asked("hello", DRAWN, raw=True, n=3, logprobs=0)),
    "tiny-rules": (
        "tiny",
        Asked("hello", {**DRAWN, "top_k": 5, "top_p": 0.7}, logprobs=5),
    ),
    "vision-image": ("vision", Asked("hello", DRAWN, images=1, logprobs=2)),
    "vision-images": ("vision", Asked("hello", DRAWN, images=2, n=2, logprobs=1)),
    "vision-text": ("vision", Asked("hello", DRAWN, logprobs=2)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_three_entry_points_agree(
    served: Callable[[str], Served], case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, asked = CASES[case]
    model = served(name)
    answers = model.python(asked)
    assert len(answers) == asked.n and all(answer.logprobs for answer in answers)
    assert answers == model.http(asked)
    assert answers == model.run(asked, capsys)


@pytest.mark.parametrize(("name", "raw"), [("starter", False), ("tiny", False), ("tiny", True)])
def test_stop_strings_agree(
    served: Callable[[str], Served], name: str, raw: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of two choices ends where it has the stop string; another string never comes."""
    model, plain = served(name), Asked("hello", DRAWN, raw=raw, n=2)
    whole = model.python(plain)
    stop = whole[1].text[4:7]
    asked = Asked("hello", {**DRAWN, "stop": [stop, "never generated"]}, raw=raw, n=2)
    answers = model.python(asked)
    assert answers[1] == Answer(whole[1].text.partition(stop)[0], "stop")
    assert answers == model.http(asked)
    assert answers == model.run(asked, capsys)


def test_requests_differ(served: Callable[[str], Served]) -> None:
    """Seeds, adapters, scales, media and suggested sampling are not ignored by all three alike."""
    starter, tiny, vision = served("starter"), served("tiny"), served("vision")
    plain = starter.python(Asked("Once upon", DRAWN, raw=True))
    for other in (
        Asked("Once upon", {**DRAWN, "seed": 8}, raw=True),
        Asked("Once upon", DRAWN, raw=True, adapters={"pirate": 1.0}),
        Asked("Once upon", DRAWN),
    ):
        assert starter.python(other) != plain
    scaled = [Asked("hello", DRAWN, adapters={"pirate": s}, logprobs=0) for s in (0.5, 1.0)]
    assert starter.python(scaled[0]) != starter.python(scaled[1])
    drawn = {"seed": 5, "max_tokens": 12}
    neutral = {**drawn, "temperature": 1.0, "top_k": 0}
    assert tiny.python(Asked("hello", drawn)) == tiny.python(
        Asked("hello", {**drawn, "temperature": 0.8, "top_k": 40})
    )
    assert tiny.python(Asked("hello", drawn, logprobs=0)) != tiny.python(
        Asked("hello", neutral, logprobs=0)
    )
    shown = [Asked("hello", DRAWN, images=count, logprobs=0) for count in (0, 1, 2)]
    assert len({answer.text for each in shown for answer in vision.python(each)}) == 3
