"""Will it fit: weights, cache and heads of a service against the memory of its GPUs.

From config.json, the sizes of the weights and the survey, before twenty minutes of loading.
What is not known refuses nothing: it says "not computed", and why.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from facts.records import ModelFiles, Survey, Unknown, known
from locks.records import LockedModel
from plans.decision import Decision
from plans.memory import GIB, MIB, count, default_fraction, given_flags, number
from plans.refusals import Caution, Refusal
from plans.room import Room, gib, page_cache_caution, room_of
from plans.shape import (
    Cache,
    Weights,
    attention_tp,
    cache_of,
    heads_of,
    is_multimodal,
    least_in_memory,
    weights_of,
)
from plans.wishes import Service

SHARE = "mem-fraction-static"


@dataclass(frozen=True)
class Fit:
    """Whether a service fits on its GPUs, with the sums as lines for the plan's reasons."""

    lines: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    cautions: tuple[Caution, ...] = ()
    read_bytes: int | None = None  # that a start reads; None: not known
    weights_per_gpu: int | None = None  # bytes
    cache_per_token: float | None = None  # bytes, on each GPU
    pool_tokens: int | None = None
    share: float | None = None  # of the GPU's memory: mem-fraction-static, given or SGLang's own


@dataclass(frozen=True)
class Model:
    """What is known of a service's model."""

    config: Mapping[str, Any] | Unknown
    weights: Weights | Unknown
    refusals: tuple[Refusal, ...] = ()
    cautions: tuple[Caution, ...] = ()


def is_on_cpu(service: Service) -> bool:
    """Say whether a service asks for the CPU: then no GPU's memory matters."""
    return given_flags(service, None).get("device") == "cpu"


def fit(survey: Survey, service: Service, decision: Decision, locked: LockedModel | None) -> Fit:
    """Return whether a service fits, as far as it is known.

    ``locked``: what the lock has of a hub's model; None for a local path, and for a model that is
    not locked yet. Pure, and raises nothing.
    """
    model = _local(survey, service) if service.is_local else _of_hub(service, locked)
    found = Fit(
        refusals=model.refusals,
        cautions=model.cautions,
        read_bytes=model.weights.read_bytes if isinstance(model.weights, Weights) else None,
    )
    # What is not locked yet is named as unresolved: nothing is to be computed of it.
    unresolved = not service.is_local and locked is None
    if is_on_cpu(service) or not decision.gpus or unresolved:
        return found
    if isinstance(model.weights, Unknown) and model.weights == model.config:
        told = f"whether it fits is not computed: {model.weights.text or model.weights}"
        return replace(found, lines=(told,))
    sums = _Sums(survey, service, decision, model)
    return sums.of(found)


# --- what is known of the model


def _of_hub(service: Service, locked: LockedModel | None) -> Model:
    if locked is None:
        why = Unknown("absent", "the model is not locked yet")
        return Model(why, why)
    sizes = {file.path: file.size_bytes for file in locked.files}
    weights = weights_of(sizes, locked.index_bytes)
    if locked.config is not None:
        return Model(locked.config, weights)
    told = locked.config_why or "the lock was made without it: sglang-node lock --refresh"
    return Model(Unknown("absent", told), weights)


def _local(survey: Survey, service: Service) -> Model:
    there = survey.models.get(service.model)
    if there is None:
        why = Unknown("absent", f"the survey has nothing of {service.model}")
        return Model(why, why, cautions=(_unchecked(service, why.text),))
    if there.exists is False:
        why = Unknown("absent", f"{service.model} is not there")
        return Model(why, why)  # refused as MODEL_PATH_MISSING
    config = _parsed(there)
    weights: Weights | Unknown
    if isinstance(there.sizes, Unknown):
        weights = there.sizes
    else:
        index = there.index_bytes if known(there.index_bytes) else None
        weights = weights_of(there.sizes, index)
        total = weights.read_bytes if isinstance(weights, Weights) else 0
        if index is not None and total < 0.9 * index:
            told = f"its index names {gib(index)} of weights and {gib(total)} are there"
            weights = Unknown("malformed", told)
            return Model(config, weights, cautions=(_incomplete(service, told),))
    if isinstance(config, Unknown) and config.why in ("unreadable", "malformed"):
        return Model(config, weights, cautions=(_unchecked(service, f"config.json: {config}"),))
    if isinstance(weights, Unknown) and weights.why == "unreadable":
        return Model(config, weights, cautions=(_unchecked(service, str(weights)),))
    has_gguf = known(there.sizes) and any(name.endswith(".gguf") for name in there.sizes)
    if not known(config) and not has_gguf and not there.mistral_form:
        return Model(config, weights, refusals=(_no_model(service, there),))
    return Model(config, weights)


