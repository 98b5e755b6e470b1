"""How each embedded model is made: its shape and its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM

from course_lib.training.corpus import VOCAB

ASSETS = Path(__file__).resolve().parents[1] / "assets"


@dataclass(frozen=True)
class Recipe:
    """Shape and training of one model. Windows, batch size and schedule are the same for all, see `trainer`."""

    folder: Path  # where the shipped weights go
    shape: Mapping[str, int]  # entries of Hugging Face's LlamaConfig
    steps: int  # those of the shipped weights
    lr: float  # peak learning rate
    distill: float = 0.0  # share of the steps, at the end, that imitate `tiny` instead of the text

    def new_model(self) -> LlamaForCausalLM:
        """Build the untrained model in Hugging Face Llama format, float32; `torch.manual_seed` fixes its weights."""
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCAB,
                max_position_embeddings=1024,
                rms_norm_eps=1e-5,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
                tie_word_embeddings=True,
                bos_token_id=0,
                eos_token_id=0,
                pad_token_id=None,
                **self.shape,
            )
        )


def _shape(hidden: int, layers: int, ffn: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, int]:
    return dict(
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=ffn,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
    )


RECIPES = {
    "target": Recipe(ASSETS / "tiny", _shape(256, 5, 704, 8, 2, 32), steps=4400, lr=3e-3),
    "draft": Recipe(ASSETS / "tiny-draft", _shape(128, 2, 320, 4, 1, 32), steps=8000, lr=5e-3, distill=0.4),
    # Multi-head attention: the model whose KV heads are merged in `uptrain`.
    "mha": Recipe(ASSETS / "tiny-mha", _shape(128, 4, 352, 8, 8, 16), steps=4400, lr=4e-3),
}
