"""Programs that travel to a node over standard input."""

from __future__ import annotations

import subprocess

import pytest

from operations.remote import whole

TEXT = "set -u\ncat <<'EOT'\nfrom here\nEOT\nexit 7"


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_program_that_arrives_whole_runs_and_its_status_is_told(shell: str) -> None:
    ran = subprocess.run([shell, "-s"], input=whole(TEXT), capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (7, "from here\n")


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_program_that_is_cut_anywhere_runs_nothing(shell: str) -> None:
    text = whole("echo one\necho two\necho three")
    for length in range(text.index("}\n")):
        ran = subprocess.run([shell, "-s"], input=text[:length], capture_output=True, text=True)
        assert ran.stdout == ""
