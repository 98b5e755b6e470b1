"""CUDA graphs for decode steps: the launches of a whole forward pass, recorded once and replayed as one.

A decode step of a small model is hundreds of kernels of a few microseconds each, and Python needs longer to launch one
than the GPU to run it. A graph has no Python in it, but fixed sizes and addresses: so there is one for each of a few
batch sizes, over tensors of its own into which a step is copied, and a smaller batch is filled up with rows that store
nothing and attend to nothing. vLLM and SGLang do the same for their decode steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from tqdm import tqdm

from course_lib.backend.triton_backend import TritonStep
from course_lib.batch import Batch
from course_lib.cache import PagedCache
from course_lib.model import Decoder


class FixedDecode:
    """A decode step of `rows` sequences, with block tables of `blocks` columns, over tensors that stay where they are.

    What depends on lengths is in the tensors: the kernels it launches are the same for every step.
    """

    def __init__(self, model: Decoder, cache: PagedCache, rows: int, blocks: int):
        self.model, self.cache = model, cache
        pinned, device = model.device.type == "cuda", model.device
        # Written here and moved in two copies; in memory that the GPU can reach, so that Python need not wait for them.
        self._long = torch.zeros(3, rows, dtype=torch.long, pin_memory=pinned)
        self._int = torch.zeros(rows * (blocks + 1), dtype=torch.int32, pin_memory=pinned)
        self._tables, self._contexts = self._int[rows:].view(rows, blocks), self._int[:rows]
        self._moved = self._long.to(device, copy=True), self._int.to(device, copy=True)
        self.token_ids, self.positions, self.slots = self._moved[0]
        self.block_tables, self.context_lens = self._moved[1][rows:].view(rows, blocks), self._moved[1][:rows]
        self.no_prompts = torch.zeros(1, dtype=torch.int32, device=device)
        self.slots.fill_(-1)

    def load(self, batch: Batch) -> None:
        """Copy a batch of at most `rows` decodes in. Raises RequestError as `PagedCache.slots` does."""
        n, slots = len(batch), self.cache.slots(batch)
        tables = self.cache.tables(batch)
        for staged, values in zip(self._long, (batch.token_ids, batch.positions, slots), strict=True):
            staged[:n] = values
        self._long[2, n:] = -1
        self._tables[:n, : tables.shape[1]] = tables
        torch.add(batch.positions, 1, out=self._contexts[:n])
        self._contexts[n:] = 0
        # The draw has waited for the step before this one, so nothing still reads what is overwritten.
        for moved, staged in zip(self._moved, (self._long, self._int), strict=True):
            moved.copy_(staged, non_blocking=True)

    def compute(self) -> Tensor:
        """Logits [rows, V], float32, of what was loaded; rows past the batch are undefined."""
        step = TritonStep(
            cache=self.cache,
            rope=self.model.rope,
            token_ids=self.token_ids,
            positions=self.positions,
            slots=self.slots,
            block_tables=self.block_tables,
            context_lens=self.context_lens,
            cu_seqlens=self.no_prompts,
            decodes=len(self.token_ids),
        )
        return self.model.compute(step)


class DecodeGraphs:
    """`run` in the place of `Decoder.run`: decode steps are replayed, others run as they are.

    max_num_seqs: the largest batch; the sizes are the powers of two below it, and it. max_model_len: most tokens of a
    sequence. The graphs are recorded here, which takes a few seconds and the memory of the largest step.
    """

    @torch.inference_mode()
    def __init__(self, model: Decoder, cache: PagedCache, max_num_seqs: int, max_model_len: int):
        self.model = model
        blocks = min(cache.manager.blocks_needed(max_model_len), cache.manager.pool.total)
        pool = torch.cuda.graph_pool_handle()
        sizes = sorted({max_num_seqs, *(2**i for i in range(max_num_seqs.bit_length()))})
        self._steps: dict[int, tuple[FixedDecode, Callable[[], Tensor]]] = {}
        # From the largest on: smaller ones then fit into the memory that it has taken.
        for size in tqdm(sizes[::-1], "recording CUDA graphs", unit="size", delay=5, leave=False):
            fixed = FixedDecode(model, cache, size, blocks)
            self._steps[size] = fixed, record(fixed.compute, pool)

    @torch.inference_mode()
    def run(self, batch: Batch, cache: PagedCache, logits_for: Sequence[int] | None = None) -> Tensor:
        """As `Decoder.run`. The result of a replayed step is valid until the next one."""
        size = min((size for size in self._steps if size >= len(batch)), default=None)
        if size is None or max(batch.query_lens) > 1:
            return self.model.run(batch, cache, logits_for)
        fixed, replay = self._steps[size]
        fixed.load(batch)
        logits = replay()[: len(batch)]
        cache.commit(batch)
        rows = self.model.wanted_rows(batch, logits_for)
        return logits if rows is None else logits[rows]


def record(compute: Callable[[], Tensor], pool: tuple[int, int]) -> Callable[[], Tensor]:
    """Record what `compute` launches; pool: memory that graphs share, as only one of them runs at a time.

    Returns the replay, whose result lies at the same place each time.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # once beforehand: kernels are compiled and libraries take their workspaces
        compute()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        logits = compute()

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay
