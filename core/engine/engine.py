"""The engine: schedules, runs and reads the steps of one model, in one thread.

A pass of the loop plans a step, launches it, and reads the oldest step in flight. On CUDA and in
replay mode a step is read one pass late, so that the host plans step n + 1 while the device runs
step n. A sequence that ended in step n has then drawn one token too many, which is dropped.
"""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import perf_counter, sleep
from typing import Any, TypeVar

import torch
from msgspec.structs import replace

from ostro.core.adapters.adapter import EMPTY, Mixture
from ostro.core.adapters.pool import NOTHING
from ostro.core.adapters.registry import Registry
from ostro.core.device import DeviceToHostCopy
from ostro.core.engine.blocks import BlockManager, next_key, seed_key
from ostro.core.engine.computed_rows import computed_rows
from ostro.core.engine.runner import LaunchedStep, ModelRunner
from ostro.core.engine.sampler import SamplerOutput, has_dry, read_logprobs
from ostro.core.engine.scheduler import Chunk, Scheduler, StepPlan, accept
from ostro.core.engine.sequence import Sequence
from ostro.core.errors import ContextLengthExceeded, OstroError, Overloaded, RequestError
from ostro.core.failure import PLAIN, Failures, check_nan, described, is_out_of_memory, not_finite
from ostro.core.messages.outputs import Finish, Stats, TokenLogprobs, TokenOutput
from ostro.core.messages.prompt import Item, Prompt
from ostro.core.messages.requests import Sampling, TokenRequest

