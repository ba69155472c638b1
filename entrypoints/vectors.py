"""Models that read whole inputs: vectors of texts, scores of pairs, labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ostro.core.errors import ContextLengthExceeded, RequestError, Unsupported, UsageError
from ostro.core.pooling import read_pooling
from ostro.core.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from ostro.core.engine.engine import Engine
    from ostro.core.load.model import LoadedModel


@dataclass(frozen=True)
class Ranked:
    """A document's place in the given list, and its score: higher is better."""

    index: int
    score: float


class Encoder:
    """A loaded encoder and its engine, in this process. Close it, or use it in a `with`."""

    def __init__(
        self, loaded: LoadedModel, engine: Engine, tokenizer: Tokenizer, *, name: str | None = None
    ) -> None:
        self.loaded, self.engine, self.tokenizer = loaded, engine, tokenizer
        self.name = name or loaded.path.resolve().name
        causal = bool(engine.blocks.groups)
        folder = loaded.path if loaded.path.is_dir() else Path()
        self.pooling = read_pooling(folder, "last" if causal else "mean", loaded.device)
        self.closed = False

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.loaded.architecture.tasks

    def embed(
        self,
        inputs: str | Sequence[str],
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
    ) -> Tensor:
        """One vector per text: [n, d] float32.

        `prompt` names one of the model's prompts, put before every text; `dimensions` keeps the
        first so many and makes the length 1 again (Matryoshka). Raises UsageError or RequestError.
        """
        self.check("embed")
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        before = self.prompt(prompt)
        tokens = [self.tokenizer.encode(before + text) for text in texts]
        vectors = torch.cat([
            self.pooling(hidden, bounds).cpu() for hidden, bounds in self.states(tokens)
        ])  # fmt: skip
        if dimensions is None:
            return vectors
        if not 1 <= dimensions <= vectors.shape[1]:
            raise RequestError(
                f"dimensions={dimensions} is not within 1..{vectors.shape[1]}", param="dimensions"
            )
        return torch.nn.functional.normalize(vectors[:, :dimensions], dim=-1)

    def rerank(self, query: str, documents: Sequence[str]) -> list[Ranked]:
        """The documents by how well they answer the query, the best first."""
        self.check("rerank")
        scores = self.scores([(query, document) for document in documents])
        if scores.shape[1] != 1:
            raise Unsupported(f"{self.name} gives {scores.shape[1]} scores per pair, not one")
        ranked = [Ranked(i, score) for i, score in enumerate(scores[:, 0].sigmoid().tolist())]
        return sorted(ranked, key=lambda item: -item.score)

    def classify(self, inputs: str | Sequence[str]) -> list[dict[str, float]]:
        """The probability of every label, by text."""
        self.check("classify")
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        scores = self.scores([(text, None) for text in texts])
        named = self.loaded.raw_config.get("id2label") or {}
        labels = [str(named.get(str(i), f"LABEL_{i}")) for i in range(scores.shape[1])]
        shares = scores.softmax(-1) if len(labels) > 1 else scores.sigmoid()
        return [dict(zip(labels, row, strict=True)) for row in shares.tolist()]

    def scores(self, pairs: Sequence[tuple[str, str | None]]) -> Tensor:
        """Raw scores [n, labels] of texts, or of pairs of texts."""
        tokens, kinds = [], []
        for first, second in pairs:
            ids, types = self.tokenizer.encode_pair(first, second)
            tokens.append(ids)
            kinds.append(types)
        model, found = self.loaded.model, []
        for batch in self.batches(tokens):
            hidden, step = self.engine.runner.hidden(
                [tokens[i] for i in batch], [kinds[i] for i in batch]
            )
            with torch.inference_mode():
                scores: Tensor = model.scores(hidden, step)  # type: ignore[operator]
            found.append(scores.float().cpu())
        return torch.cat(found)

    def states(self, tokens: Sequence[list[int]]) -> Iterator[tuple[Tensor, Sequence[int]]]:
        """Hidden states of batches of inputs, and where each input begins."""
        for batch in self.batches(tokens):
            hidden, step = self.engine.runner.hidden([tokens[i] for i in batch])
            yield hidden, step.bounds

    def batches(self, tokens: Sequence[list[int]]) -> Iterator[list[int]]:
        """Neighbours that fit into one step together. Raises RequestError for what cannot run."""
        if not tokens:
            raise RequestError("there is no input", param="input")
        context, rows = self.engine.context, self.engine.scheduler.max_rows
        batch: list[int] = []
        held = 0
        for i, ids in enumerate(tokens):
            if not ids:
                raise RequestError(f"input[{i}] is empty", param="input")
            if len(ids) > context:
                raise ContextLengthExceeded(
                    f"input[{i}] has {len(ids)} tokens and the context {context}; shorten it",
                    param="input",
                )
            if batch and held + len(ids) > rows:
                yield batch
                batch, held = [], 0
            batch.append(i)
            held += len(ids)
        yield batch

    def prompt(self, name: str | None) -> str:
        if name is None:
            return ""
        known = self.pooling.prompts
        if name not in known:
            raise UsageError(
                f"{self.name} has no prompt {name!r}; there are {', '.join(known) or 'none'}"
            )
        return known[name]

    def check(self, task: str) -> None:
        """Raise where the model is closed or was made for something else."""
        if self.closed:
            raise UsageError(f"{self.name} is closed; load it again")
        if task not in self.tasks:
            raise Unsupported(f"{self.name} does {', '.join(self.tasks)}, not {task}")

    def close(self) -> None:
        """Stop the engine and let go of the files. Closing twice is closing once."""
        self.closed = True
        self.engine.close()
        self.loaded.container.close()

    def __enter__(self) -> Encoder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
