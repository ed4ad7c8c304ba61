"""``--bundle`` on the command line: what is refused before a node is asked, and what is planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from locks.lockfile import read_lock, write_lock
from tests.fake.command import fake, inventory, recording, run
from tests.unit.bundles import IMAGE_BYTES, manifest, written
from tests.unit.deployments import INDEX, lock


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An inventory of one node, without a lock."""
    return inventory(tmp_path, fake("a", recording("b200-pair")))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle with the image that the node can run, from containerd's store like the node's."""
    images = [{**manifest().images[0].model_dump(), "saved_digest": INDEX}]
    written(tmp_path / "site.bundle", manifest(images=images), [IMAGE_BYTES])
    return tmp_path / "site.bundle"


def test_a_plan_says_what_comes_from_the_bundle_and_writes_no_lock(
    site: Path, bundle: Path
) -> None:
    ended = run("plan", site, "--bundle", bundle, "--json")
    assert ended.code == 0
    node = ended.nodes["@fake/a"]
    assert node["refusals"] == node["unresolved"] == []
    (image,) = [one for one in node["changes"] if one["kind"] == "image"]
    assert image["what"] == INDEX
    assert image["why"].endswith(": loaded from the bundle")
    assert read_lock(site.parent / "sglang.lock") is None


def test_a_bundle_for_another_architecture_is_refused_for_that_node(tmp_path: Path) -> None:
    written(tmp_path / "b", manifest(architecture="aarch64"), [IMAGE_BYTES])
    nodes = [fake("a", recording("b200-pair"))]
    ended = run("plan", inventory(tmp_path, *nodes), "--bundle", tmp_path / "b", "--json")
    assert ended.code == 3
    (refusal,) = ended.nodes["@fake/a"]["refusals"]
    assert refusal["code"] == "BUNDLE_ARCHITECTURE"
    assert refusal["seen"] == "the bundle is for aarch64, and the node is x86_64"


@pytest.mark.parametrize("command", ["plan", "apply"])
def test_a_file_that_was_cut_is_refused_before_a_node_is_asked(
    site: Path, bundle: Path, command: str
) -> None:
    bundle.write_bytes(bundle.read_bytes()[:-2000])
    ended = run(command, site, "--bundle", bundle)
    assert ended.code == 3
    assert ended.err.startswith("BUNDLE_DAMAGED: site.bundle ends early: it has ")
    assert read_lock(site.parent / "sglang.lock") is None


def test_another_hash_than_was_asked_for_is_refused(site: Path, bundle: Path) -> None:
    ended = run("plan", site, "--bundle", bundle, "--bundle-sha256", "0" * 64)
    assert ended.code == 3
    assert ended.err.startswith("BUNDLE_HASH: ")


def test_a_bundle_from_another_lock_is_refused(site: Path, bundle: Path) -> None:
    write_lock(site.parent / "sglang.lock", lock(index_digest="sha256:" + "8" * 64))
    ended = run("plan", site, "--bundle", bundle)
    assert ended.code == 3
    assert ended.err.startswith("BUNDLE_OTHER_LOCK: for lmsysorg/sglang:v0.5.23 ")


def test_words_that_do_not_go_together_are_said(site: Path, bundle: Path) -> None:
    for words in (
        ["plan", site, "--bundle-sha256", "0" * 64],
        ["plan", site, "--bundle", bundle, "--out", site.parent / "kept"],
        ["apply", site, "--bundle", bundle, "--plan", bundle],
        ["bundle", site],
    ):
        assert run(*words).code == 2
