"""Exercise 03 in the engine: what a model does otherwise with a learner's function than with the engine's own."""

from __future__ import annotations

from functools import cache
from random import Random

import torch

from course_lib import SamplingParams
from course_lib.checks.compare import compare
from course_lib.checks.embedded import embedded_llm
from course_lib.checks.own_heads import (
    AbsorbedAttention,
    GroupedAttention,
    MergeKvHeads,
    generate,
    latent_logits,
    merged,
)
from course_lib.config import ModelConfig
from course_lib.mla_shape import MlaShape
from course_lib.model import Decoder
from course_lib.perf.perplexity import score
from course_lib.training.convert_heads import pool_kv_heads
from course_lib.weights import load_model, load_tokenizer
from course_lib.weights.loading import ASSETS

WINDOW = 128  # tokens of held-out text that a merged model is scored on
# Relative, of a perplexity in float32: ways to write a mean differ in the last bit of a weight, which moves it by 1e-6.
PERPLEXITY_TOLERANCE = 1e-4


def same_text(prompts: list[str], new: int, attention: GroupedAttention) -> str | None:
    """What `tiny` writes otherwise when its decode steps attend by this function; None where nothing."""
    llm = embedded_llm("tiny")
    ids = [llm.tokenizer.encode(prompt) for prompt in prompts]
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
    wanted = [output.outputs[0].token_ids for output in llm.generate(ids, params)]
    for i, (ours, theirs) in enumerate(zip(generate(llm, ids, params, attention), wanted, strict=True)):
        if ours != theirs:
            ours, theirs = (llm.tokenizer.decode(tokens) for tokens in (ours, theirs))
            return f"the prompt {prompts[i]!r} went on with {ours!r}, and is to go on with {theirs!r}"
    return None


@cache
def twin() -> Decoder:
    """The embedded model with multi-head attention: H = K = 8."""
    return load_model("tiny-mha", device="cpu", dtype=torch.float32, backend="torch")


@cache
def held_out() -> list[int]:
    """Tokens that no embedded model was trained on."""
    return load_tokenizer("tiny-mha").encode((ASSETS / "heldout.txt").read_text(encoding="utf-8"))


def same_as_reference(kv_heads: int, start: int, merge: MergeKvHeads) -> str | None:
    """What `tiny-mha` with heads merged by this function does otherwise, on WINDOW tokens from `start` on."""
    model, text = twin(), held_out()[start : start + WINDOW]
    new = merged(model, merge, kv_heads)
    if kv_heads == model.config.kv_heads:
        difference = compare(new.forward(text), model.forward(text), "the logits")
        return difference and f"as many KV heads as before must change nothing, but {difference.text}"
    got, want = (score(each, text, WINDOW).perplexity for each in (new, pool_kv_heads(model, kv_heads)))
    if abs(got - want) <= PERPLEXITY_TOLERANCE * want:
        return None
    return f"the perplexity with {kv_heads} of {model.config.kv_heads} KV heads is {got:.5g}, and is to be {want:.5g}"


@cache
def latent_model() -> Decoder:
    """A random model with latent attention, in float64. A decode step costs fewer FLOPs absorbed, a prompt plain."""
    config = ModelConfig(
        "deepseek_v3", layers=2, hidden=48, heads=4, kv_heads=4, head_dim=12, ffn=96, vocab=97, context=64,
        mla=MlaShape(kv_lora_rank=16, q_lora_rank=None, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=10),
    )  # fmt: skip
    model = Decoder.random(config, dtype=torch.float64, backend="torch")
    state = model.state_dict()
    for name in state:  # small random weights attend almost evenly, whatever the scores
        if ".attention." in name and state[name].dim() > 1:
            state[name] = state[name] * 8
    model.load_state_dict(state)
    return model


def same_as_plain(seed: int, absorbed_attention: AbsorbedAttention) -> str | None:
    """What decode steps that attend by this function give otherwise than the plain form of the whole text."""
    model, rng = latent_model(), Random(seed)
    tokens = [rng.randrange(model.config.vocab) for _ in range(14)]
    wanted = model.forward(tokens)[8:]
    difference = compare(latent_logits(model, tokens, 8, absorbed_attention), wanted, "the logits")
    return difference and difference.text
