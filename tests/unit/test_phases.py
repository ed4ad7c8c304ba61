"""The phases that the ready gate tells, with the awk that a node really has."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from plans.phases import gate_phases
from releases.log_lines import LOG_LINES, PHASES, phase_of
from releases.table import RELEASES, get_release
from releases.versions import in_specifiers

AWKS = [name for name in ("awk", "mawk", "gawk", "busybox") if shutil.which(name)]


def rank_by_awk(awk: str, version: str, line: str) -> int:
    """Return the rank of the last phase whose test a line passes; 0 where it passes none."""
    tests = "".join(
        f"{phase.test} {{ rank = {number} }}\n"
        for number, phase in enumerate(gate_phases(version), 1)
    )
    command = ["busybox", "awk"] if awk == "busybox" else [awk]
    done = subprocess.run(
        [*command, f"{tests}END {{ print rank + 0 }}"],
        input=line + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.parametrize("awk", AWKS)
@pytest.mark.parametrize("version", sorted(RELEASES))
def test_every_sample_of_a_phase_passes_that_phase_s_test(awk: str, version: str) -> None:
    names = [phase.name for phase in gate_phases(version)]
    for entry in LOG_LINES:
        if entry.phase is None or not in_specifiers(version, entry.releases):
            continue
        for sample in entry.sample:
            rank = rank_by_awk(awk, version, sample)
            assert names[rank - 1].replace(" ", "_") == entry.phase, sample


@pytest.mark.parametrize("version", sorted(RELEASES))
def test_the_gate_has_every_phase_once_and_in_order(version: str) -> None:
    names = [phase.name.replace(" ", "_") for phase in gate_phases(version)]
    assert names == [phase for phase in PHASES if phase in names]
    assert len(names) >= 4


def test_a_line_of_no_phase_passes_no_test() -> None:
    line = "[2026-11-30 04:08:15] INFO: 127.0.0.1:40000 - GET /health HTTP/1.1 200 OK"
    assert rank_by_awk("awk", "0.5.23", line) == 0
    assert phase_of([line], get_release("0.5.23")) is None
