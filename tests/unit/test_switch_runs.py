"""The program that switches, run by a real shell over a directory of its own, a step failing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from plans.deployment import TEMPLATES, PlannedFile, render
from plans.onnode import REFUSAL_MARK
from plans.plan import Guard
from plans.scripts import room_text

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]

SYSTEMCTL = """#!/bin/sh
echo "$* [$(cat {root}/run/sglang/door/chat 2>/dev/null)]" >> {root}/told
case $* in
*"{failing}"*) echo 'Failed: no room' >&2; exit 1 ;;
*MainPID*) cat {root}/pid ;;
*InvocationID*) cat {root}/invocation ;;
*ActiveState*) echo {state} ;;
*' stop '*) echo 0 > {root}/pid ;;
*' start '* | *' restart '*) echo 0 > {root}/pid; echo new > {root}/invocation ;;
esac
"""


JOURNALCTL = """#!/bin/sh
case $* in
*_SYSTEMD_INVOCATION_ID=new*) echo 'ValueError: of this start' ;;
*) echo 'ValueError: of an earlier run'; echo 'ValueError: of this start' ;;
esac
"""


def ran(root: Path, shell: str, program: str) -> tuple[int, str, str]:
    """Run a program on a node that lies in ``root``, with the programs in its ``bin`` first.

    Returns how it ended, what it printed, and what systemctl was told.
    """
    done = subprocess.run(
        [shell, "-s"],
        input=program.replace("/run/sglang", f"{root}/run/sglang"),
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": f"{root}/bin:{os.environ['PATH']}"},
    )
    return done.returncode, done.stdout, (root / "told").read_text(encoding="utf-8")


def switched(
    root: Path,
    shell: str,
    failing: str,
    *,
    stop_first: bool,
    state: str = "active",
    current: int = 1,
    pid: int = 0,
    replaced: tuple[tuple[PlannedFile, str], ...] = (),
) -> tuple[int, str, str]:
    """Run a switch from deployment ``current`` (1) to 2 in which one call of systemctl fails.

    With a ``pid`` the server runs, behind a door. ``replaced``: files of systemd's that deployment
    2 has, and the sum of what lies there.

    Returns how it ended, what it printed, and what systemctl was told.
    """
    deployments = root / "deployments"
    for number in ("1", "2"):
        (deployments / number).mkdir(parents=True, exist_ok=True)
    (deployments / "current").symlink_to(str(current))
    (root / "bin").mkdir()
    (root / "pid").write_text(f"{pid}\n", encoding="utf-8")
    for directory in ("door", "../sglang-door"):
        (root / "run/sglang" / directory).mkdir(parents=True)
    (root / "run/sglang-door/state").write_text("server chat out-passing http://127.0.0.1:1\n")
    (root / "invocation").write_text("old\n", encoding="utf-8")
    text = SYSTEMCTL.format(root=root, failing=failing, state=state)
    for name, body in (
        ("systemctl", text),
        ("journalctl", JOURNALCTL),
        ("ss", "#!/bin/sh\n"),
        ("sleep", "#!/bin/sh\nexec /bin/sleep 0.01\n"),
    ):
        (root / "bin" / name).write_text(body, encoding="utf-8")
        (root / "bin" / name).chmod(0o755)
    program = render(
        "switch.sh.j2",
        service="chat",
        unit="sglang@chat.service",
        deployments=str(deployments),
        number=2,
        guard=Guard(current, pid, "old", {}, None),
        replaced=replaced,
        removed=[],
        owner="",
        reenable=False,
        meeting=(),
        own_directories=(TEMPLATES / "own-directories.sh").read_text(encoding="utf-8"),
        caches=f"{root}/caches",
        cache_directory=f"{root}/caches/build",
        directories=[],
        switch_links=True,
        daemon_reload=True,
        enable=False,
        stop_first=stop_first,
        act="restart",
        refusal_mark=REFUSAL_MARK,
        watch=(TEMPLATES / "watch.sh").read_text(encoding="utf-8"),
        door=(TEMPLATES / "door.sh").read_text(encoding="utf-8"),
        links=(TEMPLATES / "links.sh").read_text(encoding="utf-8"),
        room=room_text(),
        back="",
    )
    return ran(root, shell, program)


@pytest.fixture(autouse=True)
def root_s_own(request: pytest.FixtureRequest) -> None:
    """Skip where nobody is root: the program's directories must be root's."""
    if os.geteuid() != 0:
        pytest.skip("not root")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_whole_switch_restarts_from_the_new_deployment(tmp_path: Path, shell: str) -> None:
    code, _, told = switched(tmp_path, shell, "nothing fails", stop_first=False)
    assert code == 0
    assert os.readlink(tmp_path / "deployments/current") == "2"
    assert os.readlink(tmp_path / "deployments/previous") == "1"
    # Else systemd refuses one start too many, after some that crashed.
    assert told.index("reset-failed") < told.index("--no-block restart")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_reload_that_fails_is_told_and_restarts_nothing(tmp_path: Path, shell: str) -> None:
    code, out, told = switched(tmp_path, shell, "daemon-reload", stop_first=False)
    assert code == 1
    assert "the switch is not complete: this failed: systemctl daemon-reload" in out
    assert "what ran before runs on" in out
    assert "restart" not in told


@pytest.mark.parametrize("shell", SHELLS)
def test_what_was_stopped_before_it_is_started_all_the_same(tmp_path: Path, shell: str) -> None:
    code, out, told = switched(tmp_path, shell, "daemon-reload", stop_first=True)
    assert code == 1
    assert "it was started again with what is in place" in out
    assert (
        told.index("--no-block stop") < told.index("daemon-reload") < told.index("--no-block start")
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_a_restart_that_systemd_refuses_is_not_waited_for(tmp_path: Path, shell: str) -> None:
    code, out, _ = switched(tmp_path, shell, "restart", stop_first=False)
    assert code == 1
    assert "systemd refused this: systemctl --no-block restart" in out


@pytest.mark.parametrize("shell", SHELLS)
def test_a_start_that_fails_shows_its_own_log_and_none_of_an_earlier_run(
    tmp_path: Path, shell: str
) -> None:
    code, out, _ = switched(tmp_path, shell, "nothing fails", stop_first=False, state="failed")
    assert code == 1
    assert "the start has failed" in out
    assert "of this start" in out
    assert "of an earlier run" not in out


@pytest.mark.parametrize("shell", SHELLS)
def test_a_link_that_leads_nowhere_does_not_become_the_previous_one(
    tmp_path: Path, shell: str
) -> None:
    code, _, _ = switched(tmp_path, shell, "nothing fails", stop_first=False, current=77)
    assert code == 0
    assert os.readlink(tmp_path / "deployments/current") == "2"
    assert not (tmp_path / "deployments/previous").is_symlink()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("failing", "stop_first"),
    [("daemon-reload", False), ("--no-block restart", False), ("--no-block stop", True)],
)
def test_what_was_not_stopped_comes_back_into_the_door_s_rotation(
    tmp_path: Path, shell: str, failing: str, stop_first: bool
) -> None:
    code, out, told = switched(tmp_path, shell, failing, stop_first=stop_first, pid=4242)
    assert code == 1
    assert "chat is out of the door's rotation" in out
    (failed,) = [line for line in told.splitlines() if failing in line]
    assert failed.endswith("[passing]"), "it was out before"
    assert not (tmp_path / "run/sglang/door/chat").exists()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("failing", "stop_first"), [("nothing fails", False), ("daemon-reload", True)]
)
def test_what_was_stopped_comes_back_with_its_gate_alone(
    tmp_path: Path, shell: str, failing: str, stop_first: bool
) -> None:
    switched(tmp_path, shell, failing, stop_first=stop_first, pid=4242)
    assert (tmp_path / "run/sglang/door/chat").read_text(encoding="utf-8") == "passing\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_switch_that_fails_before_its_own_links_takes_those_of_another_run_not_away(
    tmp_path: Path, shell: str
) -> None:
    links = {".current": "7", ".previous": "6"}
    (tmp_path / "deployments").mkdir()
    for name, of in links.items():
        (tmp_path / "deployments" / name).symlink_to(of)
    # What deployment 2 is to have of it is not there: it cannot be put beside its place.
    unit = PlannedFile(f"{tmp_path}/units/sglang@.service", "")
    code, out, _ = switched(
        tmp_path, shell, "nothing fails", stop_first=False, replaced=((unit, "absent"),)
    )
    assert code == 1
    assert "nothing was switched" in out
    assert os.readlink(tmp_path / "deployments/current") == "1"
    for name, of in links.items():
        assert os.readlink(tmp_path / "deployments" / name) == of
