"""What ``--help`` costs, and that it says what the commands say of themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from cli.main import cli
from cli.summaries import SUMMARIES

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("pyinfra", "paramiko", "pydantic", "requests", "huggingface_hub", "jinja2", "rich", "yaml")

PROGRAM = f"""
import sys
sys.argv = ["sglang-node", *sys.argv[1:]]
from cli.main import run
try:
    run()
finally:
    print("heavy:", *(name for name in {HEAVY!r} if name in sys.modules))
"""


def test_each_command_is_listed_in_its_own_words() -> None:
    said = {}
    for name in SUMMARIES:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert command.name == name
        said[name] = command.get_short_help_str(1000)
    assert dict(SUMMARIES) == said


def test_a_plan_imports_nothing_that_asks_a_registry() -> None:
    program = (
        "import cli.planning, sys; print('requests' in sys.modules, 'cli.adopt' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout == "False False\n", ran.stderr


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_imports_nothing_heavy(word: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, word], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    *said, heavy = ran.stdout.splitlines()
    assert heavy == "heavy:"
    if word == "--help":
        shown = " ".join(" ".join(said).split())
        assert all(f" {name} {text}" in shown for name, text in SUMMARIES.items())