def _parsed(there: ModelFiles) -> Mapping[str, Any] | Unknown:
    if isinstance(there.config, Unknown):
        return there.config
    try:
        data = json.loads(there.config)
    except (ValueError, RecursionError) as error:
        return Unknown("malformed", f"no JSON ({type(error).__name__})")
    return data if isinstance(data, dict) else Unknown("malformed", "no JSON object")


def _no_model(service: Service, there: ModelFiles) -> Refusal:
    files = len(there.sizes) if known(there.sizes) else 0
    return Refusal(
        "MODEL_INCOMPLETE",
        f"{service.model} is there and has no config.json ({files} files of weights)",
        "the whole directory of a model: config.json, tokenizer and weights",
        f"copy all files of the model to {service.model}, or name the directory that holds them",
        service.name,
    )


def _incomplete(service: Service, told: str) -> Caution:
    return Caution(
        "MODEL_INCOMPLETE",
        f"{service.model}: {told}: a copy that was cut, or pointers of Git LFS "
        f"(git -C {service.model} lfs pull)",
        service.name,
    )


def _unchecked(service: Service, why: str) -> Caution:
    return Caution(
        "MODEL_NOT_CHECKED", f"{service.model}: not checked whether it fits: {why}", service.name
    )


# --- the sums


@dataclass(frozen=True)
class _Sums:
    survey: Survey
    service: Service
    decision: Decision
    model: Model

    def of(self, found: Fit) -> Fit:
        """Return ``found`` with all sums, and what they refuse."""
        given = given_flags(self.service, self.decision.release)
        room = room_of(self.survey, self.service, self.decision)
        tp_size, pp_size = self.service.tp_size, count(given, "pp-size")
        ranks = tp_size * pp_size
        weights = self.model.weights
        config: Mapping[str, Any] = self.model.config if known(self.model.config) else {}
        found = self._heads(found, config, given)

        words: list[str] = []
        each: int | None = None
        if isinstance(weights, Weights):
            each = -(-weights.bytes // ranks)
            split = f" over {ranks} GPUs, {gib(each)} each," if ranks > 1 else " over 1 GPU"
            words.append(f"weights {gib(weights.bytes)} ({weights.source}){split}")
        else:
            words.append(f"weights not computed: {weights.text or weights}")
        if isinstance(room, Room):
            words[0] += f" of {gib(room.total)}" if each is not None else ""
            if room.unified:
                words.append(f"unified memory: {room.text}")
            if room.others and not room.unified:
                words.append(f"{gib(room.others)} of {room.where} are held by {room.who}")
        else:
            words.append(f"room not computed: {room}")

        unread = self.model.config
        cache: Cache | str = (
            f"config.json: {unread.text or unread}"
            if isinstance(unread, Unknown)
            else cache_of(config, given, tp_size)
        )
        if isinstance(cache, Cache):
            words.append(f"{cache.bytes / MIB:.4g} MiB of cache per token ({cache.how})")
        else:
            words.append(f"cache per token not computed: {cache}")
        found = replace(
            found,
            weights_per_gpu=each,
            cache_per_token=cache.bytes if isinstance(cache, Cache) else None,
        )
        if isinstance(room, Room) and isinstance(weights, Weights) and each is not None:
            least = least_in_memory(weights, config, given, ranks)
            if isinstance(least, str):
                words.append(f"not compared: {least}")
            else:
                found = self._room(found, room, least // ranks, given)
                found, told = self._pool(found, room, each, cache, given, config)
                words += told
        return replace(found, lines=("; ".join(words),))

    def _heads(self, found: Fit, config: Mapping[str, Any], given: Mapping[str, Any]) -> Fit:
        heads = heads_of(config)
        parts = attention_tp(given, self.service.tp_size)
        if heads is None or heads.splits(parts):
            return found
        most = max(len(self.survey.nvidia.gpus), self.service.tp_size)
        good = [str(size) for size in range(1, most + 1) if heads.splits(size)]
        kv = f" and {heads.kv_heads} KV heads" if heads.kv_heads else ""
        refusal = Refusal(
            "TP_DOES_NOT_DIVIDE",
            f"{heads.heads} attention heads{kv}, to be split among {parts} GPUs",
            "a tp_size that divides them",
            f"tp_size of {self.service.name}: {', '.join(good)}",
            self.service.name,
        )
        return replace(found, refusals=(*found.refusals, refusal))

    def _room(self, found: Fit, room: Room, least: int, given: Mapping[str, Any]) -> Fit:
        """Refuse weights that cannot fit; ``least`` bytes of them are on each GPU for certain."""
        share = number(given, SHARE)
        refusals, cautions = list(found.refusals), list(found.cautions)
        needed = f"{gib(least)} for the weights alone on each GPU"
        if least >= room.total:
            refusals.append(
                self._refusal(f"{room.where} has {gib(room.total)}", needed, least, room.total)
            )
        elif share is not None and 0 < share < 1 and least >= room.total * share:
            refusals.append(
                self._refusal(
                    f"{SHARE} {share:g} of {room.where} is {gib(room.total * share)}",
                    needed,
                    least,
                    room.total,
                    f"raise {SHARE} over {least / room.total:.2f}, or ",
                )
            )
        elif room.others is not None and least >= room.total - room.others:
            seen = (
                f"{gib(room.total - room.others)} of {room.where} are free: {room.who} "
                f"hold{'' if room.unified else 's'} {gib(room.others)}"
            )
            if room.named:
                refusals.append(
                    Refusal(
                        "GPU_MEMORY_TAKEN",
                        seen,
                        needed,
                        "stop what holds it, or give the service another GPU with `gpus:`",
                        self.service.name,
                    )
                )
            else:
                cautions.append(Caution("GPU_MEMORY_TAKEN", f"{seen}; {needed}", self.service.name))
        cautions += page_cache_caution(self.survey, room, least, self.service.name)
        return replace(found, refusals=tuple(refusals), cautions=tuple(cautions))

    def _refusal(self, seen: str, needed: str, least: int, total: int, first: str = "") -> Refusal:
        tp_size = self.service.tp_size
        config: Mapping[str, Any] = self.model.config if known(self.model.config) else {}
        heads = heads_of(config)
        there = len(self.survey.nvidia.gpus)
        # A tenth of the memory at least must be left for what is not weights.
        more = next(
            (
                size
                for size in range(tp_size + 1, there + 1)
                if least * tp_size / size < 0.9 * total and (heads is None or heads.splits(size))
            ),
            None,
        )
        ways = [f"tp_size: {more}"] if more else []
        ways += [
            f"GPUs with more than {gib(least)} each",
            "a quantised form of the model",
        ]
        return Refusal(
            "DOES_NOT_FIT", seen, needed, f"{first}{', or '.join(ways)}", self.service.name
        )

    def _pool(
        self,
        found: Fit,
        room: Room,
        each: int,
        cache: Cache | str,
        given: Mapping[str, Any],
        config: Mapping[str, Any],
    ) -> tuple[Fit, list[str]]:
        share = number(given, SHARE)
        named = f"{SHARE} {share:g}" if share is not None else ""
        if share is None:
            share = default_fraction(
                room.total,
                given,
                self.decision.release,
                (self.service.tp_size, count(given, "pp-size")),
                mla=isinstance(cache, Cache) and cache.mla,
                multimodal=is_multimodal(config),
            )
            named = f"SGLang's own {SHARE}, about {share:.2f} here" if share is not None else ""
            if share is not None and isinstance(cache, Cache):
                step = rounded(int(room.total / 100 / cache.bytes))
                named += f" (each 0.01 is about {step} tokens)"
        if share is None:
            return found, [
                f"tokens in the pool not computed: SGLang's own {SHARE} is not known for these "
                "arguments and this release"
            ]
        if not 0 < share < 1:
            return found, [f"tokens in the pool not computed: {SHARE} is {share:g}"]
        found = replace(found, share=share)
        # SGLang takes its share of what is free when it starts.
        pool = (room.total - (room.others or 0)) * share - each
        if pool <= 0:
            caution = Caution(
                "POOL_TOO_SMALL",
                f"at {named} the weights ({gib(each)} on each GPU of {gib(room.total)}) leave no "
                f"memory for the cache: set {SHARE} higher, or use more or larger GPUs",
                self.service.name,
            )
            return replace(found, cautions=(*found.cautions, caution)), [
                f"no tokens in the pool at {named}"
            ]
        if isinstance(cache, str):
            return found, [f"{gib(pool)} left for the cache at {named}"]
        tokens = int(pool / cache.bytes)
        limit = number(given, "max-total-tokens")
        if limit is not None and limit >= 1:
            tokens = min(tokens, int(limit))
        found = replace(found, pool_tokens=tokens)
        cap = self.service.output_cap
        if cap is not None and tokens < cap and self.service.kind == "generate":
            caution = Caution(
                "POOL_TOO_SMALL",
                f"about {rounded(tokens)} tokens in the pool at {named}, and one answer may have "
                f"{cap} (output_cap): the longest do not fit",
                self.service.name,
            )
            found = replace(found, cautions=(*found.cautions, caution))
        return found, [f"about {rounded(tokens)} tokens in the pool at {named}"]


def rounded(tokens: int) -> str:
    """Return a number of tokens as far as it is known: two digits, ``41,000``."""
    if tokens < 100:
        return str(tokens)
    step = 10 ** (math.floor(math.log10(tokens)) - 1)
    return f"{tokens // step * step:,}"


__all__ = ["GIB", "SHARE", "Fit", "fit", "is_on_cpu", "rounded"]
