"""The door in a bundle: what goes into one, and what a node without a network takes from it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from plans.bundle import Bundle, Manifest
from plans.bundle_scripts import wheels
from plans.bundling import Ingredients, differing, ingredients
from plans.make import make_plan
from plans.plan import NodePlan
from plans.wheel.scripts import build
from releases.door import VERSION as ROUTER_VERSION
from releases.door import door_lock
from tests.unit.bundles import environment, manifest, member
from tests.unit.deployments import CAP, VERSION, codes, lock
from tests.unit.doorplans import bare, door_plan, of_door, stands
from tests.unit.surveys import wishes


def bundle(of: Manifest) -> Bundle:
    return Bundle("/tmp/site.bundle", of, "b" * 64, 1000)


def with_door(key: str, **changes: Any) -> Manifest:
    """Return the manifest of a bundle in which the door's environment has this key."""
    return manifest(environments=[environment(key=key, release=ROUTER_VERSION)], **changes)


def installed(of: Manifest, node: Any = None) -> NodePlan:
    found = bundle(of)
    wanted = wishes(CAP, door={"port": 8000})
    return make_plan(node or bare(), wanted, found.manifest.locked, VERSION, bundle=found)


def key_of_door() -> str:
    planned = of_door(door_plan()).environment
    assert planned is not None
    return planned.key


def test_the_wheels_of_the_door_go_into_a_bundle_with_its_services() -> None:
    made = ingredients(door_plan(), lock(), weights=False)
    assert isinstance(made, Ingredients)
    (of_it,) = made.environments
    assert of_it.planned.key == key_of_door()
    assert of_it.lock == door_lock("x86_64")
    assert "sglang-router" in {one.name for one in of_it.lock.packages}
    assert of_it.planned.key in wheels(of_it)
    without = ingredients(make_plan(bare(), wishes(CAP), lock(), VERSION), lock(), weights=False)
    assert isinstance(without, Ingredients)
    assert without.environments == ()


def test_a_node_that_needs_a_door_is_not_like_one_that_has_none() -> None:
    none = make_plan(bare(), wishes(CAP), lock(), VERSION)
    assert "the door's environment" in (differing(none, door_plan()) or "")
    assert differing(door_plan(), none) is None


def test_a_node_without_a_network_builds_the_door_from_the_bundle() -> None:
    made = installed(with_door(key_of_door()))
    assert codes(made) == []
    door = of_door(made)
    assert door.bundle is not None
    assert door.bundle.wheels == f"/var/lib/sglang/bundles/{'b' * 16}/wheels"
    assert door.environment is not None
    assert not door.environment.bring_uv
    assert "--no-index" in build(door.environment, door.bundle.wheels)
    built = [one.why for one in made.changes if one.what.startswith(key_of_door())]
    assert built == ["not on the node: built from the bundle"]


def test_a_bundle_that_was_made_without_the_door_is_refused() -> None:
    for of in (manifest(), with_door("1" * 16)):
        (code,) = codes(installed(of))
        assert code == "DOOR_NOT_IN_BUNDLE"


def test_a_door_that_stands_takes_nothing_from_a_bundle() -> None:
    node = stands(installed(with_door(key_of_door())))
    made = installed(manifest(), node)
    assert codes(made) == []
    assert of_door(made).bundle is None
    assert [one for one in made.changes if one.service is None] == []


def test_room_for_the_door_s_files_is_looked_for_too() -> None:
    large = json.loads(json.dumps(member(b"large").model_dump() | {"size": 10**15}))
    of = manifest(
        environments=[environment(key=key_of_door(), wheels=[{"name": "a.whl", "content": large}])]
    )
    assert "DISK_FULL" in codes(installed(of))
    assert "DISK_FULL" not in codes(installed(with_door(key_of_door())))


def test_a_bundle_of_another_architecture_says_that_alone() -> None:
    node = replace(bare(), host=replace(bare().host, architecture="aarch64"))
    assert "DOOR_NOT_IN_BUNDLE" not in codes(installed(with_door(key_of_door()), node))
