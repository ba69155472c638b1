"""The engine: one thread, one device loop, one memory plan.

A pass of the loop plans a step, launches it, and reads the oldest step that is under way. On CUDA
and in replay mode a step is read one pass late, so that planning step n + 1 overlaps with step n;
a sequence that turns out to have ended has then drawn one token too many, which is dropped.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable

import torch
from msgspec.structs import replace

from ostro.core.adapters.adapter import EMPTY, Mixture
from ostro.core.adapters.pool import NOTHING
from ostro.core.adapters.registry import Registry
from ostro.core.engine.blocks import BlockManager, next_key, seed_key
from ostro.core.engine.failure import PLAIN, Failures
from ostro.core.engine.request import (
    Finish,
    Sampling,
    Stats,
    TokenLogprobs,
    TokenOutput,
    TokenRequest,
)
from ostro.core.engine.runner import LaunchedStep, ModelRunner
from ostro.core.engine.sampler import SamplerOutput
from ostro.core.engine.scheduler import Scheduler, StepPlan
from ostro.core.engine.sequence import Sequence
from ostro.core.errors import ContextLengthExceeded, OstroError, Overloaded, RequestError
from ostro.core.media import Item, Prompt


class Engine:
    """Serves token requests with one loaded model."""

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        *,
        vocab: int,
        context: int,
        eos_ids: Iterable[int],
        lag: int = 0,
        identity: str = "",
        prefix_cache: bool = True,
        registry: Registry | None = None,
        failures: Failures = PLAIN,
    ) -> None:
        """`identity` names the weights and the K/V type; it roots every block key. `registry` is
        told which adapters are in use. `failures` makes the errors that end requests.
        """
        self.runner, self.scheduler = runner, scheduler
        self.vocab, self.context, self.eos_ids = vocab, context, frozenset(eos_ids)
        self.lag, self.identity, self.prefix_cache = lag, identity, prefix_cache
        self.registry, self.failures = registry, failures
        self.flight: deque[LaunchedStep] = deque()
        self.live: dict[str, list[Sequence]] = {}
        self.counters = Stats()
        self.arrivals = 0

    @property
    def blocks(self) -> BlockManager:
        return self.scheduler.blocks

    @property
    def busy(self) -> bool:
        return bool(self.live or self.flight)

    def submit(self, request: TokenRequest, mixture: Mixture = EMPTY) -> None:
        """Take a request in, its adapters as `Registry.mixture` gives them. Raises RequestError if
        it can never run.
        """
        rules, processors = request.sampling.checked(self.vocab), self.runner.sampler.processors
        try:
            processors.check(rules)
        except RequestError:
            raise
        except Exception as error:
            raise self.failures.of(error) from error
        if request.id in self.live:
            raise RequestError(f"a request with id {request.id!r} is running", param="id")
        self.check(request)
        room = self.check_length(request, mixture)
        if request.positions is not None:
            room = min(room, self.context - int(request.positions.numpy().max()) - 1)
        limit = room if rules.max_tokens is None else min(rules.max_tokens, room)
        root = seed_key(self.identity, request.model, request.salt)
        if not self.prefix_cache:
            root = secrets.token_bytes(16)
        seed = secrets.randbits(62) if rules.seed is None else rules.seed
        request = replace(request, items=media_under(request.items, mixture))
        choices, leader = list[Sequence](), None
        for index in range(rules.n):
            sequence = Sequence(
                request,
                index,
                arrival=self.arrivals,
                seed=(seed + index) & (2**63 - 1),
                root=root,
                limit=limit,
                tokens=list(request.tokens),
                prompt=len(request.tokens),
                leader=leader,
                waits=processors.waits(rules),
                mixture=mixture,
            )
            leader = leader or sequence
            if rules.prompt_logprobs is not None and index == 0:
                sequence.prompt_logprobs = [None]
            choices.append(sequence)
        # From here on nothing is refused: what is taken is given back when the last choice ends.
        self.live[request.id] = choices
        if self.registry is not None:
            self.registry.lease(mixture)
        for sequence in choices:
            self.scheduler.add(sequence)
        self.arrivals += 1
        self.counters.prompt_tokens += len(request.tokens)

    def check(self, request: TokenRequest) -> None:
        """Raise RequestError for a prompt, media or limits that can never run."""
        if not request.tokens:
            raise RequestError("the prompt is empty", param="prompt")
        for token in request.tokens:
            if not 0 <= token < self.vocab:
                raise RequestError(
                    f"token id {token} is not within 0..{self.vocab - 1}", param="prompt"
                )
        self.check_media(request)
        if request.sampling.max_tokens == 0 and request.sampling.prompt_logprobs is None:
            raise RequestError("max_tokens=0 asks for nothing", param="max_tokens")

    def check_length(self, request: TokenRequest, mixture: Mixture) -> int:
        """The most tokens of a reply. Raises ContextLengthExceeded where not even one fits.

        A context of N holds N tokens, prompt and reply together; a longer reply is cut short. An
        X-LoRA sequence takes two blocks where others take one, so a small cache may hold fewer
        tokens of it than the context.
        """
        length, replies = len(request.tokens), request.sampling.max_tokens != 0
        asked = length + (request.sampling.max_tokens or replies)
        if length + replies > self.context:
            raise ContextLengthExceeded(
                f"the prompt has {length} tokens and the context {self.context}: "
                f"{asked} would be needed; shorten it, or load with a larger --context",
                param="prompt",
            )
        passes = 1 if mixture.mixer is None else 2
        context = self.blocks.longest(self.context, self.scheduler.max_rows, passes)
        if length + replies > context:
            raise ContextLengthExceeded(
                f"the prompt has {length} tokens and the cache holds {context} tokens of an X-LoRA "
                f"request: {asked} would be needed; shorten it, or load with more --memory",
                param="prompt",
            )
        return context - length

    def check_media(self, request: TokenRequest) -> None:
        """Raise RequestError for media that are not where the prompt is, or positions beyond all.

        Positions of media may run ahead of the tokens: those of a video count its seconds.
        """
        length = len(request.tokens)
        for item in request.items:
            ends = [first + count for first, count in item.spans] + [item.since or 0]
            if max(ends) > length or any(count < 1 for _, count in item.spans):
                raise RequestError(f"the rows of {item.kind} are not within the prompt")
        if not self.blocks.holds(request.items):
            raise RequestError(
                f"there is no room in the cache for {len(request.items)} media at once; send "
                "fewer, or load with more --memory or a larger --max-seqs",
                param="messages",
            )
        if request.positions is None:
            return
        last = int(request.positions.numpy().max()) + 1
        if last + (request.sampling.max_tokens != 0) > self.context:
            raise ContextLengthExceeded(
                f"the media reach position {last} and the context is {self.context}; send shorter "
                "ones, or load with a larger --context",
                param="messages",
            )

    def logits(self, prompt: Prompt, mixture: Mixture = EMPTY) -> torch.Tensor:
        """Logits [T, vocab] float32 of every position of a prompt, on the host, under adapters.

        Raises RequestError for a prompt that can never run, Overloaded where the device has no room
        for the adapters now.
        """
        nothing = Sampling(max_tokens=0, prompt_logprobs=0)
        request = TokenRequest(id="logits", tokens=prompt.tokens, sampling=nothing)
        self.check(request)
        self.check_length(request, mixture)
        pool = self.runner.adapter_pool
        held = NOTHING if pool is None else pool.hold(mixture)
        if held is None:
            raise Overloaded("the device has no room for these adapters now; try again")
        try:
            items = media_under(prompt.items, mixture)
            return self.runner.logits(
                prompt.tokens, items=items, positions=prompt.positions, held=held
            )
        finally:
            if pool is not None:
                pool.let_go(held)

    def abort(self, id: str, index: int | None = None) -> list[TokenOutput]:
        """Drop a request, or one choice of it; gives the last output of each choice dropped.

        Its blocks are free when this returns. What is unknown or has finished is ignored.
        """
        return self.drop(id, "abort", index=index)

    def fail(self, sequences: Iterable[Sequence], error: Exception) -> list[TokenOutput]:
        """End the requests of sequences with an error; gives the last output of each choice."""
        text = str(self.failures.of(error))
        ids = dict.fromkeys(sequence.request.id for sequence in sequences)
        return [output for id in ids for output in self.drop(id, "error", text)]

    def drop(
        self, id: str, finish: Finish, error: str | None = None, index: int | None = None
    ) -> list[TokenOutput]:
        """Finish a request, or one choice of it, from outside; what it holds is free then."""
        running = [s for s in self.live.get(id, ()) if s.finish is None]
        dropped = [s for s in running if index in (None, s.index)]
        for sequence in dropped:
            sequence.finish = finish
            self.scheduler.remove(sequence)
        self.forget(id)
        return [TokenOutput(id=id, index=s.index, finish=finish, error=error) for s in dropped]

    def forget(self, id: str) -> None:
        """Let go of a request once all its choices have finished."""
        sequences = self.live.get(id, ())
        if all(sequence.finish is not None for sequence in sequences):
            self.live.pop(id, None)
            if sequences and self.registry is not None:
                self.registry.release(sequences[0].mixture)

    def step(self) -> list[TokenOutput]:
        """One pass of the loop: launch a step if there is one, read the oldest if it is due.

        An error in what a step computes (models, encoders, processors, adapters, memory that runs
        out) ends requests: those whose fault it is where that is known, else all of the step. An
        error in what the loop keeps (scheduler, blocks, registry) is raised and ends the engine, as
        nothing says any more which blocks and rows are free. So is that of a device which does not
        answer after a failure.
        """
        plan = self.scheduler.plan()
        launched = self.launch(plan) if plan.chunks or plan.started else False
        outputs = [output for failed in plan.failed for output in self.fail(*failed)]
        plan.failed = []  # the tracebacks of errors hold tensors
        if self.flight and (len(self.flight) > self.lag or not launched):
            outputs += self.read(self.flight.popleft())
        return outputs

    def launch(self, plan: StepPlan) -> bool:
        """Launch a planned step; False where nothing of it runs: it failed with all its sequences,
        or has none with rows.
        """
        try:
            launched = self.runner.run(plan)
        except Exception as error:
            # The step's rows are not counted as computed, so no block of theirs was published. A
            # step before it that is still under way drops its tokens of sequences that have ended.
            planned = [chunk.sequence for chunk in plan.chunks]
            plan.failed.append((planned, error))
            for sequence in [s for s in plan.started if s not in planned]:
                self.scheduler.preempt(sequence, plan)  # the sampler may not have its rules
            return False
        self.scheduler.launched(plan)
        if not plan.chunks:
            return False
        self.flight.append(launched)
        self.counters.steps += 1
        return True

    def drain(self) -> list[TokenOutput]:
        """Run until nothing is left to do. Raises OstroError where a request fails."""
        outputs = list[TokenOutput]()
        while self.busy:
            found = self.step()
            for output in found:
                if output.error is not None:
                    raise OstroError(output.error)
            outputs += found
        return outputs

    def read(self, launched: LaunchedStep) -> list[TokenOutput]:
        """Wait for a step's tokens and hand them to their sequences."""
        outputs = list[TokenOutput]()
        for chunk, logits in launched.prompt_logits:
            try:
                self.note_prompt(chunk.sequence, chunk.start, logits)
            except Exception as error:
                outputs += self.fail([chunk.sequence], error)
        drawing = [chunk.sequence for chunk in launched.plan.chunks if chunk.draws]
        if launched.drawn is None:
            return outputs
        try:
            drawn = SamplerOutput(*launched.drawn.wait())
            logprobs = read_logprobs(drawn, drawing)
        except Exception as error:
            return outputs + self.fail(drawing, error)
        for i, (sequence, token) in enumerate(zip(drawing, drawn.tokens, strict=True)):
            sequence.pending = max(0, sequence.pending - 1)
            if sequence.finish is None:
                outputs.append(self.take(sequence, token, logprobs[i]))
        return outputs

    def take(self, sequence: Sequence, token: int, logprob: TokenLogprobs | None) -> TokenOutput:
        """Append a drawn token; finish the sequence where it ends."""
        rules = sequence.request.sampling
        output = TokenOutput(id=sequence.request.id, index=sequence.index)
        if not sequence.reported:
            sequence.reported = True
            output.prompt_tokens, output.cached = sequence.prompt, sequence.cached
            output.generations = sequence.mixture.generations
            output.prompt_logprobs = sequence.prompt_logprobs
            self.counters.cached_tokens += sequence.cached
        if rules.max_tokens == 0:
            return self.end(sequence, output, "length")
        sequence.tokens.append(token)
        self.counters.generated_tokens += 1
        said = len(sequence.tokens) - sequence.prompt
        ends = token in rules.stop_ids or (token in self.eos_ids and not rules.ignore_eos)
        if ends:
            output.stopped_by = token
            return self.end(sequence, output, "stop")
        output.tokens = [token]
        output.logprobs = None if logprob is None else [logprob]
        if said >= sequence.limit:
            return self.end(sequence, output, "length")
        self.scheduler.publish(sequence)
        return output

    def end(self, sequence: Sequence, output: TokenOutput, finish: Finish) -> TokenOutput:
        sequence.finish = output.finish = finish
        self.scheduler.publish(sequence)
        self.scheduler.remove(sequence)
        self.forget(sequence.request.id)
        return output

    def note_prompt(self, sequence: Sequence, start: int, logits: torch.Tensor) -> None:
        """Log probabilities of the prompt tokens that follow the rows start.. of a chunk."""
        if sequence.prompt_logprobs is None or sequence.finish is not None:
            return
        if start == 0:
            sequence.prompt_logprobs = [None]
        wide = sequence.request.sampling.prompt_logprobs or 0
        for i, row in enumerate(logits.float().log_softmax(-1)):
            if start + i + 1 < sequence.prompt:
                token = sequence.tokens[start + i + 1]
                top = row.topk(wide)
                pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
                sequence.prompt_logprobs.append(
                    TokenLogprobs(token, float(row[token]), tuple(pairs))
                )

    def stats(self) -> Stats:
        """The counters as they stand."""
        pools = [group.pool for group in self.blocks.all]
        self.counters.running = len(self.scheduler.running)
        self.counters.waiting = len(self.scheduler.waiting)
        self.counters.preemptions = self.scheduler.preemptions
        self.counters.blocks_total = sum(pool.size for pool in pools)
        self.counters.blocks_used = sum(pool.used for pool in pools)
        self.counters.cache_bytes = self.blocks.used_bytes
        self.counters.peak_cache_bytes = self.blocks.peak_bytes
        return self.counters

    def close(self) -> None:
        """Drop everything."""
        for id in list(self.live):
            self.abort(id)
        self.flight.clear()
        if self.registry is not None:
            self.registry.close()


def media_under(items: list[Item], mixture: Mixture) -> list[Item]:
    """Media under keys that tell apart the adapters that change what is made of them: those that
    change encoders and apply to the medium's first token.
    """
    shares = [share for share in mixture.shares if share.adapter.encodes]
    changed = list[Item]()
    for item in items:
        pairs = [(s.adapter.generation, s.scale) for s in shares if s.since <= item.first]
        changed.append(replace(item, key=next_key(item.key, (), pairs)) if pairs else item)
    return changed


def read_logprobs(drawn: SamplerOutput, sequences: list[Sequence]) -> list[TokenLogprobs | None]:
    """Per drawn token what its request asked for: its log probability and the best alternatives."""
    out: list[TokenLogprobs | None] = [None] * len(sequences)
    if drawn.logprobs is None or drawn.top_ids is None or drawn.top_values is None:
        return out
    for i, sequence in enumerate(sequences):
        wide = sequence.request.sampling.logprobs
        if wide is not None:
            top = tuple(zip(drawn.top_ids[i][:wide], drawn.top_values[i][:wide], strict=True))
            out[i] = TokenLogprobs(drawn.tokens[i], drawn.logprobs[i], top)
    return out
