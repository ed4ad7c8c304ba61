"""Damaged surveys, lock files and inventories: a sentence each, never a traceback or a wrong go."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cli.inventory import TargetError, load
from facts.parsing import SurveyError, parse_survey, read_recorded
from locks.lockfile import LockError, read_lock, render_lock
from plans.make import make_plan
from plans.plan import NodePlan
from tests.unit.deployments import CAP, VERSION, fresh, lock
from tests.unit.surveys import wishes

T = TypeVar("T")

DEMO = Path(__file__).parents[2] / "inventories" / "demo"
QUICK = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def attempt(read: Callable[[], T], error: type[Exception]) -> tuple[T | None, str]:
    """Return what was read, or None and the sentence of the one error that may come."""
    try:
        return read(), ""
    except error as told:
        return None, str(told)


def recorded(name: str) -> str:
    """Return a recorded survey as text."""
    return (DEMO / f"{name}.survey").read_text(encoding="utf-8")


def changed(old: str, new: str) -> str:
    """Return the survey of a healthy node with something in it that is another."""
    good = recorded("b200-pair")
    assert old in good
    return good.replace(old, new)


TAKEN = (
    ' LISTEN 0 128 0.0.0.0:30000 0.0.0.0:* users:(("nginx",pid=7,fd=3))\n LISTEN 0 128 0.0.0.0:22'
)
NODES = {
    "healthy": recorded("b200-pair"),
    "a port is taken": changed(" LISTEN 0 128 0.0.0.0:22", TAKEN),
    "not root": changed("@ user rc=0\n 0\n root", "@ user rc=0\n 1000\n maria"),
    "read-only": changed("/ ext4 rw", "/ ext4 ro"),
    "another system": changed("ID=ubuntu", "ID=arch"),
    "disk full": re.sub(r" \d+( +\d+% /)\n", r" 4\1\n", recorded("b200-pair")),
    "driver mismatch": recorded("mismatch"),
    "an old GPU": recorded("t4"),
    "no toolkit": recorded("two-l4-no-toolkit"),
}
REFUSED = set(NODES) - {"healthy"}


def planned(text: str) -> NodePlan:
    """Return the plan from the text of a survey. Raises SurveyError."""
    return make_plan(parse_survey(text.split("\n"), "node"), wishes(CAP), lock(), VERSION)


@cache
def undamaged(name: str) -> NodePlan:
    """Return the plan of a node as it is."""
    return planned(NODES[name])


def sections(text: str) -> list[str]:
    """Return what stands before the first section, and each section."""
    return re.split(r"(?m)^(?=@ )", text)


def with_code(section: str, code: int) -> str:
    """Return a section whose program ended with this code and printed nothing."""
    return re.sub(r"rc=\d+", f"rc={code}", section.split("\n", 1)[0]) + "\n"


DAMAGE: dict[str, Callable[[str], str]] = {
    "gone": lambda section: "",
    "emptied": lambda section: section.split("\n", 1)[0] + "\n",
    "failed": lambda section: with_code(section, 1),
    "timed out": lambda section: with_code(section, 124),
    "no such program": lambda section: with_code(section, 127),
    "garbage": lambda section: section.split("\n", 1)[0] + "\n \0\x01\ufffd{[garbage\n",
    "cut": lambda section: section[: max(section.find("\n") + 1, len(section) // 2)] + "\n",
}


def test_the_nodes_that_are_damaged_here_are_what_their_names_say() -> None:
    assert undamaged("healthy").changes
    assert undamaged("healthy").cautions == ()
    for name in REFUSED:
        assert undamaged(name).refusals, name


@QUICK
@given(st.sampled_from(sorted(NODES)), st.data())
def test_a_survey_with_damaged_sections_is_refused_or_said_or_no_matter(
    name: str, data: st.DataObject
) -> None:
    before = undamaged(name)
    parts = sections(NODES[name])
    for _ in range(data.draw(st.integers(1, 2))):
        index = data.draw(st.integers(1, len(parts) - 2))
        how = data.draw(st.sampled_from(sorted(DAMAGE)))
        if parts[index].startswith("@ "):
            parts[index] = DAMAGE[how](parts[index])
    try:
        after = planned("".join(parts))
    except SurveyError:
        return
    if after.refusals:
        assert after.changes == ()
        return
    if not before.refusals and after.changes == before.changes:
        return
    # Something is other than it was, so the operator is told what is not known.
    told = {one.text for one in after.cautions} | set(after.reasons)
    assert told - {one.text for one in before.cautions} - set(before.reasons)


@QUICK
@given(st.sampled_from(sorted(REFUSED)), st.data())
def test_no_damage_turns_a_refusal_into_a_go_without_a_word(name: str, data: st.DataObject) -> None:
    parts = sections(NODES[name])
    index = data.draw(st.integers(1, len(parts) - 2))
    parts[index] = DAMAGE[data.draw(st.sampled_from(sorted(DAMAGE)))](parts[index])
    try:
        after = planned("".join(parts))
    except SurveyError:
        return
    before = {caution.code for caution in undamaged(name).cautions}
    assert after.refusals or {caution.code for caution in after.cautions} - before


BYTES = st.one_of(
    st.binary(min_size=1, max_size=6),
    st.sampled_from(
        [b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"@ end\n", b"@ x rc=0\n", b"\r\n", b"@"]
    ),
    st.sampled_from(
        [b" 9" * 4000, b"{" * 3000, b" \xe2\x80\xa8" * 300, b"@ user rc=0\n 0\n root\n"]
    ),
)


@QUICK
@given(
    st.sampled_from(sorted(NODES)),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 400), BYTES), min_size=1, max_size=4),
    st.booleans(),
)
def test_a_recording_of_any_bytes_gives_a_plan_or_a_sentence(
    tmp_path: Path, name: str, edits: list[tuple[float, int, bytes]], shuffled: bool
) -> None:
    text = NODES[name]
    if shuffled:
        head, *parts, end = sections(text)
        text = "".join([head, *reversed(parts), end])
    raw = text.encode()
    for place, length, new in edits:
        start = int(place * len(raw))
        raw = raw[:start] + new + raw[start + length :]
    path = tmp_path / "node.survey"
    path.write_bytes(raw)
    survey, told = attempt(lambda: read_recorded(path), SurveyError)
    if survey is None:
        assert told.endswith(".")
        return
    made = make_plan(survey, wishes(CAP), lock(), VERSION)
    document = json.loads(json.dumps(made.as_dict()))
    assert made.refusals == () or document["changes"] == []


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.just([]), st.just({}),
    st.sampled_from(["sha256:" + "0" * 63, "../../etc/passwd", "latest", "1" * 40]),
)  # fmt: skip


@QUICK
@given(st.data())
def test_a_lock_with_any_value_in_it_is_used_as_it_is_or_refused_with_a_sentence(
    tmp_path: Path, data: st.DataObject
) -> None:
    document = yaml.safe_load(render_lock(lock()))
    here: Any = document
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        inner = here[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            here[key] = data.draw(VALUES)
            break
        here = inner
    path = tmp_path / "sglang.lock"
    path.write_text(json.dumps(document), encoding="utf-8")
    _use(path)


@QUICK
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 80), BYTES), min_size=1, max_size=3))
def test_a_lock_of_any_bytes_is_used_as_it_is_or_refused_with_a_sentence(
    tmp_path: Path, edits: list[tuple[float, int, bytes]]
) -> None:
    raw = render_lock(lock())
    for place, length, new in edits:
        start = int(place * len(raw))
        raw = raw[:start] + new + raw[start + length :]
    path = tmp_path / "sglang.lock"
    path.write_bytes(raw)
    _use(path)


def _use(path: Path) -> None:
    found, told = attempt(lambda: read_lock(path), LockError)
    if found is None:
        assert "sglang.lock" in told
        return
    made = make_plan(fresh(), wishes(CAP), found, VERSION)
    image = made.services[0].launch.image if made.services[0].launch else ""
    assert not image or re.search(r"sha256:[0-9a-f]{64}$", image), "never anything but a digest"


HOSTS: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.text(max_size=4), st.integers(), st.none(), st.just("@local")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=2),
    ),
    max_leaves=6,
)


@QUICK
@given(HOSTS)
@example((["a"], {"b": 1}))
@example([("a",)])
@example([("a", 1)])
@example([("a", {1: 2})])
@example(["a", ("a", {})])
@example(("0", "@"))
def test_hosts_of_any_shape_are_an_inventory_or_a_sentence(tmp_path: Path, hosts: Any) -> None:
    path = tmp_path / "site.py"
    path.write_text(f"nodes = {hosts!r}\n", encoding="utf-8", errors="backslashreplace")
    _, told = attempt(lambda: list(load(str(path))), TargetError)
    assert not told or str(path) in told


@pytest.mark.parametrize(
    "content",
    [b"\0", b"\xff", b"nodes = [", b"raise SystemExit(3)", b"import nothing_of_that_name", b"1/0"],
)
def test_an_inventory_that_cannot_be_run_is_told_with_its_name(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "site.py"
    path.write_bytes(content)
    with pytest.raises(TargetError, match=re.escape("site.py")):
        load(str(path))
