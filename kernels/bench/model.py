"""A whole model: one request, which waits for memory, and a batch, by this engine and by transformers.

The model has the shape of a real one and random weights; its tokens mean nothing and take as long as others. All
requests are there at once, are decoded greedily, and end together. A step is timed on the host, from the call to the
token's id: what a user waits for. Its bytes are those of `course_lib.perf.counts`: every weight and every cached key
and value once.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from itertools import pairwise

import torch

from course_kernels.bench.sizes import Sizes
from course_lib import LLM, SamplingParams
from course_lib.bench.peers import Clock, as_transformers
from course_lib.engine import Engine
from course_lib.model import Decoder
from course_lib.perf.counts import decode_cost
from course_lib.perf.workload import random_prompts

BLOCK_SIZE = 16
LOGIT_ERROR = 1e-3  # rounding in float32 makes about 1e-5 of it over 28 layers
WARM_TOKENS = 3  # a prefill and two decode steps: compiles, captures graphs, fills the allocator's pools
# Name -> backend and cuda_graphs of the engine; None: transformers.
ENGINES = {
    "triton, CUDA graphs": ("triton", True),
    "triton": ("triton", False),
    "torch": ("torch", False),
    "transformers, static cache, not compiled": None,
}


def measure_model(name: str, s: Sizes, dtype: torch.dtype, device: str, seed: int) -> dict:
    """One request and a batch with an engine of ENGINES. Raises CourseError where transformers is missing.

    step_s: samples, seconds of each decode step. scheduling_s, forward_s, sampling_s: its parts, of this engine; a GPU
    works behind Python, so forward_s is the time to start the kernels, and sampling_s holds the wait for them.
    seconds: of all steps, prefill included.
    """
    engine = ENGINES[name]
    backend, graphs = engine or ("torch", False)
    llm = random_llm(s, dtype, device, backend, seed)
    twin = None if engine else as_transformers(llm.model)
    runs = []
    for batch in (1, s.batch):
        generator = torch.Generator().manual_seed(seed)
        prompts = random_prompts(s.model.vocab, [s.prompt_tokens] * batch, generator)
        if engine:
            samples = _ours(llm, graphs, prompts, s.new_tokens)
        else:
            samples = _theirs(twin, torch.tensor(prompts, device=device), s.new_tokens)
        context = s.prompt_tokens + s.new_tokens // 2
        cost = decode_cost(s.model, batch, context, dtype.itemsize, dtype.itemsize)
        runs.append({
            "batch": batch, "tokens": batch * s.new_tokens, "bytes_per_step": cost.bytes, **samples,
        })  # fmt: skip
    return {"config": asdict(s.model), "runs": runs}


@torch.inference_mode()
def check_model(s: Sizes, device: str, seed: int) -> dict:
    """The engine in float32 with the Triton backend, on a GPU with CUDA graphs, against the torch backend's logits.

    Requests of several lengths are decoded greedily. Each token must have the largest logit of all that a forward pass
    over its whole text gives, or nearly: two logits that rounding exchanges are both right. Returns what `check.check`
    does; errors are in standard deviations of the logits.
    """
    generator = torch.Generator().manual_seed(seed)
    prompts = random_prompts(s.model.vocab, [s.prompt_tokens, 1, s.prompt_tokens // 2 + 1], generator)
    llm = random_llm(s, torch.float32, device, "triton", seed)
    outputs = _engine(llm, device != "cpu", prompts, s.new_tokens).generate(prompts, _greedy(s.new_tokens))
    reference, error = Decoder.random(s.model, seed, torch.float32, device, "torch"), 0.0
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = output.outputs[0].token_ids
        logits = reference([*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        chosen = logits.gather(1, torch.tensor(tokens, device=device)[:, None])[:, 0]
        error = max(error, ((logits.amax(1) - chosen) / logits.std(1)).max().item())
    return {"error": error, "allowed": LOGIT_ERROR, "relative": error, "passed": error <= LOGIT_ERROR}


def random_llm(s: Sizes, dtype: torch.dtype, device: str, backend: str, seed: int) -> LLM:
    """Random weights behind the tokenizer of the embedded model, for requests of the size that is measured."""
    llm = LLM("tiny", device="cpu", backend="torch")
    llm.model = Decoder.random(s.model, seed, dtype, device, backend)
    llm.max_model_len = s.prompt_tokens + s.new_tokens
    return llm


def _engine(llm: LLM, graphs: bool, prompts: list[list[int]], new_tokens: int) -> Engine:
    """Room for all prompts at once, and for all of them in one step."""
    blocks = sum(-(-(len(prompt) + new_tokens) // BLOCK_SIZE) for prompt in prompts)
    return Engine(
        llm, blocks=blocks, block_size=BLOCK_SIZE, cuda_graphs=graphs, max_num_seqs=len(prompts),
        max_num_batched_tokens=sum(map(len, prompts)),
    )  # fmt: skip


def _greedy(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)


def _ours(llm: LLM, graphs: bool, prompts: list[list[int]], new_tokens: int) -> dict:
    engine = _engine(llm, graphs, prompts, new_tokens)
    engine.generate(prompts, _greedy(WARM_TOKENS))
    for prompt in prompts:
        engine.add_request(prompt, _greedy(new_tokens))
    times = [time.perf_counter()]
    while engine.has_unfinished:
        engine.step()
        times.append(time.perf_counter())
    decodes = list(engine.metrics.steps)[1 - new_tokens :]
    parts = {part: [getattr(step, part) for step in decodes] for part in ("scheduling_s", "forward_s", "sampling_s")}
    return {"seconds": times[-1] - times[0], "step_s": _gaps(times[1:])} | parts


def _theirs(twin, prompts: torch.Tensor, new_tokens: int) -> dict:
    """Not compiled: by default transformers compiles the model for a static cache, which takes minutes."""

    def generate(tokens: int, clock: Clock) -> None:
        twin.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=False, cache_implementation="static",
            disable_compile=True, max_new_tokens=tokens, min_new_tokens=tokens, pad_token_id=0, streamer=clock,
        )  # fmt: skip

    generate(WARM_TOKENS, Clock())
    clock, start = Clock(), time.perf_counter()
    generate(new_tokens, clock)
    return {"seconds": clock.times[-1] - start, "step_s": _gaps(clock.times)}


def _gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]
