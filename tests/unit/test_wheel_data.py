"""What the locks of Python packages are made from: its shape, and what of it a release gets."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from releases.table import RELEASES
from releases.versions import parse_version
from releases.wheels.data import DATA, WheelData, data, locked_releases, policy

RAW: dict[str, Any] = yaml.safe_load(DATA.read_text(encoding="utf-8"))


def changed(change: Callable[[dict[str, Any]], object]) -> WheelData:
    raw = copy.deepcopy(RAW)
    change(raw)
    return WheelData.model_validate(raw)


def test_every_release_of_the_table_has_its_entry() -> None:
    assert {one.release for one in data().releases} == set(RELEASES)


def test_every_departure_says_why_since_when_and_where_to_read_it() -> None:
    told = [(d.reason, d.since, d.link) for d in data().departures]
    told += [(t.reason, t.since, t.link) for t in data().toolkits]
    told += [(u.reason, u.since, u.link) for u in data().unresolved]
    for reason, since, link in told:
        assert len(reason) > 40
        assert since
        assert link.startswith("https://github.com/")


def test_the_image_of_a_refused_release_is_one_of_the_table() -> None:
    refused = [one for one in data().releases if one.refused is not None]
    assert [one.release for one in refused] == ["0.5.19"]
    for one in refused:
        assert one.refused is not None
        assert one.refused.image in {image.tag for image in RELEASES[one.release].images}


def test_the_compiler_set_is_of_the_cuda_release_that_it_is_for() -> None:
    for one in data().toolkits:
        assert {".".join(v.split(".")[:2]) for v in one.compiler.values()} == {one.cuda}
        assert set(one.compiler) <= set(data().checks.numbered_like_cuda)


def test_a_locked_release_is_for_the_cuda_of_its_image() -> None:
    for release in locked_releases():
        wanted = policy(release)
        image = RELEASES[release].image("cuda13")
        assert wanted is not None
        assert image is not None
        assert wanted.locked.cuda == image.cuda


def test_a_release_gets_its_own_departures_and_the_open_ended_ones() -> None:
    old, new = policy("0.5.22"), policy("v0.5.23")
    assert old is not None
    assert new is not None
    assert {d.package for d in old.departures} - {d.package for d in new.departures} == {
        "cuda-tile",
        "python-dateutil",
    }
    assert policy("0.5.19") is None
    assert policy("0.5.99") is None


def test_the_digest_moves_with_the_release_s_own_data_alone() -> None:
    def digests(there: WheelData) -> list[str]:
        found = [policy(release, there) for release in locked_releases()]
        return [one.digest for one in found if one is not None]

    def at(raw: dict[str, Any], package: str) -> dict[str, Any]:
        return next(d for d in raw["departures"] if d["package"] == package)

    old, new = digests(data())
    assert old != new
    moved = changed(lambda raw: at(raw, "cuda-tile").update(requirement="==1.7.1"))
    assert digests(moved)[0] != old
    assert digests(moved)[1] == new
    moved = changed(lambda raw: raw["toolkits"][0]["compiler"].update({"nvidia-nvvm": "13.0.89"}))
    assert digests(moved)[0] != old
    assert digests(moved)[1] != new


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("a departure without a reason", lambda raw: raw["departures"][0].pop("reason")),
        ("a departure without a link", lambda raw: raw["departures"][0].pop("link")),
        ("a departure without a date", lambda raw: raw["departures"][0].pop("since")),
        ("an unknown key", lambda raw: raw["departures"][0].update(note="x")),
        ("a reason of two lines", lambda raw: raw["departures"][0].update(reason="one\ntwo")),
        ("an override that replaces nothing", lambda raw: raw["departures"][0].update(replaces=None)),
        ("an exclusion with a version", lambda raw: raw["departures"][3].update(requirement="==1")),
        ("a constraint without a bound", lambda raw: raw["departures"][1].update(requirement="")),
        ("a requirement that is none", lambda raw: raw["departures"][1].update(requirement="3")),
        ("a name not in its normal form", lambda raw: raw["departures"][0].update(package="Cuda_Tile")),
        ("a package that departs twice", lambda raw: raw["departures"].append(raw["departures"][0])),
        ("a release that stands twice", lambda raw: raw["releases"].append(raw["releases"][0])),
        ("a toolkit that stands twice", lambda raw: raw["toolkits"].append(raw["toolkits"][0])),
        ("a release of no toolkit", lambda raw: raw["releases"][1]["locked"].update(cuda="13.1")),
        ("a release neither locked nor refused", lambda raw: raw["releases"][0].update(refused=None)),
        ("a Python that is no number", lambda raw: raw["releases"][1]["locked"].update(python=3.12)),
        ("an empty compiler set", lambda raw: raw["toolkits"][0].update(compiler={})),
        ("a compiler of no version", lambda raw: raw["toolkits"][0]["compiler"].update({"nvidia-nvvm": "new"})),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_data_that_does_not_fit_is_refused(
    what: str, change: Callable[[dict[str, Any]], object]
) -> None:
    with pytest.raises(ValidationError):
        changed(change)


def test_a_new_release_is_one_entry() -> None:
    there = changed(
        lambda raw: raw["releases"].append(
            {
                "release": "0.5.24",
                "locked": {"python": "3.12", "glibc": "2.34", "cuda": "13.0"},
                "refused": None,
            }
        )
    )
    new, last = policy("0.5.24", there), policy("0.5.23", there)
    assert new is not None
    assert last is not None
    assert new.departures == last.departures


def test_locked_releases_are_told_oldest_first() -> None:
    assert locked_releases() == sorted(locked_releases(), key=parse_version)
