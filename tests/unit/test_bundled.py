"""What a node's plan takes from a bundle, and what keeps a bundle from a node."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from facts.records import LocalImage, Survey, Unknown
from plans import paths
from plans.bundle import Bundle, Manifest
from plans.bundled import bundled_environment, other_lock
from plans.findings import Findings
from plans.make import make_plan
from plans.plan import NodePlan
from tests.unit.bundles import environment, environment_to_bundle, manifest, member
from tests.unit.deployments import CAP, COMMIT, CONFIG, INDEX, MANIFEST, VERSION, fresh, lock, one
from tests.unit.surveys import wishes

WEIGHTS = {"config.json": b"{}", "model.safetensors": b"w" * 3000}


def bundle(of: Manifest | None = None) -> Bundle:
    """Return a bundle that was opened."""
    return Bundle("/tmp/site.bundle", of or manifest(), "b" * 64, 1000)


def with_files(**changes: Any) -> dict[str, Any]:
    """Return a lock's data whose model has weights."""
    document = lock().to_json()
    for model in document["models"].values():
        model["files"] = [
            {"path": path, "size_bytes": len(content), "sha256": member(content).sha256}
            for path, content in WEIGHTS.items()
        ]
    return {**document, **changes}


def planned(node: Survey | None = None, of: Manifest | None = None) -> NodePlan:
    """Return the plan of a node that installs from a bundle."""
    found = bundle(of)
    return make_plan(node or fresh(), wishes(CAP), found.manifest.locked, VERSION, bundle=found)


def codes(of: NodePlan) -> list[str]:
    """Return the codes of what a plan refuses."""
    return [refusal.code for refusal in of.refusals]


def test_an_image_is_loaded_and_runs_by_the_digest_of_its_configuration() -> None:
    made = planned()
    assert made.refusals == ()
    service = one(made)
    assert service.pull is None
    assert service.launch is not None
    assert service.launch.image == CONFIG
    assert service.bundle is not None
    assert service.bundle.image is not None
    assert [change.why for change in made.changes if change.kind == "image"] == [
        "lmsysorg/sglang:v0.5.23 is not in Docker's store of this node: loaded from the bundle"
    ]


def test_once_it_is_loaded_nothing_more_is_taken() -> None:
    node = fresh()
    image = LocalImage("sglang-bundle", "3333333333333333", None, CONFIG)
    made = planned(replace(node, docker=replace(node.docker, images=(image,))))
    assert one(made).bundle is None
    assert "image" not in {change.kind for change in made.changes}


def test_an_image_that_was_pulled_is_kept() -> None:
    node = fresh()
    image = LocalImage("lmsysorg/sglang", None, INDEX, CONFIG)
    made = planned(replace(node, docker=replace(node.docker, images=(image,))))
    assert one(made).bundle is None
    assert one(made).launch.image == f"lmsysorg/sglang@{INDEX}"  # type: ignore[union-attr]


def in_containerd(saved: str | None) -> NodePlan:
    """Return the plan of a node whose Docker keeps images in containerd's store."""
    node = fresh()
    docker = replace(node.docker, image_store_dir="/var/lib/containerd")
    images = [{**manifest().images[0].model_dump(), "saved_digest": saved}]
    return planned(replace(node, docker=docker), manifest(images=images))


@pytest.mark.parametrize("saved", [MANIFEST, INDEX])
def test_in_containerd_s_store_it_runs_by_the_manifest_that_the_lock_has(saved: str) -> None:
    made = in_containerd(saved)
    assert made.refusals == ()
    assert one(made).launch.image == saved  # type: ignore[union-attr]


@pytest.mark.parametrize("saved", [None, "sha256:" + "9" * 64])
def test_in_containerd_s_store_an_image_without_the_lock_s_manifest_is_refused(
    saved: str | None,
) -> None:
    assert codes(in_containerd(saved)) == ["BUNDLE_STORE"]


def test_a_bundle_for_another_architecture_is_refused_and_that_alone() -> None:
    assert codes(planned(of=manifest(architecture="aarch64"))) == ["BUNDLE_ARCHITECTURE"]


def test_a_node_whose_architecture_is_unknown_takes_no_bundle() -> None:
    node = fresh()
    made = planned(replace(node, host=replace(node.host, architecture=Unknown("unreadable"))))
    assert "BUNDLE_ARCHITECTURE" in codes(made)


def test_what_neither_node_nor_bundle_has_is_refused() -> None:
    made = planned(of=manifest(images=[]))
    assert codes(made) == ["BUNDLE_LACKS"]
    assert made.refusals[0].seen.startswith(
        "neither the node nor the bundle has the image lmsysorg/sglang:v0.5.23"
    )


def test_what_the_bundle_s_lock_does_not_have_is_asked_of_nobody() -> None:
    document = lock().to_json()
    document["images"] = {}
    made = planned(of=manifest(lock=document))
    assert "BUNDLE_LACKS" in codes(made)
    assert made.unresolved == ()


