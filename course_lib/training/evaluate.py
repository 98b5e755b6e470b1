"""The score of the shipped pair, `tiny` and `tiny-draft`, on the held-out text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from course_lib.training.ngram import KneserNey, tuned_discounts
from course_lib.training.recipes import ASSETS, RECIPES
from course_lib.training.trainer import score

PAIR = ("target", "draft")


def evaluate(work: Path) -> None:
    """Score the exported weights and the 3-gram model on the same held-out tokens."""
    ids, held = np.load(work / "train.npy"), np.load(work / "held.npy")
    net = {k: LlamaForCausalLM.from_pretrained(RECIPES[k].folder, dtype=torch.float16).float().eval() for k in PAIR}
    scored = {k: score(m, held) for k, m in net.items()}
    discounts = tuned_discounts(ids)
    ngram = KneserNey(ids).probability(np.concatenate([[0, 0], held]), discounts)
    ngram = ngram[: len(ngram) // 512 * 512].reshape(-1, 512)[:, 1:]
    tok = AutoTokenizer.from_pretrained(ASSETS / "tiny")
    sample = np.array([0, *tok.encode((ASSETS / "heldout.txt").read_text(), verbose=False)])
    long = []  # windows of 1,024 tokens that lie inside one passage
    for text in json.loads((work / "held.json").read_text()):
        passage = np.array(tok.encode(text, verbose=False))
        long.append(passage[: len(passage) // 1024 * 1024])
    long = np.concatenate(long)
    shorter = long.reshape(-1, 1024)  # the tokens at 512-1023 again, with 256-511 before them
    shorter = np.concatenate([shorter[:, 256:768], shorter[:, 512:]]).ravel()
    shorter = score(net["target"], shorter)[0][:, 255:].mean().item()
    long = score(net["target"], long, 1024)[0]
    result = {
        "protocol": "non-overlapping windows of 512 tokens, first token of a window not scored",
        "scored_tokens": scored["target"][0].numel(),
        "perplexity": {k: scored[k][0].mean().exp().item() for k in net},
        "perplexity_3gram": float(np.exp(-np.log(ngram).mean())),
        "3gram": f"interpolated Kneser-Ney, discounts {discounts} (2-gram, 3-gram)",
        "agreement": (scored["target"][1] == scored["draft"][1]).float().mean().item(),
        "heldout_txt_perplexity": {k: score(m, sample)[0].mean().exp().item() for k, m in net.items()},
        "target_loss_by_position": {
            f"{a}-{b - 1}": long[:, a - 1 : b - 1].mean().item()
            for a, b in ((1, 128), (128, 256), (256, 512), (512, 1024))
        },
        "target_loss_of_tokens_512_1023": {
            "512-1023 tokens before": long[:, 511:].mean().item(),
            "256-511 tokens before": shorter,
        },
        "windows_of_1024": len(long),
        "parameters": {k: m.num_parameters() for k, m in net.items()},
    }
    text = json.dumps(result, indent=2)
    (ASSETS / "tiny" / "eval.json").write_text(text + "\n")
    print(text)
