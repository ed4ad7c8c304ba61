"""What is compiled before a switch: the decisions, the programs, what came of them."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts.records import ABSENT, ModelFiles, Survey
from plans.ahead import Ahead, ahead, kernels_of
from plans.ahead_program import RESULT_MARK, SLOW, came_of, deep_gemm, flashinfer
from plans.deployment import TEMPLATES
from plans.plan import ServicePlan
from tests.unit.aheads import OLD, rebuilt, rebuilt_wheel, serving
from tests.unit.deployments import CAP, converged, one, plan, with_state
from tests.unit.surveys import gpu, wishes

HOPPER = "9.0"


def of(made: ServicePlan) -> Ahead:
    """Return what a plan compiles ahead, which is something."""
    assert made.ahead is not None
    return made.ahead


# --- what is decided


@pytest.mark.parametrize("make", [rebuilt, rebuilt_wheel])
def test_a_new_build_gets_the_kernels_that_the_last_one_compiled(make: Any) -> None:
    made = make()
    assert of(made).before == OLD
    assert of(made).build_before == "0123456789abcdef"
    assert of(made).capabilities == ("8.9",)
    assert of(made).deep_gemm is False
    assert "that its last build compiled are compiled for 8.9" in of(made).lines[0]
    assert "at most 30 min" in of(made).lines[0]


def test_the_plan_says_it() -> None:
    made = plan(serving(), wishes({**CAP, "shm_size": "1g"}))
    assert any("while it still serves, the kernels of FlashInfer" in line for line in made.reasons)


@pytest.mark.parametrize(
    "changes",
    [
        {"active_state": "inactive"},
        {"active_state": "failed"},
        {"launch": {"SGLANG_RUNTIME": "image"}},  # of an older toolkit, which says no build
    ],
)
def test_where_nothing_serves_or_nothing_is_known_nothing_is_compiled(
    changes: dict[str, Any],
) -> None:
    assert rebuilt(serving(**changes)).ahead is None


def test_a_cache_that_stays_is_not_compiled_again() -> None:
    launch = rebuilt().launch
    assert launch is not None
    settings = {**serving().services["chat"].launch, "SGLANG_BUILD": launch.build.key}
    assert rebuilt(serving(launch=settings)).ahead is None
    # Nor is a service that nothing changes.
    assert one(plan(serving(), wishes(CAP))).ahead is None
    assert one(plan()).ahead is None


def test_without_a_compiler_the_reason_is_told() -> None:
    found = of(rebuilt_wheel(cuda_home=None))
    assert not found.acts
    assert found.lines == (
        "no kernels are compiled before the switch: its lock has no CUDA compiler; the first start "
        "compiles them",
    )


def test_without_a_place_to_learn_from_the_reason_is_told() -> None:
    settings = {**serving().services["chat"].launch, "SGLANG_KERNELS": ""}
    assert not of(rebuilt(serving(launch=settings))).acts


def test_a_gpu_of_which_too_little_is_known_gets_nothing() -> None:
    made = rebuilt()
    decision = replace(
        made.decision, gpus=(gpu(sm="", name="NVIDIA X", compute_capability=ABSENT),)
    )
    state = serving().services["chat"]
    found = ahead(replace(made, decision=decision), state, serving(), None)
    assert found is not None
    assert not found.acts
    assert "compute capability of its GPUs is not known" in found.lines[0]


# --- DeepGEMM


def hopper(used: Any = 1, **keys: Any) -> Ahead:
    """Return what is compiled ahead for a service on one H100 of which so many MiB are in use."""
    made = rebuilt(**keys)
    card = gpu(
        name="NVIDIA H100 80GB HBM3", sm=HOPPER, memory_total_mib=81559, memory_used_mib=used
    )
    decision = replace(made.decision, gpus=(card,))
    node = keys_of(serving())
    found = ahead(replace(made, decision=decision), node.services["chat"], node, None)
    assert found is not None
    return found


def keys_of(node: Survey) -> Survey:
    """Return the survey with a local model whose weights are in fp8."""
    config = json.dumps({"quantization_config": {"quant_method": "fp8"}})
    return replace(node, models={"/srv/fp8": ModelFiles("/srv/fp8", True, config)})


FP8 = {"arguments": {"quantization": "fp8"}}


def test_the_release_s_own_step_runs_where_the_gpus_are_free() -> None:
    found = hopper(**FP8)
    assert found.deep_gemm is True
    assert "its weights are in fp8" in found.lines[1]
    assert "by the release's own step: its GPUs are free" in found.lines[1]


@pytest.mark.parametrize("used", [70000, ABSENT])
def test_beside_a_server_that_holds_the_gpu_none_is_begun(used: Any) -> None:
    found = hopper(used, **FP8)
    assert found.deep_gemm is False
    assert found.acts  # FlashInfer's need no GPU
    assert "at the first start, typically 10 to 20 min" in found.lines[1]
    if used is not ABSENT:
        assert "68 GiB of GPU 0 are in use" in found.lines[1]


@pytest.mark.parametrize(
    ("keys", "uses"),
    [
        ({}, False),
        (FP8, True),
        ({"model": "/srv/fp8"}, True),
        ({"arguments": {"moe-runner-backend": "deep_gemm"}}, True),
        ({"arguments": {"quantization": "fp8", "fp8-gemm-backend": "triton"}}, False),
        ({"arguments": {"quantization": "fp8", "fp8-gemm-backend": "auto"}}, True),
        ({"arguments": {"quantization": "fp8", "device": "cpu"}}, False),
        ({**FP8, "environment": {"SGLANG_ENABLE_JIT_DEEPGEMM": "0"}}, False),
    ],
)
def test_deep_gemm_is_named_where_sglang_takes_it(keys: dict[str, Any], uses: bool) -> None:
    assert any("DeepGEMM" in line for line in hopper(**keys).lines) is uses


def test_a_gpu_before_hopper_has_no_deep_gemm() -> None:
    assert len(of(rebuilt(arguments={"quantization": "fp8"})).lines) == 1


# --- the record


def test_the_record_says_whether_a_start_found_its_kernels() -> None:
    made, state = rebuilt(), serving().services["chat"]
    assert made.kernels == "new"
    assert made.launch is not None
    kept = replace(state, launch={"SGLANG_BUILD": made.launch.build.key})
    assert kernels_of(made.launch, kept, new_deployment=True) == "kept"
    was = replace(state, record='{"kernels": "kept"}')
    assert kernels_of(made.launch, was, new_deployment=False) == "kept"
    assert kernels_of(made.launch, state, new_deployment=False) is None
    assert one(plan()).kernels == "new"


def test_a_last_start_that_compiled_nothing_is_told_as_such() -> None:
    record = json.dumps({"first_answer_seconds": 61, "kernels": "kept"})
    settings = {**serving().services["chat"].launch, "SGLANG_RELEASE": "0.5.22"}
    node = with_state(converged(), launch=settings, record=record)
    (told,) = [line for line in plan(node).reasons if "compiled anew" in line]
    assert told.endswith("took 61 s to the first answer with kernels that were there: expect more")


# --- the programs


def test_it_takes_what_the_server_that_serves_leaves() -> None:
    assert "--cpu-shares=2" in flashinfer(rebuilt())
    assert "--oom-score-adj=1000" in flashinfer(rebuilt())
    words = shlex.split(
        flashinfer(rebuilt_wheel()).partition("systemd-run")[2].replace("\\\n", " ")
    )
    for one_of in ("Nice=19", "CPUWeight=1", "IOWeight=1", "OOMScoreAdjust=1000", "User=sglang"):
        assert f"--property={one_of}" in words
    assert sum(word.startswith("--property=Nice=") for word in words) == 1


def test_the_release_s_own_step_has_the_server_s_arguments_and_nobody_reaches_it() -> None:
    made = rebuilt(arguments={"quantization": "fp8", "max-running-requests": 8})
    text = deep_gemm(made)
    assert "python3 -m sglang.compile_deep_gemm --model-path Qwen/Qwen3-8B --host 127.0.0.1" in text
    assert "--max-running-requests 8" in text
    assert "--network=none" in text
    assert "--network=none" not in flashinfer(made)
    assert "PrivateNetwork=yes" in deep_gemm(rebuilt_wheel())
    assert "PrivateNetwork=yes" not in flashinfer(rebuilt_wheel())


def node_of(folder: Path, *kernels: str, ends: str = "0") -> dict[str, str]:
    """Make a place for the program: a docker that tells its words, and a cache of the last build."""
    for name in kernels:
        there = folder / f"old/.cache/flashinfer/0.7.1/89/cached_ops/{name}"
        there.mkdir(parents=True)
        (there / f"{name}.so").write_text("code")
    (folder / "bin").mkdir()
    docker = folder / "bin/docker"
    docker.write_text(
        f'#!/bin/sh\necho "$*" >> {folder}/called\n[ "$1" = run ] || exit 0\n'
        f'echo norm: compiled in 9 s\necho \'@ahead {{"compiled": ["norm"], "seconds": 9}}\'\n'
        f"exit {ends}\n"
    )
    docker.chmod(0o755)
    return {"PATH": f"{folder}/bin:/usr/bin:/bin"}


def there(folder: Path) -> tuple[str, Path]:
    """Return the program with its paths below a folder, and its deployment's directory."""
    text = flashinfer(rebuilt()).replace(OLD, f"{folder}/old")
    for path in ("/var/cache/sglang", "/var/lib/sglang", "/run/sglang"):
        text = text.replace(path, f"{folder}{path}")
    directory = folder / "var/lib/sglang/deployments/chat/2"
    directory.mkdir(parents=True)
    return text, directory