def test_weights_that_are_missing_come_from_the_bundle() -> None:
    made = planned(of=manifest(WEIGHTS, lock=with_files()))
    assert made.refusals == ()
    taken = one(made).bundle
    assert taken is not None
    assert {weight.path for weight in taken.weights} == set(WEIGHTS)
    assert taken.blobs == f"{paths.WEIGHTS}/hub/models--Qwen--Qwen3-8B/blobs"
    assert taken.size == sum(len(c) for c in WEIGHTS.values()) + manifest().images[0].archive.size


def test_weights_that_are_not_in_it_are_refused() -> None:
    made = planned(of=manifest({"config.json": b"{}"}, lock=with_files()))
    assert codes(made) == ["BUNDLE_LACKS"]
    assert "1 files of Qwen/Qwen3-8B (model.safetensors)" in made.refusals[0].seen


def test_a_disk_without_room_for_what_is_sent_and_unpacked_is_refused() -> None:
    node = fresh()
    size = manifest().images[0].archive.size
    full = 16 * 1024 * 1024 + 2 * size - 1
    spaces = {
        path: replace(space, free_bytes=full) if path in (paths.STATE, "/var/lib/docker") else space
        for path, space in node.spaces.items()
    }
    made = planned(replace(node, spaces=spaces))
    assert codes(made) == ["DISK_FULL"]
    assert "that Docker unpacks from it" in made.refusals[0].needed
    enough = {p: replace(s, free_bytes=full + 1) for p, s in spaces.items()}
    assert codes(planned(replace(node, spaces=enough))) == []


def test_a_store_of_docker_on_a_disk_of_its_own_needs_its_own_room() -> None:
    node = fresh()
    size = manifest().images[0].archive.size
    own = replace(node.spaces["/var/lib/docker"], mount="/var/lib/docker", free_bytes=size - 1)
    made = planned(replace(node, spaces={**node.spaces, "/var/lib/docker": own}))
    assert codes(made) == ["DISK_FULL"]
    assert "on /var/lib/docker for Docker's store" in made.refusals[0].seen


def test_another_lock_than_the_inventory_s_is_refused() -> None:
    found = bundle()
    assert other_lock(found, None, wishes(CAP)) is None
    assert other_lock(found, lock(), wishes(CAP)) is None
    image = other_lock(found, lock(index_digest="sha256:" + "8" * 64), wishes(CAP))
    assert image is not None
    assert image.code == "BUNDLE_OTHER_LOCK"
    moved = json.loads(json.dumps(lock().to_json()).replace(COMMIT, "d" * 40))
    model = other_lock(found, type(lock()).model_validate(moved), wishes(CAP))
    assert model is not None
    assert model.seen.startswith("for Qwen/Qwen3-8B@main the bundle was made from c1c1")


def environment_from(
    node: Survey, packages: tuple[str, ...] = (), **changes: Any
) -> tuple[list[str], bool]:
    """Return why an environment is not built from a bundle, and whether it would be."""
    found = Findings()
    asked = replace(environment_to_bundle().planned, packages=packages, bring_uv=True)
    of = manifest(**{"environments": [environment()], "glibc": "2.34", **changes})
    got, built_from = bundled_environment(bundle(of), "chat", asked, node, found)
    assert not (built_from and got.bring_uv)
    return [refusal.code for refusal in found.refusals], built_from is not None


def on(glibc: str | Unknown) -> Survey:
    """Return the survey of a node with a C library."""
    node = fresh()
    return replace(node, host=replace(node.host, glibc=glibc))


def test_an_environment_is_built_from_the_bundle_that_has_its_key() -> None:
    assert environment_from(on("2.35")) == ([], True)
    assert environment_from(on("2.35"), environments=[]) == (["BUNDLE_LACKS"], False)


def test_uv_and_python_of_a_bundle_whose_hash_was_not_given_are_told_of() -> None:
    of = bundle(manifest(environments=[environment()]))
    planned_one = environment_to_bundle().planned
    for proved, told in ((False, ["BUNDLE_UNPROVED"]), (True, [])):
        found = Findings()
        bundled_environment(replace(of, proved=proved), "chat", planned_one, on("2.35"), found)
        assert [caution.code for caution in found.cautions] == told
    # Nothing of it runs where the environment is there already.
    found = Findings()
    bundled_environment(of, "chat", replace(planned_one, build=False), on("2.35"), found)
    assert found.cautions == []


@pytest.mark.parametrize("glibc", ["2.31", "2.9"])
def test_a_node_with_an_older_c_library_than_the_wheels_need_is_refused(glibc: str) -> None:
    assert environment_from(on(glibc))[0] == ["BUNDLE_GLIBC"]


def test_packages_of_the_operating_system_are_named_with_the_command() -> None:
    found = Findings()
    asked = replace(environment_to_bundle().planned, packages=("g++", "libnuma1"))
    node = on("2.35")
    tools = replace(node.toolchain, package_manager="/usr/bin/apt-get")
    of = bundle(manifest(environments=[environment()]))
    bundled_environment(of, "chat", asked, replace(node, toolchain=tools), found)
    (refusal,) = found.refusals
    assert refusal.code == "BUNDLE_PACKAGES"
    assert "g++, libnuma1 missing" in refusal.seen
    assert refusal.advice == "sudo apt-get install g++ libnuma1, then apply again"
