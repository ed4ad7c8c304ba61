"""The program that switches, run by a real shell over a directory of its own, a step failing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from plans.deployment import TEMPLATES, render
from plans.onnode import REFUSAL_MARK
from plans.plan import Guard

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]

SYSTEMCTL = """#!/bin/sh
echo "$*" >> {root}/told
case $* in
*"{failing}"*) echo 'Failed: no room' >&2; exit 1 ;;
*MainPID*) echo 0 ;;
*InvocationID*) cat {root}/invocation ;;
*ActiveState*) echo active ;;
*' start '* | *' restart '*) echo new > {root}/invocation ;;
esac
"""


def switched(root: Path, shell: str, failing: str, *, stop_first: bool) -> tuple[int, str, str]:
    """Run a switch from deployment 1 to 2 in which one call of systemctl fails.

    Returns how it ended, what it printed, and what systemctl was told.
    """
    deployments = root / "deployments"
    for number in ("1", "2"):
        (deployments / number).mkdir(parents=True)
    (deployments / "current").symlink_to("1")
    (root / "bin").mkdir()
    (root / "invocation").write_text("old\n", encoding="utf-8")
    text = SYSTEMCTL.format(root=root, failing=failing)
    for name, body in (("systemctl", text), ("journalctl", "#!/bin/sh\n"), ("ss", "#!/bin/sh\n")):
        (root / "bin" / name).write_text(body, encoding="utf-8")
        (root / "bin" / name).chmod(0o755)
    program = render(
        "switch.sh.j2",
        service="chat",
        unit="sglang@chat.service",
        deployments=str(deployments),
        number=2,
        guard=Guard(1, 0, "old", {}, None),
        replaced=[],
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
    )
    done = subprocess.run(
        [shell, "-s"],
        input=program,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": f"{root}/bin:{os.environ['PATH']}"},
    )
    return done.returncode, done.stdout, (root / "told").read_text(encoding="utf-8")


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
    assert "--no-block restart" in told


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
