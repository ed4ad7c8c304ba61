"""The operator's own commands around a stop, run on a node by a real shell."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from facts.records import ABSENT
from plans.hooks import Hook, Hooks, are_to_run, to_run
from plans.proof_scripts import hook

TOLD = {"NODE": "gpu-1", "SERVICE": "chat", "PORT": "30000", "RELEASE": "0.5.23"}


def run(folder: Path, one: Hook, shell: list[str]) -> subprocess.CompletedProcess[str]:
    text = hook(one, TOLD).replace("/run/", f"{folder}/")
    return subprocess.run(
        [*shell, "-s"], input=text, text=True, capture_output=True, check=False, timeout=30
    )


@pytest.mark.parametrize("shell", [["dash"], ["busybox", "sh"]])
def test_a_hook_is_told_of_what_it_is_about_and_leaves_nothing_behind(
    tmp_path: Path, shell: list[str]
) -> None:
    one = Hook(run="""echo "$NODE $SERVICE $PORT $RELEASE" 'it'"'"'s'; cat""", on="node")
    done = run(tmp_path, one, shell)
    assert (done.returncode, done.stdout) == (0, "gpu-1 chat 30000 0.5.23 it's\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", [["dash"], ["busybox", "sh"]])
def test_a_hook_ends_with_its_own_code_and_what_it_said(tmp_path: Path, shell: list[str]) -> None:
    done = run(tmp_path, Hook(run="echo no such pool >&2; exit 7", on="node"), shell)
    assert (done.returncode, done.stdout) == (7, "no such pool\n")
    assert list(tmp_path.iterdir()) == []


def test_a_hook_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    done = run(tmp_path, Hook(run="sleep 60", on="node", limit=1), ["dash"])
    assert done.returncode == 124


def test_a_command_stands_in_no_argument_list() -> None:
    assert "lb-token" not in hook(Hook(run="curl -H 'X: lb-token' lb", on="node"), TOLD)


def test_hooks_run_in_the_order_that_they_are_written() -> None:
    two = (Hook(run="a"), Hook(run="b"))
    assert Hooks(before_stop=two).at("before_stop") == two
    assert Hooks(before_stop=two).at("after_verify") == ()


def test_a_record_says_until_they_have_run_that_hooks_are_to_run() -> None:
    some = Hooks(after_verify=(Hook(run="true"),))
    assert are_to_run(json.dumps({"result": "ready", **to_run(some)}))
    for nothing in ({}, to_run(Hooks()), to_run(Hooks(before_stop=(Hook(run="true"),)))):
        assert not are_to_run(json.dumps({"result": "ready", **nothing}))
    for other in ("", "{", "[]", '"after_verify"', ABSENT):
        assert not are_to_run(other)
