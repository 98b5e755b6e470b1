"""The shape of a decoder: read once from a Hugging Face config or GGUF metadata, then used everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from course_lib.errors import ModelError
from course_lib.mla_shape import MlaShape, hf_mla
from course_lib.windows import HYBRIDS, hf_windows, kept_tokens

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
}
GGUF_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class Llama3Scaling:
    """Frequency scaling of Llama 3.1 (arXiv 2407.21783; `rope_type: llama3` in Hugging Face configs)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class ModelConfig:
    """Everything that fixes a decoder's shape. Letters in brackets are those of the course's formulas.

    `head_dim` is stored, never derived as hidden / heads: Qwen3-32B has 64 heads of 128 on a hidden size of 5120.
    Attention is multi-head (K = H), grouped-query (K < H) or multi-query (K = 1); with `mla` it is latent attention,
    whose plain form has a key and a value for each head: K = H, d = qk_nope_head_dim + qk_rope_head_dim.
    """

    architecture: str
    layers: int  # L
    hidden: int  # h
    heads: int  # H, query heads
    kv_heads: int  # K
    head_dim: int  # d
    ffn: int  # f
    vocab: int  # V
    context: int  # most positions the model was trained for
    rope_theta: float = 10_000.0
    rope_scaling: Llama3Scaling | None = None
    norm_eps: float = 1e-5
    windows: tuple[int | None, ...] = ()  # W, sliding window of each layer, None = full attention
    sinks: int = 0  # s, first tokens of a sequence that windowed layers keep in sight
    qkv_bias: bool = False
    qk_norm: bool = False
    mla: MlaShape | None = None
    tied_embeddings: bool = False
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self):
        if not self.windows:
            object.__setattr__(self, "windows", (None,) * self.layers)
        if len(self.windows) != self.layers:
            raise ModelError(f"{len(self.windows)} attention windows were given for {self.layers} layers")
        if self.sinks < 0 or any(window is not None and window < 1 for window in self.windows):
            raise ModelError(
                f"windows {self.windows} with {self.sinks} sinks: a window is at least 1, or None, sinks 0"
            )
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} query heads cannot share {self.kv_heads} KV heads evenly")
        if self.mla:
            wanted = dict(kv_heads=self.heads, head_dim=self.mla.qk_head_dim, qkv_bias=False, qk_norm=False)
            for name, value in (wanted | dict(windows=(None,) * self.layers)).items():
                if getattr(self, name) != value:
                    raise ModelError(f"with latent attention {name} must be {value}, not {getattr(self, name)}")

    @property
    def group(self) -> int:
        """Query heads that share one KV head, H / K."""
        return self.heads // self.kv_heads

    @property
    def rope_dim(self) -> int:
        """Elements of a head that RoPE rotates: all, or with latent attention the part made for it."""
        return self.mla.qk_rope_head_dim if self.mla else self.head_dim

    @property
    def kv_entry(self) -> tuple[int, int, int]:
        """What a token leaves in the cache of one layer, see `kv_entry`."""
        return kv_entry(self.kv_heads, self.head_dim, self.mla)

    def kv_bytes_per_token(self, bytes_per_element: float = 2) -> float:
        """See `kv_bytes_per_token`."""
        return kv_bytes_per_token(self.layers, self.kv_heads, self.head_dim, bytes_per_element, self.mla)

    def kv_bytes(self, tokens: int, bytes_per_element: float = 2) -> float:
        """Cache bytes of a sequence of n tokens, of which a layer with a window keeps min(n, W + s), others all n."""
        kept = sum(kept_tokens(tokens, window, self.sinks) for window in self.windows)
        return self.kv_bytes_per_token(bytes_per_element) / self.layers * kept

    def block_parameters(self) -> int:
        """Weights of all blocks' matrices and biases, without norms: the part each token multiplies with."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (q + 2 * kv) + q * self.hidden + (q + 2 * kv if self.qkv_bias else 0)
        if self.mla:
            attention = self.mla.matrix_parameters(self.hidden, self.heads)
        return self.layers * (attention + 3 * self.hidden * self.ffn)

    def parameters(self) -> int:
        """All trained numbers: blocks, norms, embedding and, when not tied, the output head."""
        in_attention = self.mla.norm_parameters() if self.mla else 2 * self.head_dim if self.qk_norm else 0
        norms = self.layers * (2 * self.hidden + in_attention) + self.hidden
        tables = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        return self.block_parameters() + norms + tables

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
        """Read a Hugging Face `config.json` (a mapping). `source` names the file in error messages."""
        names = config.get("architectures") or ["missing"]
        if names[0] in HYBRIDS:
            raise ModelError(
                f"{source}: {names[0]} cannot be run, as the decoder lacks its norms, activations or experts; its "
                f"windows can be read with `hf_windows`, and what runs is {', '.join(ARCHITECTURES)}"
            )
        if names[0] not in ARCHITECTURES:
            raise ModelError(
                f"{source}: architecture {names[0]} is not supported; supported are {', '.join(ARCHITECTURES)}"
            )
        arch = ARCHITECTURES[names[0]]

        def need(key: str) -> Any:
            if config.get(key) is None:
                raise ModelError(f"{source}: the entry '{key}' is missing")
            return config[key]

        layers, hidden, heads = need("num_hidden_layers"), need("hidden_size"), need("num_attention_heads")
        # transformers 5 nests the RoPE settings, earlier versions keep them at the top level.
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        eos = config.get("eos_token_id")
        mla = hf_mla(need, config, source) if arch.startswith("deepseek") else None
        return cls(
            architecture=arch,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            # DeepSeek's entry is the width of RoPE alone.
            head_dim=mla.qk_head_dim if mla else config.get("head_dim") or hidden // heads,
            ffn=need("intermediate_size"),
            vocab=need("vocab_size"),
            context=need("max_position_embeddings"),
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
            rope_scaling=_hf_rope_scaling(rope, source),
            norm_eps=config.get("rms_norm_eps", 1e-6),
            windows=hf_windows(config),
            qkv_bias=arch == "qwen2" or bool(config.get("attention_bias")),
            qk_norm=arch == "qwen3",
            mla=mla,
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            bos_id=config.get("bos_token_id"),
            eos_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
        )

    @classmethod
    def from_gguf(cls, meta: Mapping[str, Any], tied_embeddings: bool, source: str) -> ModelConfig:
        """Read GGUF metadata (key -> value). The file says nothing of tying: the absence of `output.weight` does."""
        arch = meta.get("general.architecture")
        if arch not in GGUF_ARCHITECTURES:
            raise ModelError(
                f"{source}: architecture {arch} is not supported; supported are {', '.join(GGUF_ARCHITECTURES)}"
            )

        def get(key: str, default: Any = None) -> Any:
            value = meta.get(f"{arch}.{key}", default)
            if value is None:
                raise ModelError(f"{source}: the metadata entry '{arch}.{key}' is missing")
            return value

        if meta.get(f"{arch}.rope.scaling.type", "none") not in ("none", "linear") or (
            meta.get(f"{arch}.rope.scaling.factor", 1.0) != 1.0
        ):
            raise ModelError(f"{source}: RoPE scaling stored in GGUF is not supported; use the safetensors folder")
        layers, hidden, heads = get("block_count"), get("embedding_length"), get("attention.head_count")
        eos = meta.get("tokenizer.ggml.eos_token_id")
        window = meta.get(f"{arch}.attention.sliding_window")
        return cls(
            architecture=arch,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=get("attention.head_count_kv", heads),
            head_dim=get("attention.key_length", hidden // heads),
            ffn=get("feed_forward_length"),
            vocab=meta.get(f"{arch}.vocab_size") or len(meta["tokenizer.ggml.tokens"]),
            context=get("context_length"),
            rope_theta=float(get("rope.freq_base", 10_000.0)),
            norm_eps=get("attention.layer_norm_rms_epsilon"),
            windows=(window,) * layers if window else (),
            qkv_bias=arch == "qwen2",
            qk_norm=arch == "qwen3",
            tied_embeddings=tied_embeddings,
            bos_id=meta.get("tokenizer.ggml.bos_token_id"),
            eos_ids=() if eos is None else (eos,),
        )


def kv_entry(kv_heads: int | None, head_dim: int | None, mla: MlaShape | None) -> tuple[int, int, int]:
    """What a token leaves in the cache of one layer: (heads, elements of a key, elements of a value).

    (K, d, d), where K counts KV heads, not query heads. With latent attention (1, r + p, 0): one entry for all heads,
    and its first r elements are the value too.
    """
    return (1, mla.entry, 0) if mla else (kv_heads, head_dim, head_dim)


def kv_bytes_per_token(
    layers: int, kv_heads: int | None, head_dim: int | None, bytes_per_element: float, mla: MlaShape | None = None
) -> float:
    """Cache bytes of one token: 2 * L * K * d * b (arXiv 2309.06180, section 3).

    With latent attention, which needs neither K nor d, L * (r + p) * b (arXiv 2405.04434, Table 1).
    """
    heads, key, value = kv_entry(kv_heads, head_dim, mla)
    return layers * heads * (key + value) * bytes_per_element


def _hf_rope_scaling(rope: Mapping[str, Any], source: str) -> Llama3Scaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelError(f"{source}: RoPE scaling '{kind}' is not supported; supported are 'default' and 'llama3'")
    return Llama3Scaling(
        factor=rope["factor"],
        low_freq_factor=rope["low_freq_factor"],
        high_freq_factor=rope["high_freq_factor"],
        original_context=rope["original_max_position_embeddings"],
    )
