"""The canary: what its output means, and what its program finds in an image."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans import arguments, paths, scripts
from plans.canary import Canary, Expected, expected, judge, rules
from plans.codes import catalogue
from plans.deployment import TEMPLATES
from tests.unit import readers
from tests.unit.deployments import CAP, one, plan
from tests.unit.surveys import wishes

RECORDED = Path(__file__).parents[1] / "recorded/canary"
L4 = Expected("chat", "lmsysorg/sglang@sha256:11", cuda=True, capabilities=("8.9",))

MEANS = {
    "an L4 that computes": None,
    "a GB10 that computes": None,
    "the CPU device": None,
    "error 35, driver too old": "DRIVER_TOO_OLD",
    "error 802, fabric not ready": "FABRIC_NOT_READY",
    "error 803, compatibility library in the way": "COMPAT_IN_THE_WAY",
    "error 803, driver upgraded without a reboot": "COMPAT_IN_THE_WAY",
    "error 804, compatibility on a GeForce": "COMPAT_UNSUPPORTED",
    "error 804 from torch": "COMPAT_UNSUPPORTED",
    "error 999": "CUDA_UNKNOWN_ERROR",
    "an error that no rule names": "CUDA_FAILED",
    "no kernel image for a T4": "GPU_NO_KERNELS",
    "no device": "GPU_NOT_IN_CONTAINER",
    "one of two GPUs is missing": "GPU_NOT_IN_CONTAINER",
    "two L4s that compute": None,
    "another GPU than surveyed": "GPU_NOT_AS_SURVEYED",
    "libcuda is missing": "LIBCUDA_MISSING",
    "no memory for a kernel": "GPU_MEMORY_HELD",
    "busy in exclusive mode": "GPU_BUSY",
    "a wrong product": "GPU_WRONG_RESULT",
    "a package that does not load": "IMAGE_BROKEN",
    "torch does not load": "IMAGE_BROKEN",
    "a model that cannot be read": "MODEL_UNREADABLE",
    "a cache that cannot be written": "CACHE_UNWRITABLE",
    "no container toolkit": "TOOLKIT_MISSING",
    "CDI is off": "CDI_OFF",
    "CDI devices cannot be resolved": "CDI_STALE",
    "the image requires a newer CUDA": "DRIVER_TOO_OLD",
    "stale driver mounts": "GPU_MOUNTS_STALE",
    "driver not loaded": "DRIVER_NOT_LOADED",
    "a path of an argument is missing": "ARGUMENT_PATH_MISSING",
    "libnvidia-ml cannot be loaded": "DRIVER_LIBRARY_MISSING",
    "the hook meets a read-only root": "READ_ONLY_ROOT",
    "the toolkit's mode forbids --gpus": "GPU_ACCESS",
    "a failure that no rule names": "CANARY_FAILED",
    "it hangs": "CANARY_TIMEOUT",
    "it was cut off": "CANARY_FAILED",
}


def lines(name: str) -> list[str]:
    """Return a recorded output without its first line, which says where it is from."""
    return (RECORDED / f"{name}.txt").read_text(encoding="utf-8").splitlines()[1:]


def wanted(name: str, **changes: Any) -> Expected:
    """Return what the canary of a recording had to find."""
    gpus = {"T4": ("7.5",), "GB10": ("12.1",), "two": ("8.9", "8.9")}
    found = next((gpus[word] for word in name.split() if word in gpus), ("8.9",))
    return replace(L4, cuda=name != "the CPU device", capabilities=found, **changes)


def codes(found: Canary) -> list[str]:
    return [one.code for one in found.refusals]


@pytest.mark.parametrize("name", MEANS)
def test_each_outcome_has_its_code(name: str) -> None:
    found = judge(lines(name), wanted(name))
    assert codes(found) == ([MEANS[name]] if MEANS[name] else [])
    for one_ in found.refusals:
        assert one_.code in catalogue()
        assert one_.seen
        assert one_.needed
        assert one_.advice
        assert one_.service == "chat"


def test_every_recording_is_judged_here() -> None:
    assert {path.stem for path in RECORDED.glob("*.txt")} == set(MEANS)


def test_every_rule_s_code_is_in_the_catalogue_and_its_pattern_can_be_met() -> None:
    said = "\n".join("\n".join(lines(name)) for name in MEANS)
    for rule in rules():
        assert rule.code in catalogue(), rule.code
        assert rule.numbers or rule.pattern
    met = {code for code in MEANS.values() if code}
    assert {rule.code for rule in rules()} - met == {
        "DRIVER_MISMATCH", "GPU_NOT_FOUND", "IMAGE_MISSING_ARCHITECTURE", "DISK_FULL",
    }  # fmt: skip
    assert "803" in said


def test_an_803_says_which_library_and_mends_what_is_the_cause() -> None:
    (compat,) = judge(lines("error 803, compatibility library in the way"), L4).refusals
    assert "/usr/local/cuda-12.9/compat/libcuda.so" in compat.seen
    assert "disable-cuda-compat-lib-hook" in compat.advice
    (driver,) = judge(lines("error 803, driver upgraded without a reboot"), L4).refusals
    assert "reboot" in driver.advice
    assert "compat" not in driver.advice


@pytest.mark.parametrize("name", ["no memory for a kernel", "busy in exclusive mode"])
def test_what_the_service_itself_holds_is_a_note_while_it_serves(name: str) -> None:
    found = judge(lines(name), wanted(name, serving=True))
    assert found.refusals == ()
    assert "beside the service that runs now" in found.notes[0]


def test_a_gpu_whose_capability_was_not_surveyed_is_not_compared() -> None:
    assert (
        judge(lines("another GPU than surveyed"), replace(L4, capabilities=(None,))).refusals == ()
    )


@given(st.lists(st.text()), st.booleans())
def test_no_output_is_too_strange(said: list[str], serving: bool) -> None:
    assert judge(said, replace(L4, serving=serving)).refusals


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["cuda", "devices", "imports", "unreadable", "init", "error", "index"]
                ),
                inner,
                max_size=4,
            )
        ),
    )
)
def test_no_document_is_too_strange_and_none_passes_by_accident(document: object) -> None:
    found = judge([f"@canary {json.dumps(document)}", "@ended 0"], L4)
    assert found.refusals


def test_a_plan_says_what_its_canary_must_find() -> None:
    found = expected(one(plan()))
    assert found.cuda
    assert found.capabilities == ("8.9",)
    assert not found.serving
    cpu = expected(one(plan(wanted=wishes(CAP | {"arguments": {"device": "cpu"}}))))
    assert not cpu.cuda


def test_the_canary_has_the_very_flags_of_the_server_but_for_its_name_and_port() -> None:
    made = one(plan())
    assert made.launch is not None
    launch = next(f.text for f in made.files if f.path.endswith(paths.LAUNCH_ENV))
    server = readers.split_words(readers.environment_file(launch)["SGLANG_DOCKER_ARGUMENTS"])
    program = scripts.canary(made)
    for word in server:
        if not word.startswith(("--publish", "--stop-timeout", "--label")):
            assert word in program, word
    assert "--publish" not in program
    assert arguments.CLOSED[0] in server
    assert '--name="$container"' in program


def test_the_canary_s_container_is_no_service_s() -> None:
    # A service called canary-chat has the container sglang-canary-chat.
    assert paths.canary_of("chat") != paths.container_of("canary-chat")
    with pytest.raises(Exception, match="name"):
        wishes(CAP | {"name": "canary.chat"})


# --- the program that runs in the image


def program() -> ModuleType:
    """Load the program as a module."""
    spec = importlib.util.spec_from_file_location("canary_program", TEMPLATES / "canary.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ran(*words: str, **environment: str) -> dict[str, Any]:
    """Run the program over standard input, as it is in the image; return its document."""
    done = subprocess.run(
        [sys.executable, "-", *words],
        input=(TEMPLATES / "canary.py").read_text(encoding="utf-8"),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("@canary ")]
    document = json.loads(line.removeprefix("@canary "))
    assert isinstance(document, dict)
    return document


def test_the_program_records_the_build_commit_and_the_package_versions(tmp_path: Path) -> None:
    info = tmp_path / "site/flashinfer_python-0.7.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: flashinfer-python\nVersion: 0.7.2\n", encoding="utf-8")
    found = ran("cpu", SGLANG_BUILD_COMMIT="4f2a9c", PYTHONPATH=str(tmp_path / "site"))
    assert found["commit"] == "4f2a9c"
    assert found["versions"]["flashinfer-python"] == "0.7.2"
    assert "pytest" not in found["versions"]


def test_the_program_says_what_it_cannot_import_or_load() -> None:
    found = ran("cpu")
    assert "sglang" in found["imports"]
    assert codes(judge([f"@canary {json.dumps(found)}", "@ended 0"], replace(L4, cuda=False))) == [
        "IMAGE_BROKEN"
    ]
    found = ran("cuda")
    assert "libcuda.so.1" in found["cuda"]["missing"]
    assert codes(judge([f"@canary {json.dumps(found)}", "@ended 0"], L4)) == ["LIBCUDA_MISSING"]


def test_the_program_names_files_that_cannot_be_read_and_places_that_cannot_be_written(
    tmp_path: Path,
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}", encoding="utf-8")
    (model / "model.safetensors").symlink_to("../blobs/gone")
    (model / ".git").symlink_to("../also-gone")
    found = ran("cpu", f"read:{model}", f"write:{tmp_path}", f"write:{tmp_path}/nowhere")
    assert found["unreadable"] == [f"{model}/model.safetensors: No such file or directory"]
    assert found["unwritable"] == [f"{tmp_path}/nowhere: No such file or directory"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("tmp")]


def test_the_program_finds_the_library_that_was_really_loaded() -> None:
    path = program().loaded("libc.so")
    assert path is not None
    assert Path(path).exists()
    assert program().loaded("libnothing.so") is None


class Torch:
    """A torch with GPUs that computes as told: just what the program asks of it."""

    def __init__(self, *gpus: dict[str, Any]) -> None:
        self.gpus = gpus
        self.cuda = self
        self.float16 = None

    def device_count(self) -> int:
        return len(self.gpus)

    def init(self) -> None:
        if any("init" in gpu for gpu in self.gpus):
            raise RuntimeError("Error 802: system not yet initialized")

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(name="NVIDIA L4", major=8, minor=9, total_memory=2**34, uuid="u")

    def synchronize(self, index: int) -> None:
        if "fails" in self.gpus[index]:
            raise RuntimeError(self.gpus[index]["fails"])

    def ones(self, shape: tuple[int, int], device: str, dtype: object) -> Any:
        gpu = self.gpus[int(device.partition(":")[2])]
        matrix = MagicMock()
        matrix.__matmul__.return_value.float.return_value.sum.return_value.item.return_value = (
            gpu.get("sum", float(64**3))
        )
        return matrix


def test_the_program_runs_one_kernel_on_each_gpu_and_goes_on_where_one_fails() -> None:
    document: dict[str, Any] = {"devices": []}
    torch = Torch({}, {"fails": "CUDA error: no kernel\nimage"}, {"sum": 3.0})
    program().devices(torch, document)
    first, second, third = document["devices"]
    assert (first["capability"], first["right"], first["uuid"]) == ("8.9", True, "u")
    assert second["error"] == "RuntimeError: CUDA error: no kernel image"
    assert third["right"] is False


def test_the_program_does_not_take_no_gpu_for_an_answer_where_cuda_has_an_error() -> None:
    with pytest.raises(RuntimeError, match="802"):
        program().devices(Torch({"init": 1}), {"devices": []})
