"""One apply at a time works on a node, and a dead one's lock ends: the real programs, in shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from operations.remote import whole
from operations.tickets import is_dead, new_ticket
from plans import paths
from plans.applylock import EXPIRES, Ticket, locked, unlock

ALICE = Ticket("m1-10-aa", "alice@ops (pid 10)")
BOB = Ticket("m2-20-bb", "bob@desk (pid 20)")


@pytest.fixture(params=["dash", "busybox", "bash"])
def shell(request: pytest.FixtureRequest) -> list[str]:
    """Each shell that a node may have as its sh."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed: .ci/prepare installs it")
    return ["busybox", "sh"] if request.param == "busybox" else [request.param]


class Here:
    """A node's /run, in a folder."""

    def __init__(self, folder: Path, shell: list[str]) -> None:
        self.folder, self.shell = folder / "run", shell

    @property
    def file(self) -> Path:
        """The lock."""
        return self.folder / "apply.lock"

    def start(self, text: str) -> subprocess.Popen[str]:
        """Begin a program."""
        process = subprocess.Popen(
            [*self.shell, "-s"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(whole(text.replace(paths.RUN, str(self.folder))))
        process.stdin.close()
        process.stdin = None
        return process

    def run(self, text: str) -> tuple[int, str]:
        """Run a program; return its status and what it printed."""
        process = self.start(text)
        out, _ = process.communicate(timeout=30)
        return process.returncode, out

    def write(self, ticket: Ticket, age: int) -> None:
        """Write the lock of an apply whose last program ended ``age`` seconds ago."""
        self.folder.mkdir(exist_ok=True)
        now = int(float(Path("/proc/uptime").read_text().split()[0]))
        self.file.write_text(f"{ticket.token} {now - age} 2026-11-30T12:03:05+0000 {ticket.who}\n")


@pytest.fixture
def here(tmp_path: Path, shell: list[str]) -> Here:
    """A node that nobody works on."""
    return Here(tmp_path, shell)


def test_an_apply_holds_its_lock_from_one_program_to_the_next(here: Here) -> None:
    assert here.run(locked("echo one", ALICE)) == (0, "one\n")
    first = here.file.read_text().split()
    assert first[0] == ALICE.token
    assert here.run(locked("echo two", ALICE, held=True)) == (0, "two\n")
    # Since when it runs does not move.
    assert here.file.read_text().split()[2:] == first[2:]


def test_another_apply_is_refused_with_who_and_since_when_and_does_nothing(here: Here) -> None:
    here.write(ALICE, 3)
    status, out = here.run(locked("echo ran", BOB))
    assert status == 75
    assert "ran" not in out
    assert (
        "@refused APPLY_RUNNING apply of alice@ops (pid 10) since 2026-11-30T12:03:05+0000" in out
    )
    assert f"@lock {ALICE.token}\n" in out
    assert here.file.read_text().startswith(ALICE.token)


def test_a_program_that_runs_keeps_others_out_however_long_it_runs(here: Here) -> None:
    running = here.start(locked("echo begun; sleep 5", ALICE))
    assert running.stdout is not None
    assert running.stdout.readline() == "begun\n"
    here.write(ALICE, EXPIRES * 2)  # it is at it for long
    status, out = here.run(locked("echo ran", BOB))
    assert (status, "APPLY_RUNNING" in out) == (75, True)
    running.communicate(timeout=30)


def test_of_many_that_begin_at_once_one_runs(here: Here) -> None:
    several = [
        here.start(locked("echo ran; sleep 0.3", Ticket(f"m-{n}-x", f"user{n}"))) for n in range(5)
    ]
    ended = [(one.communicate(timeout=60)[0], one.returncode) for one in several]
    assert sorted(status for _, status in ended) == [0, 75, 75, 75, 75]
    assert sum("ran" in out for out, _ in ended) == 1


def test_the_lock_of_a_dead_apply_ends_by_itself(here: Here) -> None:
    here.write(ALICE, EXPIRES - 2)
    assert here.run(locked("echo ran", BOB))[0] == 75
    here.write(ALICE, EXPIRES)
    assert here.run(locked("echo ran", BOB)) == (0, "ran\n")
    assert here.file.read_text().startswith(BOB.token)


def test_a_run_that_is_known_to_be_dead_is_taken_over_at_once(here: Here) -> None:
    here.write(ALICE, 0)
    assert here.run(locked("echo ran", BOB, takes_over=ALICE.token)) == (0, "ran\n")
    assert here.file.read_text().split(maxsplit=3)[3] == f"{BOB.who}\n"


def test_what_is_left_of_a_cut_run_is_waited_for(here: Here) -> None:
    left = here.start(locked("echo begun; sleep 1", ALICE))
    assert left.stdout is not None
    assert left.stdout.readline() == "begun\n"
    assert here.run(locked("echo ran", BOB, takes_over=ALICE.token)) == (0, "ran\n")
    left.communicate(timeout=30)


def test_a_program_that_fails_gives_the_lock_back(here: Here) -> None:
    assert here.run(locked("exit 3", ALICE))[0] == 3
    assert here.file.read_text() == ""
    assert here.run(locked("set -e\nfalse\necho not", ALICE)) == (1, "")
    assert here.run(locked("echo ran", BOB)) == (0, "ran\n")


def test_a_run_that_lost_its_lock_goes_no_further(here: Here) -> None:
    here.write(BOB, 1)
    status, out = here.run(locked("echo ran", ALICE, held=True))
    assert (status, "APPLY_RUNNING" in out, "ran" in out.split()) == (75, True, False)
    here.write(BOB, EXPIRES)
    status, out = here.run(locked("echo ran", ALICE, held=True))
    assert (status, "@refused STALE_PLAN" in out) == (75, True)
    here.file.write_text("")
    status, out = here.run(locked("echo ran", ALICE, held=True))
    assert (status, "@refused STALE_PLAN" in out) == (75, True)


def test_a_lock_is_given_back_by_whose_it_is_alone(here: Here) -> None:
    here.write(ALICE, 0)
    assert here.run(unlock(BOB)) == (0, "")
    assert here.file.read_text().startswith(ALICE.token)
    assert here.run(unlock(ALICE)) == (0, "")
    assert here.file.read_text() == ""
    here.file.unlink()
    assert here.run(unlock(ALICE)) == (0, "")
    assert not here.file.exists()


@pytest.mark.parametrize("text", ["", "\n", "x", "x y z", "x 12:03 y z", "x -5 $(exit) `exit`"])
def test_a_lock_that_says_nothing_holds_nobody_up(here: Here, text: str) -> None:
    here.folder.mkdir()
    here.file.write_text(text)
    assert here.run(locked("echo ran", ALICE)) == (0, "ran\n")


def test_who_runs_it_is_told_as_it_is_written(here: Here) -> None:
    odd = Ticket("m-1-a", "o'neil \\ $HOME@ops (pid 1)")
    assert here.run(locked(":", odd))[0] == 0
    assert odd.who in here.run(locked(":", BOB))[1]


def test_a_process_that_is_no_more_is_dead_and_others_are_not() -> None:
    ours = new_ticket()
    assert f"(pid {os.getpid()})" in ours.who
    assert not is_dead(ours.token)
    ended = subprocess.run(
        [sys.executable, "-c", "from operations.tickets import new_ticket as n; print(n().token)"],
        capture_output=True,
        text=True,
        check=True,
    )
    token = ended.stdout.strip()
    assert token.split("-")[0] == ours.token.split("-")[0]
    assert is_dead(token)
    # Of another machine's processes nothing is known.
    assert not is_dead(f"0{token}")
    for text in ("", "-", "x", "a-b-c", f"{token.split('-')[0]}-x-y"):
        assert not is_dead(text)


def test_a_ticket_is_one_word_and_says_no_control_characters() -> None:
    for token, who in (("", "a"), ("a b", "a"), ("ä", "a"), ("a", "a\nb")):
        with pytest.raises(ValueError, match=r"token|control"):
            Ticket(token, who)
