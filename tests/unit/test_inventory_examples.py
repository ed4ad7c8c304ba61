"""The inventories that operators copy: each is planned from surveys of such nodes, here and from
a repository of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.inventory import load
from facts.parsing import parse_survey
from plans.make import make_plan
from plans.version import VERSION
from plans.wishes import read_wishes
from tests.recorded.compose_surveys import Card, Machine, compose, l4, machines

ROOT = Path(__file__).parents[2]
INVENTORIES = ROOT / "inventories"


def h100(number: int) -> Card:
    return Card(
        "NVIDIA H100 80GB HBM3", f"00000000:{number + 1:02X}:00.0", "9.0", "81559 MiB",
        mig="Disabled", fabric="Completed",
    )  # fmt: skip


def machine(kind: str, node: str) -> Machine:
    """Return a healthy node of a kind, as a survey of it would say."""
    if kind == "spark":
        spark = next(one for one in machines() if one.name == "dgx-spark")
        return dataclasses.replace(spark, name=node, lines=[])
    cards = {
        "l4": (l4("00000000:00:03.0"),),
        "l4-pair": (l4("00000000:00:03.0"), l4("00000000:00:04.0")),
        "h100x8": tuple(map(h100, range(8))),
    }[kind]
    return Machine(
        node, ("l4_580",), "580.105.08", "13.0", cards, "24.04", "6.8.0-85-generic", "28.3.3",
        "1.18.1", memory_kb=263_000_000 * len(cards), fabricmanager=kind == "h100x8",
    )  # fmt: skip


EXAMPLES = {
    "one_box.py": {"gpu-1.example.org": "l4"},
    "l4_pair.py": {"l4-pair.example.org": "l4-pair"},
    "dgx_spark.py": {"spark.example.org": "spark"},
    "h100x8.py": {"h100.example.org": "h100x8"},
    "h100_pair.py": {"h100.example.org": "h100x8"},
    "h100_two_nodes.py": {"h100-a.example.org": "h100x8", "h100-b.example.org": "h100x8"},
    "fleet/site.py": {
        "l4-1.example.org": "l4",
        "l4-2.example.org": "l4",
        "l4-3.example.org": "l4-pair",
        "h100-1.example.org": "h100x8",
        "spark-1.example.org": "spark",
    },
}
"""Each example, and what its nodes are."""


def planned(inventory: Path, nodes: dict[str, str], folder: Path, cwd: Path) -> dict[str, Any]:
    """Plan an inventory from surveys of its nodes, called in ``cwd``; return the nodes by name."""
    surveys = folder / "surveys"
    surveys.mkdir()
    for node, kind in nodes.items():
        text = compose(machine(kind, node))
        (surveys / f"{node}.survey").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "cli", "plan", str(inventory), "--survey", str(surveys), "--json"],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SGLANG_API_KEY": "a-key"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return {one["node"]: one for one in json.loads(done.stdout)["nodes"]}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_planned_for_the_nodes_that_it_speaks_of(name: str) -> None:
    nodes = EXAMPLES[name]
    hosts = {host.name: host for host in load(str(INVENTORIES / name))}
    assert set(hosts) == set(nodes)
    for node, kind in nodes.items():
        survey = parse_survey(compose(machine(kind, node)).splitlines(), node)
        wishes = read_wishes(hosts[node].data.get("sglang"), node)
        plan = make_plan(survey, wishes, None, VERSION)
        assert plan.refusals == ()
        assert plan.decision == "image"
        starts = {one.service for one in plan.changes if one.kind == "start" and one.service}
        assert starts == {service.name for service in wishes.services}


def test_every_example_is_planned_here() -> None:
    there = {
        str(path.relative_to(INVENTORIES))
        for path in INVENTORIES.rglob("*.py")
        if "group_data" not in path.parts
    }
    assert there - {"example.py", "demo.py"} == set(EXAMPLES)


def test_a_fleet_in_a_repository_of_its_own_is_planned_from_there(tmp_path: Path) -> None:
    own = tmp_path / "operator"
    shutil.copytree(INVENTORIES / "fleet", own / "gpu")
    nodes = EXAMPLES["fleet/site.py"]
    found = planned(Path("gpu/site.py"), nodes, tmp_path, own)
    services = {node: sorted({c["service"] for c in one["changes"] if c.get("service")})
                for node, one in found.items()}  # fmt: skip
    assert services == {
        "l4-1.example.org": ["chat"],
        "l4-2.example.org": ["chat"],
        "l4-3.example.org": ["chat-0", "chat-1"],
        "h100-1.example.org": ["large-0", "large-1"],
        "spark-1.example.org": ["chat"],
    }
    assert {found[f"l4-{n}.example.org"]["release"] for n in (1, 2, 3)} == {"0.5.23"}


def test_what_is_said_of_a_group_reaches_pyinfra_too() -> None:
    hosts = {host.name: host for host in load(str(INVENTORIES / "fleet/site.py"))}
    assert (hosts["l4-1.example.org"].data.ssh_user, hosts["l4-1.example.org"].data.get("_sudo")) \
        == ("root", None)  # fmt: skip
    assert hosts["spark-1.example.org"].data.get("_sudo") is True
    assert hosts["spark-1.example.org"].data.ssh_user == "nvidia"
