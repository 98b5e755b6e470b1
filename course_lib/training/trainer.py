"""One trainer for all small models: batches, schedule, loss, checkpoints, and the score on held-out text."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm
from transformers import AttentionInterface, LlamaForCausalLM

from course_lib.training.recipes import RECIPES, Recipe

Phases = tuple[tuple[float, int], ...]  # up to which share of the steps, windows of how many tokens
PHASES: Phases = ((0.60, 256), (0.85, 512), (1.00, 1024))
STEP_TOKENS = 2048


def causal_attention(module, query, key, value, attention_mask, scaling=None, **unused):
    """Causal attention for training without padding, in the form that transformers calls.

    Up to 512 tokens, plain bf16 batched products are faster on a CPU than the fused kernel.
    """
    batch, heads, length, size = query.shape
    if length > 512:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
    else:
        groups = heads // key.shape[1]  # query heads that share one key-value head
        q = (query * scaling).reshape(-1, groups * length, size)
        scores = q @ key.reshape(-1, length, size).transpose(1, 2)
        mask = torch.full((length, length), -torch.inf, dtype=scores.dtype).triu(1)
        with torch.autocast("cpu", enabled=False):
            weights = (scores.view(-1, length, length) + mask).softmax(-1)
        out = (weights.view_as(scores) @ value.reshape(-1, length, size)).view_as(query)
    return out.transpose(1, 2), None


AttentionInterface.register("course_causal", causal_attention)


def batch(ids: np.ndarray, step: int, steps: int, seed: int, phases: Phases = PHASES) -> Tensor:
    """Random windows of the training tokens, int64 [windows, length]; seed and step fix them."""
    length = next(n for share, n in phases if step < share * steps)
    rng = np.random.default_rng([seed, step])
    starts = rng.integers(0, len(ids) - length + 1, STEP_TOKENS // length)
    return torch.from_numpy(np.stack([ids[s : s + length] for s in starts]).astype(np.int64))


def learning_rate(step: int, steps: int, peak: float, warmup: int = 300) -> float:
    """Linear warm-up, then a cosine down to 2 % of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    x = (step - warmup) / max(1, steps - warmup)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(x, 1.0))))


@torch.no_grad()
def score(model: LlamaForCausalLM, ids: np.ndarray, length: int = 512) -> tuple[Tensor, Tensor]:
    """Loss (nats) and arg-max at every scored position of non-overlapping windows.

    The first token of each window is not scored; a shorter last window is dropped.
    Returns two tensors of shape [windows, length - 1].
    """
    windows = torch.from_numpy(ids[: len(ids) // length * length].astype(np.int64))
    windows = windows.view(-1, length)
    losses, best = [], []
    for x in windows.split(8):
        logits = model(x, use_cache=False).logits[:, :-1].float()
        losses.append(F.cross_entropy(logits.transpose(1, 2), x[:, 1:], reduction="none"))
        best.append(logits.argmax(-1))
    return torch.cat(losses), torch.cat(best)


class Trainer:
    """A model with its optimizer, data and schedule, trained one step at a time.

    steps: length of the schedule. peak: the highest learning rate. seed: of the order of the data.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        ids: np.ndarray,
        steps: int,
        peak: float,
        seed: int,
        warmup: int = 300,
        phases: Phases = PHASES,
        bf16: bool = True,
    ):
        model.set_attn_implementation("course_causal")
        self.model, self.ids, self.steps, self.peak, self.seed = model, ids, steps, peak, seed
        self.warmup, self.phases, self.bf16 = warmup, phases, bf16
        matrices = [p for p in model.parameters() if p.ndim == 2]
        gains = [p for p in model.parameters() if p.ndim == 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.98), fused=True)

    def step(self, step: int, teacher: LlamaForCausalLM | None = None) -> float:
        """Update the weights once; return the loss before the update, in nats per token.

        The loss is the cross-entropy on the text or, with a teacher, KL(teacher || model).
        """
        x = batch(self.ids, step, self.steps, self.seed, self.phases)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            if teacher is None:
                loss = self.model(x, labels=x, use_cache=False).loss
            else:
                with torch.no_grad():
                    wanted = teacher(x, use_cache=False).logits.float().log_softmax(-1)
                given = self.model(x, use_cache=False).logits.float().log_softmax(-1)
                loss = F.kl_div(given, wanted, log_target=True, reduction="none").sum(-1).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.steps, self.peak, self.warmup)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def save(self, path: Path, step: int, seconds: float) -> None:
        """Write a checkpoint; a stop in the middle of it leaves the one before."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state | {"step": step, "seconds": seconds}, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").rename(path)

    def load(self, path: Path) -> tuple[int, float]:
        """Continue from a checkpoint. Returns the steps done and the seconds they took."""
        state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return state["step"], state["seconds"]


def train(name: str, recipe: Recipe, work: Path, seed: int = 1, bf16: bool = True, save_every: int = 400) -> None:
    """Train one model; write WORK/<name>.pt every `save_every` steps and continue from it if present.

    WORK/<name>.jsonl gets a line with loss, held-out perplexity (on 48 windows) and seconds for each checkpoint.
    """
    ids, held = np.load(work / "train.npy"), np.load(work / "held.npy")
    sample = np.concatenate([part[:512] for part in np.array_split(held, 48)])
    torch.manual_seed(seed)
    trainer = Trainer(recipe.new_model(), ids, recipe.steps, recipe.lr, seed, bf16=bf16)
    checkpoint, first, seconds, teacher = work / f"{name}.pt", 0, 0.0, None
    if checkpoint.exists():
        first, seconds = trainer.load(checkpoint)
    bar, started = tqdm(range(first, recipe.steps), initial=first, total=recipe.steps, desc=name), time.time()
    smooth, perplexity = None, float("nan")
    for step in bar:
        if teacher is None and step >= recipe.steps * (1 - recipe.distill):
            teacher = LlamaForCausalLM.from_pretrained(
                RECIPES["target"].folder, dtype=torch.float32, attn_implementation="course_causal"
            )
        loss = trainer.step(step, teacher)
        smooth = loss if smooth is None else 0.95 * smooth + 0.05 * loss
        done = step + 1
        if done % save_every == 0 or done == recipe.steps:
            trainer.model.eval()
            perplexity = score(trainer.model, sample)[0].mean().exp().item()
            trainer.model.train()
            total = seconds + time.time() - started
            trainer.save(checkpoint, done, total)
            record = {"step": done, "tokens": done * STEP_TOKENS, "loss": smooth, "perplexity": perplexity}
            with open(work / f"{name}.jsonl", "a") as log:
                log.write(json.dumps(record | {"seconds": total}) + "\n")
        bar.set_postfix(loss=f"{smooth:.3f}", held_out_ppl=f"{perplexity:.2f}")