def ran(folder: Path, env: dict[str, str]) -> tuple[str, str]:
    """Run the program there; return what it printed, and what it left for whoever judges."""
    text, directory = there(folder)
    done = subprocess.run(
        ["sh", "-s"], input=text, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = (directory / ".ahead").read_text()
    return done.stdout, said


@pytest.mark.skipif(os.getuid() != 0, reason="caches are root's")
def test_it_compiles_what_the_last_build_has_and_shows_people_no_marks(tmp_path: Path) -> None:
    shown, said = ran(tmp_path, node_of(tmp_path, "norm", "page", "odd name;x"))
    (called,) = [
        line for line in (tmp_path / "called").read_text().splitlines() if line.startswith("run")
    ]
    assert called.endswith("for:8.9 kernel:norm kernel:page")
    assert shown == "norm: compiled in 9 s\n"
    assert f"{RESULT_MARK}{{" in said
    assert came_of(said.splitlines()) is None
    assert not list((tmp_path / "run/sglang").iterdir())


@pytest.mark.skipif(os.getuid() != 0, reason="caches are root's")
def test_where_the_last_build_compiled_nothing_nothing_is_begun(tmp_path: Path) -> None:
    shown, said = ran(tmp_path, node_of(tmp_path))
    assert shown.endswith("there is nothing to compile\n")
    assert not (tmp_path / "called").exists()
    assert came_of(said.splitlines()) is None


@pytest.mark.skipif(os.getuid() != 0, reason="caches are root's")
def test_a_cache_that_others_may_write_is_left_to_the_switch(tmp_path: Path) -> None:
    env = node_of(tmp_path, "norm")
    (tmp_path / "var/cache/sglang").mkdir(parents=True)
    (tmp_path / "var/cache/sglang").chmod(0o777)
    _, said = ran(tmp_path, env)
    assert "may be written by others" in (came_of(said.splitlines()) or "")
    assert not (tmp_path / "called").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="caches are root's")
