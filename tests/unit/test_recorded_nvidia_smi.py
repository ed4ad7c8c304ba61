"""Every recorded output of nvidia-smi is read as its index says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from facts.parsers.nvidia_query import SmiOutput, parse_query
from facts.parsers.nvidia_table import parse_table
from facts.parsing import parse_survey
from facts.records import Nvidia, Survey, Unknown

RECORDED = Path(__file__).parents[1] / "recorded" / "nvidia-smi"
INDEX: dict[str, dict[str, Any]] = yaml.safe_load((RECORDED / "index.yaml").read_text())


@dataclass(frozen=True)
class Recorded:
    """One recorded output: what was printed, and what the index says about it."""

    name: str
    expected: dict[str, Any]

    @property
    def lines(self) -> list[str]:
        """The output without the comments at its top."""
        text = (RECORDED / f"{self.name}.txt").read_text()
        return re.sub(r"\A(# .*\n)*", "", text).rstrip("\n").split("\n")

    @property
    def fields(self) -> list[str] | None:
        """The fields that a query asked for; None where it was no query."""
        found = re.search(r"--query-gpu=(\S+)", str(self.expected["cmd"]))
        if found is None:
            return None
        # "..." stands for fields that the source of the recording does not name.
        width = self.lines[0].count(",") + 1
        named = found[1].split(",")
        unnamed = width - len([name for name in named if name != "..."])
        spread = [["other"] * unnamed if name == "..." else [name] for name in named]
        return [name for names in spread for name in names]

    def read(self) -> SmiOutput:
        """Return what the parser of its form reads in it."""
        if self.fields is not None:
            return parse_query(self.lines, self.fields)
        return parse_table(self.lines)

    def survey(self, *more: str) -> Survey:
        """Return the survey of a node where plain nvidia-smi printed this, and its query failed."""
        code = self.expected["exit_code"]
        body = [f" {line}" for line in self.lines]
        return parse_survey(
            [
                "sglang-survey 1 0",
                *("@ smi.path rc=0", " /usr/bin/nvidia-smi"),
                *(f"@ smi.query rc={code or 2}", *body),
                *(f"@ smi.table rc={code}", *body),
                *more,
                "@ end",
            ],
            self.name,
        )


ALL = [Recorded(name, expected) for name, expected in INDEX.items()]
HOST_OUTPUT = [each for each in ALL if each.expected["cmd"].startswith("nvidia-smi")]
FAILED = [each for each in HOST_OUTPUT if each.expected["exit_code"] != 0]


def ids(recorded: Recorded) -> str:
    return recorded.name


def none_if_unknown(value: object) -> object:
    return None if isinstance(value, Unknown) else value


@pytest.mark.parametrize("recorded", ALL, ids=ids)
def test_a_recorded_output_is_read_as_its_index_says(recorded: Recorded) -> None:
    output, expected = recorded.read(), recorded.expected
    assert len(output.gpus) == expected.get("gpus", 1 if recorded.fields else 0)
    if "driver" in expected:
        assert output.driver_version == expected["driver"]
    if "cuda" in expected:
        assert none_if_unknown(output.cuda_version) == expected["cuda"]
    if "smi" in expected:
        assert output.smi_version == expected["smi"]
    if "memory_total_mib" in expected:
        assert none_if_unknown(output.gpus[0].memory_total_mib) == expected["memory_total_mib"]
    if recorded.fields is None:
        enabled = [gpu.index for gpu in output.gpus if gpu.mig_enabled is True]
        assert enabled == expected.get("mig_enabled", [])
        if "mig_devices" in expected:
            assert sum(len(gpu.mig_devices) for gpu in output.gpus) == expected["mig_devices"]
        broken = [gpu.index for gpu in output.gpus if gpu.fault is not None]
        assert broken == expected.get("degraded", [])


def test_every_recorded_output_is_in_the_index_and_the_other_way_round() -> None:
    assert {path.stem for path in RECORDED.glob("*.txt")} == set(INDEX)


@pytest.mark.parametrize("recorded", ALL, ids=ids)
def test_a_recorded_output_says_at_its_top_what_its_index_says(recorded: Recorded) -> None:
    top = (RECORDED / f"{recorded.name}.txt").read_text()
    assert f"# exit_code: {recorded.expected['exit_code']}\n" in top
    assert f"# source: {recorded.expected['source']}\n" in top


@pytest.mark.parametrize("recorded", FAILED, ids=ids)
def test_a_failure_keeps_its_exit_code_and_its_text_and_lists_no_gpu(recorded: Recorded) -> None:
    nvidia = recorded.survey().nvidia
    assert nvidia.smi.exit_code == recorded.expected["exit_code"]
    assert nvidia.smi.text == "\n".join(recorded.lines)
    assert nvidia.gpus == ()
    assert isinstance(nvidia.driver_version, Unknown)


def test_a_failure_text_with_exit_code_0_is_kept_as_a_failure() -> None:
    text = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    nvidia = parse_survey(
        ["sglang-survey 1 0", "@ smi.query rc=0", f" {text}", "@ smi.table rc=0", f" {text}",
         "@ end"],
        "node",
    ).nvidia  # fmt: skip
    assert (nvidia.smi.exit_code, nvidia.smi.text, nvidia.gpus) == (0, text, ())


@pytest.mark.parametrize(
    "recorded", [each for each in HOST_OUTPUT if each.expected.get("wsl")], ids=ids
)
def test_under_wsl_the_driver_is_the_one_of_windows_and_not_nvidia_smis_own(
    recorded: Recorded,
) -> None:
    survey = recorded.survey("@ platform rc=0", " dxg", " ")
    assert survey.host.wsl
    assert survey.nvidia.driver_version == recorded.expected["driver"]
    assert survey.nvidia.smi_version == recorded.expected["smi"]


@pytest.mark.parametrize(
    "recorded", [each for each in HOST_OUTPUT if each.expected.get("tegra")], ids=ids
)
def test_a_jetson_is_known_by_its_release_file_or_its_device_tree(recorded: Recorded) -> None:
    release = " tegra-release # R38 (release), REVISION: 4.0, GCID: 43443517, BOARD: generic"
    survey = recorded.survey("@ platform rc=0", release, " ")
    assert (survey.host.tegra, survey.host.l4t_major) == (True, 38)
    tree = recorded.survey("@ platform rc=0", " compatible nvidia,tegra264", " ")
    assert tree.host.tegra
    assert isinstance(tree.host.l4t_major, Unknown)
    assert recorded.survey().nvidia.gpus[0].memory_total_mib == Unknown(
        "unsupported", "Not Supported"
    )


def test_memory_of_a_gb10_is_unsupported_and_never_a_number() -> None:
    gpu = Recorded("gb10_query_decision", INDEX["gb10_query_decision"]).read().gpus[0]
    assert gpu.memory_total_mib == Unknown("unsupported", "[N/A]")
    assert gpu.mig_enabled == Unknown("unsupported", "[N/A]")
    assert (gpu.compute_capability, gpu.addressing_mode) == ("12.1", "ATS")


def test_a_star_after_the_mig_mode_is_the_mode_that_a_reset_will_bring() -> None:
    gpus = Recorded("a100_mig_pending", INDEX["a100_mig_pending"]).read().gpus
    assert [(gpu.mig_enabled, gpu.mig_pending) for gpu in gpus] == [(False, False), (False, True)]
    assert gpus[1].mig_devices == ()


def test_an_unknown_error_in_any_cell_of_a_query_is_a_fault_of_the_gpu() -> None:
    gpu = Recorded("query_not_supported", INDEX["query_not_supported"]).read().gpus[0]
    assert gpu.fault == "[Unknown Error]"
    assert gpu.mig_enabled == Unknown("unsupported", "[Not Supported]")


@pytest.mark.parametrize("cell", ["[GPU requires reset]", "[GPU is lost]", "ERR!"])
def test_a_lost_gpu_is_named_with_what_nvidia_smi_said(cell: str) -> None:
    gpu = parse_query([f"0, NVIDIA L4, GPU-1, 580.82.07, 8.9, {cell}, {cell}, [N/A], [N/A], "
                       "00000000:01:00.0, Enabled, None"]).gpus[0]  # fmt: skip
    assert gpu.fault == cell
    assert gpu.memory_total_mib == Unknown("unreadable", cell)


@pytest.mark.parametrize(
    ("name", "kind", "version"),
    [
        ("proc_version_open", "open", "580.126.20"),
        ("proc_version_proprietary", "proprietary", "580.173.02"),
    ],
)
def test_the_kernel_module_says_its_kind_and_version(name: str, kind: str, version: str) -> None:
    lines = [f" {line}" for line in Recorded(name, INDEX[name]).lines]
    nvidia: Nvidia = parse_survey(
        ["sglang-survey 1 0", "@ nvidia.module rc=0", *lines, "@ end"], "node"
    ).nvidia
    assert (nvidia.module_kind, nvidia.module_version) == (kind, version)


def test_a_field_that_an_old_driver_refuses_is_unsupported_and_the_rest_is_read() -> None:
    refusal = 'Field "compute_cap" is not a valid field to query.'
    gpu = (
        parse_survey(
            [
                "sglang-survey 1 0",
                *("@ smi.query rc=2", f" {refusal}"),
                "@ smi.query-short rc=0",
                " 0, Tesla T4, GPU-1, 470.57.02, 15109 MiB, 0 MiB, [N/A], [N/A], "
                "00000000:00:1E.0, Disabled",
                "@ end",
            ],
            "node",
        )
        .nvidia.gpus[0]
    )  # fmt: skip
    assert gpu.memory_total_mib == 15109
    assert isinstance(gpu.compute_capability, Unknown)
    assert gpu.compute_capability.why == "unsupported"
    assert "compute_cap" in gpu.compute_capability.text
