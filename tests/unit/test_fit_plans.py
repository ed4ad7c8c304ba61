"""The fit in a whole plan: reasons, refusals, local models, and services that share a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facts.records import ABSENT, ModelFiles, Space, Survey, Unknown
from locks.records import Lock
from plans.plan import NodePlan
from tests.unit import readers
from tests.unit.deployments import CAP, applied, codes, fresh, kinds, lock, one, plan
from tests.unit.fits import GIB, L4, MIB, fits, gpus, locked, sized
from tests.unit.surveys import docker, gpu, survey, wishes

PATH = "/srv/models/llama"
LOCAL = CAP | {"model": PATH}
CONFIG = (
    '{"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, '
    '"num_hidden_layers": 32, "num_key_value_heads": 8, "torch_dtype": "bfloat16"}'
)
LATE = Unknown("unreadable", "did not return in time")
THERE = ModelFiles(PATH, True, CONFIG, 16060522496, {"a.safetensors": 16060556376})


def locks(model: Any = None) -> Lock:
    """Return a lock whose model is this one."""
    return Lock(images=lock().images, models={"Qwen/Qwen3-8B@main": model or locked()})


def node(*models: ModelFiles, there: Survey | None = None) -> Survey:
    """Return the survey of a node that has these models."""
    base = there or fresh()
    spaces = {**base.spaces, PATH: Space(PATH, True, PATH)}
    return replace(base, spaces=spaces, models={one.path: one for one in models})


def with_gpus(count: int) -> Survey:
    """Return the survey of a node with so many L4."""
    there = tuple(gpu(index) for index in range(count))
    base = fresh()
    return replace(
        base,
        nvidia=survey(*there).nvidia,
        docker=docker(there, root_dir="/var/lib/docker"),
    )


def cautions(made: NodePlan) -> list[str]:
    return [caution.code for caution in made.cautions]


# --- in a plan


def test_a_plan_says_the_sum_among_its_reasons_and_a_launch_the_bytes() -> None:
    made = plan(locked=locks())
    assert codes(made) == []
    (line,) = [reason for reason in made.reasons if reason.startswith("weights")]
    assert line.startswith("weights 15.0 GiB (their index) over 1 GPU of 22.5 GiB; 0.125 MiB")
    assert line in made.as_dict()["reasons"]
    launch = next(f for f in one(made).files if f.path.endswith("launch.env")).text
    assert readers.environment_file(launch)["SGLANG_MODEL_BYTES"] == "16060522496"
    assert plan(applied(made), locked=locks()).converged


def test_a_lock_of_an_older_toolkit_changes_nothing_but_what_is_known() -> None:
    made = plan()
    assert codes(made) == []
    assert "start" in kinds(made)
    (line,) = [reason for reason in made.reasons if "not computed" in reason]
    assert "sglang-node lock --refresh" in line
    launch = next(f for f in one(made).files if f.path.endswith("launch.env")).text
    assert readers.environment_file(launch)["SGLANG_MODEL_BYTES"] == ""


def test_without_a_lock_nothing_is_refused_for_its_memory() -> None:
    made = plan(no_lock=True)
    assert codes(made) == []
    assert not any("not computed" in reason for reason in made.reasons)
    assert any("Qwen/Qwen3-8B" in what for what in made.unresolved)


def test_weights_that_cannot_fit_refuse_the_plan_before_any_change() -> None:
    made = plan(locked=locks(sized(30 * GIB)))
    assert codes(made) == ["DOES_NOT_FIT"]
    assert made.changes == ()
    assert made.refusals[0].service == "chat"
    assert made.image is not None


# --- models on the node


def test_a_local_model_is_summed_from_the_survey() -> None:
    made = plan(node(THERE), wishes(LOCAL))
    assert codes(made) == []
    assert any("weights 15.0 GiB (their index)" in reason for reason in made.reasons)
    launch = next(f for f in one(made).files if f.path.endswith("launch.env")).text
    assert readers.environment_file(launch)["SGLANG_MODEL_BYTES"] == "16060556376"


def test_a_local_model_that_does_not_fit_is_refused() -> None:
    large = replace(THERE, index_bytes=ABSENT, sizes={"a.safetensors": 30 * GIB})
    assert codes(plan(node(large), wishes(LOCAL))) == ["DOES_NOT_FIT"]


def test_a_directory_without_a_config_is_no_model() -> None:
    bare = ModelFiles(PATH, True, sizes={"a.safetensors": 5})
    made = plan(node(bare), wishes(LOCAL))
    assert codes(made) == ["MODEL_INCOMPLETE"]
    assert "no config.json (1 files of weights)" in made.refusals[0].seen
    for other in (
        replace(bare, mistral_form=True),
        replace(bare, sizes={"x.gguf": 5}),
    ):
        assert codes(plan(node(other), wishes(LOCAL))) == []


def test_a_copy_that_was_cut_is_told() -> None:
    """Pointers of Git LFS have some 130 bytes each."""
    pointers = replace(THERE, sizes={"a.safetensors": 135, "b.safetensors": 135})
    made = plan(node(pointers), wishes(LOCAL))
    assert codes(made) == []
    assert "MODEL_INCOMPLETE" in cautions(made)


@pytest.mark.parametrize(
    "there",
    [
        (),
        (ModelFiles(PATH, LATE, LATE, LATE, LATE),),
        (replace(THERE, config=Unknown("unreadable", "no permission")),),
        (replace(THERE, config=Unknown("malformed", "larger than 1 MiB")),),
        (replace(THERE, config="[1]"),),
        (replace(THERE, config="{" * 5000),),
    ],
    ids=range(6),
)
def test_a_model_that_was_not_read_is_named_and_refuses_nothing(
    there: tuple[ModelFiles, ...],
) -> None:
    made = plan(node(*there), wishes(LOCAL))
    assert codes(made) == []
    assert "MODEL_NOT_CHECKED" in cautions(made)


def test_a_path_that_is_missing_is_refused_once() -> None:
    gone = replace(
        node(ModelFiles(PATH, exists=False)),
        spaces={**fresh().spaces, PATH: Space(PATH, False, "/srv")},
    )
    assert codes(plan(gone, wishes(LOCAL))) == ["MODEL_PATH_MISSING"]


# --- services that share a GPU


def two(first: dict[str, Any] | None, second: dict[str, Any] | None, **both: Any) -> NodePlan:
    """Return the plan of two services of one GPU with these arguments."""
    services = [
        CAP | both | ({} if arguments is None else {"arguments": arguments})
        for arguments in (first, second)
    ]
    return plan(wanted=wishes(*services), locked=locks(sized(4 * GIB)))


def share(value: float) -> dict[str, Any]:
    return {"mem-fraction-static": value}


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [(None, None, ["chat", "chat1"]), (share(0.4), None, ["chat1"]), (None, share(0.4), ["chat"])],
)
def test_services_on_one_gpu_must_each_say_their_share(
    first: dict[str, Any] | None, second: dict[str, Any] | None, named: list[str]
) -> None:
    made = two(first, second)
    assert set(codes(made)) == {"GPU_SHARED_WITHOUT_SHARE"}
    assert [refusal.service for refusal in made.refusals] == named
    assert "mem-fraction-static: 0.45" in made.refusals[0].advice


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [(0.5, 0.5, False), (0.4, 0.6, False), (0.5, 0.51, True), (0.9, 0.9, True), (0.3, 0.3, False)],
)
def test_shares_of_one_gpu_must_fit_together(first: float, second: float, refused: bool) -> None:
    made = two(share(first), share(second))
    assert (codes(made) == ["GPU_SHARES_TOO_LARGE"]) == refused
    if not refused:
        assert codes(made) == []
        assert "GPU_SHARED" not in cautions(made)
        said = f"{first:g} + {second:g} = {first + second:g}"
        assert any(said in reason for reason in made.reasons)
        assert ("GPU_SHARES_TIGHT" in cautions(made)) == (first + second > 0.87)


def test_the_name_of_the_flag_may_be_spelled_as_the_server_takes_it() -> None:
    made = two({"mem_fraction_static": 0.4}, {"--mem-fraction-static": 0.4})
    assert "GPU_SHARED_WITHOUT_SHARE" not in codes(made)


def test_services_with_gpus_of_their_own_share_nothing() -> None:
    there = with_gpus(2)
    services = [CAP | {"gpus": [index]} for index in range(2)]
    made = plan(there, wishes(*services), locks())
    assert codes(made) == []
    assert not any("share" in reason for reason in made.reasons)


def test_services_on_the_cpu_share_no_gpu() -> None:
    made = two({"device": "cpu"}, {"device": "cpu"})
    assert codes(made) == []
    assert not any("weights" in reason for reason in made.reasons)
    one_of_two = two({"device": "cpu"}, None)
    assert codes(one_of_two) == []


def test_services_that_share_two_gpus_are_told_once() -> None:
    there = with_gpus(2)
    services = [CAP | {"tp_size": 2, "arguments": share(0.6)} for _ in range(2)]
    made = plan(there, wishes(*services), locks(sized(4 * GIB)))
    assert codes(made) == ["GPU_SHARES_TOO_LARGE"]
    assert "GPU 0 (NVIDIA L4), GPU 1 (NVIDIA L4)" in made.refusals[0].seen


# --- whatever is known

NUMBER = st.one_of(
    st.integers(-5, 200),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=3),
    st.none(),
)
KIND = st.sampled_from(["llama", "qwen3_moe", "deepseek_v3", "gemma3_text", "qwen3_next", "?", ""])
KEYS = st.sampled_from(
    ["hidden_size", "head_dim", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
     "kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "num_nextn_predict_layers", "torch_dtype",
     "dtype", "quantization_config", "vision_config"]
)  # fmt: skip
FLAT = st.builds(
    lambda kind, more: {"model_type": kind, **more}, KIND, st.dictionaries(KEYS, NUMBER)
)
CONFIGS = st.one_of(st.none(), FLAT, st.builds(lambda text: {"text_config": text}, FLAT))
SIZES = st.one_of(
    st.just(ABSENT),
    st.dictionaries(
        st.sampled_from(["a.safetensors", "b.bin", "c.gguf", "d.txt"]), st.integers(0, 2**60)
    ),
)
FLAGS = st.dictionaries(
    st.sampled_from(["mem-fraction-static", "pp-size", "dp-size", "cpu-offload-gb", "dtype",
                     "max-total-tokens", "kv-cache-dtype", "chunked-prefill-size",
                     "cuda-graph-max-bs-decode", "max-running-requests", "enable-dp-attention"]),
    st.one_of(NUMBER.filter(lambda n: n == n and n not in (float("inf"), -float("inf"))),
              st.sampled_from(["auto", "fp8_e4m3"])),
    max_size=3,
)  # fmt: skip
MEMORY = st.one_of(
    st.sampled_from([Unknown("unsupported", "[N/A]"), Unknown("unreadable")]), st.integers(0, 2**19)
)
MEMORY_CODES = {"DOES_NOT_FIT", "GPU_MEMORY_TAKEN"}


@settings(max_examples=200)
@given(CONFIGS, SIZES, FLAGS, MEMORY, st.integers(1, 8))
def test_no_sum_is_negative_and_what_is_not_known_refuses_nothing(
    config: Any, sizes: Any, flags: Any, memory: Any, tp_size: int
) -> None:
    text = ABSENT if config is None else json.dumps(config)
    there = replace(
        survey(*gpus(tp_size, memory)),
        models={PATH: ModelFiles(PATH, True, text, ABSENT, sizes)},
        spaces={},
    )
    service = {"model": PATH, "tp_size": tp_size}
    found = fits(None, there, service, **flags)
    assert found == fits(None, there, service, **flags)
    for number in (
        found.weights_per_gpu,
        found.cache_per_token,
        found.pool_tokens,
        found.read_bytes,
    ):
        assert number is None or number >= 0
    assert all(line.isprintable() for line in found.lines)
    refused = {refusal.code for refusal in found.refusals}
    if isinstance(memory, Unknown) or found.read_bytes is None:
        assert not refused & MEMORY_CODES
    if config is None:
        assert "TP_DOES_NOT_DIVIDE" not in refused
    if refused & MEMORY_CODES:
        assert found.weights_per_gpu is not None
        assert found.weights_per_gpu > 0 or memory == 0
    if found.weights_per_gpu is not None and isinstance(memory, int):
        share = found.share
        if found.pool_tokens is not None and share is not None and memory:
            assert found.pool_tokens <= memory * MIB


def test_the_memory_of_the_l4_in_these_tests_is_the_recorded_one() -> None:
    assert gpu().memory_total_mib == L4
