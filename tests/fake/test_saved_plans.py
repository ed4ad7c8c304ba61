"""A plan kept by one run and applied by another."""

from __future__ import annotations

import stat
from pathlib import Path

from tests.fake.command import recording, run
from tests.fake.test_exit_codes import VERIFIED, site


def test_what_was_kept_is_applied_and_nothing_else_is_asked_of_the_inventory(
    tmp_path: Path,
) -> None:
    path, out = site(tmp_path, responses=VERIFIED), tmp_path / "site.plan"
    kept = run("plan", path, "--out", out, "--json")
    assert kept.code == 0
    assert f"apply {path} --plan {out}" in kept.err
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    ended = run("apply", path, "--plan", out, "--json")
    assert ended.code == 0, ended.err
    (node,) = ended.nodes.values()
    assert node["changes"] == kept.json["nodes"][0]["changes"]
    assert node["verified"]["chat"]["ok"] is True


def test_a_node_that_has_changed_since_is_refused_and_told_how(tmp_path: Path) -> None:
    path, out = site(tmp_path), tmp_path / "site.plan"
    assert run("plan", path, "--out", out).code == 0
    # By then its driver is another, and with it the image.
    site(tmp_path, survey=recording("b200-pair"), responses=VERIFIED)
    ended = run("apply", path, "--plan", out, "--json")
    assert ended.code == 3
    (node,) = ended.nodes.values()
    assert [one["code"] for one in node["refusals"]] == ["STALE_PLAN"]
    assert "since the plan was kept" in node["refusals"][0]["seen"]
    assert node["changes"] == []


def test_what_does_not_go_with_a_saved_plan_is_wrong_usage(tmp_path: Path) -> None:
    path, out = site(tmp_path), tmp_path / "site.plan"
    assert run("plan", path, "--out", out).code == 0
    (tmp_path / "none.plan").write_text("{}", encoding="utf-8")
    other = tmp_path / "other"
    other.mkdir()
    (other / "site.py").write_text("gpu_nodes = ['@fake/b']\n", encoding="utf-8")
    for words, told in (
        ([path, "--plan", tmp_path / "none.plan"], "it is no plan that can be applied"),
        ([path, "--plan", out, "--discard-edits"], "says itself"),
        ([other / "site.py", "--plan", out], "which"),
        (["@fake/a", "--plan", out, "--model", "a/b"], "says itself"),
    ):
        ended = run("apply", *words)
        assert (ended.code, "Traceback" in ended.err) == (2, False), ended.err
        assert told in ended.err


def test_a_kept_plan_holds_no_hook_and_runs_those_of_the_inventory(tmp_path: Path) -> None:
    told, out = tmp_path / "told", tmp_path / "site.plan"
    hooks = {"after_verify": [{"run": f"echo private-token >> {told}"}]}
    path = site(tmp_path, responses=VERIFIED, hooks=hooks)
    assert run("plan", path, "--out", out).code == 0
    assert "private-token" not in out.read_text()
    ended = run("apply", path, "--plan", out)
    assert ended.code == 0, ended.err
    assert told.read_text() == "private-token\n"
