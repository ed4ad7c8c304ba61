"""The release table: its data fits its schema, and it answers questions about releases."""

from __future__ import annotations

import ast
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from releases import table
from releases.schema import Common, HostRules, ReleaseFile, When
from releases.table import DATA, HOST_RULES, RELEASES
from releases.tools import extract_flags
from releases.versions import in_specifiers, parse_version

VERSIONS = ["0.5.19", "0.5.22", "0.5.23"]
FILES = [(v, ReleaseFile, f"{v}.yaml") for v in VERSIONS] + [
    ("common", Common, "common.yaml"),
    ("hosts", HostRules, "host_rules.yaml"),
]


def data(name: str) -> Any:
    return yaml.safe_load((DATA / name).read_text(encoding="utf-8"))


def problems(version: str, **arguments: object) -> list[table.FlagProblem]:
    return table.flag_problems(table.get_release(version), arguments)


# Schema


@pytest.mark.parametrize(("_", "model", "file"), FILES)
def test_a_key_that_the_schema_does_not_know_is_refused(
    _: str, model: type[BaseModel], file: str
) -> None:
    content = data(file)
    model.model_validate(content)
    with pytest.raises(ValidationError, match="surprise"):
        model.model_validate(content | {"surprise": 1})


def test_an_image_without_a_source_is_refused() -> None:
    content = data("0.5.22.yaml")
    del content["images"][0]["require"]["source"]
    with pytest.raises(ValidationError, match=r"require\.source"):
        ReleaseFile.model_validate(content)


def test_records_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        table.newest().version = "0"


def test_every_record_with_numbers_about_hosts_says_where_they_are_from() -> None:
    def unsourced(value: object, path: str) -> list[str]:
        if isinstance(value, dict):
            if "source" in value:
                return [] if value.get("basis") in ("seen", "inferred") else [path]
            return [p for k, v in value.items() for p in unsourced(v, f"{path}.{k}")]
        if isinstance(value, list):
            return [p for i, v in enumerate(value) for p in unsourced(v, f"{path}[{i}]")]
        return [path] if isinstance(value, int | float) else []

    assert unsourced(data("host_rules.yaml"), "host_rules") == []
    for rule in [*HOST_RULES.thresholds.values(), *HOST_RULES.capability_by_name]:
        assert rule.source


def test_images_name_thresholds_that_exist() -> None:
    for release in RELEASES.values():
        for image in release.images:
            needed = image.minimum_driver
            assert needed.native in HOST_RULES.thresholds
            assert needed.minor_version_compatibility in {None, *HOST_RULES.thresholds}


def test_no_image_tag_floats_and_each_names_its_own_release() -> None:
    for release in RELEASES.values():
        for image in release.images:
            assert f":v{release.version}" in image.tag
            assert "latest" not in image.tag


def test_defects_conditions_and_reserved_flags_name_flags_that_some_release_has() -> None:
    known = {f for r in RELEASES.values() for f in r.flags} | {"model-type"}
    named = {r.flag for r in table.newest().reserved_flags}
    for release in RELEASES.values():
        for defect in release.defects:
            when: When = defect.when
            named |= {*when.flags, *when.flags_any, *when.flags_absent}
        for rename in release.renamed:
            assert rename.old not in release.flags
            assert rename.new is None or rename.new in release.flags
    assert named <= known


# Questions


def test_releases_are_found_by_version_and_an_unknown_one_lists_the_known() -> None:
    assert list(RELEASES) == VERSIONS
    assert table.get_release("v0.5.22").version == "0.5.22"
    assert table.newest().version == "0.5.23"
    with pytest.raises(
        table.UnknownRelease, match=r"0\.5\.21 .*known: 0\.5\.19, 0\.5\.22, 0\.5\.23"
    ):
        table.get_release("0.5.21")


def test_the_last_release_for_cuda_12_is_frozen_and_says_what_frees_it() -> None:
    assert [r.version for r in table.releases_for("cuda13")] == ["0.5.23", "0.5.22"]
    (held,) = table.releases_for("cu129")
    assert held.frozen is not None
    assert "580" in held.frozen.freed_by
    assert all(r.frozen is None for r in table.releases_for("cuda13"))


