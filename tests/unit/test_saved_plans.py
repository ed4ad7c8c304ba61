"""Plans kept in a file: what they hold, when they are stale, and any file that is none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plans.plan import NodePlan
from plans.saved import SavedPlan, SavedPlanError, read_saved, saved_plan, stale
from plans.wishes import Wishes
from tests.unit.deployments import CAP, VERSION, converged, fresh, lock
from tests.unit.deployments import plan as plan_of
from tests.unit.surveys import wishes


def kept(plan: NodePlan, given: Wishes) -> str:
    return saved_plan([plan], {plan.node: given}, lock(), [plan.as_dict()], VERSION)


def promised(plan: NodePlan, given: Wishes) -> Any:
    return read_saved(kept(plan, given), VERSION).promises[plan.node]


WISHES = wishes(CAP)


def test_a_saved_plan_brings_back_its_wishes_and_its_lock() -> None:
    plan = plan_of(fresh(), WISHES)
    saved = read_saved(kept(plan, WISHES), VERSION)
    assert saved.wishes_of({}) == {plan.node: WISHES}
    assert saved.lock_of() == lock()
    assert saved.nodes == [json.loads(json.dumps(plan.as_dict()))]


def test_values_of_an_environment_are_not_kept_and_come_from_the_inventory() -> None:
    private = wishes({**CAP, "environment": {"NOTE": "private-value"}})
    plan = plan_of(fresh(), private)
    text = kept(plan, private)
    assert "private-value" not in text
    saved = read_saved(text, VERSION)
    assert saved.wishes_of({plan.node: private}) == {plan.node: private}
    with pytest.raises(SavedPlanError, match="no longer has NOTE of chat"):
        saved.wishes_of({plan.node: WISHES})


def test_it_is_not_stale_where_the_node_is_as_it_was() -> None:
    plan = plan_of(fresh(), WISHES)
    assert stale(promised(plan, WISHES), plan_of(fresh(), WISHES)) is None


def test_it_is_not_stale_where_it_was_applied_already() -> None:
    plan = plan_of(fresh(), WISHES)
    again = plan_of(converged(WISHES), WISHES)
    assert again.converged
    assert stale(promised(plan, WISHES), again) is None


def test_it_is_stale_where_another_deployment_came_between_and_says_which() -> None:
    plan = plan_of(fresh(), WISHES)
    other = converged(wishes({**CAP, "port": 30001}))
    sentence = stale(promised(plan, WISHES), plan_of(other, WISHES))
    assert sentence is not None
    assert "no longer: chat: start sglang@chat.service" in sentence
    assert "now also: chat: restart sglang@chat.service" in sentence


def test_it_is_stale_where_nothing_is_to_be_done_and_less_runs_than_was_promised() -> None:
    promise = promised(plan_of(fresh(), WISHES), WISHES)
    more = promise.model_copy(update={"deployments": {"chat": 2}})
    assert "promised deployment 2 of chat" in (
        stale(more, plan_of(converged(WISHES), WISHES)) or ""
    )


def test_it_is_stale_where_it_was_refused_and_would_not_be_now() -> None:
    plan = plan_of(fresh(), WISHES)
    promise = promised(plan, WISHES).model_copy(update={"refused": True})
    assert "refused" in (stale(promise, plan) or "")


def test_it_is_stale_where_the_same_changes_would_write_other_texts() -> None:
    plan = plan_of(fresh(), WISHES)
    (one,) = plan.services
    other = replace(plan, services=(replace(one, files=one.files[1:]),))
    assert stale(promised(plan, WISHES), other) == "the same changes would write other texts now"


def test_one_of_another_version_of_the_toolkit_is_refused_with_what_to_do() -> None:
    text = kept(plan_of(fresh(), WISHES), WISHES)
    with pytest.raises(SavedPlanError, match=r"by version 0\.1\.0 .* this is 9: plan again"):
        read_saved(text, "9")


@pytest.mark.parametrize(
    "key",
    ["toolkit", "nodes", "promises", "schema_version", "lock"],
)
def test_each_key_of_the_wrong_type_is_named(key: str) -> None:
    document = json.loads(kept(plan_of(fresh(), WISHES), WISHES))
    document[key] = 3.5
    with pytest.raises(SavedPlanError, match=key):
        read_saved(json.dumps(document), VERSION)


TEXT = kept(plan_of(fresh(), WISHES), WISHES)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_damage_gives_a_sentence_or_the_very_plan(data: st.DataObject) -> None:
    """Never a traceback, never a plan that was not kept: a byte may be cut, changed or doubled."""
    raw = TEXT.encode()
    at = data.draw(st.integers(0, len(raw) - 1))
    new = data.draw(st.binary(max_size=3))
    damaged = raw[:at] + new + raw[at + data.draw(st.integers(0, 40)) :]
    try:
        saved = read_saved(damaged.decode("utf-8", "replace"), VERSION)
    except SavedPlanError:
        return
    assert isinstance(saved, SavedPlan)
    for promise in saved.promises.values():
        # Whatever its words are now: only what is promised by digest is ever applied.
        fresh_plan = plan_of(fresh(), WISHES)
        if promise.digest != read_saved(TEXT, VERSION).promises[fresh_plan.node].digest:
            assert stale(promise, fresh_plan) is not None


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["toolkit", "nodes", "promises", "lock", "schema_version"]) | st.text(), inner
    ),
    max_leaves=20,
))  # fmt: skip
def test_any_json_that_is_no_saved_plan_is_refused(document: Any) -> None:
    with pytest.raises(SavedPlanError):
        read_saved(json.dumps(document), VERSION)


def test_hooks_are_not_kept_and_come_from_the_inventory() -> None:
    private = wishes(CAP, hooks={"before_stop": [{"run": "lb --token private-value"}]})
    text = kept(plan_of(fresh(), private), private)
    assert "private-value" not in text
    saved = read_saved(text, VERSION)
    (node,) = saved.promises
    assert saved.wishes_of({node: private}) == {node: private}
    with pytest.raises(SavedPlanError, match="no longer has any"):
        saved.wishes_of({node: WISHES})
    with pytest.raises(SavedPlanError, match="no longer has any"):
        saved.wishes_of({})