def test_where_nobody_reads_any_more_what_compiles_is_ended(tmp_path: Path) -> None:
    env = node_of(tmp_path, "norm")
    docker = tmp_path / "bin/docker"
    docker.write_text(
        f'#!/bin/sh\necho "$1" >> {tmp_path}/called\n[ "$1" = run ] || exit 0\n'
        "while :; do echo still compiling; sleep 0.1; done\n"
    )
    text, _ = there(tmp_path)
    program_ = subprocess.Popen(
        ["sh", "-c", text], env=env, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert program_.stdout is not None
    assert program_.stdout.readline() == b"still compiling\n"
    program_.stdout.close()
    program_.wait(timeout=30)
    assert (tmp_path / "called").read_text().split() == ["rm", "run", "rm"]
    assert not list((tmp_path / "run/sglang").iterdir())


# --- what came of it


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"compiled": ["a"], "failed": {}, "late": [], "not_offered": []}, None),
        ({"compiled": ["a", "b"], "again": True}, None),
        (
            {"compiled": ["a"], "late": ["b", "c"]},
            f"1 kernel of FlashInfer compiled ahead; 2 not done in time; {SLOW}",
        ),
        (
            {"compiled": ["a"], "late": ["b"], "no_room": "3.0 GiB free for /c, of 4 at least"},
            "1 kernel of FlashInfer compiled ahead; 1 not done for want of room (3.0 GiB free for "
            f"/c, of 4 at least); {SLOW}",
        ),
        (
            {
                "compiled": [],
                "failed": {"norm": "nvcc died"},
                "late": ["page"],
                "not_offered": ["x"],
            },
            "0 kernels of FlashInfer compiled ahead; 1 failed (norm: nvcc died); "
            "1 not done in time; 1 not among those that the new FlashInfer offers; " + SLOW,
        ),
    ],
)
def test_what_is_left_is_one_sentence(document: dict[str, Any], said: str | None) -> None:
    assert came_of(["x", f"{RESULT_MARK}{json.dumps(document)}", "@ended 0"]) == said


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "it was cut off"),
        (["@ended 124"], "it did not end in its time"),
        (["Finished with result: timeout", "@ended 1"], "it did not end in its time"),
        (["No module named flashinfer", "@ended 1"], "it ended with 1: No module named flashinfer"),
    ],
)
def test_a_failure_is_a_sentence_that_says_what_it_costs(lines: list[str], why: str) -> None:
    assert came_of(lines) == f"kernels were not all compiled ahead, {why}; {SLOW}"