def test_readiness_is_asked_where_the_release_has_it() -> None:
    paths = [table.ready_path(r) for r in RELEASES.values()]
    assert paths == ["/health", "/ready", "/ready"]


@pytest.mark.parametrize("version", VERSIONS)
def test_no_release_has_code_for_turing_and_none_for_ampere_on_arm(version: str) -> None:
    for image in table.get_release(version).images:
        for architecture, code in image.architectures.items():
            assert "7.5" not in code.capabilities
            assert ("8.0" in code.capabilities) == (architecture == "x86_64")


def test_gpus_that_need_cuda_13_are_not_in_the_cuda_12_image() -> None:
    codes = RELEASES["0.5.19"].images[0].architectures
    assert not {"10.3", "11.0", "12.1"} & {c for code in codes.values() for c in code.code}


# Flags


def test_flags_are_counted_as_the_released_parsers_have_them() -> None:
    # Compared with argparse itself: SGLang imported from each wheel registers just these.
    assert [len(RELEASES[v].flags) for v in VERSIONS] == [521, 544, 559]
    assert len(table.flags_new("0.5.19", "0.5.22")) == 49
    assert len(table.flags_gone("0.5.19", "0.5.22")) == 26
    assert len(table.flags_new("0.5.22", "0.5.23")) == 16
    assert table.flags_gone("0.5.22", "0.5.23") == ["speculative-skip-dp-mlp-sync"]


def test_new_and_gone_turn_one_release_into_the_other() -> None:
    for old in VERSIONS:
        for new in VERSIONS:
            start, end = set(RELEASES[old].flags), set(RELEASES[new].flags)
            moved = (start | set(table.flags_new(old, new))) - set(table.flags_gone(old, new))
            assert moved == end


@given(st.sampled_from(sorted(RELEASES["0.5.23"].flags)))
def test_a_flag_is_the_same_with_dashes_underscores_and_leading_dashes(name: str) -> None:
    spellings = [name, name.replace("-", "_"), f"--{name}", f"--{name.replace('-', '_')}"]
    assert {table.normalise_flag(s) for s in spellings} == {name}


@given(
    st.sampled_from(VERSIONS),
    st.dictionaries(
        st.text(max_size=30) | st.sampled_from(sorted(RELEASES["0.5.22"].flags)),
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers()),
        max_size=6,
    ),
)
def test_any_arguments_give_an_answer_and_unknown_flags_are_always_refused(
    version: str, arguments: dict[str, object]
) -> None:
    release = table.get_release(version)
    found = table.flag_problems(release, arguments)
    for name in arguments:
        if table.normalise_flag(name) not in release.flags:
            mine = [p for p in found if p.flag == table.normalise_flag(name)]
            assert mine
            assert all(p.severity == "refuse" for p in mine)
    table.defects_touched(release, arguments, {})


def test_sound_arguments_have_no_problem() -> None:
    assert problems("0.5.23", mem_fraction_static=0.8, sleep_on_idle=True, load_format="auto") == []


def test_a_misspelt_flag_is_refused_with_the_nearest_one() -> None:
    (found,) = problems("0.5.23", mem_fraction_statc=0.8)
    assert (found.kind, found.severity) == ("unknown", "refuse")
    assert found.suggestion == "did you mean mem-fraction-static?"


def test_a_flag_of_an_older_release_says_until_when_and_what_to_write() -> None:
    (found,) = problems("0.5.23", cuda_graph_max_bs=16)
    assert "0.5.19" in found.message
    assert found.suggestion == "--cuda-graph-max-bs-decode"
    (found,) = problems("0.5.22", elastic_ep_rejoin=True)
    assert found.suggestion == "elastic-ep-join-mode: recover"


