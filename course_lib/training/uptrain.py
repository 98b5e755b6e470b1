"""What fewer KV heads cost `tiny-mha`: merged, merged and trained further, trained from scratch (arXiv 2305.13245).

    python -m course_lib.training.uptrain --work tiny-train

WORK holds the token files that `train_tiny --prepare` writes. A run that the JSON file has already is not repeated, so
the command can be stopped and started again; each run takes at most a few minutes, from scratch as long as the twin.

As in the paper (sections 2.1 and 3.3), a merged model is trained for a share of the steps of the first training, with
the same peak learning rate. Warm-up and cosine are shortened to the run; each share is a run of its own. All windows
have 512 tokens, as in the score. With as many heads as before nothing is merged, and training alone shows.
"""

import argparse
from collections.abc import Iterator
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
HEADS = TWIN.shape["num_key_value_heads"]
SHARES = (0.0, 0.01, 0.02, 0.05, 0.1)  # of the twin's steps
WARMUP = 0.1  # share of the run
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
    model.load_state_dict(pool_projections(twin.state_dict(), HEADS, kv_heads, how, seed))
    return model


def uptrain(kv_heads: int, how: str, share: float, seed: int, work: Path) -> dict:
    """Merge, train for a share of the twin's steps, and score on all held-out tokens."""
    ids, held = np.load(work / "train.npy"), np.load(work / "held.npy")
    model, steps = merged(kv_heads, how, seed), round(share * TWIN.steps)
    # The twin saw the batches of seed 1; other batches of the same text come here.
    warmup = max(1, round(WARMUP * steps))
    trainer = Trainer(model, ids, steps, TWIN.lr, 1000 + seed, warmup, phases=((1.0, WINDOW),))
    name = f"{kv_heads} KV heads, {how}, {share:.0%}"
    losses = [trainer.step(step) for step in tqdm(range(steps), desc=name, leave=False)]
    tail = losses[-max(1, steps // 5) :]
    return {
        "kv_heads": kv_heads,
        "how": how,
        "share": share,
        "seed": seed,
        "steps": steps,
        "tokens": steps * STEP_TOKENS,
        "train_loss_of_last_fifth": float(np.mean(tail)) if tail else None,
        **held_out(model, held),
    }


def from_scratch(kv_heads: int, seed: int, work: Path) -> dict:
    """Train a model that has `kv_heads` from its first step on; continues from its checkpoint in WORK."""
    recipe, name = with_heads(kv_heads), f"scratch-{kv_heads}-{seed}"
    train(name, recipe, work, seed)
    model = recipe.new_model()
    model.load_state_dict(torch.load(work / f"{name}.pt")["model"])
    return {
        "kv_heads": kv_heads,
        "how": "from scratch",
        "seed": seed,
        "steps": recipe.steps,
        "tokens": recipe.steps * STEP_TOKENS,
        **held_out(model, np.load(work / "held.npy")),
    }


def held_out(model: LlamaForCausalLM, held: np.ndarray) -> dict[str, float]:
    """Loss in nats per token and perplexity; the protocol is that of `score`."""
    loss = score(model.eval(), held, WINDOW)[0].double().mean().item()
    return {"held_out_loss": loss, "perplexity": float(np.exp(loss))}


def plan(seed: int) -> Iterator[dict]:
    """The runs in their order: short ones first. "first" and "random" are the paper's baselines, at 0 and 5 %."""
    for share in SHARES:
        for kv_heads in (8, 4, 2, 1):
            yield {"kv_heads": kv_heads, "how": "mean", "share": share, "seed": seed}
    for share in (0.0, 0.05):
        for how in ("first", "random"):
            for kv_heads in (4, 2, 1):
                yield {"kv_heads": kv_heads, "how": how, "share": share, "seed": seed}
    for kv_heads in (1, 2, 4, 8):
        yield {"kv_heads": kv_heads, "how": "from scratch", "seed": seed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("tiny-train"), help="folder of token files and checkpoints")
    parser.add_argument("--json", type=Path, default=RESULT, help="the file of results, read and written")
    parser.add_argument("--seed", type=int, default=1, help="of random heads, the order of the data and first weights")
    parser.add_argument("--no-scratch", action="store_true", help="leave out the models trained from scratch")
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = read_json(args.json)["runs"] if args.json.exists() else []
    for wanted in plan(args.seed):
        scratch = wanted["how"] == "from scratch"
        if (scratch and args.no_scratch) or any(wanted.items() <= run.items() for run in runs):
            continue
        run = from_scratch(wanted["kv_heads"], args.seed, args.work) if scratch else uptrain(**wanted, work=args.work)
        print(" ".join(f"{key} {value}" for key, value in run.items()))
        runs.append(run)
        write_json(args.json, result(runs, len(np.load(args.work / "held.npy"))))


def result(runs: list[dict], held_tokens: int) -> dict:
    """The runs beside what they depend on."""
    return conditions(
        model=TWIN.folder.name,
        twin_steps=TWIN.steps,
        step_tokens=STEP_TOKENS,
        peak_lr=TWIN.lr,
        warmup_share=WARMUP,
        threads=1,
        training=f"bf16 autocast, windows of {WINDOW} tokens",
        scoring=f"float32, non-overlapping windows of {WINDOW} held-out tokens, first token of a window not scored",
        scored_tokens=held_tokens // WINDOW * (WINDOW - 1),
    ) | {"runs": runs}


if __name__ == "__main__":
    main()
