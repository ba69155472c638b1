"""Train the starter model on generated chats: tokenizer, model, draft model and adapters.

    python -m ostro.plugins.starter.training.train --out DIR
    python -m ostro.plugins.starter.training.train --out DIR --only adapters

Nothing is downloaded. An interrupted run resumes at its last checkpoint: batch k of process r
depends only on the seed, k and r, and the learning rate is constant until its final decay.
"""

import argparse
import time
from pathlib import Path
from random import Random

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from ostro.plugins.starter.training.chats import CONTEXT, SEED, TOKENS_PER_BATCH, draw_batch, render
from ostro.plugins.starter.training.evaluate import (
    format_adapters,
    format_mixture,
    format_table,
    measure_accuracy,
    measure_adapters,
    measure_agreement,
    measure_mixture,
)
from ostro.plugins.starter.training.loss import reply_loss
from ostro.plugins.starter.training.lowrank import Blend, Classifier
from ostro.plugins.starter.training.skills import converse
from ostro.plugins.starter.training.tokenizer import END, VOCAB_SIZE, train_tokenizer
from ostro.plugins.starter.training.tuning import ADAPTERS, MIXTURE, tune

PROCESSES = 2
LEARNING_RATE, WARMUP_STEPS, DECAY_SHARE = 3e-3, 200, 0.4
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
            matrices, lr=LEARNING_RATE, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def learning_rate(step: int, steps: int) -> float:
    """Warm-up, constant, then linear to zero over the last `DECAY_SHARE` of the steps."""
    left = (steps - step) / (DECAY_SHARE * steps)
    return LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS, left)


def average_gradients(model: LlamaForCausalLM) -> None:
    """Replace each gradient by its mean over the processes, with one all-reduce."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def train(rank: int, name: str, out: Path, tokens: int) -> None:
    """Run one process of the training of `name`; rank 0 logs and writes checkpoints."""
    # the processes are the parallelism, one core each
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{out}/{name}.rendezvous", rank=rank, world_size=PROCESSES
    )
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
    steps = tokens // (TOKENS_PER_BATCH * PROCESSES)
    started = time.monotonic()
    for step in range(first, steps):
        ids, labels = draw_batch(tokenizer, step, rank)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = reply_loss(model, ids, labels)
        loss.backward()
        average_gradients(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, steps)
            optimizer.step()
            optimizer.zero_grad()
        if rank == 0 and (step % 25 == 0 or step == steps - 1):
            rate = (step + 1 - first) * TOKENS_PER_BATCH * PROCESSES / (time.monotonic() - started)
            print(f"{name} {step + 1}/{steps} loss {loss.item():.4f} {rate:.0f} tok/s", flush=True)
        if rank == 0 and ((step + 1) % CHECKPOINT_EVERY == 0 or step == steps - 1):
            save_checkpoint(checkpoint, step + 1, model, optimizers)
            save_model(model, out / name)
    dist.destroy_process_group()


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


def train_models(out: Path, tokens: dict[str, int], items: int) -> None:
    """Train tokenizer, model and draft; print the model's accuracy and the draft's agreement."""
    if not (out / "model" / "tokenizer.json").exists():
        rng = Random(SEED)
        # only for its chat template, which renders the sample
        plain = train_tokenizer([])
        sample = [render(plain, converse(rng)) for _ in range(20_000)]
        train_tokenizer(sample).save_pretrained(out / "model")
    for name in SHAPES:
        # a file of an interrupted run would make the processes wait for its peers
        (out / f"{name}.rendezvous").unlink(missing_ok=True)
        mp.spawn(train, (name, out.resolve(), tokens[name]), nprocs=PROCESSES)  # type: ignore[attr-defined,no-untyped-call]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out / "model")
    model, draft = (load_model(out / name) for name in SHAPES)
    print(format_table(measure_accuracy(model, tokenizer, items)))
    print(f"draft agrees on {measure_agreement(model, draft, tokenizer):.1%} of the tokens")


def train_adapters(folder: Path, out: Path, items: int) -> None:
    """Train the adapters of the model in `folder` and their mixture; print their accuracy."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tune(load_model(folder), tokenizer, out)
    blend = Blend.read(load_model(folder), ADAPTERS, out)
    print(format_adapters(measure_adapters(blend, tokenizer, items)))
    classifier = Classifier(blend.model.config.hidden_size, len(blend.linears), blend.names)
    classifier.load(out / MIXTURE)
    classifier.attach(blend)
    print(format_mixture(measure_mixture(blend, tokenizer, items), blend.names))


def load_model(folder: Path) -> LlamaForCausalLM:
    """Load a saved model, in float32."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def main() -> None:
    """Train what `--out` lacks; adapters on its model, or on the shipped one with `--only`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write, or to go on in")
    parser.add_argument("--only", choices=["adapters"], help="train these on the shipped model")
    parser.add_argument("--tokens", type=int, default=26_000_000, help="for the model")
    parser.add_argument("--draft-tokens", type=int, default=3_072_000, help="for the draft")
    parser.add_argument("--items", type=int, default=100, help="held-out items per skill")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.only is None:
        train_models(args.out, {"model": args.tokens, "draft": args.draft_tokens}, args.items)
    folder = (args.out if args.only is None else Path(__file__).parents[1]) / "model"
    train_adapters(folder, args.out / "adapters", args.items)


if __name__ == "__main__":
    main()
