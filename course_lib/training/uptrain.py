"""What fewer KV heads cost `tiny-mha`: merged, merged and trained further, trained from scratch (arXiv 2305.13245).

    python -m course_lib.training.uptrain --work tiny-train

WORK holds the token files that `train_tiny --prepare` writes. A run that the JSON file has already is not repeated, so
the command can be stopped and started again; each run takes at most a few minutes, from scratch as long as the twin.

As in the paper (sections 2.1 and 3.3), a merged model is trained for a share of the steps of the first training. Each
share is a run of its own, with a warm-up and a cosine of its own, on windows of 512 tokens, as in the score. The twin's
learning rate had fallen to 2 % of its peak, and a rise costs a good model more than a damaged one. So each number of
heads gets the peak that trains best in a sweep; with as many heads as before, that rise is all the cost there is.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm
from transformers import LlamaForCausalLM

from course_lib.bench.report import conditions, write_json
from course_lib.files import read_json
from course_lib.training.convert_heads import pool_projections
from course_lib.training.recipes import RECIPES, Recipe
from course_lib.training.trainer import STEP_TOKENS, Trainer, score, train

TWIN = RECIPES["mha"]
HEADS = (8, 4, 2, 1)  # the twin has the first
SHARES = (0.0, 0.01, 0.02, 0.05, 0.1)  # of the twin's steps
WARMUP = 0.1  # share of the run
PEAKS, SWEEP_SHARE = (1e-3, 2e-3, 4e-3), 0.02  # the peaks that are tried, and for how long
WINDOW = 512  # tokens
RESULT = Path(__file__).resolve().parents[1] / "facts" / "uptraining.json"


def with_heads(kv_heads: int) -> Recipe:
    """The twin with another number of KV heads, and with the steps of the twin and of the longest up-training."""
    steps = TWIN.steps + round(max(SHARES) * TWIN.steps)
    return replace(TWIN, shape={**TWIN.shape, "num_key_value_heads": kv_heads}, steps=steps)


def merged(kv_heads: int, how: str, seed: int) -> LlamaForCausalLM:
    """The shipped twin, in float32, with its KV heads merged."""
    twin = LlamaForCausalLM.from_pretrained(TWIN.folder, dtype=torch.float32)
    model = with_heads(kv_heads).new_model()
    model.load_state_dict(pool_projections(twin.state_dict(), HEADS[0], kv_heads, how, seed))
    return model


def trained(
    kv_heads: int, how: str, share: float, seed: int, peak: float, ids: np.ndarray
) -> tuple[LlamaForCausalLM, float | None]:
    """Merge and train. Returns the model and its mean loss over the last fifth of the steps, None without steps."""
    model, steps = merged(kv_heads, how, seed), round(share * TWIN.steps)
    warmup = max(1, round(WARMUP * steps))
    # The twin saw the batches of seed 1; other batches of the same text come here.
    trainer = Trainer(model, ids, steps, peak, 1000 + seed, warmup, phases=((1.0, WINDOW),))
    name = f"{kv_heads} KV heads, {how}, {share:.0%}, peak {peak}"
    losses = [trainer.step(step) for step in tqdm(range(steps), desc=name, leave=False)]
    return model, float(np.mean(losses[-max(1, steps // 5) :])) if losses else None


def try_peak(kv_heads: int, peak_lr: float, seed: int, work: Path) -> dict:
    """One run of the sweep. It is judged by its training loss, so that no held-out token has a say in it."""
    loss = trained(kv_heads, "mean", SWEEP_SHARE, seed, peak_lr, np.load(work / "train.npy"))[1]
    return {"kv_heads": kv_heads, "peak_lr": peak_lr, "seed": seed, "train_loss_of_last_fifth": loss}


def best_peak(sweep: list[dict], kv_heads: int) -> float:
    """The peak learning rate with the lowest loss for this number of heads."""
    runs = [run for run in sweep if run["kv_heads"] == kv_heads]
    return min(runs, key=lambda run: run["train_loss_of_last_fifth"])["peak_lr"]


def uptrain(kv_heads: int, how: str, share: float, seed: int, peak_lr: float, work: Path) -> dict:
    """Merge, train for a share of the twin's steps, and score on all held-out tokens."""
    model, loss = trained(kv_heads, how, share, seed, peak_lr, np.load(work / "train.npy"))
    steps = round(share * TWIN.steps)
    return {
        "kv_heads": kv_heads,
        "how": how,
        "share": share,
        "seed": seed,
        "peak_lr": peak_lr,
        "steps": steps,
        "tokens": steps * STEP_TOKENS,
        "train_loss_of_last_fifth": loss,
        **held_out(model, np.load(work / "held.npy")),
    }


def from_scratch(kv_heads: int, how: str, seed: int, work: Path) -> dict:
    """Train a model that has `kv_heads` from its first step on; continues from its checkpoint in WORK."""
    recipe, name = with_heads(kv_heads), f"scratch-{kv_heads}-{seed}"
    train(name, recipe, work, seed)
    model = recipe.new_model()
    model.load_state_dict(torch.load(work / f"{name}.pt")["model"])
    return {
        "kv_heads": kv_heads,
        "how": how,
        "seed": seed,
        "peak_lr": recipe.lr,
        "steps": recipe.steps,
        "tokens": recipe.steps * STEP_TOKENS,
        **held_out(model, np.load(work / "held.npy")),
    }


def held_out(model: LlamaForCausalLM, held: np.ndarray) -> dict[str, float]:
    """Loss in nats per token and perplexity; the protocol is that of `score`."""
    loss = score(model.eval(), held, WINDOW)[0].double().mean().item()
    return {"held_out_loss": loss, "perplexity": float(np.exp(loss))}


def plan(seed: int) -> Iterator[dict]:
    """The runs after a merge, short ones first. "first" and "random" are the paper's baselines, at 0 and 5 %."""
    for share in SHARES:
        for kv_heads in HEADS:
            yield {"kv_heads": kv_heads, "how": "mean", "share": share, "seed": seed}
    for share in (0.0, 0.05):
        for how in ("first", "random"):
            for kv_heads in HEADS[1:]:
                yield {"kv_heads": kv_heads, "how": how, "share": share, "seed": seed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("tiny-train"), help="folder of token files and checkpoints")
    parser.add_argument("--json", type=Path, default=RESULT, help="the file of results, read and written")
    parser.add_argument("--seed", type=int, default=1, help="of random heads, the order of the data and first weights")
    parser.add_argument("--no-scratch", action="store_true", help="leave out the models trained from scratch")
    args = parser.parse_args()
    torch.set_num_threads(1)
    held_tokens = len(np.load(args.work / "held.npy"))
    found = read_json(args.json) if args.json.exists() else {"sweep": [], "runs": []}
    sweep, runs = found["sweep"], found["runs"]

    def add(to: list[dict], wanted: dict, make: Callable[..., dict]) -> None:
        if any(wanted.items() <= run.items() for run in to):
            return
        to.append(make(**wanted, work=args.work))
        print(" ".join(f"{key} {value}" for key, value in to[-1].items()), flush=True)
        write_json(args.json, result(sweep, runs, held_tokens))

    for kv_heads in HEADS:
        for peak in PEAKS:
            add(sweep, {"kv_heads": kv_heads, "peak_lr": peak, "seed": 1}, try_peak)
    for wanted in plan(args.seed):
        add(runs, wanted | {"peak_lr": best_peak(sweep, wanted["kv_heads"])}, uptrain)
    if not args.no_scratch:
        for kv_heads in HEADS:
            add(runs, {"kv_heads": kv_heads, "how": "from scratch", "seed": args.seed}, from_scratch)


def result(sweep: list[dict], runs: list[dict], held_tokens: int) -> dict:
    """Sweep and runs beside what they depend on."""
    return conditions(
        model=TWIN.folder.name,
        twin_steps=TWIN.steps,
        step_tokens=STEP_TOKENS,
        warmup_share=WARMUP,
        sweep_share=SWEEP_SHARE,
        threads=1,
        training=f"bf16 autocast, windows of {WINDOW} tokens",
        scoring=f"float32, non-overlapping windows of {WINDOW} held-out tokens, first token of a window not scored",
        scored_tokens=held_tokens // WINDOW * (WINDOW - 1),
    ) | {"sweep": sweep, "runs": runs}


if __name__ == "__main__":
    main()
