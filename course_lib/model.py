"""The decoder: Llama, Mistral, Qwen2 and Qwen3 differ in a bias, a norm and a window; one file holds them all.

DeepSeek's differs in its attention, which is a module of its own (`mla`).

It maps token ids to logits and knows nothing of requests, scheduling or sampling. Shapes: T tokens of the batch,
h hidden, H query heads, K KV heads, d head_dim, f FFN size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from course_lib.backend import Backend, Step, TorchBackend, choose_backend
from course_lib.batch import Batch
from course_lib.cache import ContiguousCache, KVCache, RingCache
from course_lib.cache.store import FLOAT, KVFormat
from course_lib.config import ModelConfig
from course_lib.errors import RequestError
from course_lib.linear import pack
from course_lib.mla import LatentAttention
from course_lib.norm import RMSNorm
from course_lib.rope import Rope


class Attention(nn.Module):
    """Grouped-query self-attention with a fused q, k, v projection."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.layer, self.window, self.sinks = layer, config.windows[layer], config.sinks
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        width = (config.heads + 2 * config.kv_heads) * config.head_dim
        self.qkv = nn.Linear(config.hidden, width, bias=config.qkv_bias)
        self.out = nn.Linear(config.heads * config.head_dim, config.hidden, bias=False)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.norm_eps)
            self.k_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.qk_norm = config.qk_norm

    def forward(self, x: Tensor, step: Step) -> Tensor:
        qkv = self.qkv(x).view(len(x), -1, self.head_dim)  # [T, H + 2K, d]
        norms = (self.q_norm, self.k_norm) if self.qk_norm else None
        return self.out(step.attention(qkv, self.heads, self.layer, self.window, self.sinks, norms))


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202): down(silu(gate(x)) * up(x)), gate and up fused in one matrix."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_up = nn.Linear(config.hidden, 2 * config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.down(step.swiglu(self.gate_up(x)))


class Block(nn.Module):
    """Pre-norm transformer block: x + attention(norm(x)), then x + ffn(norm(x))."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden, config.norm_eps)
        self.attention = LatentAttention(config, layer) if config.mla else Attention(config, layer)
        self.ffn_norm = RMSNorm(config.hidden, config.norm_eps)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, residual: Tensor, step: Step) -> Tensor:
        """Adds x, what the block before it computed, to the residual stream, in place; returns what it computed itself.

        So each addition meets the norm that follows it, and a backend can do both at once.
        """
        x = self.attention(step.add_rms_norm(x, residual, self.attention_norm), step)
        return self.ffn(step.add_rms_norm(x, residual, self.ffn_norm), step)


class Decoder(nn.Module):
    """A decoder-only language model for inference. Build it with `load_model` or `Decoder.random`."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.hidden)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.norm_eps)
        self.head = nn.Linear(config.hidden, config.vocab, bias=False)
        if config.tied_embeddings:
            self.head.weight = self.embed.weight
        self.rope = Rope(config)
        self.backend: Backend = TorchBackend()  # until `prepare` chooses

    @classmethod
    def random(
        cls,
        config: ModelConfig,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        backend: str | None = None,
    ) -> Decoder:
        """A model of the given shape with random weights (normal, 0.02), for tests and speed measurements.

        backend: see `choose_backend`.
        """
        with torch.device("meta"):
            model = cls(config)
        model = model.to(dtype).to_empty(device=device)
        if config.tied_embeddings:
            model.head.weight = model.embed.weight
        generator = torch.Generator(device).manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.02, generator=generator) if parameter.dim() > 1 else parameter.fill_(1)
        return model.prepare(backend)

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    def prepare(self, backend: str | None = None) -> Decoder:
        """Freeze the weights, choose the backend (`choose_backend`) and, on the CPU, pack the linear layers (`pack`).

        A tied head is packed beside the embedding, which stays as it is: it then takes V * h elements of its own.
        Returns self.
        """
        self.backend = choose_backend(backend, self.config, self.dtype, self.device)
        self.eval().requires_grad_(False)
        if self.device.type == "cpu":
            for parent in [module for module in self.modules() if not isinstance(module, nn.Linear)]:
                for name, child in parent.named_children():
                    if isinstance(child, nn.Linear):
                        setattr(parent, name, pack(child))
        return self

    def new_cache(
        self, rows: int = 1, capacity: int | None = None, kv_format: KVFormat = FLOAT
    ) -> ContiguousCache | RingCache:
        """A cache for `rows` sequences of up to `capacity` tokens (default: the model's context).

        A ring cache where windows make it smaller and the backend and the format can do it, else a contiguous one.
        """
        self.backend.check_format(kv_format)
        capacity = self.config.context if capacity is None else capacity
        if capacity > self.config.context:
            raise RequestError(
                f"a capacity of {capacity} tokens is more than the model's context, {self.config.context}; ask for less"
            )
        rings = self.backend.any_order and kv_format.block_size is None
        if rings and self.config.kv_bytes(capacity) < self.config.kv_bytes_per_token() * capacity:
            return RingCache(self.config, rows, capacity, self.dtype, self.device, kv_format)
        return ContiguousCache(self.config, rows, capacity, self.dtype, self.device, self.backend.block_size, kv_format)

    @torch.inference_mode()
    def run(self, batch: Batch, cache: KVCache, logits_for: Sequence[int] | None = None) -> Tensor:
        """One forward pass over a ragged batch; the cache holds its tokens afterwards.

        logits_for: indices into the flat batch whose logits are wanted (default: each sequence's last token).
        Returns float32 [len(logits_for), V], in that order. Raises RequestError where a cache row would overflow.
        """
        step = self.backend.step(batch, cache, self.rope, self.device)
        logits = self.compute(step, self.wanted_rows(batch, logits_for))
        cache.commit(batch)
        return logits

    def wanted_rows(self, batch: Batch, logits_for: Sequence[int] | None) -> Tensor | None:
        """`run`'s logits_for as int64 [R] on the device; None where it is every row in order."""
        wanted = list(batch.last if logits_for is None else logits_for)
        return None if wanted == list(range(len(batch))) else torch.tensor(wanted, dtype=torch.long).to(self.device)

    def compute(self, step: Step, rows: Tensor | None = None) -> Tensor:
        """The forward pass of a step that is prepared. rows: of `wanted_rows`. Returns float32 [R, V]."""
        residual = self.embed(step.token_ids)
        x = torch.zeros_like(residual)
        for block in self.blocks:
            x = block(x, residual, step)
        if rows is not None:
            x, residual = x[rows], residual[rows]
        return self.head(step.add_rms_norm(x, residual, self.norm)).float()

    def forward(self, tokens: Sequence[int] | Tensor, cache: KVCache | None = None) -> Tensor:
        """Logits [t, V] for every token of one sequence, for notebooks and tests.

        tokens: [t] ids. With a cache (one row) they continue what it holds; without one everything is computed afresh.
        """
        ids = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
        cache = self.new_cache(capacity=len(ids)) if cache is None else cache
        batch = Batch.build([ids], cached=[cache.lengths[0]], rows=[0])
        return self.run(batch, cache, logits_for=range(len(ids)))
