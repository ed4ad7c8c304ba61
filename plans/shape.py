"""A model's shape, from its config.json and the sizes of its files: bytes of weights and cache.

The sums are SGLang's own (``plans/data/memory.yaml`` says where they stand). What has other
arithmetic is not computed, and says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from facts.records import Unknown
from plans.memory import count, memory_data, number

_GGUF_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_NO_WEIGHTS = re.compile(r"^(training_args|optimizer|scheduler|scaler|rng_state).*\.(bin|pt|pth)$")


@dataclass(frozen=True)
class Weights:
    """The weights that a server reads."""

    bytes: int  # as their index says, else the sizes of the files
    read_bytes: int  # sizes of the files that hold them
    source: str  # how texts name where the number is from


def weights_of(sizes: Mapping[str, int], index_bytes: int | None) -> Weights | Unknown:
    """Return the weights among a model's files, by name, as SGLang picks them.

    Only files at the top count. Where the index names fewer bytes than the files have, it tells
    the weights that are used; one that names more is known to be wrong in some models.
    """
    top = {
        name: size
        for name, size in sizes.items()
        if "/" not in name and not _NO_WEIGHTS.match(name)
    }
    for suffix in (".safetensors", ".bin", ".pt", ".pth"):
        files = {name: size for name, size in top.items() if name.endswith(suffix)}
        plain = {n: s for n, s in files.items() if not n.startswith("consolidated")}
        total = sum((plain or files).values())
        if total:
            if index_bytes is not None and 0 < index_bytes <= total:
                return Weights(index_bytes, total, "their index")
            return Weights(total, total, f"the sizes of *{suffix}")
    quants = {name: size for name, size in top.items() if name.endswith(".gguf")}
    if len({_GGUF_PART.sub("", name) for name in quants}) > 1:
        return Unknown("malformed", f"{len(quants)} GGUF files, of which one is served")
    if sum(quants.values()):
        return Weights(sum(quants.values()), sum(quants.values()), "the size of the GGUF file")
    return Unknown("absent", "no files of weights")


def least_in_memory(
    weights: Weights, config: Mapping[str, Any], given: Mapping[str, Any], ranks: int
) -> int | str:
    """Return the bytes that all GPUs of a replica together hold at the least, or why not known.

    ``ranks``: GPUs among which one replica is split. Conservative: what a flag or the config may
    take away from the weights on disk is taken away.
    """
    changing = [
        name
        for name in memory_data().flags_that_change_weights
        if given.get(name) and not (name == "quantization" and "quantization_config" in config)
    ]
    if changing:
        return f"--{changing[0]} changes the weights while they load"
    total = weights.bytes
    text = _text(config)
    if (text.get("dtype") or text.get("torch_dtype") or "float32") == "float32":
        total //= 2
    layers, more = _count_of(text, "num_hidden_layers"), _count_of(text, "num_nextn_predict_layers")
    if layers and more:
        # Layers that only speculative decoding loads; they are larger than most, so twice theirs.
        total = total * layers // (layers + 2 * more)
    return max(0, total - int((number(given, "cpu-offload-gb") or 0) * 2**30) * ranks)


@dataclass(frozen=True)
class Cache:
    """What one token takes of the cache, on each GPU."""

    bytes: float
    how: str
    mla: bool = False


def cache_of(config: Mapping[str, Any], given: Mapping[str, Any], tp_size: int) -> Cache | str:
    """Return the cache of one token on one GPU of a model, or why it is not computed."""
    data = memory_data()
    text, kind = _text(config), _kind(config)
    if kind is None:
        return "its config.json says no model_type"
    if kind not in (*data.cache.mha, *data.cache.mla):
        why = data.cache.other.get(kind)
        return why or f"the toolkit does not know how SGLang keeps the cache of {kind[:60]!a}"
    pool = [name for name in data.flags_that_change_pool if given.get(name)]
    if pool:
        return f"--{pool[0]} makes another pool"
    size = _cache_dtype(config, given)
    if isinstance(size, str):
        return size
    layers = _count_of(text, "num_hidden_layers")
    if not layers:
        return "its config.json says no num_hidden_layers"
    pp_size = count(given, "pp-size")
    layers = -(-layers // pp_size)
    stages = " of one stage" if pp_size > 1 else ""
    if kind in data.cache.mla:
        rank, rope = _count_of(text, "kv_lora_rank"), _count_of(text, "qk_rope_head_dim")
        if not rank or not rope:
            return "its config.json says no kv_lora_rank and qk_rope_head_dim"
        return Cache(
            (rank + rope) * layers * size,
            f"({rank} + {rope}) × {layers} layers{stages} × {size} B, whole on every GPU",
            mla=True,
        )
    if any(text.get(name) for name in ("kv_lora_rank", "index_head_dim", "num_kv_shared_layers")):
        return f"its config.json is not that of a usual {kind}"
    heads = _count_of(text, "num_attention_heads")
    kv_heads = _count_of(text, "num_key_value_heads") or heads
    hidden = _count_of(text, "hidden_size")
    head = _count_of(text, "head_dim") or (hidden // heads if hidden and heads else None)
    if not kv_heads or not head:
        return "its config.json says no num_attention_heads and head_dim"
    value = _count_of(text, "v_head_dim") or head
    mine = max(1, kv_heads // attention_tp(given, tp_size))
    return Cache(
        mine * (head + value) * layers * size,
        f"{mine} KV heads × ({head} + {value}) × {layers} layers{stages} × {size} B",
    )


def attention_tp(given: Mapping[str, Any], tp_size: int) -> int:
    """Return among how many GPUs the attention is split: DP attention makes groups of them."""
    groups = count(given, "attn-dp-size")
    if given.get("enable-dp-attention"):
        groups = max(groups, count(given, "dp-size"))
    return max(1, tp_size // groups)


@dataclass(frozen=True)
class Heads:
    """Attention heads and KV heads, as far as they must be split."""

    heads: int
    kv_heads: int | None  # None: a cache that is not split by heads

    def splits(self, parts: int) -> bool:
        """Say whether the heads can be split among so many GPUs."""
        if self.heads % parts:
            return False
        kv = self.kv_heads
        return kv is None or kv % parts == 0 or parts % kv == 0


def heads_of(config: Mapping[str, Any]) -> Heads | None:
    """Return a model's heads; None where they are not known, or its arithmetic is not."""
    kind, cache = _kind(config), memory_data().cache
    text = _text(config)
    heads = _count_of(text, "num_attention_heads")
    if kind is None or not heads or kind not in (*cache.mha, *cache.mla):
        return None
    kv = (_count_of(text, "num_key_value_heads") or heads) if kind in cache.mha else None
    return Heads(heads, kv)


