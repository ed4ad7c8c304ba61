"""The demonstration inventory: six nodes that are not there, and what scripts read of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plans.codes import catalogue
from tests.fake.command import DEMO, ROOT, Ended, run, run_alone

EXPECTED = {
    "@fake/two-l4-no-toolkit": (
        "refused", "0.5.19", "lmsysorg/sglang:v0.5.19-cu129", ["TOOLKIT_MISSING"],
    ),
    "@fake/dgx-spark": ("image", "0.5.23", "lmsysorg/sglang:v0.5.23", []),
    "@fake/a100-mig": ("image", "0.5.19", "lmsysorg/sglang:v0.5.19-cu129", []),
    "@fake/b200-pair": ("image", "0.5.23", "lmsysorg/sglang:v0.5.23", []),
    "@fake/t4": ("refused", None, None, ["GPU_TOO_OLD"]),
    "@fake/mismatch": ("refused", None, None, ["DRIVER_MISMATCH"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def planned() -> Ended:
    """The plan of the demonstration, as JSON."""
    return run("plan", DEMO, "--json")


def test_it_ends_with_0_and_its_document_is_alone_on_stdout(planned: Ended) -> None:
    assert planned.code == 0
    assert planned.out.count("\n") == 1
    assert set(planned.json) == {"nodes"}
    assert "DRIVER_MISMATCH" in planned.err, "what people read goes to stderr"


def test_it_is_the_same_for_who_calls_it_from_the_repository(planned: Ended) -> None:
    alone = run_alone("plan", DEMO, "--json", module="cli")
    assert (alone.code, alone.json) == (0, planned.json)


def test_its_nodes_stand_in_the_inventory_s_order(planned: Ended) -> None:
    assert list(planned.nodes) == list(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_each_node_gets_what_its_driver_and_gpus_can_run_or_the_reason(
    planned: Ended, name: str
) -> None:
    node = planned.nodes[name]
    codes = [refusal["code"] for refusal in node["refusals"]]
    found = (node["decision"], node["release"] if node["image"] else None, node["image"], codes)
    assert found == EXPECTED[name]
    assert node["reasons"]
    assert all(set(one) >= {"code", "seen", "needed", "advice"} for one in node["refusals"])
    assert bool(node["changes"]) is (node["decision"] == "image")


def test_it_reads_well_without_json() -> None:
    shown = run("plan", DEMO)
    assert shown.code == 0
    assert "\x1b[" not in shown.out
    places = [shown.out.index(name) for name in EXPECTED]
    assert places == sorted(places)
    assert "do  The driver was upgraded under the running module: sudo reboot" in shown.out
    assert "inventories/sglang.lock" in shown.err


@pytest.mark.parametrize("off", [{"NO_COLOR": "1"}, {}])
def test_colour_is_for_terminals_and_can_be_put_off(off: dict[str, str]) -> None:
    words = ["plan", DEMO, "--limit", "@fake/t4", *([] if off else ["--no-color"])]
    told = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    assert "\x1b[31m" in run(*words[:4], env=told).out
    assert "\x1b[31m" not in run(*words, env={**told, **off}).out


def test_a_limit_leaves_the_others_out() -> None:
    shown = run("plan", DEMO, "--json", "--limit", "@fake/t4", "--limit", "@fake/b*")
    assert list(shown.nodes) == ["@fake/b200-pair", "@fake/t4"]
    unknown = run("plan", DEMO, "--limit", "@fake/h100")
    assert unknown.code == 2
    assert "@fake/dgx-spark" in unknown.err


def test_what_if_the_driver_were_another() -> None:
    def release(driver: str) -> str:
        shown = run(
            "plan", DEMO, "--json", "--limit", "@fake/a100-mig", "--assume", f"driver={driver}"
        )
        return str(shown.nodes["@fake/a100-mig"]["release"])

    assert (release("580.126.09"), release("535.161.08")) == ("0.5.23", "0.5.19")
    bad = run("plan", DEMO, "--assume", "cuda=13")
    assert bad.code == 2
    assert "driver=580.126.09" in bad.err


def test_recorded_surveys_give_the_same_plan_with_no_node_at_all(
    tmp_path: Path, planned: Ended
) -> None:
    recorded = run("survey", DEMO, "--record", tmp_path / "kept", "--json")
    assert recorded.code == 0
    assert list(recorded.nodes) == list(EXPECTED)
    assert len(list((tmp_path / "kept").iterdir())) == len(EXPECTED)
    again = run("plan", DEMO, "--survey", tmp_path / "kept", "--json")
    assert again.json == planned.json


def test_surveys_read_well() -> None:
    shown = run("survey", DEMO)
    assert shown.code == 0
    assert "@fake/t4  1 × Tesla T4, driver 580.126.09" in shown.out


def test_the_plans_can_be_kept_in_a_file(tmp_path: Path, planned: Ended) -> None:
    file = tmp_path / "plan.json"
    assert run("plan", DEMO, "--out", file).code == 0
    assert json.loads(file.read_text(encoding="utf-8"))["nodes"] == planned.json["nodes"]
    assert file.stat().st_mode & 0o777 == 0o600
    nowhere = run("plan", DEMO, "--out", tmp_path / "no" / "plan.json")
    assert nowhere.code == 1
    assert "Traceback" not in nowhere.err


def test_a_code_is_explained_in_full_and_an_unknown_one_gets_the_nearest() -> None:
    shown = run("explain", "driver-mismatch")
    assert shown.code == 0
    for label in ("What was seen:", "Why it matters:", "Ways out:", "How sure:", "https://"):
        assert label in shown.out
    document = run("explain", "DRIVER_MISMATCH", "--json").json
    assert document["code"] == "DRIVER_MISMATCH"
    unknown = run("explain", "DRIVER_OLD")
    assert unknown.code == 2
    assert "DRIVER_TOO_OLD" in unknown.err


def test_explain_answers_for_the_whole_catalogue() -> None:
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from cli.main import cli\n"
        "from plans.codes import catalogue\n"
        "for code in catalogue():\n"
        "    done = CliRunner().invoke(cli, ['explain', code])\n"
        "    assert done.exit_code == 0 and done.output.startswith(code + ': '), code\n"
        "print(len(catalogue()))\n"
    )
    done = run(program=program)
    assert done.code == 0, done.err
    assert int(done.out) == len(catalogue()) > 80


def test_the_readme_shows_what_the_demonstration_prints() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = run("plan", DEMO, "--limit", "@fake/mismatch").out
    for line in readme.split("```\n@fake/mismatch")[1].split("```")[0].splitlines()[1:]:
        assert line.split("…")[0].strip() in shown.replace("  ✗", "✗")
