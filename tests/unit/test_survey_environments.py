"""What the survey tells of environments: read by its own program, from real directories."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts.parsing import parse_survey
from facts.records import ABSENT, Account, Environment, Survey, Unknown
from facts.survey import PROGRAM

SHELLS = [shell for shell in (["dash"], ["busybox", "ash"], ["bash"]) if shutil.which(shell[0])]
KEY = "0123456789abcdef"
PARTS = ["bin/python3", "Python.h", "cu13/bin/nvcc", "cu13/nvvm/bin/cicc", "cu13/lib64",
         "cu13/lib64/libcudart.so"]  # fmt: skip


def made(root: Path) -> Path:
    """Make an environment as the program that builds one leaves it."""
    there = root / "environments" / KEY
    site = there / "lib/python3.12/site-packages"
    cuda = site / "nvidia/cu13"
    for name in ("bin/nvcc", "nvvm/bin/cicc", "lib/libcudart.so.13"):
        (cuda / name).parent.mkdir(parents=True, exist_ok=True)
        (cuda / name).touch(0o755)
    (cuda / "lib64").symlink_to("lib")
    (cuda / "lib/libcudart.so").symlink_to("libcudart.so.13")
    for name in ("six-1.17.0.dist-info", "torch-2.14.1.dist-info"):
        (site / name).mkdir()
    (there / "bin").mkdir()
    (there / "bin/python3").touch(0o755)
    (root / "include").mkdir()
    (root / "include/Python.h").touch()
    (there / "packages.txt").write_text("six-1.17.0.dist-info\ntorch-2.14.1.dist-info\n")
    mark = {
        "key": KEY,
        "include": str(root / "include"),
        "site_packages": "lib/python3.12/site-packages",
        "site_time": int(site.stat().st_mtime),
        "parts": PARTS,
    }
    (there / "environment.json").write_text(json.dumps(mark, indent=1) + "\n")
    return there


def surveyed(root: Path, shell: list[str] | None = None, account: str = "root") -> Survey:
    """Run the survey's program over a directory of environments."""
    words = [f"environments={root}/environments", f"tools={root}/tools", f"account={account}"]
    done = subprocess.run(
        [*(shell or SHELLS[0]), str(PROGRAM), "version=1", "deadline=20", *words],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin"},  # as sshd gives it
    )
    return parse_survey(done.stdout.split("\n"), "node")


@pytest.mark.parametrize("shell", SHELLS, ids=lambda argv: argv[-1])
def test_an_environment_that_is_whole_is_told_as_whole(tmp_path: Path, shell: list[str]) -> None:
    there = made(tmp_path)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/uv-1").touch(0o755)
    (tmp_path / "tools/uv-1.gz.new").touch(0o644)
    survey = surveyed(tmp_path, shell)
    found = survey.environments[KEY]
    assert (found.missing, found.changed) == ((), ())
    assert found.parts == tuple(PARTS)
    assert (found.path, found.site_packages) == (str(there), "lib/python3.12/site-packages")
    assert json.loads(str(found.mark))["key"] == KEY
    assert survey.environments_unread is None
    assert survey.toolchain.tools == (f"{tmp_path}/tools/uv-1",)
    assert survey.accounts["root"] == Account("root", True, 0, 0, "/root", "/bin/bash")


def one_of(root: Path, shell: list[str] | None = None) -> Environment:
    return surveyed(root, shell).environments[KEY]


@pytest.mark.parametrize(
    ("gone", "missing"),
    [
        (
            "lib/python3.12/site-packages/nvidia/cu13/lib64",
            ("cu13/lib64", "cu13/lib64/libcudart.so"),
        ),
        (
            "lib/python3.12/site-packages/nvidia/cu13/lib/libcudart.so.13",
            ("cu13/lib64/libcudart.so",),
        ),
        ("lib/python3.12/site-packages/nvidia/cu13/bin/nvcc", ("cu13/bin/nvcc",)),
        ("bin/python3", ("bin/python3",)),
        ("../../include/Python.h", ("Python.h",)),
    ],
)
def test_a_part_that_is_gone_is_named(tmp_path: Path, gone: str, missing: tuple[str, ...]) -> None:
    (made(tmp_path) / gone).unlink()
    assert one_of(tmp_path).missing == missing


