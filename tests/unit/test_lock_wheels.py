"""The command that locks Python packages, with recorded answers of uv in the index's place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from releases.tools import lock_wheels, resolution
from releases.tools.resolution import CannotLock, Question, Target
from releases.wheels import lock_text, problems, read_lock
from releases.wheels.data import policy
from releases.wheels.table import lock_name

RECORDED = Path(__file__).parents[1] / "recorded" / "uv"
X86 = Target("3.12", "2.34", "x86_64")
ARM = Target("3.12", "2.34", "aarch64")
AS_OF = "2026-11-30T08:00:00Z"


def answer(name: str) -> str:
    return (RECORDED / name).read_text(encoding="utf-8")


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recorded uv, first on the path; its answers may be changed."""
    folder = tmp_path / "bin"
    shutil.copytree(RECORDED, folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "locks"
    folder.mkdir()
    return folder


def run(out: Path, *more: str) -> int:
    return lock_wheels.main(["0.5.22", "--folder", str(out), *more])


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


# What is asked


def test_the_argument_list_takes_metadata_and_wheels_alone_for_one_platform_as_of_one_time() -> (
    None
):
    wanted = policy("0.5.22")
    assert wanted is not None
    asked = resolution.question(wanted)
    assert resolution.compile_arguments("uv", asked, ARM, as_of=AS_OF) == [
        "uv", "pip", "compile", "--no-progress", "--no-python-downloads",
        "--format", "pylock.toml", "--no-header", "--no-build",
        "--python-version", "3.12", "--python-platform", "aarch64-manylinux_2_34",
        "--exclude-newer", AS_OF,
        "--constraints", "constraints.in", "--overrides", "overrides.in",
        "--excludes", "excludes.in", "--output-file", "pylock.toml", "requirements.in",
    ]  # fmt: skip
    assert asked.files() == {
        "requirements.in": "sglang==0.5.22\nnvidia-cuda-nvcc==13.0.88\nnvidia-nvvm==13.0.88\n"
        "nvidia-cuda-crt==13.0.88\nnvidia-cuda-cccl==13.0.85\nnvidia-cuda-runtime==13.0.96\n",
        "constraints.in": "python-dateutil<3\nnvidia-nvjitlink==13.0.88\n",
        "overrides.in": "cuda-tile==1.7.0\n",
        "excludes.in": "nvidia-cutlass-dsl-libs-cu12\n",
    }


def test_a_file_that_would_be_empty_is_neither_written_nor_named() -> None:
    asked = Question(("sglang==0.5.23",), with_dependencies=False)
    arguments = resolution.compile_arguments(
        "uv", asked, X86, as_of=None, indexes=["https://a.invalid"]
    )
    assert list(asked.files()) == ["requirements.in"]
    assert not {"--constraints", "--overrides", "--excludes", "--exclude-newer"} & set(arguments)
    assert arguments[arguments.index("--index") + 1] == "https://a.invalid"
    assert "--no-deps" in arguments


def test_flashinfer_s_kernels_are_asked_for_at_its_version_with_all_else_held() -> None:
    wanted = policy("0.5.22")
    assert wanted is not None
    packages, _ = resolution.chosen(answer("locked-x86_64.toml"), X86)
    parts = ("flashinfer-cubin", "flashinfer-jit-cache")
    asked = resolution.question_of_kernels(wanted, packages, parts)
    assert asked.requirements == ("flashinfer-cubin==0.7.1", "flashinfer-jit-cache==0.7.1+cu130")
    assert "torch==2.14.1" in asked.constraints
    assert resolution.indexes_of_kernels("13.0", "https://a.invalid/whl/") == (
        "https://a.invalid/whl/cu130",
        "https://a.invalid/whl",
    )


# What the answer means


def test_of_several_wheels_the_one_that_an_installer_prefers_is_locked() -> None:
    packages, without = resolution.chosen(answer("locked-x86_64.toml"), X86)
    aiohttp = next(p for p in packages if p.name == "aiohttp")
    assert aiohttp.file.startswith("aiohttp-3.14.5-cp312-cp312-manylinux2014_x86_64")
    assert len(aiohttp.hashes) == 1
    assert without == []


def test_a_package_without_a_wheel_for_the_platform_is_named() -> None:
    _, without = resolution.chosen(answer("locked-x86_64.toml"), ARM)
    assert "torch 2.14.1" in without
    text = '[[packages]]\nname = "cuda-tile"\nversion = "1.6.0rc5"\n'
    assert resolution.chosen(text, X86) == ([], ["cuda-tile 1.6.0rc5"])


def test_a_file_without_a_hash_cannot_be_locked() -> None:
    text = answer("locked-x86_64.toml").replace("sha256 =", "md5 =")
    with pytest.raises(CannotLock, match="no sha256"):
        resolution.chosen(text, X86)


def test_departures_are_what_differs_from_a_plain_install_and_nothing_else() -> None:
    wanted = policy("0.5.22")
    assert wanted is not None
    here, _ = resolution.chosen(answer("locked-x86_64.toml"), X86)
    plain = {n: v for n, (v, _) in resolution.offered(answer("plain-x86_64.toml")).items()}
    found = {d.package: (d.here, d.without) for d in resolution.departures(wanted, here, plain)}
    assert found == {
        "nvidia-cuda-nvcc": ("==13.0.88", "==13.5.37"),
        "nvidia-nvvm": ("==13.0.88", "==13.5.37"),
        "nvidia-cuda-crt": ("==13.0.88", "==13.5.37"),
        "nvidia-cuda-cccl": ("==13.0.85", "==13.3.5.0.6"),
        "cuda-tile": ("==1.7.0", "==1.6.0rc5"),
        "python-dateutil": ("==2.9.0.post0", "==4.0.0"),
        "nvidia-nvjitlink": ("==13.0.88", "==13.5.37"),
        "nvidia-cutlass-dsl-libs-cu12": ("left out", "==4.8.0"),
    }
    same = {p.name: p.version for p in here}
    assert [d.package for d in resolution.departures(wanted, here, same)] == ["cuda-tile"]


def test_the_python_is_the_one_that_uv_can_download_for_the_architecture() -> None:
    assert resolution.python_version(answer("pythons.json"), "aarch64") == "3.12.16"
    assert resolution.python_version(answer("pythons.json"), "riscv64") is None


@pytest.mark.parametrize("text", ["uv 0.11.9", "uv 0.9.0 (x)", "pip 26", ""])
def test_a_uv_that_is_too_old_or_none_is_refused(text: str) -> None:
    with pytest.raises(CannotLock):
        resolution.uv_version(text)
    assert resolution.uv_version(answer("version.txt")) == "0.13.9"


def test_why_there_is_no_solution_is_told_without_uv_s_hints() -> None:
    why = resolution.no_solution(answer("no-solution.txt"))
    assert why is not None
    assert why.startswith("Because cuda-tile==1.6.0rc5 has no usable wheels")
    assert "hint" not in why
    assert "warning" not in why
    assert resolution.no_solution("error: Request failed after 3 retries") is None


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["torch", "aiohttp", "sglang", "cuda-tile"]), unique=True))
def test_what_left_the_index_is_told_and_what_is_there_is_not(lost: list[str]) -> None:
    text = answer("locked-x86_64.toml")
    locked, _ = resolution.chosen(text, X86)
    head, *entries = text.split("\n[[packages]]\n")
    left = [e for e in entries if e.split('"')[1] not in lost]
    found = resolution.gone(locked, "\n[[packages]]\n".join([head, *left]), "")
    assert {line.split(" ")[0] for line in found} == set(lost)