def test_advice_for_a_gone_flag_never_names_a_flag_that_is_gone_too() -> None:
    for old, new in (("0.5.19", "0.5.22"), ("0.5.19", "0.5.23"), ("0.5.22", "0.5.23")):
        for name in table.flags_gone(old, new):
            for found in problems(new, **{name: True}):
                for named in re.findall(r"--([a-z0-9-]+)", found.suggestion or ""):
                    assert named in {name, *RELEASES[new].flags}, (name, found.suggestion)
    # Its successor of 0.5.19, --cuda-graph-tc-compiler, went away with it.
    (found,) = problems("0.5.22", piecewise_cuda_graph_compiler="eager")
    assert "cuda-graph-tc-compiler" not in (found.suggestion or "")


def test_a_flag_of_a_newer_release_says_since_when() -> None:
    (found,) = problems("0.5.22", enable_paged_experts=True)
    assert "first known release that has it is 0.5.23" in found.message


@pytest.mark.parametrize("name", ["port", "tp-size", "tensor-parallel-size", "model", "model_path"])
def test_a_flag_that_the_toolkit_sets_is_refused_under_every_spelling(name: str) -> None:
    (found,) = problems("0.5.22", **{name: 1})
    assert (found.kind, found.severity) == ("reserved", "refuse")
    assert found.suggestion is not None
    assert "in the service" in found.suggestion


def test_a_deprecated_flag_warns_with_the_rewrite_and_false_does_not() -> None:
    (found,) = problems("0.5.23", enable_dp_attention=True)
    assert (found.kind, found.severity) == ("deprecated", "warn")
    assert found.suggestion == "--attn-dp-size <dp-size>"
    assert problems("0.5.23", enable_dp_attention=False) == []


def test_a_value_that_the_parser_would_reject_is_refused() -> None:
    for name, value in {
        "sleep-on-idle": "yes",
        "nnodes": "two",
        "mem-fraction-static": True,
        "load-format": ["auto"],
        "chunked-prefill-size": None,
    }.items():
        assert [p.kind for p in problems("0.5.22", **{name: value})] == ["value"], name


def test_an_unlisted_choice_only_warns_as_plugins_add_some() -> None:
    (found,) = problems("0.5.22", load_format="safetensor")
    assert (found.kind, found.severity) == ("choice", "warn")
    assert found.suggestion == "did you mean safetensors?"


def test_two_spellings_of_one_flag_are_refused() -> None:
    found = problems("0.5.22", **{"dp-size": 2, "data-parallel-size": 4})
    assert [p.kind for p in found] == ["repeated"]


def test_the_table_knows_which_flags_the_configuration_file_cannot_carry() -> None:
    old, new = RELEASES["0.5.19"], RELEASES["0.5.23"]
    assert not table.config_accepts(new, "lora-paths")
    assert not table.config_accepts(new, "enable-tf32-matmul")
    # Refused up to 0.5.22 because a deprecated flag writes to the same destination.
    assert not table.config_accepts(old, "cuda_graph_max_bs_decode")
    assert table.config_accepts(new, "cuda_graph_max_bs_decode")
    assert table.config_accepts(new, "mem_fraction_static")
    assert not table.config_accepts(new, "no-such-flag")


# Environment, defects, caches


def test_a_variable_that_does_nothing_warns_and_one_that_hangs_the_stop_is_refused() -> None:
    env = {"SGLANG_FORCE_SHUTDOWN": "1", "SGL_FORCE_SHUTDOWN": "1", "PATH": "/bin"}
    found = table.environment_problems(table.newest(), env)
    assert [(p.name, p.severity) for p in found] == [
        ("SGLANG_FORCE_SHUTDOWN", "warn"),
        ("SGL_FORCE_SHUTDOWN", "refuse"),
    ]


def test_a_variable_can_be_harmless_with_another_value() -> None:
    name = "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"
    assert table.environment_problems(table.newest(), {name: "1"}) == []
    assert len(table.environment_problems(table.newest(), {name: "False"})) == 1


