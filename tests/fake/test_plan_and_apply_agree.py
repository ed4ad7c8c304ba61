"""What a plan says is what an apply does: over every recorded output of nvidia-smi, nodes in every
state, and whatever an operator may write."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from locks.lockfile import write_lock
from locks.records import Lock
from plans.images import known_images
from tests.fake.command import CHAT, fake, inventory, recording, run
from tests.fake.served import served
from tests.fake.test_exit_codes import VERIFIED, whole_lock
from tests.unit.test_recorded_decisions import INDEX, lines_of

DEMO = ("two-l4-no-toolkit", "dgx-spark", "a100-mig", "b200-pair", "t4", "mismatch")
STATES: dict[str, list[str]] = {
    "ready": served("dgx-spark"),
    "not ready": served("dgx-spark", ready=503),
    "failed": served("b200-pair", state="failed"),
    "stopped": served("b200-pair", state="inactive"),
}


def every_image() -> Lock:
    """Return a lock that has each image of the release table."""
    lock = whole_lock()
    there = next(iter(lock.images.values()))
    images = {
        image.tag: there.model_copy(update={"asked": image.tag, "tag": image.tag.split(":")[1]})
        for image in known_images()
    }
    return lock.model_copy(update={"images": images})


def with_smi(name: str) -> list[str]:
    """Return the survey of a healthy node on which nvidia-smi prints a recorded output."""
    kept: list[str] = []
    drop = False
    for line in recording("b200-pair"):
        if line.startswith("@ "):
            drop = line.startswith(("@ smi.query", "@ smi.xml", "@ smi.list", "@ smi.table"))
        if not drop:
            kept.append(line)
    code = INDEX[name]["exit_code"] or 0
    body = [f" {line}" for line in lines_of(name)]
    form = "xml" if body[0].startswith(" <?xml") else "table"
    end = kept.index("@ parts rc=0")
    return [*kept[:end], "@ smi.query rc=2", f"@ smi.{form} rc={code}", *body, *kept[end:]]


def steps(document: dict[str, Any], service: str) -> list[str]:
    """Return what an apply has to do, by the changes that a plan names."""
    kinds = {one["kind"] for one in document["changes"]}
    starts = kinds & {"start", "restart"}
    switched = starts | kinds & {"deployment", "unit", "drop-in", "daemon-reload", "enable"}
    word = "Start" if "start" in kinds else "Restart" if "restart" in kinds else "Set up"
    found = {
        f"Fetch the image of {service}": "image" in kinds,
        f"Fetch and check the weights of {service}": starts or kinds & {"weights", "deployment"},
        f"Write the deployment of {service}": "deployment" in kinds,
        f"Try CUDA in the image of {service}": kinds & {"deployment", "image"},
        f"{word} {service}": switched,
        f"Verify {service}": starts or "verify" in kinds,
    }
    return [step for step, does in found.items() if does]


def agree(folder: Path, hosts: list[Any]) -> int:
    """Plan and apply these nodes; check that both say the same. Return how many were changed."""
    site = inventory(folder, *hosts)
    write_lock(folder / "sglang.lock", every_image())
    env = {"XDG_STATE_HOME": str(folder / "state")}
    planned = run("plan", site, "--json", env=env)
    applied = run("apply", site, "--json", "--events", folder / "events", env=env)
    if planned.code == 2:
        assert applied.code == 2
        assert planned.err == applied.err
        return 0
    assert set(planned.nodes) == set(applied.nodes) == {name for name, _ in hosts}
    begun: dict[str, list[str]] = {}
    bad: set[str] = set()
    for line in (folder / "events").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "step-started":
            begun.setdefault(event["node"], []).append(event["step"])
        if event["event"] == "step-ended" and not event["ok"]:
            bad.add(event["node"])
    for name, plan in planned.nodes.items():
        found = applied.nodes[name]
        assert plan.get("error") == found.get("error")
        same = ("decision", "release", "image", "changes", "cautions", "reasons", "unresolved")
        for key in same:
            assert plan.get(key) == found.get(key), name
        promised = [] if "error" in plan else steps(plan, "chat")
        done = begun.get(name, [])
        if plan.get("refusals"):
            assert found["refusals"] == plan["refusals"]
            assert done == promised == []
        elif name in bad:  # the played GPU is another than some: it was begun as promised
            assert done == promised[: len(done)]
        else:
            assert done == promised, name
    return len(begun)


def node(name: str, lines: list[str], wanted: Any = None) -> tuple[str, dict[str, Any]]:
    """Return a node whose programs succeed, with wishes of its own where some are given."""
    host, data = fake(name, lines)
    data["fake_responses"] |= VERIFIED
    return host, data if wanted is None else data | {"sglang": wanted}


def test_they_agree_for_every_recorded_node(tmp_path: Path) -> None:
    recorded = {f"smi-{name}": with_smi(name) for name in INDEX}
    recorded |= {name: recording(name) for name in DEMO} | STATES
    hosts = [node(name.replace(" ", "-"), lines) for name, lines in recorded.items()]
    assert agree(tmp_path, hosts) > 5


NODES = st.sampled_from([*STATES.values(), *map(recording, DEMO)])
SERVICES = st.fixed_dictionaries(
    {},
    optional={
        "output_cap": st.integers(1, 10**6),
        "kind": st.sampled_from(["generate", "embed", "rerank"]),
        "tp_size": st.integers(1, 4),
        "port": st.integers(1, 65535),
        "address": st.sampled_from(["127.0.0.1", "::", "10.0.0.1"]),
        "model": st.sampled_from(["Qwen/Qwen3-8B", "/srv/models/x"]),
        "release": st.sampled_from(["0.5.19", "0.5.22", "0.5.23", "9.9"]),
        "gpus": st.lists(st.integers(0, 2), max_size=2, unique=True),
        "arguments": st.dictionaries(
            st.sampled_from(["mem-fraction-static", "context-length", "nope", "port"]),
            st.one_of(st.booleans(), st.integers(0, 9), st.floats(0, 1), st.text("a-$ '\"")),
            max_size=2,
        ),
        "environment": st.dictionaries(
            st.sampled_from(["X", "HF_NOTE", "HF_HOME"]), st.text("abc $%'\"\\"), max_size=2
        ),
    },
)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(NODES, SERVICES), min_size=1, max_size=8))
def test_they_agree_whatever_the_operator_writes(
    drawn: list[tuple[list[str], dict[str, Any]]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        wanted = [{"services": [{**CHAT, **service}]} for _, service in drawn]
        hosts = [
            node(f"n{number}", lines, wanted[number]) for number, (lines, _) in enumerate(drawn)
        ]
        agree(Path(name), hosts)
