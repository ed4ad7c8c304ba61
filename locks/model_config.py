"""What the lock keeps of a model's ``config.json``: what says how much memory it takes.

Pure. The whole file stays at the hub, and its checksum is among the model's files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

KEPT: Final = (
    "architectures",
    "attention_chunk_size",
    "compress_ratios",
    "dtype",
    "first_k_dense_replace",
    "full_attention_interval",
    "head_dim",
    "hidden_size",
    "hybrid_override_pattern",
    "index_head_dim",
    "is_encoder_decoder",
    "kv_lora_rank",
    "layer_types",
    "linear_num_value_heads",
    "model_type",
    "multi_query",
    "n_head_kv",
    "num_attention_heads",
    "num_experts",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_kv_heads",
    "num_kv_shared_layers",
    "num_nextn_predict_layers",
    "qk_rope_head_dim",
    "quantization_config",
    "sliding_window",
    "sliding_window_pattern",
    "text_config",
    "torch_dtype",
    "use_sliding_window",
    "v_head_dim",
    "vision_config",
)
"""Keys that are kept where a config has them; ``plans/shape.py`` reads no other."""

KEPT_OF_QUANTIZATION: Final = ("quant_method", "quant_algo", "bits", "kv_cache_quant_algo")

LIMIT_BYTES: Final = 1 << 20
"""A config.json over this size is not read: real ones have a few kB, some with labels 100 kB."""

INDEX_LIMIT_BYTES: Final = 64 << 20
"""An index over this size is not read; that of a model of 685 billion parameters has 9 MB."""

_TEXT_LIMIT = 200


def kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a config that is kept: plain JSON, short, in a fixed order."""
    found = {key: _short(key, config[key]) for key in KEPT if key in config}
    return {key: value for key, value in found.items() if value is not None}


def _short(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        if key == "text_config":
            return kept(value)
        if key == "quantization_config":
            return {
                name: value[name]
                for name in KEPT_OF_QUANTIZATION
                if isinstance(value.get(name), str | int)
            }
        return {}  # that there is a vision tower says enough
    if isinstance(value, list):
        texts = [one for one in value if isinstance(one, str)]
        if key == "layer_types":
            # 94 words say no more than how many there are of each.
            return {name[:_TEXT_LIMIT]: count for name, count in sorted(Counter(texts).items())}
        return [one[:_TEXT_LIMIT] for one in texts[:20]]
    if isinstance(value, str):
        return value[:_TEXT_LIMIT]
    if isinstance(value, bool | int):
        return value
    return value if isinstance(value, float) and value == value and abs(value) < 1e18 else None


def config_of(body: bytes) -> dict[str, Any]:
    """Return what is kept of the text of a config.json. Raises ValueError where it is none."""
    try:
        data = json.loads(body)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("it holds no JSON object")
    return kept(data)


def index_bytes_of(body: bytes) -> int | None:
    """Return ``metadata.total_size`` of an index of weights, bytes; None where it has none.

    Raises ValueError where it is no index.
    """
    try:
        data = json.loads(body)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    metadata = data.get("metadata") if isinstance(data, dict) else None
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    # Some indexes were written by programs that print a float.
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    return total if type(total) is int and 0 < total < 2**63 else None