def test_a_key_held_by_the_server_is_told_and_an_admin_key_alone_refused() -> None:
    release = table.newest()

    def ids(**arguments: object) -> set[str]:
        return {d.id for d in table.defects_touched(release, arguments, {})}

    assert "key-in-log-and-server-info" not in ids()
    assert "key-in-log-and-server-info" in ids(api_key="x")
    assert "admin-key-alone-opens-server-info" in ids(admin_api_key="x")
    assert "admin-key-alone-opens-server-info" not in ids(admin_api_key="x", api_key="y")
    assert "api-key-with-several-tokenizers" in ids(api_key="x", tokenizer_worker_num=2)
    assert "api-key-with-several-tokenizers" not in ids(api_key="x", tokenizer_worker_num=1)


def test_a_defect_of_one_runtime_or_release_touches_that_one_alone() -> None:
    def touched(version: str, runtime: Any) -> set[str]:
        release = table.get_release(version)
        return {d.id for d in table.defects_touched(release, {}, {}, runtime)}

    assert "cuda-tile-stub" in touched("0.5.22", "wheel")
    assert "cuda-tile-stub" not in touched("0.5.22", "image")
    assert "cuda-tile-stub" not in touched("0.5.23", "wheel")
    assert "no-ready-endpoint" in touched("0.5.19", None)
    assert "no-ready-endpoint" not in touched("0.5.22", None)


def test_a_switch_that_is_false_counts_as_not_given() -> None:
    release = table.newest()
    for arguments, expected in (({"sleep_on_idle": False}, True), ({"sleep_on_idle": True}, False)):
        ids = {d.id for d in table.defects_touched(release, arguments, {})}
        assert ("idle-burns-a-core" in ids) is expected


@pytest.mark.parametrize("version", VERSIONS)
def test_a_launch_sets_every_cache_whether_or_not_sglang_moves_it(version: str) -> None:
    release = table.get_release(version)
    names = [c.variable for c in release.caches]
    assert len(names) == len(set(names))
    env = table.cache_environment(release, "/var/cache/sglang/b", "/var/lib/sglang/hub")
    assert env["SGLANG_JIT_CACHE_DIR"] == "/var/cache/sglang/b/jit"
    assert env["HF_HOME"] == "/var/lib/sglang/hub"
    # 0.5.19 leaves TileLang in the home directory: set all the same, but known as not moved.
    tilelang = next(c for c in release.caches if c.variable == "TILELANG_CACHE_DIR")
    assert tilelang.redirected is (version != "0.5.19")
    assert all(v.startswith("/var/") for v in env.values())


# Hosts


@pytest.mark.parametrize(
    ("name", "capability", "kind"),
    [
        ("Tesla T4", "7.5", "datacenter"),
        ("Tesla P4", "6.1", "datacenter"),
        ("Tesla V100-SXM2-16GB", "7.0", "datacenter"),
        ("NVIDIA A100-SXM...", "8.0", "datacenter"),
        ("NVIDIA A100 80GB PCIe", "8.0", "datacenter"),
        ("NVIDIA A10", "8.6", "datacenter"),
        ("NVIDIA A10G", "8.6", "datacenter"),
        ("NVIDIA A40", "8.6", "datacenter"),
        ("NVIDIA L4", "8.9", "datacenter"),
        ("NVIDIA L40S", "8.9", "datacenter"),
        ("NVIDIA H100 80GB HBM3", "9.0", "datacenter"),
        ("NVIDIA H20", "9.0", "datacenter"),
        ("NVIDIA GH200 480GB", "9.0", "datacenter"),
        ("NVIDIA B200", "10.0", "datacenter"),
        ("NVIDIA GB200", "10.0", "datacenter"),
        ("NVIDIA B300 SXM6 AC", "10.3", "datacenter"),
        ("NVIDIA GB300", "10.3", "datacenter"),
        ("NVIDIA GB10", "12.1", "spark"),
        ("NVIDIA Thor", "11.0", "tegra"),
        ("Orin (nvgpu)", "8.7", "tegra"),
        ("NVIDIA GeForce RTX 3090", "8.6", "geforce"),
        ("NVIDIA GeForce RTX 4090 D", "8.9", "geforce"),
        ("NVIDIA GeForce RTX 5090", "12.0", "geforce"),
        ("NVIDIA RTX PRO 6000 Blac...", "12.0", "rtxpro"),
        ("NVIDIA RTX 4000 Ada Gene...", "8.9", "rtxpro"),
        ("NVIDIA RTX A6000", "8.6", "rtxpro"),
        ("NVIDIA GeForce ...", None, "geforce"),
        ("NVIDIA R100", None, None),
    ],
)
def test_a_gpu_is_known_by_its_name_or_not_at_all(
    name: str, capability: str | None, kind: str | None
) -> None:
    assert table.capability_of(name) == capability
    assert table.class_of(name) == kind


