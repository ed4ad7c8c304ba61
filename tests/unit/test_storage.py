"""Models on network storage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from facts.records import ABSENT, Space, Survey
from plans import paths
from tests.unit.deployments import CAP, fresh, plan
from tests.unit.surveys import wishes


def on(kind: Any, path: str = paths.WEIGHTS) -> Survey:
    """Return the survey of a node whose path is on such a file system."""
    node = fresh()
    there = Space(
        path, True, path, mount=path, file_system=kind, free_bytes=10**13, read_only=False
    )
    return replace(node, spaces={**node.spaces, path: there})


def said(node: Survey, **keys: Any) -> list[str]:
    """Return what the plan says of the storage."""
    made = plan(node, wishes({**CAP, **keys}))
    return [one.text for one in made.cautions if one.code == "NETWORK_STORAGE"]


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.juicefs"])
def test_a_model_on_network_storage_is_named_with_the_flags_of_its_release(kind: str) -> None:
    (text,) = said(on(kind))
    assert f"{paths.WEIGHTS} is on network storage ({kind})" in text
    assert "weight-loader-prefetch-checkpoints: True" in text
    (local,) = said(on(kind, "/models/m"), model="/models/m")
    assert "/models/m is on network storage" in local


@pytest.mark.parametrize("kind", ["ext4", "xfs", "overlay", "fuseblk", ABSENT])
def test_a_disk_of_the_node_is_not(kind: Any) -> None:
    assert said(on(kind)) == []


def test_who_took_the_flag_is_told_nothing() -> None:
    assert said(on("nfs4"), arguments={"weight_loader_disable_mmap": True}) == []
