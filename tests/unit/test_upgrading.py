"""What an upgrade asks for: another release in the wishes, the key to set, how far a run came."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from facts.records import Survey
from locks.records import Lock
from plans.make import make_plan
from plans.plan import NodePlan
from plans.upgrading import (
    NotUpgradable,
    keys_to_set,
    may_go_back,
    proof_of,
    seconds_by_the_records,
    to_prove,
    with_release,
)
from plans.wishes import Wishes, WishesError, read_wishes
from releases.table import UnknownRelease
from tests.unit.deployments import CAP, VERSION, applied, lock
from tests.unit.surveys import survey, wishes

TO = "0.5.23"


def two(**keys: Any) -> Wishes:
    services = [
        {"name": "chat", "model": "Qwen/Qwen3-8B", **CAP},
        {"name": "other", "model": "Qwen/Qwen3-8B", "port": 30001, **CAP, **keys},
    ]
    return read_wishes({"services": services, "release": "0.5.22"}, "node")


def test_the_release_takes_the_place_of_the_inventory_s() -> None:
    found = with_release(two(release="0.5.19"), TO, (), "node")
    assert [found.release_of(one) for one in found.services] == [TO, TO]
    found = with_release(two(), TO, ("other",), "node")
    assert [one.name for one in found.services] == ["other"]
    assert with_release(two(), TO, ("third",), "node").services == ()


def test_a_release_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UnknownRelease):
        with_release(two(), "9.9.9", (), "node")


def test_an_image_of_another_release_is_refused_with_what_to_write() -> None:
    own = two(image="registry.example.org/sglang:v0.5.22")
    with pytest.raises(NotUpgradable, match=r"write there the one of 0\.5\.23"):
        with_release(own, TO, (), "node")
    fits = two(image="registry.example.org/sglang:v0.5.23")
    assert len(with_release(fits, TO, (), "node").services) == 2


def test_it_says_which_key_would_take_the_upgrade_back() -> None:
    assert keys_to_set(two(), TO, ()) == ("sglang.release to '0.5.23' (it says 0.5.22)",)
    assert keys_to_set(two(), TO, ("other",)) == ("sglang.services[other].release to '0.5.23'",)
    assert keys_to_set(two(release="0.5.19"), TO, ()) == (
        "sglang.release to '0.5.23' (it says 0.5.22)",
        "sglang.services[other].release to '0.5.23' (it says 0.5.19)",
    )
    assert keys_to_set(two(release=TO), TO, ("other",)) == ()


def test_a_hook_is_validated_without_telling_what_it_holds() -> None:
    for hook, said in (
        ({"run": ["curl", "secret-token"]}, "hooks.before_stop[0].run: is no command"),
        ({"run": "true", "on": "moon"}, "hooks.before_stop[0].on: is 'moon'"),
        ({"run": "true", "limit": 0}, "hooks.before_stop[0].limit"),
        ({"run": "true", "where": "node"}, "hooks.before_stop[0].where: is no key of ours"),
    ):
        data = {"services": [{"name": "chat", "model": "a/b"}], "hooks": {"before_stop": [hook]}}
        with pytest.raises(WishesError) as error:
            read_wishes(data, "node")
        (message,) = error.value.messages
        assert said in message
        assert "secret-token" not in message


# --- how far an earlier run came


def planned(record: dict[str, Any] | None, there: Survey | None = None) -> NodePlan:
    """Return the plan of a node that is as it should be, with this record."""
    given: Lock = lock()
    node = survey()
    after = there or applied(make_plan(node, wishes(CAP), given, VERSION), node)
    state = after.services["chat"]
    if record is not None:
        state = replace(state, record=json.dumps(record))
    return make_plan(replace(after, services={"chat": state}), wishes(CAP), given, VERSION)


def test_one_that_has_proved_itself_has_nothing_to_prove() -> None:
    assert to_prove(planned({"upgrade": "proved"})) == ()
    assert to_prove(planned({"result": "by an apply"})) == ()


@pytest.mark.parametrize("said", ["begun", "failed"])
def test_one_that_an_upgrade_put_there_and_did_not_prove_is_proved_and_may_go_back(
    said: str,
) -> None:
    plan = planned({"upgrade": said})
    (one,) = to_prove(plan)
    assert one.act == "none"
    assert may_go_back(plan, one)


def test_one_that_stands_there_for_long_has_no_way_to_go() -> None:
    plan = planned({"upgrade": "proved"})
    assert not may_go_back(plan, plan.services[0])


def test_a_new_one_has_to_prove_itself() -> None:
    plan = make_plan(survey(), wishes(CAP), lock(), VERSION)
    (one,) = to_prove(plan)
    assert may_go_back(plan, one)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"upgrade": 1}', '{"upgrade": "else"}'])
def test_a_record_that_says_nothing_says_nothing(text: str) -> None:
    state = replace(planned({}).survey.services["chat"], record=text)  # type: ignore[union-attr]
    assert proof_of(state) is None


def test_the_time_it_takes_comes_from_the_records() -> None:
    assert seconds_by_the_records(planned({"first_answer_seconds": 40}), 60) == 100
    assert seconds_by_the_records(planned({"first_answer_seconds": True}), 60) is None
