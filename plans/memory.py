"""What is known of how SGLang splits a GPU's memory: ``plans/data/memory.yaml``, and its sums."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from plans.wishes import Service
from releases.schema import Sourced, Specifiers
from releases.table import RELEASES, is_given, normalise_flag
from releases.versions import in_specifiers
from releases.yaml_text import read_yaml

MIB = 1 << 20
GIB = 1 << 30


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Tier(_Data):
    """What SGLang takes by default on GPUs with less memory than ``below_mib``."""

    below_mib: int | None
    chunk: int
    graphs: tuple[int, int]
    prefill_graphs: int


class DefaultFraction(Sourced):
    """The parts of SGLang's own default of mem-fraction-static."""

    releases: Specifiers
    constant_mib: int
    mib_per_chunk_token: float
    least_chunk: int
    parallel_mib: int
    mib_per_decode_graph: int
    mib_per_prefill_graph: int
    mla_prefill_graphs_mib: int
    large_gpu_mib: int
    large_reserve_mib: int
    multimodal_factor: float
    tiers: tuple[Tier, ...]


class CacheKinds(Sourced):
    """Which architectures have which arithmetic."""

    mha: tuple[str, ...]
    mla: tuple[str, ...]
    other: Mapping[str, str]


class MemoryData(_Data):
    """The whole file."""

    default_fraction: DefaultFraction
    outside_share_mib: int
    cache: CacheKinds
    cache_dtypes: Mapping[str, int]
    dtypes: Mapping[str, int]
    flags_that_change_weights: tuple[str, ...]
    flags_that_change_pool: tuple[str, ...]


@cache
def memory_data() -> MemoryData:
    """Return what the file says, validated."""
    text = Path(__file__).with_name("data").joinpath("memory.yaml").read_text(encoding="utf-8")
    return MemoryData.model_validate(read_yaml(text))


def given_flags(service: Service, release: str | None) -> dict[str, Any]:
    """Return a service's arguments by the first spelling of each flag, without dashes before."""
    flags = RELEASES[release].flags if release in RELEASES else {}
    found = {}
    for name, value in service.arguments.items():
        plain = normalise_flag(name)
        if is_given(value):
            found[flags[plain].canonical if plain in flags else plain] = value
    return found


def says_its_share(service: Service) -> bool:
    """Say whether a service takes a share of a GPU that it names, or none at all."""
    given = given_flags(service, None)
    return "mem-fraction-static" in given or given.get("device") == "cpu"


def number(given: Mapping[str, Any], name: str) -> float | None:
    """Return the value of a flag as a number; None where it is not given or is none."""
    value = given.get(name)
    if isinstance(value, bool):
        return None
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return found if found == found and abs(found) < 1e15 else None


def count(given: Mapping[str, Any], name: str) -> int:
    """Return the value of a flag that counts GPUs, 1 where it is not given."""
    return max(1, int(number(given, name) or 1))


def default_fraction(
    memory_bytes: int,
    given: Mapping[str, Any],
    release: str | None,
    gpus_of_a_replica: tuple[int, int],
    *,
    mla: bool,
    multimodal: bool,
) -> float | None:
    """Return about what SGLang takes where mem-fraction-static is not given.

    ``gpus_of_a_replica``: tensor and pipeline parallel size. None for a release whose sum is not
    known here, and where flags that it looks at are of no form that is known.
    """
    data = memory_data().default_fraction
    if release is None or not in_specifiers(release, data.releases):
        return None
    memory = memory_bytes / MIB
    tier = next(t for t in data.tiers if t.below_mib is None or memory < t.below_mib)
    tp_size, pp_size = gpus_of_a_replica
    chunk = number(given, "chunked-prefill-size")
    graphs = number(given, "cuda-graph-max-bs-decode")
    if (chunk is not None and chunk <= 0) or "cuda-graph-config" in given:
        return None
    batch = graphs if graphs is not None else tier.graphs[tp_size >= 4]
    running = number(given, "max-running-requests")
    if graphs is None and running:
        batch = min(batch, running)
    reserved = (
        data.constant_mib
        + data.mib_per_chunk_token * max(chunk or tier.chunk, data.least_chunk)
        + data.parallel_mib * tp_size * pp_size / 8
    )
    if not given.get("disable-cuda-graph"):
        reserved += data.mib_per_decode_graph * batch
        reserved += (
            data.mla_prefill_graphs_mib if mla else data.mib_per_prefill_graph * tier.prefill_graphs
        )
    if memory > data.large_gpu_mib:
        reserved = max(reserved, data.large_reserve_mib)
    fraction = (memory - reserved) / memory * (data.multimodal_factor if multimodal else 1.0)
    return fraction if fraction > 0 else None
