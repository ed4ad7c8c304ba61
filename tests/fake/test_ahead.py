"""Kernels that are compiled before a switch, in a whole run over a node that is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from locks.lockfile import write_lock
from tests.fake.command import Ended, fake, inventory, run
from tests.fake.test_exit_codes import whole_lock
from tests.fake.test_going_back import deployed_lines
from tests.fake.test_upgrading import GOES_WELL, SECOND

# The build of its kernels depends on it.
REBUILT = {**SECOND, "arguments": {"quantization": "fp8"}}
DONE = json.dumps({"compiled": ["norm", "page"], "seconds": 203})
GOES_AHEAD: dict[str, Any] = {
    ": compile ": {"stdout": ["norm: compiled in 118 s (1 of 2)"]},
    ": judge compiling ": {"stdout": [f"@ahead {DONE}", "@ended 0"]},
}


@pytest.fixture(scope="module")
def serving() -> list[str]:
    """Return the survey of a node that serves."""
    return deployed_lines()


def upgraded(
    folder: Path, lines: list[str], service: dict[str, Any], responses: dict[str, Any]
) -> Ended:
    """Upgrade that node to a service."""
    host, data = fake("a", lines)
    data["fake_responses"] |= {**GOES_WELL, **responses}
    path = inventory(folder, (host, data), services=[service])
    write_lock(folder / "sglang.lock", whole_lock())
    return run("upgrade", path, "--to", "0.5.23", "--yes", "--soak", "1s")


def test_they_are_compiled_after_the_canary_and_before_anything_is_stopped(
    tmp_path: Path, serving: list[str]
) -> None:
    ended = upgraded(tmp_path, serving, REBUILT, GOES_AHEAD)
    assert ended.code == 0, ended.err
    steps = ["Try CUDA", "Compile kernels of chat while it serves", "Restart chat", "Prove chat"]
    places = [ended.err.index(step) for step in steps]
    assert places == sorted(places)
    assert "norm: compiled in 118 s (1 of 2)" in ended.err
    said = ended.out + ended.err
    assert "while it still serves, the kernels of FlashInfer that its last build" in said
    assert "compiled ahead" not in said  # by a line of warning: there is nothing to warn of
    assert "@ahead" not in said


@pytest.mark.parametrize(
    "responses",
    [
        {": compile ": {"success": False, "stdout": ["no space left on device"]}},
        {": judge compiling ": {"success": False, "stdout": []}},
        {": judge compiling ": {"stdout": ["No module named flashinfer", "@ended 1"]}},
    ],
)
def test_where_they_cannot_be_compiled_the_upgrade_goes_on_and_says_so(
    tmp_path: Path, serving: list[str], responses: dict[str, Any]
) -> None:
    ended = upgraded(tmp_path, serving, REBUILT, {**GOES_AHEAD, **responses})
    assert ended.code == 0, ended.err
    assert "Prove chat" in ended.err
    if ": compile " not in responses:
        assert "the first start compiles what is missing" in ended.out + ended.err


def test_a_cache_that_stays_is_left_as_it_is(tmp_path: Path, serving: list[str]) -> None:
    other = {**SECOND, "arguments": {"max-running-requests": 16}}
    ended = upgraded(tmp_path, serving, other, {})
    assert ended.code == 0, ended.err
    assert "Restart chat" in ended.err
    assert "Compile kernels" not in ended.err
    assert "of FlashInfer" not in ended.out + ended.err
