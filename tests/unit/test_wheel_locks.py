"""Locks of Python packages: read, written, checked; and those that the toolkit carries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.tags import Tag

from plans.codes import catalogue
from releases.table import RELEASES
from releases.wheels import (
    Departure,
    LockDamaged,
    Package,
    Unresolved,
    WheelLock,
    disagreements,
    lock_text,
    problems,
    read_lock,
    wheel_lock,
    why_not_locked,
    write_lock,
)
from releases.wheels.data import locked_releases
from releases.wheels.records import ARCHITECTURES, Architecture
from releases.wheels.wheel_tags import supported

RECORDED = Path(__file__).parents[1] / "recorded" / "wheel-locks"
FAULTS = sorted(RECORDED.glob("*.txt"))
DAMAGED = sorted((RECORDED / "damaged").glob("*.txt"))
CARRIED = [(release, machine) for release in locked_releases() for machine in ARCHITECTURES]


def whole() -> WheelLock:
    return read_lock((RECORDED / "a lock that is whole.txt").read_text(encoding="utf-8"))


def carried(release: str, architecture: str) -> WheelLock:
    lock = wheel_lock(release, architecture)
    assert lock is not None
    return lock


# Faults


@pytest.mark.parametrize("path", FAULTS, ids=lambda path: path.stem)
def test_a_fault_is_refused_by_its_code_and_nothing_else_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    wanted = re.search(r"^# expected: (.*)$", text, re.M)
    assert wanted is not None
    # The recorded locks keep the digest of the data of their day.
    found = {one.code for one in problems(read_lock(text))} - {"WHEELS_LOCK_OUTDATED"}
    assert found == set(wanted[1].split()) - {"nothing"}


def test_every_problem_has_a_fault_that_shows_it() -> None:
    shown = {c for p in FAULTS for c in re.findall(r"WHEELS_\w+", p.read_text(encoding="utf-8"))}
    elsewhere = {"WHEELS_NOT_LOCKED", "WHEELS_GONE", "WHEELS_DAMAGED", "WHEELS_LOCK_OUTDATED"}
    elsewhere |= {"WHEELS_ARCHITECTURES_DIFFER", "WHEELS_DEVICE"}
    assert shown | elsewhere == {code for code in catalogue() if code.startswith("WHEELS_")}


def test_a_refused_compiler_set_names_each_package_and_what_it_should_be() -> None:
    path = RECORDED / "what a plain install takes.txt"
    found = {one.code: one for one in problems(read_lock(path.read_text(encoding="utf-8")))}
    compiler = found["WHEELS_COMPILER_SET"]
    assert "nvidia-cuda-nvcc 13.5.37" in compiler.seen
    assert "nvidia-cuda-cccl 13.3.5.0.6" in compiler.seen
    assert "nvidia-cuda-nvcc 13.0.88" in compiler.needed
    mixed = found["WHEELS_MIX_CUDA"].seen
    assert "nvidia-nvjitlink 13.5.37" in mixed
    assert "nvidia-cutlass-dsl-libs-cu12 4.8.0" in mixed


def test_a_lock_made_from_other_data_is_refused() -> None:
    lock = carried(*CARRIED[0]).model_copy(update={"data": "0" * 16})
    assert [one.code for one in problems(lock)] == ["WHEELS_LOCK_OUTDATED"]


def test_a_lock_of_a_release_that_nobody_wrote_down_is_refused() -> None:
    lock = whole().model_copy(update={"release": "9.9.9"})
    assert {one.code for one in problems(lock)} == {"WHEELS_LOCK_OUTDATED", "WHEELS_WRONG_RELEASE"}


def test_locks_of_one_release_that_hold_a_package_at_two_versions_are_refused() -> None:
    first, second = (carried("0.5.23", machine) for machine in ARCHITECTURES)
    packages = tuple(
        p.model_copy(update={"version": "1.0"}) if p.name == "numpy" else p for p in second.packages
    )
    found = disagreements([first, second.model_copy(update={"packages": packages})])
    assert [one.code for one in found] == ["WHEELS_ARCHITECTURES_DIFFER"]
    assert "numpy" in found[0].seen
    assert "1.0 on aarch64" in found[0].seen


# Text


@pytest.mark.parametrize("path", DAMAGED, ids=lambda path: path.stem)
def test_a_damaged_lock_is_refused_and_the_fault_named(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    says = re.search(r"^# says: (.*)$", text, re.M)
    assert says is not None
    with pytest.raises(LockDamaged, match=re.escape(says[1])):
        read_lock(text)


WORDS = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=3, max_size=12
)
NAMES = st.lists(st.text("abz019", min_size=1, max_size=5), min_size=1, max_size=3).map("-".join)
VERSIONS = st.builds(
    "{}.{}{}{}".format,
    st.integers(0, 999),
    st.integers(0, 99),
    st.sampled_from(["", ".88", "rc5", ".post1", ".0.6"]),
    st.sampled_from(["", "+cu130", "+cpu"]),
)
HASHES = st.integers(0, 2**256 - 1).map("sha256:{:064x}".format)
LINKS = st.sampled_from(["https://github.com/a/b", "https://github.com/c/d/issues/5"])
PACKAGES = st.builds(
    Package,
    name=NAMES,
    version=VERSIONS,
    hashes=st.lists(HASHES, min_size=1, max_size=3).map(tuple),
    file=st.text("aZ09_.+-", min_size=1, max_size=20).map("{}.whl".format),
    size=st.none() | st.integers(min_value=0, max_value=10**12),
    marker=st.sampled_from(["", "sys_platform == 'linux'", 'python_version < "3.13"']),
)
LOCKS = st.builds(
    WheelLock,
    release=st.just("0.5.23"),
    architecture=st.sampled_from(ARCHITECTURES),
    python=st.sampled_from(["3.11", "3.12"]),
    glibc=st.just("2.34"),
    cuda=st.just("13.0"),
    as_of=st.just("2026-11-30T08:00:00Z"),
    uv=st.just("0.13.9"),
    data=st.integers(0, 2**64 - 1).map("{:016x}".format),
    departures=st.lists(
        st.builds(Departure, package=NAMES, here=WORDS, without=WORDS, reason=WORDS, since=WORDS, link=LINKS),
        max_size=3,
    ).map(tuple),
    unresolved=st.lists(
        st.builds(Unresolved, name=NAMES, version=WORDS, reason=WORDS, command=WORDS, link=LINKS),
        max_size=3,
    ).map(tuple),
    packages=st.lists(PACKAGES, min_size=1, max_size=6, unique_by=lambda p: p.name).map(
        lambda found: tuple(sorted(found, key=lambda p: p.name))
    ),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(LOCKS)
def test_a_lock_is_read_back_as_it_was_written(lock: WheelLock) -> None:
    assert read_lock(write_lock(lock)) == lock


@settings(max_examples=40, deadline=None)
@given(LOCKS)
def test_what_is_written_is_a_requirements_file_in_which_every_package_has_a_hash(
    lock: WheelLock,
) -> None:
    body = [
        line for line in write_lock(lock).splitlines() if line and not line.lstrip().startswith("#")
    ]
    joined = "\n".join(body).replace(" \\\n", " ").splitlines()
    assert len(joined) == len(lock.packages)
    for line, package in zip(joined, lock.packages, strict=True):
        requirement, *hashes = line.split("     --hash=")
        assert Requirement(requirement).name == package.name
        assert str(Requirement(requirement).specifier) == f"=={package.version}"
        assert tuple(hashes) == package.hashes


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_lock_that_lost_a_line_is_damaged_or_says_something_else(data: st.DataObject) -> None:
    lines = write_lock(whole()).splitlines()
    for_people = [at for at, line in enumerate(lines) if at < 6 or line == "#" or not line]
    at = data.draw(st.sampled_from(sorted(set(range(len(lines))) - set(for_people))))
    try:
        lock = read_lock("\n".join([*lines[:at], *lines[at + 1 :]]))
    except LockDamaged:
        return
    assert lock != whole()


@settings(max_examples=200, deadline=None)
@given(st.text() | st.text(alphabet="#=-\\ \nab:1.0sha256"))
def test_any_text_is_a_lock_or_is_refused_as_damaged(text: str) -> None:
    with pytest.raises(LockDamaged):
        read_lock(text)


def test_the_name_of_an_environment_follows_its_packages_and_not_its_comments() -> None:
    lock = whole()
    same = lock.model_copy(update={"departures": (), "as_of": "2027-01-01T00:00:00Z"})
    assert same.digest == lock.digest
    assert lock.model_copy(update={"python": "3.13"}).digest != lock.digest
    assert lock.model_copy(update={"packages": lock.packages[1:]}).digest != lock.digest
    changed = lock.packages[0].model_copy(update={"hashes": ("sha256:" + "0" * 64,)})
    moved = lock.model_copy(update={"packages": (changed, *lock.packages[1:])})
    assert moved.digest != lock.digest


# Tags


def test_a_wheel_for_an_older_c_library_runs_and_one_for_a_newer_does_not() -> None:
    tags = supported("3.12", "2.34", "x86_64")
    assert Tag("cp312", "cp312", "manylinux_2_34_x86_64") in tags
    assert Tag("cp310", "abi3", "manylinux2014_x86_64") in tags
    assert Tag("py3", "none", "any") in tags
    assert Tag("cp312", "cp312", "manylinux_2_35_x86_64") not in tags
    assert Tag("cp313", "cp313", "manylinux_2_34_x86_64") not in tags
    assert Tag("cp312", "cp312", "manylinux_2_34_aarch64") not in tags
    assert Tag("cp312", "cp312", "manylinux1_x86_64") in tags
    assert Tag("cp312", "cp312", "manylinux1_aarch64") not in supported("3.12", "2.34", "aarch64")


def test_the_wheel_made_for_this_python_comes_before_the_one_for_any() -> None:
    tags = supported("3.12", "2.34", "aarch64")
    own = Tag("cp312", "cp312", "manylinux_2_17_aarch64")
    abi3 = Tag("cp310", "abi3", "manylinux_2_34_aarch64")
    assert tags[own] < tags[abi3] < tags[Tag("py3", "none", "any")]


# The locks that the toolkit carries


@pytest.mark.parametrize(("release", "architecture"), CARRIED)
def test_a_carried_lock_has_no_problem_and_is_as_the_program_wrote_it(
    release: str, architecture: Architecture
) -> None:
    lock = carried(release, architecture)
    assert problems(lock) == []
    assert (lock.release, lock.architecture) == (release, architecture)
    assert write_lock(lock) == lock_text(release, architecture)
    assert why_not_locked(release, architecture) is None
    assert len(lock.packages) > 200
    assert 3e9 < lock.size < 6e9


@pytest.mark.parametrize(("release", "architecture"), CARRIED)
def test_a_carried_lock_names_no_index(release: str, architecture: str) -> None:
    text = lock_text(release, architecture)
    assert text is not None
    for line in text.splitlines():
        if "://" in line:
            assert re.fullmatch(r"#   link: https://github\.com/\S+", line), line


@pytest.mark.parametrize(("release", "architecture"), CARRIED)
def test_the_compiler_set_of_a_carried_lock_agrees_with_torch_s_cuda(
    release: str, architecture: str
) -> None:
    lock = carried(release, architecture)
    toolkit = lock.package("cuda-toolkit")
    assert toolkit is not None
    for name in ("nvcc", "crt", "cccl", "runtime"):
        package = lock.package(f"nvidia-cuda-{name}")
        assert package is not None
        assert package.version.split(".")[:2] == toolkit.version.split(".")[:2] == ["13", "0"]


@pytest.mark.parametrize("release", locked_releases())
def test_the_carried_locks_of_a_release_agree_over_architectures(release: str) -> None:
    locks = [carried(release, machine) for machine in ARCHITECTURES]
    assert disagreements(locks) == []
    assert len({lock.as_of for lock in locks}) == 1
    here, there = ({p.name for p in lock.packages} for lock in locks)
    # SGLang itself asks for another video reader on aarch64.
    assert here - there == {"torchcodec"}
    assert there - here == {"av", "decord2"}


@pytest.mark.parametrize("release", list(RELEASES))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_release_of_the_table_is_locked_or_says_what_to_use_instead(
    release: str, architecture: str
) -> None:
    missing = why_not_locked(release, architecture)
    if wheel_lock(release, architecture) is None:
        assert missing is not None
        assert missing.code == "WHEELS_NOT_LOCKED"
        assert any(image.tag in missing.advice for image in RELEASES[release].images)
    else:
        assert missing is None


def test_a_locked_python_is_one_that_the_release_takes() -> None:
    for release, architecture in CARRIED:
        oldest = RELEASES[release].requires_python.value.removeprefix(">=")
        python = carried(release, architecture).python
        assert int(python.split(".")[1]) >= int(oldest.split(".")[1])


def test_an_unknown_release_or_architecture_has_no_lock_and_is_told_which_have() -> None:
    for release, machine in (("0.5.99", "x86_64"), ("0.5.23", "riscv64"), ("../x", "x86_64")):
        assert wheel_lock(release, machine) is None
        missing = why_not_locked(release, machine)
        assert missing is not None
        assert "0.5.23" in missing.needed


def test_a_release_may_be_written_with_its_v() -> None:
    assert wheel_lock("v0.5.23", "x86_64") == wheel_lock("0.5.23", "x86_64")
