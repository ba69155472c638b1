"""An echo engine that writes given texts, with the prefixes that a prefix cache would find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from echo.engine import EchoEngine
from ostro.core.messages.outputs import TokenOutput
from ostro.core.messages.requests import TokenRequest

Script = Callable[[str], str]
"""Returns the text that follows a prompt."""


class ScriptedEngine(EchoEngine):
    """Answers each request with the text that `script` returns for its prompt.

    Its tokens are bytes, and control tokens are left out of the text of a prompt. `written` has
    the tokens of each answer by the id of its request, with the end token. The cached tokens of a
    request are the longest beginning that an earlier request and its answer have.
    """

    context = 1 << 20

    def __init__(
        self, eos_ids: Iterable[int] = (257,), names: Sequence[str] = ("default",)
    ) -> None:
        super().__init__(eos_ids, names)
        self.script: Script = lambda prompt: "ok"
        self.written: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}

    def submit(self, request: TokenRequest) -> None:
        past = [(*each.tokens, *self.written[each.id]) for each in self.seen]
        super().submit(request)
        self.cached[request.id] = max((common(request.tokens, each) for each in past), default=0)
        text = self.script(text_of(request))
        self.written[request.id] = [*text.encode(), min(self.eos_ids)]

    def draw(self, request: TokenRequest, index: int, count: int) -> TokenOutput:
        output = TokenOutput(id=request.id, index=index)
        if count == 0:
            output.prompt_tokens, output.cached = len(request.tokens), self.cached[request.id]
        tokens, limit = self.written[request.id], request.sampling.max_tokens
        if limit == 0:
            output.finish = "length"
        elif count + 1 == len(tokens):
            output.finish, output.stopped_by = "stop", tokens[-1]
        else:
            output.tokens = [tokens[count]]
            output.finish = "length" if count + 1 == limit else None
        return output


def text_of(request: TokenRequest) -> str:
    """The prompt of a request, without control tokens."""
    return bytes(token for token in request.tokens if token < 256).decode("utf-8", "replace")


def common(first: Sequence[Any], second: Sequence[Any]) -> int:
    """The length of the longest common beginning, in tokens."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
