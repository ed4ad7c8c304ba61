"""The plans of many nodes as a few, on the terminal and as an HTML file."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from cli.html import report
from plans.fleet import counts, folded, refused_for, state_of
from plans.plan import Change, NodePlan
from plans.refusals import Refusal

AT = "2026-11-30 12:00 UTC"
READY = NodePlan("gpu-1", "image", "0.5.23", "lmsysorg/sglang:v0.5.23", ())
OLD = Refusal("DRIVER_TOO_OLD", "driver 510.47.03", "525.60.13 or newer", "sudo reboot")


def named(plan: NodePlan, *names: str) -> list[NodePlan]:
    return [replace(plan, node=name) for name in names]


def test_nodes_whose_plans_say_the_same_are_one_entry_with_their_names() -> None:
    changed = replace(READY, changes=(Change("start", "sglang@chat.service", "not there yet"),))
    plans = [*named(READY, "a", "b"), *named(changed, "c"), *named(READY, "d")]
    assert [fold.nodes for fold in folded(plans)] == [("a", "b", "d"), ("c",)]


def test_a_plan_that_names_its_own_node_is_the_same_as_that_of_another() -> None:
    plans = [
        replace(READY, node=name, reasons=(f"sglang-node remove {name} --service x",))
        for name in ("gpu-1", "gpu-2")
    ]
    assert len(folded(plans)) == 1


def test_refusals_are_grouped_by_code_and_advice_the_most_frequent_first() -> None:
    other = replace(OLD, advice="sudo dnf upgrade && sudo reboot")
    plans = [
        *named(replace(READY, refusals=(other,)), "a"),
        *named(replace(READY, refusals=(OLD,)), "b", "c"),
    ]
    assert [(one.refusal.advice, one.nodes) for one in refused_for(plans)] == [
        ("sudo reboot", ("b", "c")),
        ("sudo dnf upgrade && sudo reboot", ("a",)),
    ]


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.loads: list[str] = []

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe"):
            self.loads.append(tag)
        self.loads += [
            f"{name}={value}"
            for name, value in attrs
            if name in ("src", "href") and not (value or "").startswith("#")
        ]


def read(html: str) -> _Text:
    parser = _Text()
    parser.feed(html)
    return parser


words = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)
refusals = st.builds(Refusal, st.just("DRIVER_TOO_OLD"), words, words, words)
plans = st.lists(
    st.builds(
        NodePlan,
        words,
        st.just("image"),
        st.just("0.5.23"),
        st.just("lmsysorg/sglang:v0.5.23"),
        st.just(()),
        refusals=st.lists(refusals, max_size=2).map(tuple),
        reasons=st.lists(words, max_size=2).map(tuple),
        changes=st.lists(st.builds(Change, st.just("image"), words, words), max_size=2).map(tuple),
        unresolved=st.lists(words, max_size=1).map(tuple),
    ),
    max_size=6,
    unique_by=lambda plan: plan.node,
)


@given(plans)
def test_every_node_stands_in_just_one_entry_and_is_counted_once(some: list[NodePlan]) -> None:
    names = [name for fold in folded(some) for name in fold.nodes]
    assert sorted(names) == sorted(plan.node for plan in some)
    assert sum(counts(some).values()) == len(some)
    refused = {plan.node for plan in some if state_of(plan) == "refused"}
    assert refused == {name for reason in refused_for(some) for name in reason.nodes}


@given(plans)
def test_the_report_says_what_the_plans_say_and_loads_nothing(some: list[NodePlan]) -> None:
    found = read(report(some, [], "site.py", AT))
    assert found.loads == []
    text = "".join(found.text)
    for plan in some:
        assert plan.node in text
        for refusal in plan.refusals:
            assert refusal.advice in text or len(some) > 1
        if not plan.refusals:
            assert all(change.what in text for change in plan.changes)


def test_what_a_node_says_is_text_in_the_report_and_never_a_tag() -> None:
    plan = replace(READY, node="<script>alert(1)</script>", reasons=("<img src=x onerror=y>",))
    html = report([plan], [("gpu-9", "<b>lost</b>")], "site.py", AT)
    assert read(html).loads == []
    assert not re.search(r"<(script|img|b>lost)", html)


def test_nodes_without_a_plan_stand_in_the_report_with_the_reason() -> None:
    text = "".join(read(report([], [("gpu-9", "could not be reached")], "site.py", AT)).text)
    assert "gpu-9" in text
    assert "could not be reached" in text