def is_multimodal(config: Mapping[str, Any]) -> bool:
    """Say whether a model has a tower beside its text model."""
    return "vision_config" in config


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return config
    # What the whole model says counts where its text model says nothing.
    dtype = {name: config[name] for name in ("dtype", "torch_dtype") if name in config}
    return {**dtype, **text}


def _kind(config: Mapping[str, Any]) -> str | None:
    kind = _text(config).get("model_type") or config.get("model_type")
    return kind if isinstance(kind, str) and kind else None


def _count_of(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if type(value) is int and 0 < value < 10**9 else None


def _cache_dtype(config: Mapping[str, Any], given: Mapping[str, Any]) -> int | str:
    data = memory_data()
    asked = str(given.get("kv-cache-dtype", "auto"))
    if asked != "auto":
        size = data.cache_dtypes.get(asked)
        return (
            size if size is not None else f"--kv-cache-dtype {asked[:40]!a} keeps scales beside it"
        )
    quantization = config.get("quantization_config")
    algo = quantization.get("kv_cache_quant_algo") if isinstance(quantization, Mapping) else None
    if str(algo).upper() == "FP8":
        return 1
    dtype = str(given.get("dtype", "auto"))
    if dtype != "auto":
        size = data.dtypes.get(dtype)
        return size if size is not None else f"the size of --dtype {dtype[:40]!a} is not known"
    text = _text(config)
    own = str(text.get("dtype") or text.get("torch_dtype") or "float32").removeprefix("torch.")
    size = data.dtypes.get(own)
    if size is None:
        return f"the size of dtype {own[:40]!a} is not known"
    # "auto" works with 16 bits where a config says float32, or nothing.
    return min(size, 2)