# The whole command


def test_a_release_is_locked_for_both_architectures(
    uv: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(out, "--as-of", AS_OF) == 0
    assert sorted(p.name for p in out.iterdir()) == ["0.5.22-aarch64.txt", "0.5.22-x86_64.txt"]
    for path in out.iterdir():
        lock = read_lock(path.read_text(encoding="utf-8"))
        assert problems(lock) == []
        assert lock.as_of == AS_OF
        assert [u.name for u in lock.unresolved] == [
            "flashinfer-cubin",
            "flashinfer-jit-cache",
            "python",
        ]
        assert path.stat().st_mode & 0o777 == 0o644
        assert "index.invalid" not in path.read_text(encoding="utf-8")
    said = capsys.readouterr()
    assert "nvidia-cuda-nvcc ==13.0.88, not ==13.5.37" in said.out
    assert (
        "unresolved: flashinfer-jit-cache 0.7.1+cu130: python -m releases.tools.lock_wheels 0.5.22 --flashinfer-index URL"
        in said.out
    )
    assert "without cuda-tile==1.7.0: Because cuda-tile==1.6.0rc5 has no usable wheels" in said.err


def test_locking_again_as_of_the_same_time_writes_the_same(uv: Path, out: Path) -> None:
    run(out, "--as-of", AS_OF)
    first = {p.name: p.read_bytes() for p in out.iterdir()}
    assert run(out, "--as-of", "2026-11-30T09:00:00+01:00") == 0
    assert {p.name: p.read_bytes() for p in out.iterdir()} == first


def test_the_recorded_answers_give_the_packages_of_the_carried_lock(uv: Path, out: Path) -> None:
    run(out, "--as-of", AS_OF)
    for path in out.iterdir():
        text = lock_text("0.5.22", path.stem.removeprefix("0.5.22-"))
        assert text is not None
        carried, made = read_lock(text), read_lock(path.read_text(encoding="utf-8"))
        assert set(made.packages) <= set(carried.packages)
        assert made.departures == carried.departures
        assert made.unresolved == carried.unresolved


def test_a_lock_with_a_problem_is_not_written_nor_the_other_architecture_s(
    uv: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(uv / "plain-aarch64.toml", uv / "locked-aarch64.toml")
    assert run(out) == 3
    assert list(out.iterdir()) == []
    said = capsys.readouterr().out
    assert "WHEELS_COMPILER_SET" in said
    assert "needed: of CUDA 13.0" in said


def test_architectures_that_disagree_are_not_written(
    uv: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(uv / "locked-aarch64.toml", "3.14.5", "3.14.4")
    assert run(out) == 3
    assert list(out.iterdir()) == []
    assert "aiohttp 3.14.5 on x86_64, 3.14.4 on aarch64" in capsys.readouterr().out


def test_a_failed_run_leaves_the_old_lock_as_it_was(
    uv: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(out, "--as-of", AS_OF)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    (uv / "fails.txt").write_text("error: Request failed after 3 retries\n", encoding="utf-8")
    assert run(out) == 1
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    assert "failed: error: Request failed after 3 retries" in capsys.readouterr().err


def test_a_release_without_packages_of_its_cuda_is_refused_with_its_image(
    uv: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock_wheels.main(["0.5.19", "--folder", str(out)]) == 3
    said = capsys.readouterr().out
    assert "WHEELS_NOT_LOCKED" in said
    assert "lmsysorg/sglang:v0.5.19-cu129" in said
    assert list(out.iterdir()) == []


def test_without_a_uv_the_command_says_so(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(out) == 1
    assert "uv is not on the path" in capsys.readouterr().err


@pytest.mark.parametrize("given", [[], ["0.5.22", "--as-of", "soon"], ["--nothing"]])
def test_wrong_usage_ends_with_2(given: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        lock_wheels.main(given)
    assert ended.value.code == 2


# The check for a schedule


def test_a_lock_whose_files_are_all_there_can_be_installed(
    uv: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(out, "--as-of", AS_OF)
    capsys.readouterr()
    assert run(out, "--check") == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "0.5.22-x86_64.txt can be installed now: the index has all 18 files with their hashes",
        "0.5.22-aarch64.txt can be installed now: the index has all 18 files with their hashes",
    ]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('version = "2.14.1"', 'version = "2.14.2"', "torch 2.14.1: not on the index"),
        ("20f085697d7e", "000000000000", "aiohttp 3.14.5: aiohttp-3.14.5-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.manylinux_2_28_x86_64.whl with the locked hash is not on the index"),
        ('name = "nvidia-nvvm"', 'name = "nvidia-nothing"', "nvidia-nvvm 13.0.88: not on the index"),
    ],
)  # fmt: skip
def test_a_lock_whose_file_left_the_index_can_no_longer_be_installed(
    old: str, new: str, says: str, uv: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(out, "--as-of", AS_OF)
    change(uv / "locked-x86_64.toml", old, new)
    capsys.readouterr()
    assert run(out, "--check") == 3
    said = capsys.readouterr().out.splitlines()
    assert said[0] == (
        f"0.5.22-x86_64.txt cannot be installed now: WHEELS_GONE: {says}; to lock it again: "
        "python -m releases.tools.lock_wheels 0.5.22"
    )
    assert said[1].startswith("0.5.22-aarch64.txt can be installed now")


def test_a_yanked_version_can_no_longer_be_installed(
    uv: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(out, "--as-of", AS_OF)
    (uv / "warns.txt").write_text(
        'warning: `aiohttp==3.14.5` is yanked (reason: "Yanked due to conflicts")\n',
        encoding="utf-8",
    )
    assert run(out, "--check") == 3
    assert 'aiohttp 3.14.5: yanked: "Yanked due to conflicts"' in capsys.readouterr().out


def test_a_version_that_is_gone_is_told_in_uv_s_words(
    uv: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(out, "--as-of", AS_OF)
    shutil.copy(uv / "no-solution.txt", uv / "fails.txt")
    assert run(out, "--check") == 3
    wanted = "0.5.22-x86_64.txt cannot be installed now: WHEELS_GONE: Because cuda-tile==1.6.0rc5"
    assert wanted in capsys.readouterr().out


def test_an_index_that_does_not_answer_is_no_lock_that_is_gone(
    uv: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(out, "--as-of", AS_OF)
    (uv / "fails.txt").write_text("error: Request failed after 3 retries\n", encoding="utf-8")
    capsys.readouterr()
    assert run(out, "--check") == 1
    assert capsys.readouterr().out.splitlines() == [
        f"0.5.22-{machine}.txt: whether it can be installed now is not known: "
        "error: Request failed after 3 retries"
        for machine in ("x86_64", "aarch64")
    ]


def test_an_edited_or_missing_lock_is_told_by_the_check(
    uv: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(out, "--check") == 3
    assert "WHEELS_NOT_LOCKED" in capsys.readouterr().out
    run(out, "--as-of", AS_OF)
    change(out / lock_name("0.5.22", "x86_64"), "    --hash=sha256:", "    --hash=md5:")
    assert run(out, "--check") == 3
    said = capsys.readouterr().out
    assert "0.5.22-x86_64.txt cannot be installed now: WHEELS_DAMAGED: line " in said
    assert "has no hash here" in said
    assert "0.5.22-aarch64.txt can be installed now" in said, (
        "the other one is looked at all the same"
    )


def test_an_own_lock_is_checked_by_its_path(
    uv: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(out, "--as-of", AS_OF)
    own = tmp_path / "own.txt"
    (out / lock_name("0.5.22", "x86_64")).rename(own)
    change(own, "# data: 2d1b6c76b996205c\n", "")
    capsys.readouterr()
    assert lock_wheels.main(["--check", str(own)]) == 0
    assert capsys.readouterr().out.startswith(f"{own} can be installed now")
    change(uv / "locked-x86_64.toml", 'version = "2.14.1"', 'version = "2.14.2"')
    assert lock_wheels.main(["--check", str(own)]) == 3
    said = capsys.readouterr().out
    assert said == f"{own} cannot be installed now: WHEELS_GONE: torch 2.14.1: not on the index\n"
