"""Faults of one line in each room of the code, which the quick tests must catch.

`tests/mutation.py` runs them. They were chosen from the code and not from its tests: boundaries,
dropped conditions, swapped arguments, skipped checks of untrusted input, resources that are not
released. A mutant whose line has changed fails `tests/test_mutation.py`: write it anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Mutant(NamedTuple):
    """A fault: `old`, which occurs once in `file`, is replaced by `new`."""

    name: str
    file: str
    old: str
    new: str


ROOMS = (
    "core",
    "core/adapters",
    "core/chat",
    "core/engine",
    "core/ipc",
    "core/load",
    "core/media",
    "core/nn",
    "core/ops",
    "core/tokenizer",
    "adapters",
    "architectures",
    "entrypoints",
    "entrypoints/api",
    "entrypoints/bench",
    "entrypoints/cli",
    "entrypoints/http",
    "entrypoints/http/workers",
    "entrypoints/operations",
    "plugins/apis",
    "plugins/caches",
    "plugins/checkpoints",
    "plugins/logits",
    "plugins/parsers",
    "plugins/pipelines",
    "plugins/pipelines/image",
    "plugins/pipelines/speech",
    "plugins/pipelines/text",
    "plugins/pipelines/transcription",
    "plugins/pipelines/vectors",
    "plugins/sources",
    "plugins/speculation",
    "plugins/stores",
    "plugins/tokenizers",
    "quant",
)
"""The folders that have at least two mutants each."""

Change = tuple[str, str]
"""The old text and the new one."""

CORE: Mapping[str, Mapping[str, Change]] = {
    "core/adapters/loader.py": {
        "adapter-rank-at-limit-is-refused": (
            "if rank > self.settings.max_adapter_rank:",
            "if rank >= self.settings.max_adapter_rank:",
        ),
    },
    "core/adapters/pool.py": {
        "adapter-in-use-is-not-counted": ("pooled.users += 1", "pooled.users += 0"),
        "pages-of-evicted-adapter-stay": (
            "            delta.write(pages, adapter.packed.get(delta))",
            "            delta in adapter.packed and delta.write(pages, adapter.packed[delta])",
        ),
        "pinned-adapter-counts-twice": (
            "if generation in self.pinned and generation not in needed",
            "if generation in self.pinned",
        ),
    },
    "core/adapters/registry.py": {
        "adapter-of-running-request-is-removed": (
            "if generation is None or self.store.use_counts[generation]:",
            "if generation is None:",
        ),
    },
    "core/cache.py": {
        "window-is-one-token-short": (
            "return max(0, length + 1 - self.spec.window) // self.block",
            "return max(0, length + 2 - self.spec.window) // self.block",
        ),
        "window-hit-needs-one-block": (
            "if all(known[self.first(end * self.block) : end]):",
            "if known[end - 1]:",
        ),
    },
    "core/chat/escape.py": {
        "reasoning-marker-of-template-is-escaped": (
            'unless = f"(?!{_either(kept)})" if kept else ""',
            'unless = ""',
        ),
        "names-of-fields-are-not-escaped": (
            "return {self.escape(key): self.escape(item)",
            "return {key: self.escape(item)",
        ),
    },
    "core/chat/messages.py": {
        "empty-content-beside-calls-stays": (
            "if calls and is_empty(content):",
            "if calls and content is None:",
        ),
        "arguments-may-be-a-json-list": (
            'return msgspec.json.decode(arguments or "{}", type=dict[str, Any])',
            'return msgspec.json.decode(arguments or "{}")',
        ),
    },
    "core/chat/systems.py": {
        "order-of-system-messages-is-free": (
            "return -1 not in places and places == sorted(places)",
            "return -1 not in places",
        ),
        "late-message-separates-a-call-from-its-result": (
            'if block is not None and message["role"] in ("user", "tool"):',
            'if block is not None and message["role"] == "user":',
        ),
        "late-message-behind-a-user-is-a-turn": (
            'if placed and placed[-1]["role"] in ("user", "tool"):',
            'if placed and placed[-1]["role"] == "tool":',
        ),
    },
    "core/chat/__init__.py": {
        "conversations-are-tried-without-tools": (
            "listed = PROBE_TOOLS if tools else None",
            "listed = None",
        ),
        "arguments-stay-text-that-a-template-leaves-out": (
            "return CUT in self.fill(",
            "return CUT != self.fill(",
        ),
    },
    "core/engine/blocks.py": {
        "block-key-without-rows-of-media": (
            'state.update(b"media" + key + array("q", (row, token)).tobytes())',
            'state.update(b"media" + key)',
        ),
        "block-key-without-adapter-scale": (
            'state.update(f"{generation}*{scale!r};".encode())',
            'state.update(f"{generation};".encode())',
        ),
        "newest-idle-block-is-evicted": (
            "block = self.idle.popitem(last=False)[0]",
            "block = self.idle.popitem(last=True)[0]",
        ),
        "block-that-was-released-first-is-used-first": (
            "self.free.move_to_end(block, last=False)",
            "self.free.move_to_end(block, last=True)",
        ),
        "first-block-of-prefix-is-evicted-first": (
            "for block in reversed(table.blocks[table.first :]):",
            "for block in table.blocks[table.first :]:",
        ),
        "two-blocks-have-one-key": (
            "if self.key_of[block] is None and key not in self.block_of:",
            "if self.key_of[block] is None:",
        ),
        "second-pass-has-no-blocks": (
            "group.pool.size // passes * self.block",
            "group.pool.size * self.block",
        ),
        "step-ends-within-block-of-states": (
            "return count - (start + count) % self.block",
            "return count",
        ),
        "state-before-the-drafts-stays-the-newest": (
            "if len(table.blocks) > position // self.block:",
            "if False:",
        ),
        "blocks-of-rejected-drafts-are-lost": (
            "            for block in table.drafts:",
            "            for block in []:",
        ),
        "states-of-drafts-need-no-room": (
            "if (count if group.kind.aligned else pages) > group.pool.available:",
            "if pages > group.pool.available:",
        ),
        "media-cannot-fill-the-cache": (
            "return all(need <= group.pool.size for group in self.cross_groups)",
            "return all(need < group.pool.size for group in self.cross_groups)",
        ),
    },
    "core/engine/buckets.py": {
        "idle-rows-write-to-the-cache": (
            "fixed.slots.fill_(-1)",
            "fixed.slots.fill_(0)",
        ),
        "idle-sequences-have-the-rows-of-the-last-step": (
            "fixed.starts.copy_(starts)",
            "pass",
        ),
        "idle-sequences-begin-within-the-rows-of-drafts": (
            "if idle_start:",
            "if False:",
        ),
        "no-sequence-has-the-idle-rows": (
            "runner.max_sequences + 1, size",
            "runner.max_sequences, size",
        ),
        "idle-rows-have-the-adapters-of-the-last-step": (
            "self.step.mixture.zero_()",
            "pass",
        ),
        "buckets-outlive-the-tables-of-adapters": (
            "if self.captured_changes != pool.changes:",
            "if self.captured_changes < 0:",
        ),
    },
    "core/engine/startup/compilation.py": {
        "all-steps-run-whatever-the-cache-has": (
            "return compile_launched(steps) > 0",
            "return compile_launched(steps) >= 0",
        ),
        "costs-of-steps-are-those-of-the-dry-run": (
            "        if (speculation := engine.scheduler.speculation) is not None:",
            "        if (speculation := engine.scheduler.speculation) is None:",
        ),
        "buckets-of-the-dry-run-stay": ("            runner.close()", "            pass"),
    },
    "core/engine/startup/kernel_compiler.py": {
        "memory-is-not-zero": ("            out.zero_()", "            pass"),
        "autotuner-measures-nothing": ("        if is_autotuned():", "        if False:"),
        "devices-share-a-kernel": (
            "super().submit((key, device), load, *callbacks)",
            "super().submit((key, 0), load, *callbacks)",
        ),
        "kernels-of-the-cache-count": (
            "self.compiled += not cache_hit",
            "self.compiled += 1",
        ),
        "kernel-stays-skipped": ("        compiler.ended = True", "        pass"),
    },
    "core/engine/engine.py": {
        "tokens-are-appended-behind-a-step-in-flight": (
            "for sequence in () if self.lag else dict.fromkeys(drawing):",
            "for sequence in dict.fromkeys(drawing):",
        ),
        "token-id-may-equal-vocabulary": (
            "if not 0 <= token < self.vocab:",
            "if not 0 <= token <= self.vocab:",
        ),
        "prompt-cannot-fill-the-context": (
            "if length + fewest > self.context:",
            "if length + fewest >= self.context:",
        ),
        "aborted-sequence-keeps-its-blocks": (
            "            self.scheduler.remove(sequence)",
            "            pass",
        ),
        "choices-share-one-seed": (
            "seed=(seed + index) & (2**63 - 1),",
            "seed=seed & (2**63 - 1),",
        ),
        "a-draft-model-keeps-its-captured-steps": (
            "        for runner in self.runners:",
            "        for runner in self.runners[:1]:",
        ),
        "one-token-beyond-the-limit": (
            "if generated >= sequence.limit:",
            "if generated > sequence.limit:",
        ),
    },
    "core/engine/late.py": {
        "preempted-late-sequence-draws": (
            " if c.sequence.row >= 0]",
            "]",
        ),
        "restarted-sequence-keeps-its-late-row": (
            "self.rows.pop(sequence, None)",
            "pass",
        ),
    },
    "core/engine/layout.py": {
        "each-draft-continues-from-the-last-token": (
            "if place > 0:",
            "if place > 10:",
        ),
        "drafts-are-sequences-of-their-own": (
            "if sequence is previous:",
            "if sequence is previous and False:",
        ),
    },
    "core/uploaded_file.py": {
        "file-stays-open": ("with self.file:", "if self.file:"),
    },
    "core/engine/jobs.py": {
        "jobs-have-no-priority": (
            "min(self.jobs, key=lambda job: job.priority)",
            "self.jobs[0]",
        ),
    },
    "core/engine/pooling.py": {
        "inputs-have-no-priority": (
            "if last > request.priority:",
            "if last > request.priority and False:",
        ),
        "long-input-never-runs": (
            "if differs or (batch and rows + self.size(entry) > self.max_rows):",
            "if differs or rows + self.size(entry) > self.max_rows:",
        ),
    },
    "core/engine/sampler.py": {
        "drafts-share-one-position": (
            "before[sequence] += 1",
            "before[sequence] += 0",
        ),
        "tokens-of-previous-request-are-penalized": (
            "self.seen[row].zero_().index_fill_(0, prompt, True)",
            "self.seen[row].index_fill_(0, prompt, True)",
        ),
        "end-is-banned-one-token-longer": (
            "sequence.drawn < self.rules[row].min_tokens:",
            "sequence.drawn <= self.rules[row].min_tokens:",
        ),
    },
    "core/engine/processors.py": {
        "masks-are-begun-before-the-last-token": (
            "if not sequence.pending]",
            "]",
        ),
        "two-masks-force-tokens": (
            "if found is not None and forced is not None:",
            "if False:",
        ),
        "late-sequences-shift-masks": (
            "if len(users) < len(owners):",
            "if False:",
        ),
    },
    "core/engine/scheduler.py": {
        "answers-with-log-probabilities-get-tokens-without-a-draw": (
            "and rules.logprobs is None",
            "and True",
        ),
        "equal-priority-is-preempted": (
            "if victim.request.priority <= sequence.request.priority:",
            "if victim.request.priority < sequence.request.priority:",
        ),
        "whole-prompt-is-read-from-the-cache": (
            "upto = sequence.length - 1",
            "upto = sequence.length",
        ),
        "blocks-are-published-before-they-run": (
            "min(sequence.computed, len(sequence.tokens))",
            "len(sequence.tokens)",
        ),
        "steps-stay-large-without-memory": (
            "self.step_rows = rows / 2",
            "self.step_rows = rows",
        ),
    },
    "core/engine/proposers/draft_model.py": {
        "rejected-drafts-stay-in-the-cache-of-the-draft-model": (
            "if draft != token or computed == own.computed:",
            "if computed == own.computed:",
        ),
        "the-last-token-may-be-in-the-cache": (
            "tokens[known:-1], strict=False)",
            "tokens[known:], strict=False)",
        ),
        "a-draft-model-reads-tokens-that-it-does-not-know": (
            "if sequence.unusable:",
            "if False:",
        ),
        "a-draft-model-without-room-keeps-its-blocks": (
            "self.release(row)",
            "pass",
        ),
        "the-vocabulary-of-a-draft-model-is-not-compared": (
            "if own and other and own != other)",
            "if False)",
        ),
    },
    "core/engine/draft_length.py": {
        "a-slow-measurement-rules-a-size-out": (
            "np.minimum.accumulate(seconds[::-1])[::-1]",
            "seconds",
        ),
        "proposals-cost-nothing": (
            "+ deepest * draft)",
            ")",
        ),
        "one-sequence-gets-all-drafts": (
            "candidates.sort(key=lambda candidate: -candidate[0])",
            "candidates.sort(key=lambda candidate: candidate[2])",
        ),
        "sequences-without-drafts-are-never-tried-again": (
            "self.rate += IDLE_WEIGHT",
            "self.rate += 0",
        ),
    },
    "core/engine/proposers/assistant.py": {
        "an-assistant-is-at-the-position-of-the-row-before": (
            "replace(c, start=c.start + 1)",
            "replace(c, start=c.start)",
        ),
        "an-assistant-exceeds-its-context": (
            "or last >= self.context",
            "or last > self.context",
        ),
    },
    "core/engine/proposers/build_speculation.py": {
        "an-assistant-reads-the-cache-of-another-device": (
            "group.kind.device != draft.device",
            "group.kind.device is None",
        ),
        "a-plain-class-gets-no-methods": (
            "return type(kind.__name__, (kind, Proposer), names)",
            "return kind",
        ),
    },
    "core/engine/computed_rows.py": {
        "a-head-reads-the-memory-of-a-graph": (
            "hidden = hidden.clone()",
            "hidden = hidden",
        ),
    },
    "core/engine/proposers/multi_token.py": {
        "rows-of-rejected-drafts-are-computed": (
            "self.cut(start)",
            "pass",
        ),
        "a-head-forgets-the-rows-of-an-answer": (
            "(own.has_prompt or own.drafted)",
            "own.has_prompt",
        ),
        "a-head-keeps-the-rows-of-all-answers": (
            "self.count > HELD",
            "False",
        ),
    },
    "core/engine/speculation.py": {
        "a-sequence-ignores-the-drafts-of-those-before": (
            "Acceptance(self.typical.rate)",
            "Acceptance()",
        ),
        "the-rows-of-an-ended-sequence-stay-with-the-proposer": (
            "                self.begin(rows.sequence)",
            "                pass",
        ),
        "proposed-tokens-are-not-checked": (
            "valid = all(0 <= token < self.vocab for",
            "valid = all(0 <= token for",
        ),
        "drafts-ignore-the-ban-of-the-end": (
            "and sequence.drawn >= rules.min_tokens",
            "and sequence.drawn >= 0",
        ),
    },
    "core/ipc/client.py": {
        "closed-request-is-not-aborted": (
            "if left and self.fault is None:",
            "if left > 1 and self.fault is None:",
        ),
        "later-fault-hides-the-cause": (
            "self.fault = self.fault or error",
            "self.fault = error",
        ),
    },
    "core/ipc/streams.py": {
        "merged-logprobs-lose-the-first": (
            "first.logprobs = (first.logprobs or []) + later.logprobs",
            "first.logprobs = later.logprobs",
        ),
        "outputs-that-were-read-still-count": (
            "        self._size -= size(output)",
            "        size(output)",
        ),
    },
    "core/load/multi_token.py": {
        "copies-of-tables-of-a-head-are-left": (
            "if not own and not super().ignored(name):",
            "if not own:",
        ),
        "a-checkpoint-without-a-head-is-loaded": (
            "if not any(item.name.startswith",
            "if False and any(item.name.startswith",
        ),
    },
    "core/load/names.py": {
        "placeholder-matches-several-components": (
            r'body = re.sub(r"\{(\w+)\}", r"(?P<\1>[^.]+)", escaped)',
            r'body = re.sub(r"\{(\w+)\}", r"(?P<\1>.+)", escaped)',
        ),
    },
    "core/load/pooling.py": {
        "weights-of-pooling-begin-at-zero": (
            "weights = torch.arange(1, len(rows) + 1,",
            "weights = torch.arange(0, len(rows),",
        ),
        "path-of-module-may-leave-the-folder": (
            "if not path.resolve().is_relative_to(folder.resolve()):",
            "if not path.is_relative_to(folder):",
        ),
    },
    "core/load/weights.py": {
        "last-row-may-be-nan": (
            "return all(bool(rows[i].float().isfinite().all()) for i in (0, -1))",
            "return all(bool(rows[i].float().isfinite().all()) for i in (0, 0))",
        ),
        "tensors-without-slot-are-ignored": (
            "if not missing and not left:",
            "if not missing:",
        ),
    },
    "core/media/decode.py": {
        "frames-of-video-are-not-added-up": (
            'check_pixels(frames * pixels, "video")',
            'check_pixels(pixels, "video")',
        ),
        "orientation-of-image-is-ignored": (
            "turned = ImageOps.exif_transpose(image)",
            "turned = image",
        ),
    },
    "core/media/parts.py": {
        "any-number-of-media": (
            "if len(media) > MAX_MEDIA:",
            "if len(media) > 10 * MAX_MEDIA:",
        ),
    },
    "core/media/sound.py": {
        "length-of-mp3-is-read-too-early": (
            "field = at + 8 + 4 * (first[at + 7] & 1)",
            "field = at + 8",
        ),
        "odd-chunk-of-wav-has-no-padding": (
            "at += 8 + size + size % 2",
            "at += 8 + size",
        ),
        "lower-rate-is-not-filtered": (
            "cut = min(1.0, target / rate)",
            "cut = 1.0",
        ),
    },
    "core/messages/arrays.py": {
        "shared-file-may-be-anywhere": (
            'if path.parent != SHARED or not path.name.startswith("ostro-"):',
            'if not path.name.startswith("ostro-"):',
        ),
    },
    "core/messages/requests.py": {
        "bias-may-be-nan": ("if not abs(bias) <= 100:", "if abs(bias) > 100:"),
    },
    "core/native/build.py": {
        "headers-do-not-change-a-library": (
            '(source, HEADERS / "ostro.h", *sorted(source.parent.glob("*.h")))',
            '(source, HEADERS / "ostro.h")',
        ),
        "flags-do-not-change-a-library": (
            'key.update(" ".join((*FLAGS, *variant.flags)).encode())',
            'key.update(" ".join(FLAGS).encode())',
        ),
    },
    "core/native/variants.py": {
        "variant-that-the-cpu-lacks-is-chosen": (
            "        if variant is not None and (missing := lacking(variant, flags)):",
            "        if variant is None and (missing := lacking(variant, flags)):",
        ),
        "one-of-the-instructions-suffices": (
            "missing = sorted(variant.requires - flags)",
            "missing = [] if variant.requires & flags else sorted(variant.requires)",
        ),
    },
    "core/native/library.py": {
        "prebuilt-library-is-compiled": (
            "find_prebuilt(name, variant) or find_or_compile(source, variant)",
            "find_or_compile(source, variant)",
        ),
        "intact-library-is-compiled-again": (
            "for to, source in libraries.items() if not is_intact(to)}",
            "for to, source in libraries.items()}",
        ),
    },
    "core/nn/embedding.py": {
        "head-keeps-the-rows-of-the-step": (
            "x, step = x[step.logits_indices], step.rows(step.logits_indices)",
            "x, step = x[step.logits_indices], step",
        ),
    },
    "core/nn/experts.py": {
        "bias-is-that-of-the-first-expert": (
            "y + self.bias[expert_of_row]",
            "y + self.bias[0]",
        ),
    },
    "core/nn/linear.py": {
        "every-part-needs-a-bias": ("if part in self.biased:", "if self.biased:"),
    },
    "core/nn/mlp.py": {
        "gelu-new-is-exact": ('"gelu_new": "gelu_tanh"', '"gelu_new": "gelu"'),
    },
    "core/nn/rope.py": {
        "woven-sections-have-no-end": (
            "return [j % c if j < c * sections[j % c] else 0 for j in range(sum(sections))]",
            "return [j % c for j in range(sum(sections))]",
        ),
    },
    "core/ops/attention/naive.py": {
        "window-has-one-key-more": ("(distance <= -window)", "(distance < -window)"),
    },
    "core/ops/attention/triton.py": {
        "triton-window-has-one-key-more": (
            "visible &= key_at[None, :] > position[:, None] - window",
            "visible &= key_at[None, :] >= position[:, None] - window",
        ),
        "triton-merge-does-not-rescale-values": (
            "sums = sums * decay + tl.sum(weights[:, None] * part, 0)",
            "sums = sums + tl.sum(weights[:, None] * part, 0)",
        ),
    },
    "core/ops/causal_conv/naive.py": {
        "state-of-convolution-forgets-the-past": (
            "past = state[before] if before >= 0 else state.new_zeros(channels, width - 1)",
            "past = state[before] if before > 0 else state.new_zeros(channels, width - 1)",
        ),
    },
    "core/ops/grouped_matmul/triton.py": {
        "triton-expert-takes-the-next-row": (
            "mine = (lane >= start) & (lane < end)",
            "mine = (lane >= start) & (lane <= end)",
        ),
    },
    "core/ops/launch.py": {
        "measured-parameters-need-no-candidate": (
            "entry = table[op, key] = known[tuple(entry)]",
            "entry = table[op, key] = default._make(entry[1:])",
        ),
        "other-parameters-leave-the-file": (
            "merged = {**read(file), **{place",
            "merged = {**{place",
        ),
    },
    "core/ops/kv_write/triton.py": {
        "triton-first-slot-is-not-written": ("    if slot >= 0:", "    if slot > 0:"),
        "triton-scales-have-places-for-padded-heads": (
            "at = (page * N + head) * block + place",
            "at = (page * HEADS + head) * block + place",
        ),
    },
    "core/ops/moe_route/naive.py": {
        "group-is-ranked-by-one-expert": (
            "ranked_by = 1 if bias is None else min(2, x.shape[1] // rule.groups)",
            "ranked_by = 1",
        ),
    },
    "core/ops/penalize/dry.py": {
        "match-goes-beyond-the-window": (
            "np.arange(reach, 0, -1))",
            "np.full(max(reach, 0), reach))",
        ),
    },
    "core/ops/penalize/naive.py": {
        "presence-penalty-counts": (
            "params.presence[rows] * (n > 0)",
            "params.presence[rows] * n",
        ),
    },
    "core/ops/rms_norm/triton.py": {
        "triton-mean-over-the-padded-width": (
            "tl.sum(value * value, axis=1) / d + eps",
            "tl.sum(value * value, axis=1) / BLOCK + eps",
        ),
    },
    "core/ops/rope/naive.py": {
        "sections-use-the-first-position": (
            "torch.cat([part[i] for i, part in enumerate(parts)], dim=-1)",
            "torch.cat([part[0] for i, part in enumerate(parts)], dim=-1)",
        ),
    },
    "core/ops/sample/naive.py": {
        "top-p-keeps-one-token-more": (
            "passing = int((total - own < limit).sum())",
            "passing = int((total - own <= limit).sum())",
        ),
    },
    "core/ops/sample/triton.py": {
        "top-k-keeps-one-candidate-more": (
            "tl.where(j == k - 1, score, 0.0)",
            "tl.where(j == k, score, 0.0)",
        ),
        "candidates-always-suffice": (
            "complete = (tl.sum(keep.to(tl.int32)) < count) | (count == vocabulary)",
            "complete = (tl.sum(keep.to(tl.int32)) <= count) | (count == vocabulary)",
        ),
        "top-p-of-all-candidates": (
            "complete |= tl.sum(keep.to(tl.int32)) < count",
            "complete |= tl.sum(keep.to(tl.int32)) <= count",
        ),
        "typical-is-ignored-among-candidates": (
            "(mass < 1)) & (share == 1):",
            "(mass < 1)) & (share <= 1):",
        ),
        "top-p-of-the-candidates-alone": (
            "tl.where(complete, tl.sum(weight), total)",
            "tl.sum(weight)",
        ),
        "triton-forgets-the-first-tokens": (
            "        passed += tl.sum(weight)",
            "        passed = tl.sum(weight)",
        ),
    },
    "core/turns.py": {
        "one-owner-gets-all-threads": (
            "most or max(1, threads - 1)",
            "most or threads",
        ),
        "owner-keeps-its-threads": (
            "self._running[ended] -= 1",
            "self._running[ended] -= 0",
        ),
        "owners-get-turns-and-not-time": (
            "key=used, default=None)",
            "key=lambda owner: 0, default=None)",
        ),
        "absent-owners-owe-nothing": (
            "if not present or (owner not in present and self._used[owner] <= least):",
            "if not present or owner not in present:",
        ),
    },
    "core/tokenizer/bound.py": {
        "bound-ignores-nfc": (
            'return max(lengths) * (SHRINK if "NFC" in kinds else 1)',
            "return max(lengths)",
        ),
    },
    "core/tokenizer/detokenizer.py": {
        "leading-space-stays-after-empty-text": (
            "if self._strip and text:",
            "if self._strip:",
        ),
    },
    "core/tokenizer/folder.py": {
        "declared-ids-are-not-checked": (
            "if (actual := backend.token_to_id(token.content)) != id:",
            "if (actual := backend.token_to_id(token.content)) is None:",
        ),
        "eos-of-tokenizer-does-not-end": (
            "return {id for id in [*found, eos] if isinstance(id, int)}",
            "return {id for id in found if isinstance(id, int)}",
        ),
    },
    "core/tokenizer/stop.py": {
        "longest-begin-of-stop-is-missed": (
            "max(0, len(text) - len(string) + 1)",
            "max(0, len(text) - len(string) + 2)",
        ),
        "first-listed-stop-wins": (
            "at, searched = min(hits)",
            "at, searched = hits[0]",
        ),
    },
    "core/tokenizer/vocabulary.py": {
        "end-may-be-beyond-the-logits": (
            "ends = frozenset(id for id in eos_ids if 0 <= id < size)",
            "ends = frozenset(id for id in eos_ids if 0 <= id)",
        ),
    },
}

MODELS: Mapping[str, Mapping[str, Change]] = {
    "adapters/lora/config.py": {
        "layer-zero-is-refused": (
            "all(type(v) is int and v >= 0 for v in value)",
            "all(type(v) is int and v > 0 for v in value)",
        ),
    },
    "adapters/lora/kohya.py": {
        "shift-and-scale-are-not-swapped": (
            "return torch.cat(b.chunk(2)[::-1])",
            "return torch.cat(b.chunk(2))",
        ),
        "alpha-is-divided-by-the-width": (
            '/ a.shape[0] if "alpha" in parts else 1.0',
            '/ a.shape[1] if "alpha" in parts else 1.0',
        ),
    },
    "adapters/lora/patterns.py": {
        "alternatives-are-not-grouped": (
            r'whole = [rf"(.*\.)?({pattern})$" if ends',
            r'whole = [rf"(.*\.)?{pattern}$" if ends',
        ),
    },
    "adapters/lora/tensors.py": {
        "infinity-is-accepted": (
            "if not bool(torch.isfinite(tensor).all()):",
            "if bool(torch.isnan(tensor).any()):",
        ),
    },
    "adapters/xlora/numbering.py": {
        "number-of-weight-may-equal-their-count": (
            "if not 0 <= layers.get(name, -1) < many:",
            "if not 0 <= layers.get(name, -1) <= many:",
        ),
        "layers-are-not-in-order": (
            'return 1, int(found["layer"]), ORDER',
            'return 1, len(found["layer"]), ORDER',
        ),
    },
    "architectures/bert/model.py": {
        "one-type-is-not-enough-for-pairs": (
            "kinds[0].clamp(max=self.last_type)",
            "kinds[0]",
        ),
    },
    "architectures/deepseek_v2/model.py": {
        "yarn-scale-is-not-squared": (
            'math.log(max(rule.get("factor", 1), 1)) + 1) ** 2',
            'math.log(max(rule.get("factor", 1), 1)) + 1)',
        ),
        "more-best-groups-than-groups": (
            "if not 0 < best <= self.groups:",
            "if not 0 < best:",
        ),
    },
    "architectures/dia/choice.py": {
        "second-channel-may-end": (
            "scores[1:, self.eos] = -torch.inf",
            "scores[2:, self.eos] = -torch.inf",
        ),
    },
    "architectures/flux/scheduler.py": {
        "shift-ignores-the-base-length": (
            "slope * (rows - config.base_image_seq_len)",
            "slope * rows",
        ),
    },
    "architectures/gemma2/model.py": {
        "other-layers-slide": ("return layer % 2 == 0", "return layer % 2 == 1"),
    },
    "architectures/gemma4/config.py": {
        "keys-are-shared-with-the-first-layer-of-a-kind": (
            "return max((i for i in range(self.first_shared)",
            "return min((i for i in range(self.first_shared)",
        ),
    },
    "architectures/gemma4_assistant/config.py": {
        "an-assistant-reads-a-row-before-the-window": (
            "return window - 1 if window else 0",
            "return window",
        ),
    },
    "architectures/whisper/alignment.py": {
        "short-audio-is-reflected": (
            "if x.shape[-1] <= half:",
            "if x.shape[-1] < half:",
        ),
        "deviation-is-corrected": ("correction=0", "correction=1"),
    },
    "quant/afq/naive.py": {
        "zero-is-no-code": (
            "scale = torch.where(zero == 0, scale, edge / zero).to(weight.dtype)",
            "scale = scale.to(weight.dtype)",
        ),
    },
    "quant/awq/naive.py": {
        "last-columns-are-exchanged": (
            "POSITIONS = (0, 4, 1, 5, 2, 6, 3, 7)",
            "POSITIONS = (0, 4, 1, 5, 2, 6, 7, 3)",
        ),
    },
    "quant/bnb/naive.py": {
        "odd-start-is-rounded-down": (
            "return codes[start % 2 :][: stop - start]",
            "return codes[: stop - start]",
        ),
    },
    "quant/compressed_tensors/naive.py": {
        "rows-share-the-global-scale": (
            "d = None if d is None else d[rows]",
            "d = None if d is None else d[:1]",
        ),
    },
    "quant/fp8/naive.py": {
        "infinity-of-e5m2-is-finite": (
            "torch.float8_e5m2: 0x7C",
            "torch.float8_e5m2: 0x7D",
        ),
        "zero-weight-becomes-nan": (
            "scale = torch.where(largest > 0, largest / MAX, 1)",
            "scale = largest / MAX",
        ),
    },
    "quant/gguf/mixtures.py": {
        "last-eighth-begins-late": (
            "index >= 7 * count // 8",
            "index > 7 * count // 8",
        ),
    },
    "quant/gguf/planes.py": {
        "last-rows-are-not-packed": (
            "for start in range(0, len(rows), step):",
            "for start in range(0, len(rows) - step, step):",
        ),
    },
    "quant/gptq/checkpoint.py": {
        "group-index-may-equal-their-count": (
            "int(found.max()) >= groups:",
            "int(found.max()) > groups:",
        ),
        "last-group-must-be-whole": (
            "ceil(k / size) != groups",
            "k / size != groups",
        ),
    },
    "quant/gptq/naive.py": {
        "zeros-of-three-bits-do-not-wrap": (
            "return unpack(words, bits, count) + 1 & (1 << bits) - 1",
            "return unpack(words, bits, count) + 1",
        ),
    },
    "quant/hqq/naive.py": {
        "groups-need-no-whole-rows": (
            "has_whole_rows = not layout.axis and n % layout.group == 0",
            "has_whole_rows = not layout.axis",
        ),
    },
    "quant/mixed_precision/knapsack.py": {
        "budget-cannot-be-used-up": (
            "one = torch.where(more <= left, gain, -torch.inf)",
            "one = torch.where(more < left, gain, -torch.inf)",
        ),
    },
    "quant/mxfp4/naive.py": {
        "larger-exponent-wins-too-often": (
            "first = low_error <= 4 * high_error",
            "first = low_error <= high_error",
        ),
    },
    "quant/planes/quant_matmul/gemv.py": {
        "triton-integers-have-no-unit": (
            "total = tl.sum(acc[r], 1) * LAYOUT.unit",
            "total = tl.sum(acc[r], 1)",
        ),
        "second-sum-of-a-cell-is-the-first": (
            "total += tl.load(sums + index * SUMS + 1)",
            "total += tl.load(sums + index * SUMS)",
        ),
        "parts-are-written-to-the-first-columns": ("        y += sizes[p]", "        y += 0"),
    },
    "quant/planes/quant_matmul/tiles.py": {
        "parts-that-keep-x-are-quantized": (
            "or not all(weight.has_integer_values for weight in weights):",
            "or not weights:",
        ),
    },
    "quant/planes/storage.py": {
        "parts-ignore-the-order-of-columns": (
            "return isinstance(storage, Packed) and storage.order is None and",
            "return isinstance(storage, Packed) and",
        ),
    },
}

PLUGINS: Mapping[str, Mapping[str, Change]] = {
    "plugins/apis/anthropic/conversation.py": {
        "thinking-may-use-all-tokens": (
            "thinking.budget_tokens >= request.max_tokens:",
            "thinking.budget_tokens > request.max_tokens:",
        ),
        "text-behind-a-line-about-billing-is-left-out": (
            "if BILLING.fullmatch(text):",
            "if BILLING.match(text):",
        ),
    },
    "plugins/apis/anthropic/stream.py": {
        "max-tokens-is-a-full-context": (
            "self.generation.usage.completion < self.max_tokens",
            "self.generation.usage.completion <= self.max_tokens",
        ),
        "blocks-of-tools-end-twice": (
            "        self.calls = {}",
            "        self.kind = ''",
        ),
    },
    "plugins/apis/ollama/options.py": {
        "zero-tokens-are-a-limit": (
            "options.num_predict is not None and options.num_predict < 1:",
            "options.num_predict is not None and options.num_predict < 0:",
        ),
        "window-of-no-tokens-is-ignored": (
            "window is not None and window > 0:",
            "window is not None and window >= 0:",
        ),
        "penalties-count-no-window": (
            "if options.repeat_last_n == 0:",
            "if options.repeat_last_n == -1:",
        ),
    },
    "plugins/apis/ranking/routes.py": {
        "full-unit-counts-twice": (
            "return -(-documents // DOCUMENTS_PER_UNIT)",
            "return documents // DOCUMENTS_PER_UNIT + 1",
        ),
        "both-names-of-a-field-are-accepted": (
            "    if len(given) != 1:",
            "    if not given:",
        ),
    },
    "plugins/apis/text_tools/schema.py": {
        "content-has-special-tokens": (
            "next((each for each in wanted if each is not None), vllm)",
            "next((each for each in wanted if each is not None), True)",
        ),
    },
    "plugins/caches/paged/kind.py": {
        "scales-of-values-take-no-memory": (
            "scales = 2 * SCALE.itemsize if",
            "scales = SCALE.itemsize if",
        ),
    },
    "plugins/caches/recurrent/kind.py": {
        "state-is-read-from-the-next-block": (
            "last = lengths - starts.diff() - 1",
            "last = lengths - starts.diff()",
        ),
        "each-row-saves-its-state": (
            "torch.where(is_last, blocks, -1)",
            "torch.where(is_last, blocks, blocks)",
        ),
        "block-is-released-before-it-is-published": (
            "return max(0, (length - 1) // self.block - 1)",
            "return max(0, (length - 1) // self.block)",
        ),
    },
    "plugins/checkpoints/gguf/header.py": {
        "tensor-may-pass-the-end-of-the-file": (
            "if data + offset + nbytes > self._file.size:",
            "if data + offset > self._file.size:",
        ),
        "arrays-nest-without-limit": (
            "        if depth > MAX_DEPTH:",
            "        if depth > MAX_ITEMS:",
        ),
    },
    "plugins/checkpoints/gguf/reader.py": {
        "order-of-splits-is-not-checked": (
            'if (extra.get("split.no"), extra.get("split.count")) != (number, len(paths)):',
            'if extra.get("split.count") != len(paths):',
        ),
    },
    "plugins/checkpoints/safetensors/reader.py": {
        "bytes-may-follow-the-last-tensor": (
            "    if expected != size:",
            "    if expected > size:",
        ),
        "shard-may-link-out-of-the-folder": (
            "if not found.is_relative_to(_link_root(folder.resolve())):",
            "if not found.exists():",
        ),
    },
    "plugins/logits/grammar/compiler.py": {
        "vocabularies-share-compiled-grammars": (
            'hashlib.sha256(f"{key} ".encode() + data)',
            "hashlib.sha256(data)",
        ),
    },
    "plugins/logits/grammar/endless.py": {
        "first-items-alone-are-required": (
            "if least > len(first) else []",
            "if least < 0 else []",
        ),
        "finite-branch-is-not-enough": (
            "if branches and not any(",
            "if branches and not all(",
        ),
    },
    "plugins/logits/grammar/masks.py": {
        "steps-wait-for-slow-rows": (
            "            if row.slow:",
            "            if row.slow and False:",
        ),
        "older-masks-are-used": (
            "if self.tokens or self.masks is None",
            "if self.masks is None",
        ),
        "masks-have-no-time-limit": (
            "if seconds > MAX_TOKEN:",
            "if seconds > 1000 * MAX_TOKEN:",
        ),
        "rows-behind-a-slow-one-stay-busy": (
            "self.rows.pop().busy = False",
            "self.rows.pop()",
        ),
    },
    "plugins/logits/grammar/worker.py": {
        "answers-behind-other-output-are-not-checked": (
            "if key not in ENCLOSING}",
            'if key != "after"}',
        ),
    },
    "plugins/logits/grammar/parameter.py": {
        "marker-may-be-empty": (
            "0 < len(marker) <= MAX_MARKER",
            "len(marker) <= MAX_MARKER",
        ),
    },
    "plugins/logits/grammar/processor.py": {
        "preempted-output-is-not-read": (
            "GrammarRow(matcher, self.words, list(request.output))",
            "GrammarRow(matcher, self.words, [])",
        ),
        "masks-of-drafts-take-one-row": (
            "row, end = self.rows[request.row], first + 1 + len(request.drafts)",
            "row, end = self.rows[request.row], first + 1",
        ),
        "busy-rows-are-computed-twice": (
            "if not row.busy and not row.error and row",
            "if not row.error and row",
        ),
    },
    "plugins/parsers/json_calls.py": {
        "bare-object-is-a-call-of-any-tool": (
            "and (not self.strict or self.name in parser.tools)",
            "and (not self.strict or bool(parser.tools))",
        ),
    },
    "plugins/parsers/turn.py": {
        "a-constrained-text-excludes-calls": (
            "({write_answer(cls, rules)} | {begin} {calls})",
            "({write_answer(cls, rules)})",
        ),
        "quoted-calls-in-reasoning-are-calls": (
            "        while not first(self.held, stops)[1]:",
            "        while True:",
        ),
        "calls-in-reasoning-need-no-end": (
            "if not ends or ends < sum(",
            "if not ends and 0 == sum(",
        ),
        "space-before-a-marker-is-text": (
            "emit(text if exact else text.rstrip())",
            "emit(text)",
        ),
        "space-before-a-marker-is-sent-early": (
            "return len(known if exact else known.rstrip())",
            "return len(known)",
        ),
    },
    "plugins/parsers/tagged_values.py": {
        "number-of-a-text-parameter-stays": (
            "return as_text if may_be_text and not allows(kinds, value) else bare",
            "return bare",
        ),
        "values-of-an-enumeration-are-not-compared": (
            '(name, "") in kinds or (name, written(value)) in kinds',
            "any(kind == name for kind, _ in kinds)",
        ),
    },
    "plugins/parsers/lark.py": {
        "a-text-goes-on-behind-its-tag": (
            'self.terminal(f"(?:{expression}){code(marker)}", "[lazy]")',
            'self.terminal(f"(?:{expression}){code(marker)}")',
        ),
    },
    "plugins/parsers/regular.py": {
        "rules-may-double-without-end": (
            "self.length += len(items[-1])",
            "self.length = len(items[-1])",
        ),
    },
    "plugins/parsers/json_strings.py": {
        "modes-outlive-their-group": (
            "modes = outer.pop()",
            "outer.pop()",
        ),
    },
    "plugins/parsers/xml_calls.py": {
        "any-function-without-a-marker-is-a-call": (
            "(bare and (found != end or name not in self.unconstrained))",
            "(bare and found != end)",
        ),
        "the-end-of-a-function-in-a-value-ends-it": (
            "ended = yield from self.precedes_calls()",
            "ended = True",
        ),
    },
    "plugins/pipelines/fetch.py": {
        "one-public-address-is-enough": (
            "if not numbers or not all(is_public(number) for number in numbers):",
            "if not numbers or not any(is_public(number) for number in numbers):",
        ),
        "each-medium-may-have-all-bytes": (
            "        left -= len(found[source])",
            "        len(found[source])",
        ),
        "addresses-of-6to4-are-public": (
            '"2002::/16",',
            '"2002::/32",',
        ),
    },
    "plugins/pipelines/image/pipeline.py": {
        "one-preview-too-many": (
            "previews < drawing.previews",
            "previews <= drawing.previews",
        ),
        "images-share-one-seed": (
            '"seeds": [seed + i for i in range(drawing.n)]',
            '"seeds": [seed for i in range(drawing.n)]',
        ),
        "pixels-are-limited-by-width-alone": (
            "min(width, height) < 1 or width * height > MAX_PIXELS",
            "min(width, height) < 1 or width > MAX_PIXELS",
        ),
    },
    "plugins/pipelines/speech/pipeline.py": {
        "infinite-option-is-accepted": (
            "if not real or not math.isfinite(value):",
            "if not real:",
        ),
        "longest-text-is-refused": (
            "if len(text) > MAX_TEXT:",
            "if len(text) >= MAX_TEXT:",
        ),
    },
    "plugins/pipelines/speech/sound.py": {
        "opus-is-not-resampled": (
            "sound = self.at(rate_of(format, self.rate))",
            "sound = self",
        ),
    },
    "plugins/pipelines/text/best.py": {
        "best-choice-is-the-shortest": (
            "return choice.logprob / choice.tokens if choice.tokens",
            "return choice.logprob if choice.tokens",
        ),
    },
    "plugins/pipelines/text/choice.py": {
        "stop-counts-one-token-early": (
            "stops = self.tokens > self._min_tokens",
            "stops = self.tokens >= self._min_tokens",
        ),
        "cut-answer-ends-with-calls": (
            'if finish == "stop" and self._called and not isinstance',
            "if self._called and not isinstance",
        ),
        "token-ids-have-logprobs": (
            "[entry for _, _, entry in due] if self._logprobs else None",
            "[entry for _, _, entry in due]",
        ),
    },
    "plugins/pipelines/text/infill.py": {
        "suffix-follows-the-prefix": (
            "return [self.suffix, *after, self.prefix, *before]",
            "return [self.prefix, *before, self.suffix, *after]",
        ),
    },
    "plugins/pipelines/text/sampling.py": {
        "constraint-and-grammar-of-a-processor": (
            "if GRAMMAR in processors:",
            "if False:",
        ),
        "best-of-may-be-less-than-n": (
            "not (request.n or 1) <= request.best_of <= MAX_BEST_OF",
            "not 1 <= request.best_of <= MAX_BEST_OF",
        ),
    },
    "plugins/logits/grammar/schema.py": {
        "parts-of-a-combined-schema-are-closed": (
            "if id(schema) not in combined and not self.branches[id(schema)]:",
            "if True:",
        ),
        "objects-stay-open": ("        self.close_objects()", "        pass"),
    },
    "plugins/logits/reasoning_budget/processor.py": {
        "one-more-token-of-reasoning": (
            "if not self.inside or self.spent < self.budget.tokens or",
            "if not self.inside or self.spent <= self.budget.tokens or",
        ),
        "a-character-is-cut": (" or is_cut(self.tail):", ":"),
        "drafts-are-kept": ("progress = copy(progress)", "progress = progress"),
        "reasoning-that-the-model-begins-is-not-limited": (
            "Progress(budget, budget.open)",
            "Progress(budget, True)",
        ),
    },
    "plugins/pipelines/text/parsing.py": {
        "formats-that-a-parser-ignores": (
            "if free != [*tools] and lark == kind.grammar(",
            "if not free and lark == kind.grammar(",
        ),
        "precedence-of-parsers-is-ignored": (
            "if precedence == highest]",
            "]",
        ),
        "every-model-may-begin-with-reasoning": (
            "reasons = reasons and self.reasons and not opened and not closed",
            "reasons = True",
        ),
        "reasoning-of-the-prompt-is-constrained": (
            "if markers and opened:",
            "if False:",
        ),
    },
    "plugins/pipelines/text/prepare.py": {
        "request-cannot-fill-the-context": (
            "if prompt + fewest <= context:",
            "if prompt + fewest < context:",
        ),
        "max-tokens-may-exceed-the-context": (
            "wanted = room if wanted is None else min(wanted, room)",
            "wanted = room if wanted is None else wanted",
        ),
        "a-grammar-of-the-whole-output-is-enclosed": (
            "answer is not None and (",
            "False and (",
        ),
    },
    "plugins/pipelines/text/conversation.py": {
        "result-of-a-tool-without-its-call": (
            'if message.role == "tool" and message.tool_call_id not in known:',
            "if False:",
        ),
        "empty-reasoning-is-not-reasoning": (
            'message.role == "assistant" and message.reasoning is not None',
            'message.role == "assistant" and message.reasoning',
        ),
        "final-calls-need-no-results": (
            "elif messages[-1].tool_calls and request.add_generation_prompt is not False:",
            "elif False:",
        ),
    },
    "plugins/pipelines/text/tools.py": {
        "strict-is-written-to-the-prompt": (
            '"parameters": parameters, **tool.extra}',
            '"parameters": parameters, "strict": tool.strict, **tool.extra}',
        ),
        "calls-are-not-parallel-by-default": (
            "if parallel is False else []",
            "if parallel is not True else []",
        ),
    },
    "plugins/pipelines/transcription/rules.py": {
        "time-may-repeat": (
            "torch.where(last & ~before, time, time + 1)",
            "torch.where(last & ~before, time, time)",
        ),
    },
    "plugins/pipelines/transcription/task.py": {
        "last-token-has-a-time-without-an-end": (
            "tokens = result.tokens if result.ended else result.tokens[:-1]",
            "tokens = result.tokens",
        ),
    },
    "plugins/pipelines/transcription/transcript.py": {
        "text-may-break-a-cue": (
            'return " ".join(segment.text.split()).replace("-->", "->")',
            'return " ".join(segment.text.split())',
        ),
    },
    "plugins/pipelines/transcription/window.py": {
        "oldest-tokens-precede-a-window": ("return out[-limit:]", "return out[:limit]"),
    },
    "plugins/pipelines/vectors/pipeline.py": {
        "suffix-is-cut-off": (
            "[*ids[: max(keep - len(end), 0)], *end]",
            "[*ids[:keep], *end]",
        ),
        "document-is-cut-within-a-token": (
            "e.offsets[tokens - 1][1] if len(e) > tokens",
            "e.offsets[tokens - 1][0] if len(e) > tokens",
        ),
        "large-scores-overflow": (
            "wide = np.exp(wide - wide.max(1, keepdims=True))",
            "wide = np.exp(wide)",
        ),
        "all-dimensions-are-refused": (
            "if not 1 <= dimensions <= rows.shape[1]:",
            "if not 1 <= dimensions < rows.shape[1]:",
        ),
    },
    "plugins/sources/files.py": {
        "last-split-may-be-missing": (
            "for i in range(1, int(total) + 1))",
            "for i in range(1, int(total)))",
        ),
    },
    "plugins/sources/hub/download.py": {
        "name-may-leave-the-folder": (
            'if path.is_absolute() or ".." in path.parts or',
            "if path.is_absolute() or",
        ),
        "client-error-uses-the-cache": (
            "return error.response.status_code >= 500",
            "return error.response.status_code >= 400",
        ),
        "token-keeps-its-line-break": ("return found.strip()", "return found"),
    },
    "plugins/speculation/ngram/proposer.py": {
        "last-run-finds-itself": (
            "for end in range(self.indexed[row], len(tokens)):",
            "for end in range(self.indexed[row], len(tokens) + 1):",
        ),
        "row-keeps-the-runs-of-the-request-before": (
            "        if request.started:",
            "        if request.started and not self.indexed[row]:",
        ),
    },
    "plugins/stores/memory/store.py": {
        "kept-blob-is-released": ("if found.blob != keep:", "if found.blob:"),
        "document-lives-at-its-end": (
            "document.expires > self.clock()",
            "document.expires >= self.clock()",
        ),
    },
    "plugins/stores/sqlite/store.py": {
        "kept-blob-is-deleted": ("        if blob != document.blob:", "        if blob:"),
        "normal-clocks-shorten-lives": (
            "(now, now, now + CLOCK_SECONDS),",
            "(now, now, now),",
        ),
    },
    "plugins/tokenizers/pieces.py": {
        "equal-scores-merge-backwards": (
            "key=lambda id: (-self.scores[id], id),",
            "key=lambda id: (-self.scores[id], -id),",
        ),
    },
    "plugins/tokenizers/sentencepiece.py": {
        "field-may-pass-the-end": (
            "if size > len(data) - at:",
            "if size > len(data):",
        ),
        "legacy-model-adds-one-space-only": (
            '"always" if legacy else "first"',
            '"first" if legacy else "always"',
        ),
    },
}

ENTRYPOINTS: Mapping[str, Mapping[str, Change]] = {
    "entrypoints/operations/tasks/truncation.py": {
        "truncation-leaves-no-room": (
            "room = min(context // ROOM, context if max_tokens is None else max_tokens)",
            "room = 1",
        ),
    },
    "entrypoints/cli/launch/script.py": {
        "the-script-splits-words": (
            "map(quoted, (program.command",
            "map(str, (program.command",
        ),
    },
    "entrypoints/open.py": {
        "two-matching-parsers-are-a-conflict": (
            "record.precedence == highest and record.matches(",
            "record.matches(",
        ),
    },
    "plugins/apis/ollama/conversion.py": {
        "results-stay-without-their-call": (
            'and rest[0].role == "tool":',
            'and rest[0].role == "none":',
        ),
    },
    "plugins/parsers/section_calls.py": {
        "a-name-alone-is-no-call": (
            "if marker in ends and name in self.unconstrained:",
            "if not marker and name in self.unconstrained:",
        ),
    },
    "plugins/pipelines/text/tool_support.py": {
        "any-number-of-ends-is-one-call": (
            "if self.names != [NAME] or self.ended != 1:",
            "if self.names != [NAME]:",
        ),
    },
    "entrypoints/cli/chat/repetition.py": {
        "repetition-ends-one-token-late": (
            "count + i + 1 >= LENGTH",
            "count + i + 1 > LENGTH",
        ),
    },
    "entrypoints/cli/config_file.py": {
        "literal-token-is-printed": (
            'is_public = key == "token_source" and not str(value).startswith("literal:")',
            'is_public = key == "token_source"',
        ),
        "true-is-a-number": (
            "isinstance(value, types[name]) and not isinstance(value, bool)",
            "isinstance(value, types[name])",
        ),
    },
    "entrypoints/cli/keys.py": {
        "others-may-read-the-keys": (
            "os.O_RDWR | os.O_CREAT, 0o600)",
            "os.O_RDWR | os.O_CREAT, 0o644)",
        ),
    },
    "entrypoints/operations/models/service.py": {
        "tag-latest-hides-an-adapter-latest": (
            "if name.endswith(LATEST) and not exists(self, target):",
            "if name.endswith(LATEST):",
        ),
    },
    "entrypoints/python/answer.py": {
        "interrupt-loses-text": (
            "            events += self._continuation.add(output)",
            "            self._continuation.add(output)",
        ),
        "stopped-choice-goes-on": ("if ended and output.finish is None:", "if False:"),
        "one-answer-of-several": (
            "range(self._continuation.request.sampling.n)",
            "range(1)",
        ),
    },
    "entrypoints/python/requests.py": {
        "older-name-wins": ("if new in stated:", "if False:"),
        "choice-of-tools-is-dropped": (
            "request.allowed_tools = calls.mode, calls.tools",
            "request.allowed_tools = None, calls.tools",
        ),
        "media-follow-texts": (
            "[media.get(i, part) for i, part in",
            "[media.get(i + 1, part) for i, part in",
        ),
    },
    "entrypoints/operations/requests/ignored.py": {
        "names-of-clients-are-unbounded": ("if len(names) < MAX_NAMES:", "if True:"),
        "lines-of-the-log-are-unbounded": (
            "if name not in LOGGED and len(LOGGED) < MAX_LOGGED:",
            "if name not in LOGGED:",
        ),
        "header-has-any-characters": ('UNSAFE.sub("?", INDEX', '(lambda _, x: x)("?", INDEX'),
        "strict-requests-ignore-fields": ("None if strict else names", "names"),
    },
    "entrypoints/operations/requests/known_fields.py": {
        "first-struct-of-a-union-is-taken": (
            "if struct.tag_field is None or len(structs) == 1:",
            "if True:",
        ),
        "items-are-not-read": (
            "if (item := item_type(type)) is not None:",
            "if (item := None) is not None:",
        ),
    },
    "entrypoints/api/openai/responses/items.py": {
        "reasoning-of-clients-is-not-read": (
            "if encrypted is None or not encrypted.startswith(CARRIED):",
            "if True:",
        ),
        "failed-patch-is-stored-as-completed": (
            "return replace(item, id=id)",
            'return replace(item, id=id, status="completed")',
        ),
    },
    "entrypoints/api/openai/responses/tools.py": {
        "hosted-tool-is-one-of-the-client": (
            'return kind in HOSTED and self.execution != "client"',
            "return kind in HOSTED",
        ),
        "names-for-the-model-are-ambiguous": ("if function.name in names:", "if False:"),
        "deferred-tools-are-in-the-prompt": (
            "if not (searches and function.tool.defer_loading is True)",
            "if True",
        ),
    },
    "plugins/apis/anthropic/client_tools.py": {
        "fields-of-other-types-are-read": (
            "return replace(tool, **dict.fromkeys(unknown))",
            "return tool",
        ),
    },
    "plugins/apis/anthropic/context_editing.py": {
        "results-begin-a-turn": (
            'if message.role == "user" and (isinstance(message.content, str) or not all(results)):',
            'if message.role == "user":',
        ),
        "tools-that-are-kept-are-cleared": (
            "if call.name not in (self.exclude_tools or ())}",
            "}",
        ),
        "least-tokens-are-not-compared": (
            "if self.clear_at_least is not None and tokens < self.clear_at_least.value:",
            "if False:",
        ),
    },
    "entrypoints/api/openai/responses/client_items.py": {
        "call-with-other-arguments-is-complete": (
            'self.status = "incomplete"',
            "pass",
        ),
        "local-shell-call-has-two-ids": (
            'begun["call_id"] = begun["id"] = new_id("lsh_")',
            'begun["id"] = new_id("lsh_")',
        ),
    },
    "entrypoints/api/openai/responses/runner.py": {
        "turn-of-a-cancelled-response-stays": (
            "if stored is None or stored.status != done.status:",
            "if stored is None:",
        ),
    },
    "entrypoints/api/openai/chat_choices.py": {
        "inputs-of-other-choices-end-with-the-first": (
            "self.arguments.pop(event.index, {}).items()",
            "self.arguments.pop(0, {}).items()",
        ),
    },
    "entrypoints/api/openai/thinking.py": {
        "fields-of-one-meaning-may-differ": (
            "if any(value != first for value in given.values()):",
            "if False:",
        ),
        "thinking-off-is-no-effort": (
            '("enable_thinking", "none" if switch is False else None)',
            '("enable_thinking", None)',
        ),
    },
    "entrypoints/api/openai/bodies.py": {
        "newer-name-of-a-limit-is-ignored": (
            'return [("max_completion_tokens", self.max_completion_tokens), *super().limits]',
            "return super().limits",
        ),
        "no-limit-of-llama-cpp-is-a-limit": (
            "predicted = None if self.n_predict == -1 else self.n_predict",
            "predicted = self.n_predict",
        ),
        "token-id-may-have-other-digits": (
            "if not (key.isascii() and key.isdigit() and len(key) < 12):",
            "if not (key.isdigit() and len(key) < 12):",
        ),
    },
    "entrypoints/api/openai/constraints.py": {
        "two-constraints-of-an-answer": (
            "if len(constraints) > 1:",
            "if len(constraints) > 2:",
        ),
        "gbnf-is-read-as-lark": (
            'TextGrammar("gbnf" if is_gbnf else "lark", text)',
            'TextGrammar("lark", text)',
        ),
    },
    "entrypoints/api/openai/messages.py": {
        "result-of-a-function-is-not-that-of-its-call": (
            'called.get(message.name or "", f"function {message.name}")',
            'f"function {message.name}"',
        ),
        "refusal-is-not-part-of-the-prompt": (
            "read_content(message.refusal or message.content, where)",
            "read_content(message.content, where)",
        ),
    },
    "entrypoints/api/openai/tools.py": {
        "fields-of-custom-tools-are-those-of-functions": (
            'if FIELD.match(error.param or ""):',
            "if False:",
        ),
        "forced-function-is-one-of-all-tools": (
            'return AllowedCalls("required", [chosen_name(choice)])',
            'return AllowedCalls("required")',
        ),
    },
    "entrypoints/api/openai/text.py": {
        "each-chunk-has-the-role": (
            "to_choices(event, event.index not in begun)",
            "to_choices(event, True)",
        ),
        "usage-is-in-each-chunk": (
            "types.usage(generation.usage) if continuous else None",
            "types.usage(generation.usage)",
        ),
    },
    "entrypoints/http/handlers.py": {
        "route-does-not-limit-forms": (
            "read_form(request, MAX_FILES, body.max_bytes)",
            "read_form(request, MAX_FILES)",
        ),
        "work-of-a-client-that-left-goes-on": (
            "if route.is_cancelled_on_disconnect:",
            "if not route.is_cancelled_on_disconnect:",
        ),
        "status-of-content-is-lost": (
            "return Response(result.data, result.status",
            "return Response(result.data, 200",
        ),
    },
    "core/load/sizes.py": {
        "a-sample-stands-for-few-rows": ("if rows > FEW_ROWS:", "if True:"),
    },
    "entrypoints/operations/documents/documents.py": {
        "a-runner-serves-every-model": (
            "runner.knows, runner.serves = self.knows, partial(serves, self.service)",
            "runner.knows = self.knows",
        ),
        "runners-are-forgotten": ("self.runners.append(runner)", "pass"),
    },
    "entrypoints/api/openai/store.py": {
        "the-runner-of-responses-is-not-notified": (
            "responses.notify = runner.notify",
            "pass",
        ),
    },
    "entrypoints/operations/executor.py": {
        "batches-are-strict": (
            "with ignoring(operations.strict_fields):",
            "with ignoring(True):",
        ),
        "form-is-a-request-of-a-batch": (
            "and not route.header and not route.is_form)",
            "and not route.header)",
        ),
        "background-has-priority": (
            "caller, key = low(named[0]), named[1]",
            "caller, key = named",
        ),
        "batches-ignore-the-scope": (
            "caller.require(route.scope)",
            'caller.require("open")',
        ),
        "batches-take-any-size": (
            "if len(data) > limit:",
            "if len(data) > 2 * limit:",
        ),
        "batches-run-before-others": (
            "operations, low(caller), quotas",
            "operations, caller, quotas",
        ),
    },
    "entrypoints/operations/requests/event_formats.py": {
        "events-have-no-name": (
            'b"" if tag is None else',
            'b"" if tag else',
        ),
    },
    "entrypoints/api/openai/images.py": {
        "batch-makes-urls": ('if base_url() == "/":', 'if base_url() == "":'),
    },
    "entrypoints/api/openai/image_bodies.py": {
        "strength-is-lost": (
            "request.strength = self.strength",
            "request.strength = None",
        ),
    },
    "entrypoints/api/openai/transcriptions.py": {
        "words-have-no-times": (
            'words="word" in (self.timestamp_granularities or ()),',
            "words=False,",
        ),
    },
    "entrypoints/http/fields.py": {
        "texts-of-forms-are-not-checked": (
            "check_text(msgspec.json.encode(given))",
            "msgspec.json.encode(given)",
        ),
    },
    "entrypoints/http/forms.py": {
        "first-of-several-files-is-taken": ("elif len(uploads) == 1:", "elif uploads:"),
    },
    "entrypoints/http/body.py": {
        "browser-may-send-any-type": (
            'not (any_type and "origin" not in request.headers):',
            "not any_type:",
        ),
    },
    "entrypoints/http/errors.py": {
        "retry-comes-too-early": (
            '"retry-after": str(max(1, ceil(seconds)))',
            '"retry-after": str(max(1, int(seconds)))',
        ),
    },
    "entrypoints/operations/requests/json_scanner.py": {
        "deepest-body-is-refused": (
            "if len(self.names) > MAX_DEPTH:",
            "if len(self.names) >= MAX_DEPTH:",
        ),
    },
    "entrypoints/http/middleware.py": {
        "root-opens-all-routes": (
            'if path.endswith("/") and path != "/"]',
            'if path.endswith("/")]',
        ),
        "two-keys-are-accepted": (
            "if not given or given.count(given[0]) < len(given):",
            "if not given:",
        ),
        "host-in-capitals-is-refused": (
            'return name.lower().rstrip(".") in self.hosts',
            'return name.rstrip(".") in self.hosts',
        ),
    },
    "entrypoints/http/stream.py": {
        "events-go-on-without-a-client": (
            "            await self.events.aclose()",
            "            pass",
        ),
    },
    "entrypoints/operations/access/admission.py": {
        "jobs-lose-their-priority": (
            "return replace(request, priority=priority)",
            "return request",
        ),
        "ended-request-still-counts": (
            "        found.quota.leave()",
            "        found.quota",
        ),
        "own-requests-count-as-others": (
            "if self.rows == own.rows:",
            "if not self.rows:",
        ),
    },
    "entrypoints/operations/documents/batch_lines.py": {
        "results-are-read-without-a-limit": ("max_bytes=PAGE_BYTES,", "max_bytes=None,"),
        "background-is-accepted-in-a-batch": (
            'for name in ("stream", "background"):',
            'for name in ("stream",):',
        ),
        "cancelled-request-counts-as-run": (
            "result.error.code in (EXPIRED, CANCELLED)",
            "result.error.code == EXPIRED",
        ),
    },
    "entrypoints/operations/documents/batches.py": {
        "batch-is-cancelled-while-it-finalizes": (
            'if batch.status in ("cancelling", "finalizing"):',
            'if batch.status == "cancelling":',
        ),
    },
    "entrypoints/operations/documents/files.py": {
        "full-page-has-more": (
            "return FilePage(found[: request.limit], len(found) > request.limit)",
            "return FilePage(found[: request.limit], len(found) >= request.limit)",
        ),
    },
    "entrypoints/operations/access/keys.py": {
        "digests-in-capitals-are-other-keys": (
            '{**entry, "sha256": sha256.lower()}',
            '{**entry, "sha256": sha256}',
        ),
    },
    "entrypoints/operations/access/quotas.py": {
        "one-request-too-many-at-a-time": (
            "self.usage.running >= self.concurrent:",
            "self.usage.running > self.concurrent:",
        ),
        "tokens-beyond-the-reservation-are-free": (
            "self.bucket.take(used - self.amount)",
            "self.bucket.take(0)",
        ),
    },
    "entrypoints/operations/documents/held_documents.py": {
        "request-releases-nothing": (
            "own.releases.append(partial(self.release, own))",
            "own.releases.append(partial(self.release, own, 0))",
        ),
        "one-caller-holds-all": (
            "if self.callers[name] + nbytes > self.caller:",
            "if nbytes > self.caller:",
        ),
    },
    "entrypoints/api/openai/responses/store.py": {
        "reference-counts-once": ("for _ in range(times):", "for _ in range(1):"),
    },
    "entrypoints/api/openai/responses/watch.py": {
        "cancelled-response-goes-on": (
            "over = job is None or msgspec.json.decode(job.body, type=Job).cancelled",
            "over = job is None",
        ),
    },
    "entrypoints/operations/documents/uploads.py": {
        "md5-in-capitals-is-refused": (
            "digest.hexdigest() != request.md5.lower():",
            "digest.hexdigest() != request.md5:",
        ),
        "part-may-be-listed-twice": (
            "if len(set(request.part_ids)) < len(request.part_ids):",
            "if not request.part_ids:",
        ),
    },
    "entrypoints/bench/kernels.py": {
        "wrong-results-may-be-fast": (
            "return bool(((result - expected).abs() <= TOLERANCE * most).all())",
            "return result.shape == expected.shape",
        ),
        "gain-shows-once": ("        if least > usual * GAIN:", "        if least > usual:"),
        "first-calls-only": (
            "if self.call is not None and len(site.calls) < CALLS:",
            "if self.call is not None and not site.calls:",
        ),
    },
    "entrypoints/bench/profile.py": {
        "nested-calls-count-twice": (
            "self.seconds[name] += elapsed - self.nested",
            "self.seconds[name] += elapsed",
        ),
    },
    "entrypoints/http/workers/forwarding.py": {
        "form-is-not-forwarded": ("if route.is_form:", "if not route:"),
        "forwarded-request-has-no-address": (
            "BASE_URL.set(record.base_url)",
            "BASE_URL.set(None)",
        ),
    },
    "entrypoints/http/workers/connection.py": {
        "change-is-not-published": (
            "if message.method not in READS:",
            "if message.method in READS:",
        ),
    },
    "entrypoints/http/base_url.py": {
        "empty-ids-are-routes": (
            'if match is not Match.NONE and "" not in matched.get("path_params", {}).values():',
            "if match is not Match.NONE:",
        ),
    },
    "entrypoints/http/workers/messages.py": {
        "error-loses-its-field": (
            "return kind(self.message, param=self.param)",
            "return kind(self.message)",
        ),
    },
    "entrypoints/http/workers/pool.py": {
        "loaded-again-is-not-noticed": (
            "        if known is not model:",
            "        if known is None:",
        ),
        "worker-gets-the-admin-key": (
            'left_out = ("api_keys", "admin_key", ',
            'left_out = ("api_keys", ',
        ),
        "no-workers-are-accepted": ("    if count < 1:", "    if count < 0:"),
    },
}

MUTANTS = tuple(
    Mutant(name, file, old, new)
    for files in (CORE, MODELS, PLUGINS, ENTRYPOINTS)
    for file, changes in files.items()
    for name, (old, new) in changes.items()
)
