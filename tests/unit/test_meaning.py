"""What a change of release means for a service, as its plan says it."""

from __future__ import annotations

import json

import pytest

from facts.records import ABSENT, Survey
from plans.meaning import meaning
from releases.table import get_release
from tests.unit.deployments import CAP, converged, one, plan, with_state
from tests.unit.surveys import wishes

HEAD = "from SGLang 0.5.22 to 0.5.23: "


def older(**arguments: object) -> Survey:
    """A node that serves with these arguments, whose settings say that it is 0.5.22 that does."""
    node = converged(wishes({**CAP, "arguments": arguments}))
    settings = {"SGLANG_RELEASE": "0.5.22", "SGLANG_BUILD": "of-the-older-one"}
    launch = {**node.services["chat"].launch, **settings}
    return with_state(node, launch=launch, record=json.dumps({"first_answer_seconds": 61}))


def told(node: Survey, **arguments: object) -> list[str]:
    made = plan(node, wishes({**CAP, "arguments": arguments}, release="0.5.23"))
    assert made.refusals == ()
    return [line.removeprefix(HEAD) for line in made.reasons if line.startswith(HEAD)]


def test_the_cache_that_will_be_cold_and_the_last_start_are_told() -> None:
    assert told(older())[-1] == (
        "kernels are compiled anew, in a cache of their own; "
        "its last start took 61 s to the first answer"
    )


@pytest.mark.parametrize("record", [ABSENT, "{", "[]", '{"first_answer_seconds": true}'])
def test_a_record_that_says_nothing_is_not_made_up(record: object) -> None:
    node = with_state(older(), record=record)
    assert told(node)[-1] == "kernels are compiled anew, in a cache of their own"


def test_a_service_that_stays_at_its_release_or_has_none_is_told_nothing() -> None:
    assert one(plan(converged())).meaning == ()
    assert one(plan()).meaning == ()


def test_another_build_of_the_same_release_is_told_as_cold() -> None:
    node = older()
    launch = {**node.services["chat"].launch, "SGLANG_RELEASE": "0.5.23"}
    made = plan(with_state(node, launch=launch), wishes(CAP))
    assert (
        "kernels are compiled anew, in a cache of their own; its last start took 61 s to the first answer"
        in made.reasons
    )
    launch["SGLANG_BUILD"] = one(made).launch.build.key  # type: ignore[union-attr]
    assert one(plan(with_state(node, launch=launch), wishes(CAP))).meaning == ()


def test_a_release_that_nobody_knows_is_named_and_not_compared() -> None:
    node = older()
    launch = {**node.services["chat"].launch, "SGLANG_RELEASE": "0.4.1"}
    made = plan(with_state(node, launch=launch), wishes(CAP, release="0.5.23"))
    assert any("the toolkit does not know 0.4.1" in line for line in made.reasons)


def test_a_flag_that_is_deprecated_or_takes_less_from_here_on_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new = get_release("0.5.23")
    flag = new.flags["attention-backend"]
    fewer = flag.model_copy(
        update={"choices": ("triton",), "deprecated": "Use --attention instead."}
    )
    changed = new.model_copy(update={"flags": {**new.flags, "attention-backend": fewer}})
    launch = one(plan(wanted=wishes({**CAP, "arguments": {"attention-backend": "triton"}}))).launch
    assert launch is not None
    state = older(**{"attention-backend": "triton"}).services["chat"]
    known = {"0.5.22": get_release("0.5.22"), "0.5.23": changed}
    monkeypatch.setattr("plans.meaning.get_release", known.__getitem__)
    lines = meaning(launch, state)
    assert (
        f"{HEAD}--attention-backend is deprecated from here on: Use --attention instead." in lines
    )
    (less,) = [line for line in lines if "no longer takes" in line]
    assert "fa3" in less
    assert "triton" not in less


def test_defects_that_come_and_go_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = get_release("0.5.22"), get_release("0.5.23")
    defect = old.defects[0].model_copy(
        update={"when": old.defects[0].when.model_copy(
            update={"flags": {}, "flags_any": {}, "flags_absent": (), "env": {}, "runtime": None}
        )}
    )  # fmt: skip
    launch = one(plan()).launch
    assert launch is not None
    state = older().services["chat"]
    has, has_not = (replace_defects(old, (defect,)), replace_defects(old, ()))
    for first, second, words in (
        (has, replace_defects(new, ()), f"a defect of {old.version} that touches it is gone"),
        (has_not, replace_defects(new, (defect,)), f"a defect of {new.version} touches it"),
    ):
        known = {"0.5.22": first, "0.5.23": second}
        monkeypatch.setattr("plans.meaning.get_release", known.__getitem__)
        assert any(words in line and defect.what in line for line in meaning(launch, state))


def replace_defects(release: object, defects: tuple[object, ...]) -> object:
    return release.model_copy(update={"defects": defects})  # type: ignore[attr-defined]
