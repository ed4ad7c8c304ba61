"""The program that becomes root with a password: the rest of its input goes on, whole."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from plans.becoming import (
    ACCEPTED_MARK,
    NEEDLESS_MARK,
    REFUSED_STATUS,
    becoming_program,
    why_refused,
)

from .machine import PASSWORD, Machine, Sshd

LINES = "".join(f"line {number} of what follows\n" for number in range(40_000))
"""More than a pipe holds: 1.2 MB."""


@pytest.fixture(scope="module")
def sshd(machine: Machine) -> Sshd:
    """An sshd over which the program is run."""
    return machine.sshd()


def become(
    machine: Machine, sshd: Sshd, user: str, shell: str, text: str, *words: str, known: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run words as root by way of the program, in that shell, with that input."""
    command = [*shell.split(), "-c", becoming_program("-H", known=known), "name", *words]
    return subprocess.run(
        ["ssh", "-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
         "-q", "-i", str(machine.folder / "key"), "-p", str(sshd.port), f"{user}@127.0.0.1",
         shlex.join(command)],
        input=text, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("shell", ["dash", "bash --posix", "busybox sh"])
@pytest.mark.parametrize("user", ["maria", "nora"])
def test_what_follows_the_password_is_the_program_s_own_input(
    machine: Machine, sshd: Sshd, user: str, shell: str
) -> None:
    ran = become(
        machine, sshd, user, shell, f"{PASSWORD}\n{LINES}", "sh", "-c", "id -u; cat; exit 7"
    )
    assert ran.returncode == 7
    assert ran.stdout == f"0\n{LINES}"
    assert ran.stderr.splitlines() == [ACCEPTED_MARK if user == "maria" else NEEDLESS_MARK]


def test_a_program_that_reads_nothing_ends_it(machine: Machine, sshd: Sshd) -> None:
    ran = become(machine, sshd, "maria", "sh", f"{PASSWORD}\n{LINES}", "true", known=True)
    assert (ran.returncode, ran.stdout) == (0, "")


def test_what_follows_a_wrong_password_is_never_tried_as_one(machine: Machine, sshd: Sshd) -> None:
    before = machine.sudo_log()
    text = f"wrong\n{PASSWORD}\n{PASSWORD}\n"
    for known in (False, True):
        ran = become(machine, sshd, "maria", "sh", text, "id", known=known)
        assert (ran.returncode, ran.stdout) == (REFUSED_STATUS, "")
        said = why_refused(ran.stderr.splitlines())
        assert said == "sudo: 1 incorrect password attempt"
    assert machine.sudo_log()[len(before) :].count("1 incorrect password attempt") == 2


def test_a_variable_of_the_user_s_own_with_that_name_carries_nothing(
    machine: Machine, sshd: Sshd
) -> None:
    words = ("sh", "-c", "cat /proc/$PPID/environ /proc/[0-9]*/environ 2>/dev/null; echo read")
    program = becoming_program("-H", known=True)
    command = shlex.join(["env", "sglang_word=theirs", "sh", "-c", program, "name", *words])
    ran = subprocess.run(
        ["ssh", "-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
         "-q", "-i", str(machine.folder / "key"), "-p", str(sshd.port), "maria@127.0.0.1", command],
        input=f"{PASSWORD}\n", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0
    assert ran.stdout.endswith("read\n")
    assert PASSWORD not in ran.stdout
