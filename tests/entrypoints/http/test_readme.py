"""The commands of README.md's section about adapters, as they stand there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import httpx
import pytest

from ostro.plugins import starter

ADAPTERS = Path(starter.__file__).parent / "adapters"
README = Path(__file__).resolve().parents[3] / "README.md"
SECONDS = 120.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (ADAPTERS / "french" / "adapter_model.safetensors").exists(),
        reason="this checkout comes without the adapters of the starter model",
    ),
]


@pytest.fixture(scope="module")
def section() -> str:
    _, _, rest = README.read_text().partition("\n## Adapters\n")
    return rest.partition("\n## ")[0]


@pytest.fixture(scope="module")
def commands(section: str) -> list[list[str]]:
    """The words of each command of the first block."""
    [block] = re.findall(r"```sh\n(.+?)```", section, re.DOTALL)[:1]
    return [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]


@pytest.fixture(scope="module")
def url(commands: list[list[str]]) -> Iterator[str]:
    """A server as the first command starts it, but for its port."""
    program, *words = commands[0]
    assert program == "ostro"
    serve = [sys.executable, "-m", "ostro", *words, "--port", "0"]
    with subprocess.Popen(serve, stderr=subprocess.PIPE, text=True) as process:
        timer = Timer(SECONDS, process.kill)
        timer.start()
        try:
            assert process.stderr is not None
            ready = next((line for line in process.stderr if "ready in" in line), None)
            timer.cancel()
            assert ready is not None, "the server has ended before it was ready"
            yield ready.split(" at ")[1].partition("/v1")[0]
        finally:
            timer.cancel()
            process.terminate()


def ask(url: str, words: list[str]) -> Any:
    """What a command line of curl is answered, by the server at another address."""
    program, address, *rest = words
    arguments = dict(zip(rest[::2], rest[1::2], strict=True))
    assert program == "curl" and set(arguments) == {"-H", "-d"}
    name, _, value = arguments["-H"].partition(": ")
    path = "/" + address.partition("/")[2]
    answer = httpx.post(url + path, content=arguments["-d"], headers={name: value}, timeout=SECONDS)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_commands_answer_what_the_text_says(
    url: str, section: str, commands: list[list[str]]
) -> None:
    [replies] = re.findall(r'The first answers "(.+?)", the second "(.+?)"', section)
    answers = [ask(url, words) for words in commands[1:]]
    assert [each["choices"][0]["message"]["content"] for each in answers] == list(replies)
    assert all(len(each["adapter_generations"]) == 1 for each in answers)


def test_the_mixture_is_one(url: str, section: str, commands: list[list[str]]) -> None:
    [asked] = re.findall(r'`"adapters": (\[.+?\])`', section)
    *words, data = commands[1]
    body = {**json.loads(data), "model": "default", "adapters": json.loads(asked)}
    answer = ask(url, [*words, json.dumps(body)])
    assert len(answer["adapter_generations"]) == 2
    text = answer["choices"][0]["message"]["content"]
    assert "42" in text
