"""What a format of the KV cache has to know of a model beforehand, from a text that the model reads."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.attention import attend
from course_lib.backend import TorchBackend
from course_lib.cache import ContiguousCache
from course_lib.cache.codebook import Codebook, fit_keys
from course_lib.cache.store import Float
from course_lib.errors import RequestError
from course_lib.model import Decoder


@torch.inference_mode()
def fit_codebook(model: Decoder, tokens: Sequence[int], *, before_rope: bool = False) -> Codebook:
    """Fit a codebook of keys to the model. tokens: some hundreds of ordinary text.

    An error e of a key's channel changes a score by q e / sqrt(d), q being that channel of the query. So a squared
    error costs the mean of q^2 over the text, as long as errors of different channels are independent; KVQuant (arXiv
    2401.18079, section 3.3) takes the squared gradient of the loss instead. before_rope: of the keys before RoPE, where
    a channel costs the mean of the two that the rotation mixes.
    Raises RequestError where the text is shorter than two tokens or longer than the model's context.
    """
    config, n = model.config, len(tokens)
    if not 2 <= n <= config.context:
        raise RequestError(f"a calibration text has 2 to {config.context} tokens, the model's context, not {n}")
    weights = torch.zeros(config.layers, config.kv_heads, config.head_dim, device=model.device)

    def watch(query: Tensor, layer: int, *rest) -> Tensor:
        weights[layer] += query.float().square().unflatten(1, (config.kv_heads, -1)).mean((0, 2))
        return attend(query, layer, *rest)

    reader = copy.copy(model)  # another backend, and the same weights
    reader.backend = TorchBackend(watch)
    cache = ContiguousCache(config, 1, n, model.dtype, model.device, kv_format=Float(before_rope=before_rope))
    reader(tokens, cache)
    if before_rope:
        weights = weights.unflatten(-1, (2, -1)).mean(-2).repeat(1, 1, 2)
    return Codebook(keys=fit_keys(cache.keys[:, :n], weights), before_rope=before_rope)
