"""The records of a decision: which runtime, which image, which GPUs, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from facts.records import Gpu
from plans.refusals import Caution, Refusal

GpuMode = Literal["cdi", "runtime", "gpus"]


@dataclass(frozen=True)
class GpuAccess:
    """How the GPUs reach the container."""

    mode: GpuMode
    arguments: tuple[str, ...]  # of docker run, one word each: "--device=nvidia.com/gpu=0"
    environment: Mapping[str, str]  # of the container: NVIDIA_VISIBLE_DEVICES=...
    reason: str


@dataclass(frozen=True)
class LeftOut:
    """A GPU that is there and is not used, and why."""

    index: int
    name: str
    reason: str


@dataclass(frozen=True)
class Decision:
    """What one service gets on one node, or all the reasons why it gets nothing.

    ``image`` is the image that this node's driver and GPUs can run; it is given
    even when something else, such as a missing Docker, refuses. It is None where
    the runtime is wheel.
    """

    kind: Literal["image", "wheel", "refused"]
    release: str | None
    image: str | None  # tag: "lmsysorg/sglang:v0.5.22"
    cuda_family: str | None  # "cuda13", "cu129"
    gpus: tuple[Gpu, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    access: GpuAccess | None = None
    environment: Mapping[str, str] = field(
        default_factory=dict
    )  # of the server: NVIDIA_DISABLE_REQUIRE in a container, CXX without one
    docker_arguments: tuple[
        str, ...
    ] = ()  # beyond those every service has: hiding the compat libraries, adapters for RDMA
    frozen: str | None = (
        None  # why the release can't move on, and what frees it: the plan's first line
    )
    reasons: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    cautions: tuple[Caution, ...] = ()
    runtime: Literal["image", "wheel"] = "image"  # that was decided for, refused or not
