"""Restart and stop of a server behind the door, run by a real shell over stand-ins of systemd."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from plans import paths, scripts
from plans.deployment import TEMPLATES
from plans.door import DoorPlan, switch
from tests.unit.test_switch_runs import ran

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]

# What it is told stands in a file, with what holds the server out of rotation at that moment.
SYSTEMCTL = """#!/bin/sh
echo "$* [$(cat {root}/run/sglang/door/chat 2>/dev/null)]" >> {root}/told
case $* in
*'{failing}'*) echo 'Failed: no room' >&2; exit 1 ;;
*MainPID*) cat {root}/pid ;;
*InvocationID*) cat {root}/invocation ;;
*ActiveState*) cat {root}/state ;;
*' stop '*) echo 0 > {root}/pid; echo inactive > {root}/state ;;
*' restart '*) echo 4243 > {root}/pid; echo new > {root}/invocation ;;
esac
"""


def controlled(
    root: Path,
    shell: str,
    program: str,
    failing: str = "nothing fails",
    held: str = "",
    has_it: str = "out-passing",
) -> tuple[int, str, str]:
    """Run a program on a node whose server serves behind a door; ``held``: why it is out before;
    ``has_it``: how the door says that it has the server.

    Returns how it ended, what it printed, and what systemctl was told.
    """
    out = root / "run/sglang/door"
    for directory in (out, root / "run/sglang-door", root / "bin"):
        directory.mkdir(parents=True)
    state = f"server chat {has_it} http://127.0.0.1:1\n"
    (root / "run/sglang-door/state").write_text(state)
    for name, text in (("pid", "4242"), ("invocation", "old"), ("state", "active")):
        (root / name).write_text(f"{text}\n", encoding="utf-8")
    if held:
        (out / "chat").write_text(f"{held}\n", encoding="utf-8")
    text = SYSTEMCTL.format(root=root, failing=failing)
    for name, body in (
        ("systemctl", text),
        ("journalctl", "#!/bin/sh\n"),
        ("sleep", "#!/bin/sh\nexec /bin/sleep 0.01\n"),
    ):
        (root / "bin" / name).write_text(body, encoding="utf-8")
        (root / "bin" / name).chmod(0o755)
    return ran(root, shell, program)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("verb", ["restart", "stop"])
def test_a_server_that_systemd_does_not_stop_is_let_back_in(
    tmp_path: Path, shell: str, verb: str
) -> None:
    code, out, told = controlled(
        tmp_path, shell, scripts.control(verb, "chat"), f"--no-block {verb}"
    )
    assert code == 1
    assert f"systemd refused to {verb} sglang@chat.service" in out
    assert f"--no-block {verb} sglang@chat.service [passing]" in told, "it was out before"
    assert not (tmp_path / "run/sglang/door/chat").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_restart_leaves_it_to_the_gate_to_let_the_server_back_in(
    tmp_path: Path, shell: str
) -> None:
    code, out, _ = controlled(tmp_path, shell, scripts.control("restart", "chat"))
    assert (code, "chat is out of the door's rotation" in out) == (0, True)
    assert (tmp_path / "run/sglang/door/chat").read_text() == "passing\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_server_that_was_stopped_waits_for_nobody_at_the_door(tmp_path: Path, shell: str) -> None:
    code, _, told = controlled(tmp_path, shell, scripts.control("stop", "chat"))
    assert code == 0
    assert "--no-block stop sglang@chat.service [passing]" in told
    assert not (tmp_path / "run/sglang/door/chat").exists()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("failing", ["nothing fails", "--no-block stop"])
def test_a_server_that_somebody_holds_out_stays_out(
    tmp_path: Path, shell: str, failing: str
) -> None:
    controlled(tmp_path, shell, scripts.control("stop", "chat"), failing, held="held")
    assert (tmp_path / "run/sglang/door/chat").read_text() == "held\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_what_the_door_does_not_heed_any_more_is_written_over(tmp_path: Path, shell: str) -> None:
    """Of a run that was cut: the door has the server in rotation, which else could not leave it."""
    held = {"held": "away 0 in", "has_it": "in"}
    _, _, told = controlled(tmp_path, shell, scripts.control("stop", "chat"), **held)
    assert "--no-block stop sglang@chat.service [passing]" in told
    assert not (tmp_path / "run/sglang/door/chat").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_server_that_a_run_took_out_is_let_back_by_that_run(tmp_path: Path, shell: str) -> None:
    held = {"held": "away 630 in", "has_it": "out-away"}
    code, _, told = controlled(tmp_path, shell, scripts.control("stop", "chat"), **held)
    assert (code, "--no-block stop sglang@chat.service [away 630 in]" in told) == (0, True)
    assert (tmp_path / "run/sglang/door/chat").read_text() == "away 630 in\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_connection_lost_while_the_door_is_waited_for_still_restarts_the_server(
    tmp_path: Path, shell: str
) -> None:
    program = scripts.control("restart", "chat")
    leaves = "door_leave chat passing\n"
    hung = program.replace(leaves, f"{leaves}kill -HUP $$\n")
    assert hung != program
    code, _, told = controlled(tmp_path, shell, hung)
    assert code == 0
    assert "--no-block restart" in told


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("refused", [True, False])
def test_what_the_door_refuses_is_not_what_the_next_start_finds(
    tmp_path: Path, shell: str, refused: bool
) -> None:
    doors, credentials = tmp_path / "doors", tmp_path / "credentials"
    for directory in (doors / "old", doors / "new", credentials):
        directory.mkdir(parents=True)
    (doors / "current").symlink_to("old")
    (credentials / "certificate").symlink_to("/etc/old/chain.pem")
    (credentials / "key").touch()
    plan = DoorPlan("renew", "new", "old", tls=("/etc/new/chain.pem", "/etc/new/key.pem"))
    program = switch(plan).replace(paths.DOORS, str(doors))
    program = program.replace(paths.DOOR_CREDENTIALS, str(credentials))
    failing = "start sglang-door-renew.service" if refused else "nothing fails"
    code, out, _ = controlled(tmp_path, shell, program, failing)
    there = [os.readlink(one) if one.is_symlink() else one.read_text() for one in (
        doors / "current", credentials / "certificate", credentials / "key"
    )]  # fmt: skip
    if refused:
        assert (code, there) == (1, ["old", "/etc/old/chain.pem", ""]), out
    else:
        assert (code, there) == (0, ["new", "/etc/new/chain.pem", "/etc/new/key.pem"]), out
    assert sorted(one.name for one in credentials.iterdir()) == ["certificate", "key"]


def test_systemd_never_gives_the_door_up() -> None:
    text = (TEMPLATES / "sglang-door.service").read_text(encoding="utf-8")
    unit, _, service = text.partition("[Service]")
    assert "\nStartLimitIntervalSec=0\n" in unit
    assert "\nRestart=always\n" in service


def test_the_programs_and_the_unit_mean_the_same_directory() -> None:
    door = (TEMPLATES / "door.sh").read_text(encoding="utf-8")
    assert f"door_out={paths.DOOR_OUT}\n" in door
    unit = (TEMPLATES / "sglang-door.service").read_text(encoding="utf-8")
    assert f"mkdir -p {paths.DOOR_OUT}\n" in unit
    assert f"{paths.DOOR_OUT}\n" in unit.partition("ExecStart=")[2]
