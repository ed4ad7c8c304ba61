"""What is collected of a node, decided from what it keeps alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plans import paths
from plans.collection import Collection, Policy, collect, keeps, last_use
from plans.stock import RUNS_UNKNOWN, CompilerLock, Image, ServiceLinks, Stock, Thing
from tests.unit.collections_ import DAY, NOW, UV, deployment, everything_goes, stock, things

OLD = Policy(keep=2, older_than=30 * DAY)


def gone(found: Collection, kind: str) -> list[str]:
    return [one.what.rsplit("/", 1)[1] for one in found.items if one.kind == kind]


def left(found: Collection) -> dict[str, str]:
    return {one.what: one.why for one in found.left}


def test_every_kind_of_thing_goes_with_the_deployments_that_needed_it() -> None:
    found = everything_goes()
    assert found.kept == {"chat": (4, 5)}
    assert [one.kind for one in found.items if one.kind != "deployment"] == [
        "compiler lock", "half-made", *["kernel cache"] * 3, *["environment"] * 3,
        *["Python"] * 3, "tool", *["image"] * 3,
    ]  # fmt: skip
    # They come last: a run that is cut goes on from them.
    assert [one.kind for one in found.items[-3:]] == ["deployment"] * 3
    assert found.size == 3 * (500 + 1000 + 100 + 2000 + 10_000)


def test_the_reasons_to_keep_a_deployment_are_told_apart() -> None:
    node = stock(
        (1, 2, 3, 4, 5, 6, 7),
        services={"chat": ServiceLinks(current=7, previous=1, runs=2)},
    )
    node = replace(
        node,
        deployments=tuple(replace(one, served=one.number in (3, 4, 5)) for one in node.deployments),
    )
    assert keeps(node, "chat", Policy(1, 0)) == {
        1: "previous",
        2: "it runs",
        4: "one of the two newest that have answered",
        5: "one of the two newest that have answered",
        7: "current",
    }
    assert keeps(node, "chat", Policy(2, 0))[6] == "one of the 2 newest"
    assert keeps(node, "chat", Policy(1, 97 * DAY))[6] == "used 93 days ago"
    unknown = replace(node, services={"chat": ServiceLinks(7, 1, RUNS_UNKNOWN)})
    assert set(keeps(unknown, "chat", Policy(1, 0))) == {1, 2, 3, 4, 5, 6, 7}


def test_a_deployment_was_of_use_until_the_next_one_was_made() -> None:
    node = stock((1, 2))
    node = replace(node, deployments=(deployment(1, 400), deployment(2, 3)))
    assert last_use(node, node.deployments[0]) == NOW - 3 * DAY
    assert last_use(node, replace(node.deployments[0], last=None)) == NOW


def test_what_two_deployments_share_stays_with_the_one_that_stays() -> None:
    shared = paths.environment("e1")
    node = stock()
    node = replace(
        node,
        deployments=tuple(
            replace(one, environment=shared, image=node.images[0].reference)
            for one in node.deployments
        ),
    )
    found = collect(node, OLD, UV)
    assert "e1" not in gone(found, "environment")
    assert node.images[0].reference not in [one.what for one in found.items]
    assert "cpython-3.1" not in gone(found, "Python")


def test_what_no_deployment_names_goes_by_its_own_age() -> None:
    old = Thing("cache", f"{paths.CACHES}/{99:016x}", 999, "700", NOW - 31 * DAY, 1)
    young = Thing("cache", f"{paths.CACHES}/{98:016x}", 999, "700", NOW - 29 * DAY, 1)
    unread = Thing("cache", f"{paths.CACHES}/{97:016x}", 999, "700", None, 1)
    node = stock((4, 5))
    found = collect(replace(node, things=(*node.things, old, young, unread)), OLD, UV)
    assert [one.what for one in found.items] == [old.path]
    assert "no deployment's build" in found.items[0].why


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"owner": 4711}, "it belongs to user 4711"),
        ({"owner": None}, "it belongs to user None"),
        ({"mode": "770"}, "others may write to it (mode 770)"),
        ({"mode": "702"}, "others may write to it (mode 702)"),
    ],
)
def test_what_another_may_have_written_is_left_and_named(
    change: dict[str, object], why: str
) -> None:
    node = stock()
    node = replace(
        node,
        things=tuple(
            replace(one, **change) if one.path.endswith("1") else one  # type: ignore[arg-type]
            for one in node.things
        ),
    )
    found = collect(node, OLD, UV)
    assert set(left(found).values()) == {why}
    assert left(found)[f"{paths.CACHES}/{1:016x}"] == why
    # Its Python is still run by it.
    assert gone(found, "Python") == ["cpython-3.2", "cpython-3.3"]


def test_an_image_that_somebody_else_uses_or_named_is_left() -> None:
    node = stock()
    first, second, third, *rest = node.images
    images = (
        replace(first, tags=("mine:1",)),
        replace(second, containers=1),
        replace(third, tags=("sglang-bundle:0123",)),
        *rest,
    )
    found = collect(replace(node, images=images), OLD, UV)
    assert [one.what for one in found.items if one.kind == "image"] == [third.reference]
    assert left(found) == {
        f"image {first.reference}": "it has a name that the toolkit did not give: mine:1",
        f"image {second.reference}": "1 containers are made of it",
    }
    same = Image(first.reference, node.images[-1].id, 1, 0)
    found = collect(replace(node, images=(same, *node.images[1:])), OLD, UV)
    assert "by another name" in left(found)[f"image {first.reference}"]


def test_a_compiler_s_lock_goes_once_nobody_holds_it_and_it_is_not_of_just_now() -> None:
    kept = f"{paths.CACHES}/{5:016x}"
    locks = (
        CompilerLock(f"{kept}/dead/lock", NOW - 3600, held=False),
        CompilerLock(f"{kept}/held/lock", NOW - 3600, held=True),
        CompilerLock(f"{kept}/young/lock", NOW - 5, held=False),
        CompilerLock(f"{kept}/unread/lock", None, held=False),
        CompilerLock(f"{paths.CACHES}/{1:016x}/goes/lock", NOW - 3600, held=False),
    )
    found = collect(stock(locks=locks), OLD, UV)
    assert [one.what for one in found.items if one.kind == "compiler lock"] == [locks[0].path]


def unreadable(node: Stock) -> Stock:
    changed = tuple(replace(one, readable=one.number != 4) for one in node.deployments)
    return replace(node, deployments=changed)


@pytest.mark.parametrize(
    "change",
    [
        unreadable,
        lambda node: replace(node, user=1000),
        lambda node: replace(node, user=None),
        lambda node: replace(node, unread=("docker",)),
        lambda node: replace(node, services={"chat": ServiceLinks(9, 4, 9)}),
    ],
)
def test_nothing_is_collected_where_not_all_is_known(change: object) -> None:
    assert callable(change)
    found = collect(change(stock()), OLD, UV)
    assert [one.code for one in found.refusals] == ["COLLECT_UNREADABLE"]
    assert found.items == ()


def test_a_deployment_that_goes_need_not_be_readable() -> None:
    node = stock()
    broken = replace(node.deployments[0], readable=False, image="", environment="", kernels="")
    found = collect(replace(node, deployments=(broken, *node.deployments[1:])), OLD, UV)
    assert gone(found, "deployment") == ["1", "2", "3"]


def test_each_service_keeps_its_own() -> None:
    other = deployment(1, 200, "embed", image="", environment=paths.environment("e1"))
    node = stock()
    node = replace(
        node,
        services={**node.services, "embed": ServiceLinks(1, None, None)},
        deployments=(*node.deployments, other),
        things=(*node.things, *things(1)),
    )
    found = collect(node, OLD, UV)
    assert found.kept == {"chat": (4, 5), "embed": (1,)}
    assert "e1" not in gone(found, "environment")
