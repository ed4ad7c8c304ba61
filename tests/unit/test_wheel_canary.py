"""The canary of the wheel runtime: what its output means, and how its unit is closed."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans.canary import Canary, rules
from plans.codes import catalogue
from plans.launch import TEMPLATES
from plans.wheel.broken_tools import Mend, broken_tools
from plans.wheel.canary import RULES, ExpectedWheel, judge_wheel, libraries, objects
from plans.wheel.canary_program import canary
from plans.wheel.launch import wheel_unit_file
from plans.wheel.sandbox import LEFT_OUT, UnknownSpecifier, directives, sandbox
from tests.unit.deployments import CAP
from tests.unit.deployments import one as one_of
from tests.unit.surveys import wishes
from tests.unit.wheels import wheel_plan

RECORDED = Path(__file__).parents[1] / "recorded/wheel-canary"
HOME = "/opt/sglang/environments/0123456789abcdef"
CPU = ExpectedWheel(
    "chat", "", cuda=False, capabilities=("8.9",), directory=HOME, python="3.11",
    compiles_for=("8.9",),
)  # fmt: skip

MEANS: dict[str, tuple[str, ...]] = {
    "all is well": (),
    "no Python.h": ("PYTHON_HEADERS_MISSING",),
    "no nvcc": ("NVCC_MISSING",),
    "no cicc": ("NVCC_MISSING",),
    "no compiler": ("CXX_MISSING",),
    "no ninja": ("NINJA_MISSING",),
    "no driver": ("LIBCUDA_MISSING",),
    "full disk": ("DISK_FULL",),
    "a package is gone": ("ENVIRONMENT_BROKEN",),
    "caches on noexec": ("CACHE_NOT_EXECUTABLE",),
    "time limit": ("CANARY_TIMEOUT",),
    "kernels for another torch": ("TORCH_MISMATCH",),
    "compiler and headers differ": ("CUDA_COMPILER_MISMATCH",),
    "compiler too new": ("COMPILER_UNFIT",),
    "no cudart link": ("CUDART_NOT_LINKED",),
    "no libcuda link": ("LIBCUDA_NOT_LINKED",),
}
"""The codes that each recording has, in their order; what each shows is in the README there."""


def lines(name: str) -> list[str]:
    return (RECORDED / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def document(name: str) -> dict[str, Any]:
    (line,) = [one for one in lines(name) if one.startswith("@canary ")]
    found = json.loads(line.removeprefix("@canary "))
    assert isinstance(found, dict)
    return found


def codes(found: Canary) -> tuple[str, ...]:
    return tuple(one.code for one in found.refusals)


def judged(found: dict[str, Any], wanted: ExpectedWheel = CPU) -> Canary:
    return judge_wheel([f"@canary {json.dumps(found)}", "@ended 0"], wanted)


@pytest.mark.parametrize("name", MEANS)
def test_each_outcome_has_its_codes(name: str) -> None:
    found = judge_wheel(lines(name), CPU)
    assert codes(found) == MEANS[name]
    for one in found.refusals:
        assert one.code in catalogue()
        assert one.seen
        assert one.needed
        assert one.advice
        assert not re.search(r"\{(environment|apply|python)\}", one.advice)
        assert one.service == "chat"


def test_every_recording_is_judged_here() -> None:
    assert {path.stem for path in RECORDED.glob("*.txt")} == set(MEANS)
    readme = (RECORDED / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in readme for name in MEANS)


def test_every_code_of_the_rules_is_explained() -> None:
    for rule in rules(RULES):
        assert rule.code in catalogue(), rule.code
        assert rule.numbers or rule.pattern


@pytest.mark.parametrize("name", [name for name, meant in MEANS.items() if meant])
def test_the_steps_alone_name_the_cause_too(name: str) -> None:
    """What was looked at before explains at once; a failure that only a compiler meets must too."""
    found = {**document(name), "tools": {}}
    assert set(codes(judged(found))) <= set(MEANS[name])
    assert judged(found).refusals


def test_a_canary_that_is_too_short_does_not_pass() -> None:
    both = replace(CPU, compiles_for=("8.9", "9.0"))
    whole = document("all is well")
    assert codes(judged(whole, both)) == ()
    for count in range(len(whole["steps"])):
        short = {**whole, "steps": whole["steps"][:count]}
        assert codes(judged(short, both)) == ("CANARY_FAILED",)
    other = replace(CPU, compiles_for=("12.1",))
    assert codes(judged(whole, other)) == ("CANARY_FAILED",)


def test_a_service_without_a_compiler_in_its_lock_needs_none() -> None:
    bare = replace(CPU, compiles_for=())
    found = {**document("no nvcc"), "steps": document("all is well")["steps"][:1]}
    assert codes(judged(found, bare)) == ()


def test_what_one_cause_brings_about_is_said_once() -> None:
    (one,) = judge_wheel(lines("no nvcc"), CPU).refusals
    assert one.seen == f"{HOME}/lib/python3.11/site-packages/nvidia/cu13/bin/nvcc is not there"
    assert "driver is not what is missing" in one.needed
    assert "sglang-node apply" in one.advice


def test_a_toolkit_of_the_host_is_not_mended_by_an_apply() -> None:
    tools = document("no nvcc")["tools"]
    tools["cuda_home"] = "/usr/local/cuda"
    (one,) = broken_tools(tools, Mend(HOME, "3.11"))
    assert "host's own" in one.advice


SPANISH = [
    "En el fichero incluido desde /usr/local/cuda/include/cuda_runtime.h:82,",
    " error: #error -- unsupported GNU version! gcc versions later than 13 are not supported!",
]  # as a public report has it: case A44


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (SPANISH, "COMPILER_UNFIT"),
        (["driver.c:7:10: error fatal: Python.h: No existe el fichero o el directorio"], "PYTHON_HEADERS_MISSING"),
        (["/usr/bin/ld: no se puede encontrar -lcudart: No existe el fichero"], "CUDART_NOT_LINKED"),
        (["/usr/bin/ld : -lcuda introuvable"], "LIBCUDA_NOT_LINKED"),
        (["/usr/bin/ld: cannot find -lcuda: No such file or directory"], "LIBCUDA_NOT_LINKED"),
        ([":/usr/local/cuda-12.8/bin/nvcc: not found"], "NVCC_MISSING"),
        (["RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist"], "NVCC_MISSING"),
        (["cuda_toolkit.h:41:8: error: #error \"CUDA compiler and CUDA toolkit headers are incompatible, please check your include paths\""], "CUDA_COMPILER_MISMATCH"),
        (["/x/quant.cuh:3:10: fatal error: cuda_fp8.h: No such file or directory"], "CUDA_HEADERS_MISSING"),
        (["ImportError: libnvrtc.so.12: cannot open shared object file: No such file or directory"], "CUDA_MAJORS_MIXED"),
        (["OSError: libcublas.so.12: cannot open shared object file"], "CUDA_MAJORS_MIXED"),
        (["ImportError: sm100/common_ops.abi3.so: undefined symbol: _ZN3c1013MessageLoggerC1EPKciib"], "TORCH_MISMATCH"),
        (["- ImportError: .../common_ops.abi3.so: undefined symbol: _ZNK3c106SymInt6sym_neERKS0_"], "TORCH_MISMATCH"),
        (["RuntimeError: flashinfer-cubin version (0.6.13) does not match flashinfer version (0.6.14)."], "FLASHINFER_MIXED"),
        (["FileNotFoundError: [Errno 2] No such file or directory: 'ninja'"], "NINJA_MISSING"),
        (["ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found"], "GLIBC_TOO_OLD"),
        (["error while loading shared libraries: libpython3.12.so.1.0: cannot open shared object file: No such file or directory"], "LIBRARY_MISSING"),
        (["g++: fatal error: Killed signal terminated program cc1plus"], "COMPILER_NO_MEMORY"),
        (["nvcc error   : 'cicc' died due to signal 9 (Kill signal)"], "COMPILER_NO_MEMORY"),
        (["OSError: [Errno 28] No space left on device"], "DISK_FULL"),
        (["nvcc fatal   : Unsupported gpu architecture 'compute_121a'"], "NVCC_NO_ARCHITECTURE"),
        (["OSError: /var/cache/x.so: failed to map segment from shared object"], "CACHE_NOT_EXECUTABLE"),
        (["ninja: build stopped: subcommand failed."], "KERNEL_NOT_COMPILED"),
        ([], "KERNEL_NOT_COMPILED"),
    ],
)  # fmt: skip
def test_a_public_failure_has_its_code_in_every_language(said: list[str], code: str) -> None:
    found = document("all is well")
    for one in found["steps"]:
        if one["name"].startswith("compiling a kernel of FlashInfer"):
            one.update(ended=1, said=said)
    (refusal,) = judged(found).refusals
    assert refusal.code == code
    if said:
        assert said[-1].strip()[:60] in refusal.seen


def test_a_command_that_names_a_library_is_no_failure_to_find_it() -> None:
    found = document("all is well")
    command = "FAILED: x.so\nc++ a.o -shared -L/x/lib64 -L/x/lib64/stubs -lcudart -lcuda -o x.so"
    found["steps"][-1].update(ended=1, said=command.splitlines())
    assert codes(judged(found)) == ("KERNEL_NOT_COMPILED",)


@pytest.mark.parametrize(
    ("missing", "code", "mends"),
    [
        ([["libnuma.so.1", "sgl_kernel/sm90/common_ops.abi3.so"]], "LIBRARY_MISSING", "libnuma1"),
        ([["libcuda.so.1", "sgl_kernel/flash_ops.abi3.so"]], "LIBCUDA_MISSING", "ldconfig"),
        ([["libcudart.so.12", "sgl_kernel/sm100/common_ops.abi3.so"]], "CUDA_MAJORS_MIXED", "apply"),
        ([["libother.so.3", "torch/lib/libtorch_cpu.so"]], "LIBRARY_MISSING", "libother.so.3"),
    ],
)  # fmt: skip
def test_the_loader_s_first_missing_library_is_named_and_no_import_beside_it(
    missing: list[list[str]], code: str, mends: str
) -> None:
    found = document("all is well")
    found["objects"]["missing"] = missing
    # What sgl_kernel then says hides it (case A22).
    found["steps"][1].update(
        ended=1, said=["ImportError: [sgl_kernel] CRITICAL: Could not load any common_ops library!"]
    )
    (refusal,) = judged(found).refusals
    assert refusal.code == code
    assert missing[0][0] in refusal.seen
    assert missing[0][1] in refusal.seen
    assert mends in refusal.advice


def test_what_the_unit_itself_ended_with_is_told() -> None:
    def of(*printed: str) -> Canary:
        return judge_wheel(["compiling a kernel of FlashInfer for 9.0 ...", *printed], CPU)

    (late,) = of("Finished with result: timeout", "@ended 1").refusals
    assert late.code == "CANARY_TIMEOUT"
    assert late.seen.startswith("compiling a kernel of FlashInfer for 9.0 did not end in ")
    assert codes(of("Finished with result: oom-kill", "@ended 1")) == ("COMPILER_NO_MEMORY",)
    assert codes(of()) == ("CANARY_FAILED",)
    (failed,) = of(
        "Failed to start transient service unit: Unknown assignment", "@ended 1"
    ).refusals
    assert failed.code == "CANARY_FAILED"
    assert "Unknown assignment" in failed.seen


def test_a_step_that_a_signal_ended_is_told_by_it() -> None:
    found = document("all is well")
    found["steps"][1].update(ended=-8, said=["Fatal Python error: Floating point exception"])
    (one,) = judged(found).refusals
    assert one.code == "ENVIRONMENT_BROKEN"
    assert "signal 8" in one.seen
    for seconds in (600.4, float("inf"), "long"):
        found["steps"][1].update(ended="timeout", said=[], seconds=seconds)
        assert codes(judged(found)) == ("CANARY_TIMEOUT",)


def test_a_gpu_host_is_judged_by_the_same_words_as_an_image_but_for_its_place() -> None:
    wanted = replace(CPU, cuda=True)
    found = document("all is well") | {"mode": "cuda", "devices": []}
    found["cuda"] = {"missing": "OSError: libcuda.so.1: cannot open shared object file"}
    (missing,) = judged(found, wanted).refusals
    assert missing.code == "LIBCUDA_MISSING"
    assert "container" not in missing.seen + missing.needed + missing.advice
    found["cuda"] = {"init": 0, "library": "/usr/lib/libcuda.so.580"}
    (none,) = judged(found, wanted).refusals
    assert none.code == "GPU_NOT_SEEN"
    one = {"index": 0, "name": "NVIDIA L4", "capability": "8.9", "right": True}
    assert codes(judged(found | {"devices": [one]}, wanted)) == ()
    found["cuda"] = {"init": 802, "name": "CUDA_ERROR_SYSTEM_NOT_READY", "text": "not ready"}
    assert codes(judged(found, wanted)) == ("FABRIC_NOT_READY",)
    full = {
        "index": 0,
        "name": "NVIDIA L4",
        "capability": "8.9",
        "error": "CUDA error: out of memory",
    }
    found["cuda"] = {"init": 0}
    busy = judged(found | {"devices": [full]}, replace(wanted, serving=True))
    assert busy.refusals == ()
    assert "beside the service that runs now" in busy.notes[0]


@given(st.lists(st.text()))
def test_no_output_is_too_strange(said: list[str]) -> None:
    assert judge_wheel(said, CPU).refusals


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["tools", "objects", "missing", "steps", "ended", "name", "said", "nvcc", "cxx",
                     "imports", "versions", "python_h", "there", "release", "path"]
                ),
                inner,
                max_size=5,
            )
        ),
    )
)  # fmt: skip
def test_no_document_is_too_strange_and_none_passes_by_accident(strange: object) -> None:
    assert judge_wheel([f"@canary {json.dumps(strange)}", "@ended 0"], CPU).refusals


# --- its program and its unit


def test_the_unit_closes_the_canary_as_it_closes_the_server() -> None:
    text = wheel_unit_file("chat").text
    taken = sandbox("chat", text)
    assert "User=sglang" in taken
    assert "NoNewPrivileges=yes" in taken
    assert not [one for one in taken if "%" in one]
    named = {name for name, _ in directives(text)}
    assert {one.partition("=")[0] for one in taken} == {
        name for name in named if not name.startswith(LEFT_OUT)
    }
    # It runs nothing of the service's own, least of all as root.
    assert not [one for one in taken if "/bin/" in one]
    assert sandbox("chat", "[Service]\nExecStop=/bin/x\nExecPaths=/y\n") == ("ExecPaths=/y",)


def test_the_canary_has_the_unit_s_environment_but_for_its_caches() -> None:
    made = one_of(wheel_plan())
    text = canary(made).replace("\\\n", " ")
    began = text.index("timeout --kill-after")
    words = shlex.split(text[began : text.index("2>&1", began)])
    given = [word.removeprefix("--property=") for word in words if word.startswith("--property=")]
    files = [one for one in given if one.startswith("EnvironmentFile=")]
    # Of two that name a variable the later wins.
    assert files == [
        "EnvironmentFile=/var/lib/sglang/deployments/chat/1/service.env",
        "EnvironmentFile=/var/cache/sglang/.canary.chat/canary.env",
    ]
    writable = [one for one in given if one.startswith(("ReadWritePaths=", "BindPaths="))]
    assert writable == ["ReadWritePaths=/var/cache/sglang/.canary.chat/cache"]
    assert "User=sglang" in given
    assert not [one for one in given if one.startswith(("LoadCredential", "Exec", "Restart"))]
    assert made.launch is not None
    assert made.launch.environment is not None
    assert words[words.index("--") + 1] == made.launch.environment.python_path
    assert "cpu" in words or "cuda" in words


def test_where_caches_are_hidden_the_canary_sees_its_own_alone() -> None:
    hidden = wishes(CAP, paths={"caches": "/home/me/caches"})
    bound = re.findall(
        r"--property='?(BindPaths=[^ ']+)", canary(one_of(wheel_plan(wanted=hidden)))
    )
    assert bound == ["BindPaths=/home/me/caches/.canary.chat"]


def test_root_makes_nothing_in_the_canary_s_caches_once_they_are_given_away(
    tmp_path: Path,
) -> None:
    made = canary(one_of(wheel_plan(wanted=wishes(CAP, paths={"caches": f"{tmp_path}/caches"}))))
    began = made[: made.index("base64 -d")]
    (tmp_path / "bin").mkdir()
    for name in ("mkdir", "install", "chown", "systemctl"):
        program = tmp_path / "bin" / name
        does = f'exec /bin/{name} "$@"' if name == "mkdir" else "exit 0"
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/called\n{does}\n')
        program.chmod(0o755)
    done = subprocess.run(
        ["sh", "-s"],
        input=began + f"ls -d {tmp_path}/caches/.canary.chat/cache/home\n",
        env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    work = f"{tmp_path}/caches/.canary.chat/cache"
    calls = [one for one in (tmp_path / "called").read_text().splitlines() if work in one]
    assert calls == [
        f"mkdir -m 0700 -- {work} {work}/home",
        f"chown -h sglang: -- {work}/home {work}",
    ]


def test_a_gpu_of_which_too_little_is_known_is_told() -> None:
    unknown = replace(CPU, compiler=True, capabilities=(None,), compiles_for=())
    found = judged({**document("all is well"), "steps": [{"name": "x", "ended": 0}]}, unknown)
    assert found.refusals == ()
    assert "not known" in found.notes[0]


def test_a_specifier_that_only_systemd_knows_is_not_guessed() -> None:
    assert sandbox("chat", "[Service]\nEnvironment=A=%i%%\n") == ("Environment=A=chat%%",)
    with pytest.raises(UnknownSpecifier, match="%h"):
        sandbox("chat", "[Service]\nReadOnlyPaths=%h/x\n")


def test_directives_outside_of_service_are_no_part_of_it() -> None:
    text = "[Unit]\nAfter=x\n[Service]\n# a comment\nUser = sglang\n[Install]\nWantedBy=y\n"
    assert directives(text) == (("User", "sglang"),)


def run_in(folder: Path) -> tuple[dict[str, Any], str]:
    """Run the program with a CUDA_HOME and a PATH of one folder; return its document and output."""
    for name in ("canary.py", "wheel_canary.py"):
        (folder / name).write_text((TEMPLATES / name).read_text(encoding="utf-8"))
    program, words = str(folder / "wheel_canary.py"), ("cpu", "compile:8.9", "objects:yaml/*.so")
    done = subprocess.run(
        [sys.executable, program, *words],
        env={"PATH": str(folder / "bin"), "CUDA_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("@canary ")]
    found = json.loads(line.removeprefix("@canary "))
    assert isinstance(found, dict)
    return found, done.stdout


def test_where_nothing_can_compile_the_program_says_so_at_once(tmp_path: Path) -> None:
    found, said = run_in(tmp_path)
    assert [one["ended"] for one in found["steps"]] == [0, 0]
    assert "nothing is compiled" in said
    assert found["tools"]["ninja"]["path"] is None
    assert found["tools"]["cxx"]["path"] is None
    assert found["tools"]["nvcc"]["there"] is False
    assert {"NVCC_MISSING", "NINJA_MISSING", "CXX_MISSING"} <= set(codes(judged(found)))


def test_the_program_tries_every_step_and_says_what_each_ended_with(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("nvcc", "c++", "gcc", "ninja"):
        file = tmp_path / "bin" / name
        file.write_text("#!/bin/sh\necho release 13.0, 1.13\n")
        file.chmod(0o755)
    for path in ("include/cuda_runtime_api.h", "lib64/libcudart.so", "lib64/stubs/libcuda.so"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("#define CUDART_VERSION 13000\n")
    found, said = run_in(tmp_path)
    assert found["tools"]["headers"] == found["tools"]["nvcc"]["release"] == "13.0"
    # Python's own headers are this machine's.
    tried = 5 if found["tools"]["python_h"]["there"] else 2
    assert [one["ended"] for one in found["steps"]] == [0, 0, 1, 1, 1][:tried]
    assert "sglang" in found["imports"]
    assert "loading flashinfer: done" in said
    assert judged(found).refusals


def program() -> ModuleType:
    """Load the program as a module."""
    spec = importlib.util.spec_from_file_location("wheel_canary", TEMPLATES / "wheel_canary.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_targets_of_a_kernel_are_read_from_it(tmp_path: Path) -> None:
    file = tmp_path / "a.so"
    # Heads as nvcc 13.0 wrote them for sm_89 and sm_90a, around shorter code.
    of_89 = "0200010140000000100000000000000000000000000000000800010059000000" + "00" * 32
    of_90 = "0200010140000000080000000000000000000000000000000800010" + "05a000000" + "00" * 32
    code = bytes.fromhex(of_89) + b"x" * 16 + bytes.fromhex(of_90) + b"y" * 8
    head = bytes.fromhex("50ed55ba01001000") + len(code).to_bytes(8, "little")
    file.write_bytes(b"\x7fELF" + head + code + b"rest")
    assert program().code_in(file) == ["8.9", "9.0"]
    file.write_bytes(b"\x7fELF" + head[:8])
    assert program().code_in(file) == []
    assert program().code_in(tmp_path / "gone.so") == []


def test_a_step_that_hangs_ends_with_all_that_it_began() -> None:
    one, _ = program().step("waiting", ("sh", "-c", "echo begun; sleep 60 & wait"), 0.5)
    assert one["ended"] == "timeout"
    assert one["said"] == ["begun"]
    assert one["seconds"] < 20


def test_the_objects_and_libraries_are_named_once() -> None:
    assert len(set(objects())) == len(objects())
    assert len({one.pattern for one in libraries()}) == len(libraries())