@given(st.lists(st.integers(0, 999), min_size=1, max_size=4))
def test_trailing_zeros_of_a_version_do_not_count(numbers: list[int]) -> None:
    text = ".".join(map(str, numbers))
    assert parse_version(text) == parse_version(text + ".0")
    assert in_specifiers(text, f">={text},<={text},=={text}")
    assert not in_specifiers(text, f"!={text}")


# The extraction program


def test_the_program_reads_flags_the_way_sglang_makes_them(tmp_path: Path) -> None:
    fields = """
class Serving:
    host: A[str, "Help."] = "127.0.0.1"
    model_path: A[str, Arg(help="h", aliases=["--model"])]
    tp_size: A[int, Arg(help="h", aliases=["--tensor-parallel-size"])] = 1
    metrics: A[Optional[bool], "Help."] = False
    mode: A[Literal["a", "b"], Arg(help="h")] = "a"
    backend: A[Optional[str], Arg(help="h", choices=NAMES + ["z"], cli_name="--back")] = None
    warm: A[Optional[List[int]], Arg(help="h")] = None
    both: A[bool, Arg(help="h", action=argparse.BooleanOptionalAction)] = True
    hidden: A[bool, Arg(help="h", no_cli=True)] = False
    rank: A[int, Derived("not a flag")]
"""
    filler = "\n".join(f'    filler_{i}: A[str, "Help."] = ""' for i in range(100))
    server_args = """
NAMES = ["x", "y"]
class ServerArgs:
    def add_cli_args(parser):
        parser.add_argument("--old-mode", action=DeprecatedAliasStoreAction, dest="mode",
                            new_flag="--mode", type=str)
"""
    wheel = tmp_path / "sglang-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(extract_flags.SERVER_ARGS, server_args)
        archive.writestr(extract_flags.FIELDS + "serving.py", fields + filler)
        archive.writestr(extract_flags.CONFIG_READER, "class ConfigArgumentMerger: ...")
        archive.writestr("sglang-9.9.9.dist-info/METADATA", "Name: sglang\nVersion: 9.9.9\n")
    text = "\n".join(extract_flags.lines(extract_flags.Source(str(wheel))))
    rows = [r for r in text.splitlines() if not r.startswith(("#", "filler"))]
    assert rows == [
        "back value str choices=x,y,z",
        "both toggle config=no",
        "host value str",
        "metrics switch",
        "mode value str config=no choices=a,b",
        "model value str of=model-path",
        "model-path value str required=yes",
        "no-both toggle of=both config=no",
        "old-mode value str deprecated=--mode",
        "tensor-parallel-size value int of=tp-size",
        "tp-size value int",
        "warm list int",
    ]
    assert "hidden" not in table.read_flags(text)


@pytest.mark.parametrize("version", VERSIONS)
def test_flag_files_are_sorted_and_say_which_release_they_are(version: str) -> None:
    text = (DATA / "flags" / f"{version}.txt").read_text(encoding="utf-8")
    names = [r.split(" ")[0] for r in text.splitlines() if not r.startswith("#")]
    assert names == sorted(set(names))
    assert text.startswith(f"# SGLang {version}:")


def test_the_table_imports_nothing_of_the_toolkit_but_itself() -> None:
    ours = {"facts", "plans", "operations", "deploys", "cli"}
    for path in (DATA.parent).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {re.split(r"\.", n)[0] for n in names} & ours, path
