"""What holds of every plan, whatever the host and the wishes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from facts.records import ABSENT, Answer, Survey, Unknown
from locks.records import Lock
from plans import scripts
from plans.make import make_plan
from plans.wishes import Wishes, WishesError, read_wishes
from tests.unit.deployments import CAP, VERSION, applied, fresh, lock, plan
from tests.unit.surveys import gpu, survey, wishes
from tests.unit.test_decision_properties import surveys

SCALAR = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
KEYS = st.one_of(
    st.sampled_from(
        ["services", "name", "model", "paths", "weights", "arguments", "environment", "gpus",
         "port", "address", "output_cap", "ulimits", "registry", "mirrors", "release", "image",
         "runtime", "served_name", "revision", "kind", "shm_size", "unsupported"]
    ),
    st.text(max_size=4),
)  # fmt: skip
DATA = st.recursive(
    SCALAR,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(KEYS, st.integers()), inner, max_size=5),
    ),
    max_leaves=12,
)
# Good data of which one key after another is replaced by anything.
NEARLY = st.builds(
    lambda service, more: {
        "services": [{"name": "chat", "model": "Qwen/Qwen3-8B", **service}],
        **more,
    },
    st.dictionaries(KEYS, DATA, max_size=2),
    st.dictionaries(KEYS, DATA, max_size=1),
)


def read(data: Any) -> Wishes | list[str]:
    """Return the wishes that data amounts to, or the messages that refuse it."""
    try:
        return read_wishes(data, "gpu-1")
    except WishesError as error:
        return error.messages


@settings(max_examples=300)
@given(st.one_of(DATA, NEARLY))
def test_data_of_an_inventory_gives_wishes_or_messages_that_name_the_node(data: Any) -> None:
    found = read(data)
    if isinstance(found, Wishes):
        # Whatever is taken can be planned, kept and printed.
        json.dumps(make_plan(fresh(), found, lock(), VERSION).as_dict())
    else:
        assert found
        assert all(message.startswith("gpu-1: ") for message in found)


def test_data_that_is_nested_too_deeply_is_refused() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    for key, value in (("arguments", {"x": deep}), ("gpus", deep), ("model", deep), ("x", deep)):
        found = read({"services": [{"name": "chat", "model": "a/b", key: value}]})
        assert isinstance(found, list)
        assert "nested too deeply" in found[0] or "is no key of ours" in found[0], key


UNKNOWN = st.sampled_from([ABSENT, Unknown("unreadable", "timeout"), Unknown("malformed", "?")])
STATES = st.one_of(
    UNKNOWN,
    st.sampled_from(
        ["active", "activating", "reloading", "deactivating", "failed", "inactive", "maintenance"]
    ),
)
NUMBERS = st.one_of(UNKNOWN, st.integers(0, 9))
TEXTS = st.one_of(UNKNOWN, st.text(max_size=10), st.just('{"files": {"/x": 1}}'))


@st.composite
def nodes(draw: st.DrawFn) -> Survey:
    """Draw a node: one where a plan was applied, and then anything happened to it."""
    node = applied(plan())
    changes: dict[str, Any] = {}
    for name, strategy in (
        ("active_state", STATES),
        ("sub_state", TEXTS),
        ("load_state", st.sampled_from(["loaded", "masked", "not-found"])),
        ("unit_file_state", st.one_of(UNKNOWN, st.sampled_from(["enabled", "disabled", ""]))),
        ("current", NUMBERS),
        ("previous", NUMBERS),
        ("main_pid", NUMBERS),
        ("plan", TEXTS),
        ("need_daemon_reload", st.one_of(UNKNOWN, st.booleans())),
        ("answer", st.one_of(UNKNOWN, st.builds(Answer, NUMBERS, st.just(("x",))))),
        ("launch", st.dictionaries(st.just("SGLANG_PORT"), st.text(max_size=3))),
    ):
        if draw(st.booleans()):
            changes[name] = draw(strategy)
    services = {"chat": replace(node.services["chat"], **changes)}
    files = {
        path: replace(
            file,
            sha256=draw(st.one_of(st.just(file.sha256), UNKNOWN, st.just("0" * 64))),
            text=draw(st.one_of(st.just(file.text), UNKNOWN)),
        )
        if draw(st.integers(0, 5)) == 0
        else file
        for path, file in node.files.items()
    }
    return replace(
        node,
        services=services,
        files=files,
        listeners=draw(st.one_of(UNKNOWN, st.just(()))),
        spaces=draw(st.sampled_from([{}, dict(node.spaces)])),
    )


def finite(value: object) -> bool:
    """Say whether JSON can hold a value."""
    return not isinstance(value, float) or (value == value and abs(value) != float("inf"))


WANTED: st.SearchStrategy[Wishes] = st.builds(
    lambda service, more: wishes(service, **more),
    st.fixed_dictionaries(
        {},
        optional={
            "output_cap": st.integers(1, 10**6),
            "kind": st.sampled_from(["generate", "embed", "rerank"]),
            "tp_size": st.integers(1, 8),
            "address": st.sampled_from(["127.0.0.1", "::", "10.0.0.1"]),
            "model": st.sampled_from(["Qwen/Qwen3-8B", "/srv/models/x", "other/model"]),
            "release": st.sampled_from(["0.5.19", "0.5.22", "0.5.23", "9.9"]),
            "image": st.sampled_from(["lmsysorg/sglang:v0.5.23", "lmsysorg/sglang:latest", "??"]),
            "runtime": st.sampled_from(["auto", "image", "wheel"]),
            "arguments": st.dictionaries(
                st.sampled_from(["mem-fraction-static", "lora-paths", "api-key-x", "nope", "port"]),
                st.one_of(SCALAR.filter(finite), st.lists(st.text(max_size=3), max_size=2)),
                max_size=2,
            ),
            "environment": st.dictionaries(
                st.sampled_from(["X", "HF_NOTE", "HF_HOME", "SGL_FORCE_SHUTDOWN"]),
                st.text("abc $%'\"\\"),
                max_size=2,
            ),
        },
    ),
    st.fixed_dictionaries({}, optional={"unsupported": st.booleans()}),
)


LOCKS = st.sampled_from([lock(), lock(platforms={}), None, Lock(images=lock().images)])
FRESH = st.just(fresh())
MADE = st.one_of(surveys(), nodes(), FRESH)


@settings(max_examples=300)
@given(MADE, WANTED, LOCKS, st.booleans())
def test_a_plan_is_made_of_any_node_and_wishes(
    node: Survey, wanted: Wishes, locked: Lock | None, discard: bool
) -> None:
    made = make_plan(node, wanted, locked, VERSION, discard_edits=discard)
    assert made == make_plan(node, wanted, locked, VERSION, discard_edits=discard)
    document = json.loads(json.dumps(made.as_dict()))
    if made.refusals:
        assert (document["decision"], document["changes"]) == ("refused", [])
    else:
        assert made.decision in ("image", "wheel")
    assert made.converged is (not made.refusals and not made.changes and not made.unresolved)
    for one in made.services:
        if one.guard is not None:
            # What would act can be rendered, whatever the node and the wishes say.
            scripts.switch(one)
            scripts.write_deployment("/x", one.files)


@settings(max_examples=100)
@given(nodes(), st.booleans())
def test_a_plan_that_was_applied_leaves_nothing_to_do(node: Survey, discard: bool) -> None:
    made = plan(node, discard_edits=discard)
    if made.refusals or not made.services[0].files:
        return
    after = plan(applied(made, node))
    assert after.refusals == ()
    assert [change.kind for change in after.changes] == []


def test_more_gpus_than_a_service_needs_change_nothing_else() -> None:
    two = make_plan(survey(gpu(0), gpu(1)), wishes(CAP), lock(), VERSION)
    assert len(two.services[0].decision.gpus) == 1
