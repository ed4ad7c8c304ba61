"""Public reports of what goes wrong, and what becomes of each here: one file, one case."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from facts.records import (
    ABSENT,
    UNSUPPORTED,
    Account,
    GpuProcess,
    Listener,
    Program,
    Smi,
    Survey,
    Toolchain,
)
from plans.deployment import TEMPLATES
from plans.plan import NodePlan
from plans.wheel import scripts as wheel_scripts
from plans.wishes import WishesError
from releases.log_lines import scan
from releases.wheels import WheelLock, problems, wheel_lock
from releases.wheels.data import locked_releases
from tests.recorded.cases_table import TABLE, Case, cases, table
from tests.unit.deployments import CAP, fresh, one, plan
from tests.unit.surveys import docker, gpu, wishes
from tests.unit.wheels import environment, wheel_plan

ROOT = Path(__file__).parents[2]
CHECKS = [
    pytest.param(check, id=f"{case.id}-{number}")
    for case in cases().values()
    for number, check in enumerate(case.check, 1)
]


def test_the_table_in_the_documentation_is_the_one_of_the_cases() -> None:
    assert TABLE.read_text(encoding="utf-8") == table(), "python -m tests.recorded.cases_table"


@cache
def functions(path: Path) -> frozenset[str]:
    """Return the names of the functions of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize(
    "case", [case for case in cases().values() if case.test], ids=lambda c: c.id
)
def test_a_test_that_a_case_names_is_there(case: Case) -> None:
    assert case.test is not None
    path, _, name = case.test.partition("::")
    assert name in functions(ROOT / path)


@pytest.mark.parametrize("check", CHECKS)
def test_the_case_is_covered_as_its_file_says(check: dict[str, Any]) -> None:
    rest = dict(check)
    if "log" in rest:
        found = [finding.entry.id for finding in scan(rest.pop("log").splitlines())]
        assert found == [rest.pop("is")]
    elif "lock" in rest:
        there = {problem.code for problem in problems(changed(rest.pop("lock")))}
        assert rest.pop("is") in there
    elif "locked" in rest:
        for package, version in rest.pop("locked").items():
            for lock in carried():
                one = lock.package(package)
                assert one is not None, package
                assert version is None or one.version == version, package
    elif "program" in rest:
        assert rest.pop("program") == "environment"
        text = wheel_scripts.build(environment(build=True))
        for words in rest.pop("has", ()):
            assert words in text
        for words in rest.pop("lacks", ()):
            assert words not in text
    elif "says" in rest:
        with pytest.raises(WishesError, match=re.escape(rest.pop("says"))):
            wishes(CAP | rest.pop("service"))
    elif "gives" in rest:
        host = dict(rest.pop("host", {}))
        service = rest.pop("service", None) or host.pop("service", {})
        wanted = wishes(CAP | service, **host.pop("wishes", {}))
        holds(plan(node_of(host), wanted), rest.pop("gives"))
    elif "server" in rest:
        made = plan(wanted=wishes(CAP | {"arguments": rest.pop("arguments")}))
        assert not made.refusals
        written = yaml.safe_load(text_of(made, "server.yaml"))
        assert written | rest.pop("server") == written
    else:
        wanted = wishes(CAP | {"environment": rest.pop("environment", {})})
        wheel = rest.pop("runtime", "image") == "wheel"
        made = wheel_plan(wanted=wanted) if wheel else plan(wanted=wanted)
        text = programs() if rest.pop("programs", False) else text_of(made, rest.pop("file"))
        for words in rest.pop("has", ()):
            assert words in text
        for words in rest.pop("lacks", ()):
            assert words not in text
    assert not rest, "something of the check was not looked at"