T = TypeVar("T")
POLL = 0.001
"""Seconds between steps while all running sequences wait for masks."""


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
        draft_runner: ModelRunner | None = None,
    ) -> None:
        """`identity` identifies the weights and the K/V dtype and is part of every block key. `lag`
        is the number of steps that stay in flight after a pass. `registry` counts the users of
        adapters. `failures` converts exceptions to errors of requests. `draft_runner` is that of a
        draft model with a cache of its own.
        """
        self.runner, self.draft_runner, self.scheduler = runner, draft_runner, scheduler
        self.runners = [runner] if draft_runner is None else [runner, draft_runner]
        self.vocab, self.context, self.eos_ids = vocab, context, frozenset(eos_ids)
        self.lag, self.identity, self.prefix_cache = lag, identity, prefix_cache
        self.registry, self.failures = registry, failures
        self.in_flight: deque[LaunchedStep] = deque()
        self.live: dict[str, list[Sequence]] = {}  # the choices of each unfinished request
        self.counters = Stats()
        self.arrivals = 0

    @property
    def blocks(self) -> BlockManager:
        """The cache blocks of the model."""
        return self.scheduler.blocks

    @property
    def busy(self) -> bool:
        """Whether a request is unfinished or a step is unread."""
        return bool(self.live or self.in_flight)

    def submit(
        self,
        request: TokenRequest,
        mixture: Mixture = EMPTY,
        prepared: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a request; `mixture` are its adapters, from `Registry.mixture`.

        `prepared` is the result of `prepare`, which is called here without it. Raises RequestError
        if the request can never run, and OstroError if a logits processor fails to check it.
        """
        rules, processors = request.sampling.checked(self.vocab), self.runner.sampler.processors
        self.check_processors(rules)
        if prepared is None:
            prepared = self.prepare(rules)
        if request.id in self.live:
            raise RequestError(f"a request with id {request.id!r} is running", param="id")
        self.check(request)
        room = self.check_length(request, mixture)
        if request.positions is not None:
            room = min(room, self.context - int(request.positions.numpy().max()) - 1)
        # Refused here and not in the queue, where a request that never fits would wait forever.
        limit = room if rules.max_tokens is None else min(rules.max_tokens, room)
        root = seed_key(self.identity, request.model, request.salt)
        if not self.prefix_cache:
            # A random root: no other request has the same keys.
            root = secrets.token_bytes(16)
        # Each choice gets its own seed, so that the choices of one request differ.
        seed = secrets.randbits(62) if rules.seed is None else rules.seed
        request = replace(request, items=rekey_media(request.items, mixture))
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
                reads_tokens=processors.need_host_tokens(rules) or has_dry(rules),
                masks_only=processors.are_masks(rules),
                prepared=prepared,
                mixture=mixture,
            )
            leader = leader or sequence
            if rules.prompt_logprobs is not None and index == 0:
                sequence.prompt_logprobs = [None]
            choices.append(sequence)
        # Nothing below may raise: only the end of the last choice releases the lease.
        self.live[request.id] = choices
        if self.registry is not None:
            self.registry.retain(mixture)
        for sequence in choices:
            self.scheduler.add(sequence)
        self.arrivals += 1
        self.counters.prompt_tokens += len(request.tokens)

    def check_processors(self, rules: Sampling) -> None:
        """Raise RequestError for an invalid logits processor, OstroError if the check fails."""
        try:
            self.runner.sampler.processors.check(rules)
        except OstroError:
            raise
        except Exception as error:
            raise self.failures.of(error) from error

    def prepare(self, rules: Sampling) -> dict[str, Any]:
        """Prepare a request for its logits processors; any thread may call it.

        Raises RequestError if one refuses the request, OstroError if one fails.
        """
        if not rules.processors:
            return {}
        try:
            return self.runner.sampler.processors.prepare(rules)
        except OstroError:
            raise
        except Exception as error:
            raise self.failures.of(error) from error

    def check(self, request: TokenRequest) -> None:
        """Raise RequestError if the prompt, the media or the limits of a request are invalid."""
        if not request.tokens:
            raise RequestError("the prompt is empty", param="prompt")
        for token in request.tokens:
            if not 0 <= token < self.vocab:
                raise RequestError(
                    f"token id {token} is not within 0..{self.vocab - 1}", param="prompt"
                )
        self.check_media(request)
        if request.sampling.max_tokens == 0 and request.sampling.prompt_logprobs is None:
            raise RequestError(
                "max_tokens=0 needs prompt_logprobs, or there is nothing to compute",
                param="max_tokens",
            )

    def check_length(self, request: TokenRequest, mixture: Mixture) -> int:
        """The most output tokens. Raises ContextLengthExceeded if the fewest do not fit.

        A context of N holds N tokens, prompt and output together; a longer output is truncated. An
        X-LoRA sequence needs twice the blocks, so a small cache may hold fewer of its tokens than
        the context.
        """
        length, fewest = len(request.tokens), request.sampling.fewest_tokens
        if length + fewest > self.context:
            raise ContextLengthExceeded.of(self.context, length, to_generate=fewest)
        passes = 1 if mixture.mixer is None else 2
        context = self.blocks.max_length(self.context, self.scheduler.max_rows, passes)
        if length + fewest > context:
            raise ContextLengthExceeded.of(
                context,
                length,
                to_generate=fewest,
                reason="the cache holds no more tokens of an X-LoRA request",
                advice="load with more --memory",
            )
        return context - length

    def check_media(self, request: TokenRequest) -> None:
        """Raise RequestError for media outside the prompt or positions beyond the context.

        Positions may exceed the number of tokens: those of a video count its seconds.
        """
        length = len(request.tokens)
        for item in request.items:
            ends = [first + count for first, count in item.spans] + [item.since or 0]
            if max(ends) > length or any(count < 1 for _, count in item.spans):
                raise RequestError(f"the rows of {item.kind} are not within the prompt")
        if not self.blocks.fits(request.items):
            raise RequestError(
                f"there is no room in the cache for {len(request.items)} media at once; send "
                "fewer, or load with more --memory or a larger --max-seqs",
                param="messages",
            )
        if request.positions is None:
            return
        last = int(request.positions.numpy().max()) + 1
        if last + (fewest := request.sampling.fewest_tokens) > self.context:
            raise ContextLengthExceeded.of(
                self.context,
                last,
                to_generate=fewest,
                reason=f"the media reach position {last}",
                param="messages",
            )

    def logits(self, prompt: Prompt, mixture: Mixture = EMPTY) -> torch.Tensor:
        """Logits [T, vocab] float32 of every position of a prompt, on the host, with adapters.

        Raises RequestError for a prompt that can never run, Overloaded if the adapters do not fit
        on the device now.
        """
        rules = Sampling(max_tokens=0, prompt_logprobs=0)
        request = TokenRequest(id="logits", tokens=prompt.tokens, sampling=rules)
        self.check(request)
        self.check_length(request, mixture)
        pool = self.runner.adapter_pool
        lease = NOTHING if pool is None else pool.acquire(mixture)
        if lease is None:
            raise Overloaded("the device has no room for these adapters now; try again")
        try:
            items = rekey_media(prompt.items, mixture)
            return self.runner.logits(
                prompt.tokens, items=items, positions=prompt.positions, lease=lease
            )
        finally:
            if pool is not None:
                pool.release(lease)

    def abort(self, id: str, index: int | None = None) -> list[TokenOutput]:
        """Abort a request, or one choice of it; return the last output of each aborted choice.

        Releases their blocks. Unknown or finished ones are ignored.
        """
        return self.finish_request(id, "abort", index=index)

    def fail(self, sequences: Iterable[Sequence], error: Exception) -> list[TokenOutput]:
        """End the requests of sequences with an error; return the last output of each choice."""
        cause = self.failures.of(error)
        ids = dict.fromkeys(sequence.request.id for sequence in sequences)
        return [output for id in ids for output in self.finish_request(id, "error", cause)]

    def finish_request(
        self, id: str, finish: Finish, error: OstroError | None = None, index: int | None = None
    ) -> list[TokenOutput]:
        """Finish a request, or one choice of it, before its own end, and release its resources.

        A step in flight may still draw tokens of it; `read` drops them because `finish` is set.
        """
        running = [s for s in self.live.get(id, ()) if s.finish is None]
        finished = [s for s in running if index in (None, s.index)]
        for sequence in finished:
            sequence.finish = finish
            self.scheduler.remove(sequence)
        self.remove_if_finished(id)
        why = described(error)
        return [TokenOutput(id=id, index=s.index, finish=finish, **why) for s in finished]

    def remove_if_finished(self, id: str) -> None:
        """Remove a request and release its adapters, once all its choices have finished."""
        sequences = self.live.get(id, ())
        if all(sequence.finish is not None for sequence in sequences):
            self.live.pop(id, None)
            if sequences and self.registry is not None:
                self.registry.release(sequences[0].mixture)

    def step(self) -> list[TokenOutput]:
        """Run one pass of the loop: launch the next step, read the oldest one if it is due.

        An error of a model, encoder, processor or adapter, or of memory, ends requests: those that
        caused it if known, else all of the step. Out of memory, caches are freed and the requests
        first run again, in smaller steps. An error of the scheduler or of a cache kind ends all
        requests, since it is unknown then which blocks and rows are free. The error of a device
        that no longer computes is raised.
        """
        outputs = list[TokenOutput]()
        try:
            if self.scheduler.speculation is not None:
                # Proposals depend on the tokens of the step in flight.
                self.read_all(outputs)
            plan = self.scheduler.plan()
            launches = plan.chunks or plan.started or self.runner.late
            launched = self.launch(plan, outputs) if launches else False
            for failed in plan.failed:
                outputs += self.fail(*failed)
            # The plan lives as long as its step is in flight, and tracebacks hold tensors.
            plan.failed = []
            # Without a launch there is no work to overlap with: read the step now.
            if self.in_flight and (len(self.in_flight) > self.lag or not launched):
                self.read(self.in_flight.popleft(), outputs)
            elif self.runner.late and not launched:
                sleep(POLL)
        except Exception as error:
            self.in_flight.clear()
            self.scheduler.reset()
            outputs += self.fail((s for choices in self.live.values() for s in choices), error)
        return outputs

    def launch(self, plan: StepPlan, outputs: list[TokenOutput]) -> bool:
        """Launch a planned step; False if it has no rows or failed.

        If sampling needs tokens on the host, for masks or DRY, the steps in flight are read while
        the device computes the logits of this one. Their outputs are added.
        """
        launched = self.attempt(plan, partial(self.runner.forward, plan))
        if launched is None:
            return False
        # After `forward`, which may have dropped sequences from the plan.
        self.scheduler.mark_launched(plan)
        late = list(self.runner.late)
        if not plan.chunks and not late:
            return False
        if any(chunk.sequence.reads_tokens for chunk in launched.drawing):
            self.read_all(outputs)
        self.attempt(plan, partial(self.runner.sample, launched), late)
        if launched.drawn is None and (launched.drawing or not plan.chunks):
            return False
        if (speculation := self.scheduler.speculation) is not None:
            speculation.observe(computed_rows(plan.chunks, launched.hidden))
            launched.hidden = None
        for chunk in launched.drawing:
            chunk.sequence.pending += chunk.draft is None
        self.in_flight.append(launched)
        self.counters.steps += 1
        return True

    def attempt(
        self, plan: StepPlan, work: Callable[[], T], late: Iterable[Sequence] = ()
    ) -> T | None:
        """Run a part of a planned step; if it fails, end or preempt its sequences.

        late: sequences of earlier steps that draw in this one.
        """
        result, retry = None, False
        try:
            result = work()
        except Exception as error:
            # Without those that finished when the steps in flight were read.
            sequences = [*(chunk.sequence for chunk in plan.chunks), *late]
            # One with drafts has several chunks.
            planned = [s for s in dict.fromkeys(sequences) if s.finish is None]
            started = [s for s in plan.started if s not in planned]
            if retry := is_out_of_memory(error) and self.scheduler.may_retry(plan):
                # Recurrent states may be half advanced: compute all sequences again.
                started += planned
            else:
                # A step in flight drops its tokens for the sequences that end here.
                plan.failed.append((planned, error))
            for sequence in started:
                # The sampler may lack its parameters: a new start writes them.
                self.scheduler.preempt(sequence, plan)
        if retry:
            # Not above: the error holds the tensors of the step.
            self.runner.free_memory()
        return result

    def drain(self) -> list[TokenOutput]:
        """Run until the engine is idle; return all outputs.

        Raises OstroError if a request fails.
        """
        outputs = list[TokenOutput]()
        while self.busy:
            new = self.step()
            for output in new:
                if output.error is not None:
                    raise OstroError(output.error)
            outputs += new
        return outputs

    def read_all(self, outputs: list[TokenOutput]) -> None:
        """Read all steps in flight."""
        while self.in_flight:
            self.read(self.in_flight.popleft(), outputs)

    def read(self, launched: LaunchedStep, outputs: list[TokenOutput]) -> None:
        """Wait for the tokens of a step, append them to their sequences, and add the outputs.

        This is the only place where the loop waits for the device.
        """
        for chunk, copy in launched.prompt_logprobs:
            try:
                self.add_prompt_logprobs(chunk, copy)
            except Exception as error:
                outputs += self.fail([chunk.sequence], error)
        drawing = [chunk.sequence for chunk in launched.drawing]
        if launched.drawn is None:
            return
        try:
            drawn = SamplerOutput(*launched.drawn.wait())
            logprobs = read_logprobs(drawn, drawing)
        except Exception as error:
            outputs += self.fail(drawing, error)
            return
        accepted, last = Counter[Sequence](), dict[Sequence, TokenOutput]()
        for i, (chunk, token) in enumerate(zip(launched.drawing, drawn.tokens, strict=True)):
            sequence = chunk.sequence
            if chunk.draft is None:
                # Before the check: a preempted sequence waits until no token is pending.
                sequence.pending = max(0, sequence.pending - 1)
            # A sequence may have finished after this step was launched.
            if sequence.finish is not None or not accept(chunk, self.blocks):
                continue
            if token < 0:
                used = self.runner.sampler.processors.describe(sequence)
                outputs += self.fail([sequence], not_finite(self.runner.dtype, processors=used))
                continue
            accepted[sequence] += chunk.draft is not None
            last[sequence] = self.append_token(sequence, token, logprobs[i])
            outputs.append(last[sequence])
        if (speculation := self.scheduler.speculation) is not None:
            rows = launched.plan.rows if launched.plan.decodes else None
            speculation.read(accepted, last, rows, perf_counter() - launched.began)
            for sequence in accepted:
                self.blocks.release_drafts(sequence.tables)
        # A later step in flight would have drawn the first of these tokens already.
        for sequence in () if self.lag else dict.fromkeys(drawing):
            if sequence.finish is not None or not self.scheduler.may_append(sequence):
                continue
            for token in self.runner.sampler.processors.forced(sequence):
                if sequence.finish is None:
                    outputs.append(self.append_token(sequence, token, None))

    def append_token(
        self, sequence: Sequence, token: int, logprob: TokenLogprobs | None
    ) -> TokenOutput:
        """Append a drawn token; finish the sequence if it ends with it."""
        rules = sequence.request.sampling
        output = TokenOutput(id=sequence.request.id, index=sequence.index)
        if not sequence.reported:
            sequence.reported = True
            output.prompt_tokens, output.cached = sequence.prompt, sequence.cached
            output.queued = sequence.started - sequence.submitted
            output.generations = sequence.mixture.generations
            output.prompt_logprobs = sequence.prompt_logprobs
            self.counters.cached_tokens += sequence.cached
        # The token was drawn only because the last prompt row always draws.
        if rules.max_tokens == 0:
            return self.finish(sequence, output, "length")
        sequence.tokens.append(token)
        self.counters.generated_tokens += 1
        generated = len(sequence.tokens) - sequence.prompt
        stops = token in rules.stop_ids or (token in self.eos_ids and not rules.ignore_eos)
        if stops:
            output.stopped_by = token
            return self.finish(sequence, output, "stop")
        output.tokens = [token]
        output.logprobs = None if logprob is None else [logprob]
        if generated >= sequence.limit:
            return self.finish(sequence, output, "length")
        # The token is known now, and with it possibly the key of a full block.
        self.scheduler.publish(sequence)
        return output

    def finish(self, sequence: Sequence, output: TokenOutput, finish: Finish) -> TokenOutput:
        """Finish a sequence and release its resources; return its last output."""
        # Publish before the blocks are released: a block without a key becomes free, not idle.
        self.scheduler.publish(sequence)
        self.scheduler.remove(sequence)
        # Last: if one of these raises, the sequence is unfinished, and `step` ends it.
        sequence.finish = output.finish = finish
        self.remove_if_finished(sequence.request.id)
        return output

    def add_prompt_logprobs(self, chunk: Chunk, copy: DeviceToHostCopy) -> None:
        """Add the logprobs of the prompt tokens after the rows of a chunk; see `send_logprobs`."""
        sequence, (logprobs, *top) = chunk.sequence, copy.wait()
        if sequence.prompt_logprobs is None or sequence.finish is not None:
            return
        check_nan(logprobs, self.runner.dtype)
        # A preempted sequence computes its prompt again: start anew.
        if chunk.start == 0:
            sequence.prompt_logprobs = [None]
        tokens = sequence.tokens[chunk.start + 1 :]
        for token, logprob, ids, values in zip(tokens, logprobs, *top, strict=False):
            pairs = tuple(zip(ids, values, strict=True))
            sequence.prompt_logprobs.append(TokenLogprobs(token, logprob, pairs))

    def stats(self) -> Stats:
        """The current counters."""
        pools = [group.pool for group in self.blocks.all]
        self.counters.running = len(self.scheduler.running)
        self.counters.waiting = len(self.scheduler.waiting)
        self.counters.preemptions = self.scheduler.preemptions
        if self.scheduler.speculation is not None:
            self.scheduler.speculation.add_to(self.counters)
        self.counters.blocks_total = sum(pool.size for pool in pools)
        self.counters.blocks_used = sum(pool.used for pool in pools)
        self.counters.cache_bytes = self.blocks.used_bytes
        self.counters.peak_cache_bytes = self.blocks.peak_bytes
        return self.counters

    def close(self) -> None:
        """Abort all requests and close the registry."""
        for id in list(self.live):
            self.abort(id)
        self.in_flight.clear()
        for runner in self.runners:
            runner.close()
        if self.registry is not None:
            self.registry.close()


def rekey_media(items: list[Item], mixture: Mixture) -> list[Item]:
    """Media with keys that include the adapters of their encoders.

    Such an adapter changes encoder weights and applies to the medium's first token. Without it in
    the key, requests with other adapters would share the encoder's output.
    """
    shares = [share for share in mixture.shares if share.adapter.encodes]
    changed = list[Item]()
    for item in items:
        pairs = [(s.adapter.generation, s.scale) for s in shares if s.since <= item.first]
        changed.append(replace(item, key=next_key(item.key, (), pairs)) if pairs else item)
    return changed
