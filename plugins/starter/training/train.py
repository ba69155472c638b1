"""Train the starter model on generated chats: tokenizer, model, draft model and adapters.

    python -m ostro.plugins.starter.training.train --out DIR
    python -m ostro.plugins.starter.training.train --out DIR --only adapters

Nothing is downloaded. An interrupted run resumes at its last checkpoint: batch k of process r
depends only on the seed, k and r, and the learning rate is constant until its final decay.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import torch
import torch.distributed as dist
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from ostro.plugins.starter.training.chats import (
    CONTEXT,
    SEED,
    TOKENS_PER_BATCH,
    draw_batch,
    render,
    write_chat,
)
from ostro.plugins.starter.training.evaluate import (
    format_adapters,
    format_mixture,
    format_table,
    measure_accuracy,
    measure_adapters,
    measure_agreement,
    measure_mixture,
)
from ostro.plugins.starter.training.loss import mixed_precision, reply_loss
from ostro.plugins.starter.training.lowrank import Blend, Classifier
from ostro.plugins.starter.training.parallel import PROCESSES, average_gradients, spawn
from ostro.plugins.starter.training.skills import LATER_SHARES, SHARES, Shares
from ostro.plugins.starter.training.tokenizer import END, VOCAB_SIZE, train_tokenizer
from ostro.plugins.starter.training.tuning import ADAPTERS, MIXTURE, Steps, tune

WARMUP_STEPS, DECAY_SHARE = 150, 0.5
# The peak of the learning rate and the shares of the skills in each phase of training.
PHASES = [(3e-3, SHARES), (2e-3, LATER_SHARES)]
CHECKPOINT_EVERY = 100

SHAPES = {
    "model": dict(
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
    ),
    "draft": dict(
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
    ),
}


def build_model(name: str, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A randomly initialised model of `SHAPES`, float32."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.pad_token_id,
        **SHAPES[name],
    )
    return LlamaForCausalLM(config)


def build_optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(
            matrices, lr=PHASES[0][0], weight_decay=0.05, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=PHASES[0][0], betas=(0.9, 0.95), weight_decay=0.0),
    ]


def learning_rate(step: int, steps: int) -> float:
    """The share of the peak: warm-up, constant, then linear to zero over the last `DECAY_SHARE`."""
    left = (steps - step) / (DECAY_SHARE * steps)
    return min(1.0, (step + 1) / min(WARMUP_STEPS, steps // 6), left)


def plan(tokens: Sequence[int], processes: int) -> list[tuple[float, Shares]]:
    """The learning rate and the shares of each step of phases of so many tokens."""
    planned: list[tuple[float, Shares]] = []
    for count, (peak, shares) in zip(tokens, PHASES, strict=False):
        steps = count // (TOKENS_PER_BATCH * processes)
        planned += [(peak * learning_rate(step, steps), shares) for step in range(steps)]
    return planned


def train(rank: int, name: str, out: Path, tokens: Sequence[int]) -> None:
    """Run one process of the training of `name`; rank 0 logs and writes checkpoints."""
    torch.manual_seed(SEED)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out / "model")
    model = build_model(name, tokenizer)
    optimizers = build_optimizers(model)
    first, checkpoint = 0, out / f"{name}.checkpoint"
    if checkpoint.exists():
        state = torch.load(checkpoint)
        first = state["step"]
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
    # two row lengths only (see chats.py), each compiled for its static shape
    model.model.compile(dynamic=False)
    processes = dist.get_world_size()
    planned = plan(tokens, processes)
    steps = len(planned)
    started = time.monotonic()
    for step in range(first, steps):
        rate, shares = planned[step]
        ids, labels = draw_batch(tokenizer, step, rank, shares=shares)
        with mixed_precision():
            loss = reply_loss(model, ids, labels)
        loss.backward()
        average_gradients(model.parameters())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        if rank == 0 and (step % 25 == 0 or step == steps - 1):
            speed = (step + 1 - first) * TOKENS_PER_BATCH * processes / (time.monotonic() - started)
            print(f"{name} {step + 1}/{steps} loss {loss.item():.4f} {speed:.0f} tok/s", flush=True)
        if rank == 0 and ((step + 1) % CHECKPOINT_EVERY == 0 or step == steps - 1):
            save_checkpoint(checkpoint, step + 1, model, optimizers)
            save_model(model, out / name)


def save_checkpoint(
    path: Path, step: int, model: LlamaForCausalLM, optimizers: list[torch.optim.Optimizer]
) -> None:
    """Write a temporary file, then rename it, so that an interrupted run keeps a checkpoint."""
    beside = path.with_suffix(".part")
    saved = [optimizer.state_dict() for optimizer in optimizers]
    torch.save({"step": step, "model": model.state_dict(), "optimizers": saved}, beside)
    beside.replace(path)


def save_model(model: LlamaForCausalLM, folder: Path) -> None:
    """Save the model in bfloat16, with greedy decoding as its default."""
    copy = LlamaForCausalLM(model.config)
    copy.generation_config = GenerationConfig(
        do_sample=False,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(folder)


def train_models(
    out: Path, tokens: Mapping[str, Sequence[int]], items: int, processes: int
) -> None:
    """Train tokenizer, model and draft; print the model's accuracy and the draft's agreement."""
    if not (out / "model" / "tokenizer.json").exists():
        rng = Random(SEED)
        # only for its chat template, which renders the sample
        plain = train_tokenizer([])
        # with more capitals than the model is trained on, so that capital words get tokens
        sample = [render(plain, write_chat(rng, shouted=0.25)) for _ in range(20_000)]
        train_tokenizer(sample).save_pretrained(out / "model")
    for name in SHAPES:
        spawn(name, out, processes, train, name, out, tokens[name])
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out / "model")
    model, draft = (load_model(out / name) for name in SHAPES)
    print(format_table(measure_accuracy(model, tokenizer, items)))
    print(f"draft agrees on {measure_agreement(model, draft, tokenizer):.1%} of the tokens")


def train_styles(rank: int, folder: Path, out: Path, steps: Steps) -> None:
    """Run one process of the training of the adapters and their mixture."""
    tune(load_model(folder), PreTrainedTokenizerFast.from_pretrained(folder), out, steps, rank)


def train_adapters(folder: Path, out: Path, steps: Steps, items: int, processes: int) -> None:
    """Train the adapters of the model in `folder` and their mixture; print their accuracy."""
    out.mkdir(parents=True, exist_ok=True)
    spawn("adapters", out, processes, train_styles, folder, out, steps)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    blend = Blend.read(load_model(folder), ADAPTERS, out)
    print(format_adapters(measure_adapters(blend, tokenizer, items)))
    classifier = Classifier(blend.model.config.hidden_size, len(blend.linears), blend.names)
    classifier.load(out / MIXTURE)
    classifier.attach(blend)
    print(format_mixture(measure_mixture(blend, tokenizer, items // 2), blend.names))


def load_model(folder: Path) -> LlamaForCausalLM:
    """Load a saved model, in float32."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def main() -> None:
    """Train what `--out` lacks; adapters on its model, or on the shipped one with `--only`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write, or to go on in")
    parser.add_argument("--only", choices=["adapters"], help="train these on the shipped model")
    parser.add_argument(
        "--tokens",
        type=int,
        nargs=len(PHASES),
        default=[9_000_000, 5_000_000],
        help="for the model, in each phase",
    )
    parser.add_argument("--draft-tokens", type=int, default=2_000_000, help="for the draft")
    parser.add_argument("--adapter-steps", type=int, default=400, help="for the adapters")
    parser.add_argument("--spelling-steps", type=int, default=600, help="for `shout` after them")
    parser.add_argument("--mixture-steps", type=int, default=80, help="for their mixture")
    parser.add_argument("--items", type=int, default=100, help="held-out items per skill")
    parser.add_argument("--styled-items", type=int, default=20, help="held-out items per style")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="of one thread each")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.only is None:
        tokens = {"model": args.tokens, "draft": [args.draft_tokens]}
        train_models(args.out, tokens, args.items, args.processes)
    folder = (args.out if args.only is None else Path(__file__).parents[1]) / "model"
    steps = Steps(args.adapter_steps, args.spelling_steps, args.mixture_steps)
    train_adapters(folder, args.out / "adapters", steps, args.styled_items, args.processes)


if __name__ == "__main__":
    main()
