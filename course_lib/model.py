"""The decoder: Llama, Mistral, Qwen2 and Qwen3 differ in a bias, a norm and a window; one file holds them all.

It maps token ids to logits and knows nothing of requests, scheduling or sampling. Shapes: T tokens of the batch,
h hidden, H query heads, K KV heads, d head_dim, f FFN size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.attention import Segment, attend, segments
from course_lib.batch import Batch
from course_lib.cache import ContiguousCache, KVCache
from course_lib.config import Llama3Scaling, ModelConfig
from course_lib.errors import RequestError
from course_lib.linear import pack


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis (arXiv 1910.07467). The mean square is taken in float32."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Rope(nn.Module):
    """Rotary position embedding (arXiv 2104.09864), half-split form: element i pairs with i + d/2, as in Hugging Face.

    GGUF stores Llama's q and k for the interleaved form (i pairs with i + 1); its loader permutes them back.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        d = config.head_dim
        self.frequencies = config.rope_theta ** (-torch.arange(0, d, 2, dtype=torch.float64, device="cpu") / d)
        if config.rope_scaling:
            self.frequencies = _llama3_frequencies(self.frequencies, config.rope_scaling)

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines, each float32 [T, 1, d], of the batch's positions; made once per forward pass.

        The sign of rotate_half(x) = (-x2, x1) is folded into the sine. Angles are float64: a float32 product is off by
        0.004 rad at position 100,000.
        """
        if self.frequencies.device != positions.device:
            self.frequencies = self.frequencies.to(positions.device)
        angle = torch.outer(positions.double(), self.frequencies)
        cos, sin = angle.cos().float(), angle.sin().float()
        return torch.cat((cos, cos), dim=-1)[:, None], torch.cat((-sin, sin), dim=-1)[:, None]

    @staticmethod
    def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate x [T, heads, d] in float32; the result has x's dtype."""
        cos, sin = tables
        x32 = x.float()
        return torch.addcmul(x32 * cos, x32.roll(x.shape[-1] // 2, dims=-1), sin).type_as(x)


def _llama3_frequencies(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Llama 3.1: long wavelengths are slowed by `factor`, short ones kept, those between blended."""
    turns = scaling.original_context * frequencies / (2 * math.pi)  # full turns over the original context
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies


class Attention(nn.Module):
    """Grouped-query self-attention with a fused q, k, v projection."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.layer, self.window = layer, config.windows[layer]
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
        qk, v = qkv.split((self.heads + self.kv_heads, self.kv_heads), dim=1)
        if self.qk_norm:
            q, k = qk.split((self.heads, self.kv_heads), dim=1)
            qk = torch.cat((self.q_norm(q), self.k_norm(k)), dim=1)
        # Keys are rotated before they are stored, so a cached key never needs its position again.
        q, k = Rope.rotate(qk, step.rope).split((self.heads, self.kv_heads), dim=1)
        step.cache.write(self.layer, k, v, step.slots)
        out = attend(q, self.layer, step.cache, step.pieces, self.window)
        return self.out(out.flatten(1))


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202): down(silu(gate(x)) * up(x)), gate and up fused in one matrix."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_up = nn.Linear(config.hidden, 2 * config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up))


class Block(nn.Module):
    """Pre-norm transformer block: x + attention(norm(x)), then x + ffn(norm(x))."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden, config.norm_eps)
        self.attention = Attention(config, layer)
        self.ffn_norm = RMSNorm(config.hidden, config.norm_eps)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attention_norm(x), step)
        return x + self.ffn(self.ffn_norm(x))


class Step:
    """What all layers of one forward pass share: slots, rotation tables and the pieces that attend together."""

    def __init__(self, batch: Batch, cache: KVCache, rope: Rope):
        self.cache = cache
        self.slots: Tensor = cache.slots(batch)
        self.rope = rope.tables(batch.positions)
        self.pieces: list[Segment] = segments(batch)


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

    @classmethod
    def random(
        cls,
        config: ModelConfig,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Decoder:
        """A model of the given shape with random weights (normal, 0.02), for tests and speed measurements."""
        with torch.device("meta"):
            model = cls(config)
        model = model.to(dtype).to_empty(device=device)
        if config.tied_embeddings:
            model.head.weight = model.embed.weight
        generator = torch.Generator(device).manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.02, generator=generator) if parameter.dim() > 1 else parameter.fill_(1)
        return model.prepare()

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    def prepare(self) -> Decoder:
        """Freeze the weights and, on the CPU, pack those of the linear layers (`linear.pack`). Returns self.

        A tied head is packed beside the embedding, which stays as it is: it then takes V * h elements of its own.
        """
        self.eval().requires_grad_(False)
        if self.device.type == "cpu":
            for parent in [module for module in self.modules() if not isinstance(module, nn.Linear)]:
                for name, child in parent.named_children():
                    if isinstance(child, nn.Linear):
                        setattr(parent, name, pack(child))
        return self

    def new_cache(self, rows: int = 1, capacity: int | None = None) -> ContiguousCache:
        """A contiguous cache for `rows` sequences of up to `capacity` tokens (default: the model's context)."""
        capacity = self.config.context if capacity is None else capacity
        if capacity > self.config.context:
            raise RequestError(
                f"a capacity of {capacity} tokens is more than the model's context, {self.config.context}; ask for less"
            )
        return ContiguousCache(self.config, rows, capacity, self.dtype, self.device)

    @torch.inference_mode()
    def run(self, batch: Batch, cache: KVCache, logits_for: Sequence[int] | None = None) -> Tensor:
        """One forward pass over a ragged batch; the cache holds its tokens afterwards.

        logits_for: indices into the flat batch whose logits are wanted (default: each sequence's last token).
        Returns float32 [len(logits_for), V], in that order. Raises RequestError where a cache row would overflow.
        """
        step = Step(batch, cache, self.rope)
        x = self.embed(batch.token_ids)
        for block in self.blocks:
            x = block(x, step)
        cache.commit(batch)
        wanted = batch.last if logits_for is None else logits_for
        if list(wanted) != list(range(len(x))):
            x = x[torch.tensor(wanted, dtype=torch.long, device=x.device)]
        return self.head(self.norm(x)).float()

    def forward(self, tokens: Sequence[int] | Tensor, cache: KVCache | None = None) -> Tensor:
        """Logits [t, V] for every token of one sequence, for notebooks and tests.

        tokens: [t] ids. With a cache (one row) they continue what it holds; without one everything is computed afresh.
        """
        ids = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
        cache = self.new_cache(capacity=len(ids)) if cache is None else cache
        batch = Batch.build([ids], cached=[cache.lengths[0]], rows=[0], device=self.device)
        return self.run(batch, cache, logits_for=range(len(ids)))