@pytest.mark.parametrize("shell", SHELLS, ids=lambda argv: argv[-1])
def test_a_changed_package_is_named_by_both_its_versions(tmp_path: Path, shell: list[str]) -> None:
    site = made(tmp_path) / "lib/python3.12/site-packages"
    (site / "torch-2.14.1.dist-info").rename(site / "torch-2.13.0.dist-info")
    changed = one_of(tmp_path, shell).changed
    assert isinstance(changed, tuple)
    assert {"+ torch-2.13.0.dist-info", "- torch-2.14.1.dist-info"} <= set(changed)


def test_the_same_version_installed_again_is_a_change_too(tmp_path: Path) -> None:
    site = made(tmp_path) / "lib/python3.12/site-packages"
    os.utime(site, (1, 1))
    assert one_of(tmp_path).changed == ("lib/python3.12/site-packages was written to",)


def test_one_without_a_mark_is_half_made(tmp_path: Path) -> None:
    there = made(tmp_path)
    (there / "environment.json").unlink()
    there.rename(there.with_name(f"{KEY}.new"))
    found = surveyed(tmp_path).environments[f"{KEY}.new"]
    assert (found.mark, found.missing, found.changed) == (ABSENT, ABSENT, ABSENT)


@pytest.mark.parametrize("mark", ["", "{", "[]", '{"parts": 1}', "[" * 5000])
def test_a_mark_that_cannot_be_read_is_none(tmp_path: Path, mark: str) -> None:
    (made(tmp_path) / "environment.json").write_text(mark)
    assert isinstance(one_of(tmp_path).mark, str | Unknown)
    assert isinstance(one_of(tmp_path).missing, Unknown)


def test_a_node_without_any_is_known_to_have_none(tmp_path: Path) -> None:
    survey = surveyed(tmp_path, account="nobody-is-called-so")
    assert (survey.environments, survey.environments_unread) == ({}, None)
    assert survey.accounts["nobody-is-called-so"].exists is False
    assert survey.toolchain.tools == ABSENT


def test_a_look_that_did_not_end_in_time_is_not_taken_for_an_empty_node() -> None:
    lines = ["sglang-survey 1 1", "@ parts rc=0", " unfinished environments environments", "@ end"]
    survey = parse_survey(lines, "node")
    assert isinstance(survey.environments_unread, Unknown)
    assert isinstance(survey.toolchain.libnuma, Unknown)
    assert survey.toolchain.libnuma.why == "unreadable"


LINES = st.lists(
    st.one_of(
        st.sampled_from(
            ["mark {}", "mark [", "site x", "site lib/python3.1/site-packages", "time", "time 1",
             "part ", "part bin/python3", "cuda", "more", "less x", "compared", "", "/a"]
        ),
        st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=20),
    ),
    max_size=8,
)  # fmt: skip


@given(LINES, st.sampled_from([0, 1, 13, 124, 127]), st.sampled_from(
    ["environment", "account", "libraries", "tools", "package-manager", "environments.closed"]
))  # fmt: skip
def test_damaged_sections_give_no_whole_environment_and_no_traceback(
    lines: list[str], code: int, name: str
) -> None:
    text = ["sglang-survey 1 1", f"@ {name} rc={code}", " /opt/x/" + KEY, *(f" {x}" for x in lines)]
    survey = parse_survey([*text, "@ parts rc=0", "@ end"], "node")
    for one in survey.environments.values():
        whole = one.missing == () and one.changed == ()
        assert not whole or '"site_time"' in str(one.mark)
    for account in survey.accounts.values():
        assert account.exists is not True or code == 0
