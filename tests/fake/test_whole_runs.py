"""Whole runs of the command line through pyinfra's own @fake connector."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = "inventories/demo.py"
WANTED = {"services": [{"name": "chat", "model": "Qwen/Qwen3-8B", "output_cap": 8192}]}


def tool(*words: str, module: str = "cli") -> subprocess.CompletedProcess[str]:
    ran = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    print(f"$ {' '.join(words)} -> {ran.returncode}\n{ran.stdout}{ran.stderr}")
    return ran


def fake(name: str, recording: str | None, data: Any = None) -> tuple[str, dict[str, Any]]:
    """A node that answers the survey with a recording of the demonstration, or with garbage."""
    lines = ["no survey at all"]
    if recording is not None:
        lines = (ROOT / "inventories/demo" / f"{recording}.survey").read_text().splitlines()
    return (
        f"@fake/{name}",
        {
            "fake_responses": {"sglang-survey": lines},
            "fake_delay": 0,
            "fake_delay_jitter": 0,
            "sglang": WANTED if data is None else data,
        },
    )


def inventory(folder: Path, *hosts: tuple[str, dict[str, Any]]) -> str:
    path = folder / "site.py"
    path.write_text(f"gpu_nodes = {list(hosts)!r}\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def demo() -> dict[str, dict[str, Any]]:
    ran = tool("plan", DEMO, "--json")
    assert ran.returncode == 0
    return {node["node"].removeprefix("@fake/"): node for node in json.loads(ran.stdout)["nodes"]}


def test_the_demonstration_plans_its_six_nodes_in_the_order_of_its_inventory(
    demo: dict[str, dict[str, Any]],
) -> None:
    assert list(demo) == [
        "two-l4-no-toolkit",
        "dgx-spark",
        "a100-mig",
        "b200-pair",
        "t4",
        "mismatch",
    ]


@pytest.mark.parametrize(
    ("node", "decision", "image", "refusals"),
    [
        ("two-l4-no-toolkit", "refused", "lmsysorg/sglang:v0.5.19-cu129", ["TOOLKIT_MISSING"]),
        ("dgx-spark", "image", "lmsysorg/sglang:v0.5.23", []),
        ("a100-mig", "image", "lmsysorg/sglang:v0.5.19-cu129", []),
        ("b200-pair", "image", "lmsysorg/sglang:v0.5.23", []),
        ("t4", "refused", None, ["GPU_TOO_OLD"]),
        ("mismatch", "refused", None, ["DRIVER_MISMATCH"]),
    ],
)
def test_each_node_of_the_demonstration_gets_its_plan_or_its_refusals(
    demo: dict[str, dict[str, Any]],
    node: str,
    decision: str,
    image: str | None,
    refusals: list[str],
) -> None:
    plan = demo[node]
    assert (plan["decision"], plan["image"]) == (decision, image)
    assert [refusal["code"] for refusal in plan["refusals"]] == refusals
    assert all({"code", "seen", "needed", "advice"} <= set(r) for r in plan["refusals"])
    assert bool(plan["changes"]) == (decision == "image")


def test_a_node_held_at_the_last_cuda_12_release_is_told_so_first(
    demo: dict[str, dict[str, Any]],
) -> None:
    first = demo["a100-mig"]["reasons"][0]
    assert first.startswith("frozen at SGLang 0.5.19")
    assert "driver 580" in first


def test_one_bad_node_never_stops_the_others(tmp_path: Path) -> None:
    away = ("127.0.0.1", {"ssh_port": 1, "sglang": WANTED, "ssh_user": "root"})
    ran = tool(
        "plan",
        inventory(tmp_path, fake("garbage", None), away, fake("good", "dgx-spark")),
        "--json",
    )
    assert ran.returncode == 1
    nodes = json.loads(ran.stdout)["nodes"]
    assert [node["node"] for node in nodes] == ["@fake/garbage", "127.0.0.1", "@fake/good"]
    assert nodes[0]["error"]["code"] == "SURVEY_FAILED"
    assert nodes[1]["error"]["code"] == "UNREACHABLE"
    assert nodes[2]["decision"] == "image"


def test_a_refused_node_ends_with_3_and_pending_changes_with_4(tmp_path: Path) -> None:
    refused, good = fake("old", "t4"), fake("good", "dgx-spark")
    assert tool("plan", inventory(tmp_path, refused, good), "--check").returncode == 3
    assert tool("plan", inventory(tmp_path, good), "--check").returncode == 4
    assert tool("plan", inventory(tmp_path, refused, good), "--limit", "@fake/good").returncode == 0


def test_wrong_data_ends_with_2_and_names_every_key(tmp_path: Path) -> None:
    wrong = {"services": [{"name": "Chat", "model": "q/m", "prot": 1}], "relase": "0.5.22"}
    ran = tool("apply", inventory(tmp_path, fake("node", "dgx-spark", wrong)))
    assert ran.returncode == 2
    assert "services[Chat].name" in ran.stderr
    assert "services[Chat].prot: is no key of ours: write port" in ran.stderr
    assert "relase: is no key of ours: write release" in ran.stderr


def test_a_plan_asks_a_node_one_command(tmp_path: Path) -> None:
    target = inventory(tmp_path, fake("node", "b200-pair"))
    ran = tool("plan", target, "-vv")
    assert ran.stderr.count(">>> ") == 1


def test_recorded_surveys_are_planned_without_a_node(tmp_path: Path) -> None:
    target = inventory(tmp_path, fake("node", "t4"), fake("other", "a100-mig"))
    assert tool("survey", target, "--record", str(tmp_path / "kept")).returncode == 0
    ran = tool(
        "plan",
        target,
        "--survey",
        str(tmp_path / "kept"),
        "--assume",
        "driver=580.126.09",
        "--json",
    )
    plans = {node["node"]: node for node in json.loads(ran.stdout)["nodes"]}
    assert plans["@fake/node"]["decision"] == "refused"
    assert plans["@fake/other"]["release"] == "0.5.23"


def test_a_code_is_explained_and_an_unknown_one_is_wrong_usage() -> None:
    ran = tool("explain", "DRIVER_MISMATCH")
    assert ran.returncode == 0
    assert "Ways out:" in ran.stdout
    assert tool("explain", "DRIVER_MISMATCHED").returncode == 2


def test_the_survey_runs_under_plain_pyinfra() -> None:
    assert tool(DEMO, "deploys/survey.py", "-y", module="pyinfra").returncode == 0