@given(st.lists(st.text()))
def test_no_output_is_too_strange(lines: list[str]) -> None:
    came = came_of(lines)
    if not any(line.startswith("@") for line in lines):
        assert came


# --- the program that the new runtime runs


def program() -> ModuleType:
    """Load it as a module."""
    spec = importlib.util.spec_from_file_location("ahead_program", TEMPLATES / "ahead.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Module:
    """A module whose build is a few lines of shell."""

    def __init__(self, folder: Path, build: str) -> None:
        self.jit_library_path, self._build = folder / "made.so", build

    def build(self, *, verbose: bool, need_lock: bool) -> None:
        assert need_lock
        assert not verbose
        made = {"made": str(self.jit_library_path)}
        subprocess.run(["sh", "-ec", self._build], env={**os.environ, **made}, check=True)


def test_one_that_fails_and_one_that_hangs_are_named_and_the_others_are_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = {}
    for name, build in (
        ("good", 'echo code > "$made"'),
        ("bad", "echo 'x.cu:3: fatal error: no such header' >&2; exit 1"),
        ("silent", "true"),
        ("slow", "sleep 61 & wait"),
    ):
        (tmp_path / name).mkdir()
        modules[name] = Module(tmp_path / name, build)
    monkeypatch.setenv("MAX_JOBS", "")
    runs = program()
    monkeypatch.setattr(runs, "no_room", lambda _: None)
    began = time.monotonic()
    compiled, failed, late, full = runs.compile_all(modules, began + 4, str(tmp_path))
    assert time.monotonic() - began < 30
    assert compiled == ["good"]
    assert failed["bad"] == "x.cu:3: fatal error: no such header"
    assert set(failed) == {"bad", "silent"}
    assert (late, full) == (["slow"], None)
    assert "good: compiled in " in capsys.readouterr().out
    assert subprocess.run(["pgrep", "-f", "sleep 61"], check=False).returncode == 1


def test_compilers_get_half_of_the_processors_and_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = program()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    for free, jobs in ((0, 1), (4096, 1), (81920, 10), (2_000_000, 32)):
        monkeypatch.setattr(module, "free_mib", lambda free=free: free)
        assert module.jobs() == jobs


@pytest.mark.parametrize(
    ("disk_gib", "memory_mib", "seen"),
    [
        (3.9, 90000, "3.9 GiB free for "),
        (90, 8191, "8.0 GiB of memory free, of 8 at least"),
        (4, 8192, None),
        (90, 0, None),  # not known
    ],
)
def test_room_is_4_gib_of_disk_and_two_compilers_memory(
    monkeypatch: pytest.MonkeyPatch, disk_gib: float, memory_mib: int, seen: str | None
) -> None:
    module = program()
    free = SimpleNamespace(free=disk_gib * 1024**3)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    monkeypatch.setattr(module, "free_mib", lambda: memory_mib)
    said = module.no_room("/cache")
    assert said is None if seen is None else said.startswith(seen)


@pytest.mark.parametrize("begun", [0, 1])
def test_where_room_runs_out_no_more_is_begun_and_the_rest_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: int
) -> None:
    modules = {}
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        modules[name] = Module(tmp_path / name, 'echo code > "$made"')
    monkeypatch.setenv("MAX_JOBS", "")
    module = program()
    answers = iter([None] * begun)
    monkeypatch.setattr(module, "no_room", lambda _: next(answers, "3.0 GiB"))
    came = module.compile_all(modules, time.monotonic() + 60, str(tmp_path))
    assert came == (["a"][:begun], {}, ["a", "b", "c"][begun:], "3.0 GiB")
    assert not (tmp_path / "c/made.so").exists()


def test_what_was_compiled_before_is_not_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"build": "b", "compiled": ["norm"], "not_offered": ["x"], "seconds": 9}
    (tmp_path / "ahead.json").write_text(json.dumps(record))
    monkeypatch.setenv("SGLANG_CACHE_DIR", str(tmp_path))
    words = ["build:b", "record:ahead.json", "limit:9", "for:8.9", "kernel:norm", "kernel:x"]
    # There is no FlashInfer here: it is not asked.
    module = program()
    module.main(words)
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("were compiled before")
    assert json.loads(said[1].removeprefix(RESULT_MARK))["again"] is True
    monkeypatch.setattr(module, "be_quiet", lambda: None)
    for name in ("CUDA_VISIBLE_DEVICES", "FLASHINFER_CUDA_ARCH_LIST"):
        monkeypatch.setenv(name, "")
    with pytest.raises(ModuleNotFoundError, match="flashinfer"):
        module.main([*words, "kernel:page"])
    assert os.environ["FLASHINFER_CUDA_ARCH_LIST"] == "8.9"