def holds(made: NodePlan, gives: Mapping[str, str]) -> None:
    """Check that a plan gives the code, image or reason that a case expects."""
    refusals = {refusal.code for refusal in made.refusals}
    cautions = {caution.code for caution in made.cautions}
    there: dict[str, set[str]] = {
        "refusal": refusals,
        "caution": cautions,
        "either": refusals | cautions,
        "image": {made.image or ""},
    }
    for key, value in gives.items():
        if key == "reason":
            assert any(value in reason for reason in made.reasons), made.reasons
        elif key == "decision":
            assert made.decision == value
        elif key == "change":
            told = [f"{one.kind} {one.what}: {one.why}" for one in made.changes]
            assert any(value in one for one in told), told
        else:
            assert set(value.split("|")) & there[key], (key, there)
    if "refusal" in gives:
        assert made.changes == ()
        assert all(r.seen and r.needed and r.advice for r in made.refusals)


def node_of(host: dict[str, Any]) -> Survey:
    """Return a healthy node with what a case says of it; what is null there is not known."""
    base = fresh()
    cards = [_card(number, dict(card)) for number, card in enumerate(host.pop("gpus", [{}]))]
    nvidia = replace(
        base.nvidia,
        gpus=tuple(cards),
        pci_devices=max(1, len(cards)),
        driver_version=host.get("driver", base.nvidia.driver_version),
        module_version=host.pop("driver", base.nvidia.module_version),
    )
    nvidia = replace(nvidia, **_values(host.pop("nvidia", {})))
    if "smi" in host:
        nvidia = replace(nvidia, smi=Smi(path="/usr/bin/nvidia-smi", **host.pop("smi")))
    engine = replace(docker(tuple(cards)), root_dir=base.docker.root_dir)
    if "toolchain" in host:
        host["toolchain"] = toolchain(host.pop("toolchain"))
    node = replace(
        base,
        nvidia=nvidia,
        docker=replace(engine, **_values(host.pop("docker", {}))),
        host=replace(base.host, **_values(host.pop("host", {}))),
        listeners=tuple(Listener(**listener) for listener in host.pop("listeners", ())),
        accounts={"sglang": Account("sglang", False)},
        toolchain=host.pop("toolchain", toolchain({})),
    )
    return replace(node, **_values(host))


def toolchain(given: Mapping[str, Any]) -> Toolchain:
    """Return what a wheel runtime finds there: paths and versions, nothing where nothing is said."""
    lists: dict[str, Any] = {
        key: tuple(Program(path, version) for path, version in value.items())
        for key, value in given.items()
        if isinstance(value, dict)
    }
    rest = {key: value for key, value in given.items() if key not in lists}
    return Toolchain(package_manager="/usr/bin/apt-get", **lists, **rest)


def carried() -> list[WheelLock]:
    """Return every lock that the toolkit carries."""
    found = [wheel_lock(r, a) for r in locked_releases() for a in ("x86_64", "aarch64")]
    return [one for one in found if one is not None]


def changed(given: Mapping[str, str | None]) -> WheelLock:
    """Return a carried lock with these packages at other versions, added, or (null) taken out."""
    lock = wheel_lock("0.5.23", "x86_64")
    assert lock is not None
    there = {one.name: one for one in lock.packages if one.name not in given}
    for name, version in given.items():
        if version is not None:
            like = lock.package(name) or lock.packages[0]
            there[name] = like.model_copy(update={"name": name, "version": version})
    known = tuple(one for one in lock.unresolved if one.name not in given)
    packages = tuple(there[name] for name in sorted(there))
    return lock.model_copy(update={"packages": packages, "unresolved": known})


def _card(number: int, card: dict[str, Any]) -> Any:
    card["processes"] = tuple(GpuProcess(**process) for process in card.get("processes", ()))
    unknown = {key: UNSUPPORTED for key, value in card.items() if value is None}
    return gpu(number, **{**card, **unknown})


def _values(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: ABSENT if value is None else tuple(value) if isinstance(value, list) else value
        for key, value in given.items()
    }


def text_of(made: NodePlan, name: str) -> str:
    """Return the text of a file that a plan writes."""
    names = {
        "unit": "sglang@.service",
        "wheel-unit": "sglang@chat.service",
        "drop-in": "10-toolkit.conf",
    }
    assert not made.refusals
    wanted = names.get(name, name)
    return next(f.text for f in one(made).files if f.path.endswith(f"/{wanted}"))


@cache
def programs() -> str:
    """Return the text of everything that is sent to a node or written there."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(TEMPLATES.iterdir()))
