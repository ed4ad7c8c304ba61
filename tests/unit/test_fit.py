"""Will it fit: the sums for published models, worked out here from first principles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from facts.records import GpuProcess, MigDevice, ServiceState, Survey, Unknown, Why
from locks.model_config import KEPT, kept
from plans import shape
from plans.memory import default_fraction, memory_data
from tests.unit.fits import (
    GIB,
    H100,
    L4,
    MIB,
    NAMES,
    cautions,
    codes,
    fits,
    gpus,
    locked,
    recorded,
    sized,
)
from tests.unit.surveys import HOST, gpu, survey

BF16 = 2


# --- bytes of cache for one token


@pytest.mark.parametrize(
    ("name", "tp_size", "expected"),
    [
        ("llama-3.1-8b", 1, 8 * (128 + 128) * 32 * BF16),
        ("llama-3.1-8b", 2, 4 * (128 + 128) * 32 * BF16),
        ("qwen3-8b", 1, 8 * (128 + 128) * 36 * BF16),
        ("qwen3-30b-a3b", 1, 4 * (128 + 128) * 48 * BF16),
        # Four KV heads on eight GPUs: each is there twice, and a GPU keeps one.
        ("qwen3-30b-a3b", 8, 1 * (128 + 128) * 48 * BF16),
        # The latent cache is not split.
        ("deepseek-v3", 1, (512 + 64) * 61 * BF16),
        ("deepseek-v3", 8, (512 + 64) * 61 * BF16),
        # Five of six layers look at a window, and SGLang keeps the whole of them all the same.
        ("gemma-3-27b", 2, 8 * (128 + 128) * 62 * BF16),
    ],
)
def test_the_cache_of_a_token_is_heads_by_dimensions_by_layers_by_bytes(
    name: str, tp_size: int, expected: int
) -> None:
    found = fits(locked(name), gpus(tp_size, H100), {"tp_size": tp_size})
    assert found.cache_per_token == expected
    assert f"{expected / MIB:.4g} MiB of cache per token" in found.lines[0]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("qwen3-next-80b-a3b", "its linear layers keep a state for each request"),
        ("gemma-3-4b", "says no num_attention_heads"),
        ("qwen3-8b-gguf", "the lock was made without it: sglang-node lock --refresh"),
    ],
)
def test_what_has_other_arithmetic_is_not_computed_and_says_why(name: str, why: str) -> None:
    found = fits(locked(name), gpus(4, H100), {"tp_size": 4})
    assert (found.cache_per_token, found.pool_tokens) == (None, None)
    assert "cache per token not computed" in found.lines[0]
    assert why in found.lines[0]
    assert found.refusals == ()


def test_an_architecture_that_nobody_knows_here_is_not_computed() -> None:
    config = {**recorded("llama-3.1-8b")["config"], "model_type": "brand_new"}
    found = fits(locked(config=config))
    assert "does not know how SGLang keeps the cache of 'brand_new'" in found.lines[0]


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ({"kv_cache_dtype": "fp8_e4m3"}, 1),
        ({"kv_cache_dtype": "bf16"}, 2),
        ({"kv_cache_dtype": "auto"}, 2),
        ({"dtype": "float32"}, 4),
        ({"dtype": "half"}, 2),
    ],
)
def test_the_dtype_of_the_cache_is_what_the_arguments_say(
    arguments: dict[str, Any], size: int
) -> None:
    found = fits(locked(), gpus(1, H100), **arguments)
    assert found.cache_per_token == 8 * (128 + 128) * 32 * size


def test_a_checkpoint_that_says_fp8_for_its_cache_gets_it() -> None:
    quantized = {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}
    config = {**recorded("llama-3.1-8b")["config"], "quantization_config": quantized}
    assert fits(locked(config=config)).cache_per_token == 8 * (128 + 128) * 32 * 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"kv_cache_dtype": "nvfp4"},
        {"speculative_algorithm": "EAGLE"},
        {"dcp_size": 2},
        {"enable_hisparse": True},
    ],
)
def test_a_pool_of_another_form_is_not_computed(arguments: dict[str, Any]) -> None:
    found = fits(locked(), gpus(1, H100), **arguments)
    assert found.cache_per_token is None
    assert "not computed" in found.lines[0]


def test_stages_of_a_pipeline_split_layers_and_weights() -> None:
    found = fits(locked(), gpus(4, L4), {"tp_size": 2}, pp_size=2)
    assert found.weights_per_gpu == 16060522496 // 4
    assert found.cache_per_token == 4 * (128 + 128) * 16 * BF16


def test_dp_attention_keeps_more_heads_on_a_gpu() -> None:
    found = fits(locked(), gpus(4, L4), {"tp_size": 4}, dp_size=2, attn_dp_size=2)
    assert found.cache_per_token == 4 * (128 + 128) * 32 * BF16


# --- tokens in the pool


def test_the_line_of_the_plan_has_the_whole_sum() -> None:
    found = fits(locked(), gpus(), mem_fraction_static=0.88)
    pool = L4 * MIB * 0.88 - 16060522496
    assert found.pool_tokens == int(pool / 131072)
    assert found.lines == (
        "weights 15.0 GiB (their index) over 1 GPU of 22.5 GiB; 0.125 MiB of cache per token "
        "(8 KV heads × (128 + 128) × 32 layers × 2 B); about 39,000 tokens in the pool at "
        "mem-fraction-static 0.88",
    )


def test_without_a_share_it_is_about_sglang_s_own() -> None:
    found = fits(locked(), gpus(1, H100))
    # 512 + 1.5 × 8192 of a chunk + 1024 / 8 of one GPU + 2 × 256 and 8 × 58 of graphs, MiB.
    share = (H100 - (512 + 12288 + 128 + 512 + 464)) / H100
    assert found.share == pytest.approx(share)
    assert found.pool_tokens == pytest.approx((H100 * MIB * share - 16060522496) / 131072, abs=1)
    assert "SGLang's own mem-fraction-static, about 0.83 here" in found.lines[0]


def test_a_release_whose_own_share_is_not_known_here_has_no_tokens_computed() -> None:
    found = fits(locked(), gpus(1, H100), {"release": "0.5.19"})
    assert (found.share, found.pool_tokens) == (None, None)
    assert "tokens in the pool not computed" in found.lines[0]


@pytest.mark.parametrize("mib", [16380, 20479, 20480, 35839, 46068, 81559, 143771, 183359])
@pytest.mark.parametrize("tp_size", [1, 4, 8])
def test_sglang_s_own_share_is_a_share(mib: int, tp_size: int) -> None:
    for mla in (True, False):
        found = default_fraction(mib * MIB, {}, "0.5.23", (tp_size, 1), mla=mla, multimodal=False)
        assert found is not None
        assert 0.5 < found < 0.95


def test_max_total_tokens_limits_the_pool() -> None:
    found = fits(locked(), gpus(1, H100), max_total_tokens=20000)
    assert found.pool_tokens == 20000


def test_a_pool_without_room_for_the_longest_answer_is_told() -> None:
    found = fits(locked(), gpus(), {"output_cap": 50_000}, mem_fraction_static=0.88)
    assert cautions(found) == ["POOL_TOO_SMALL"]
    assert "50000 (output_cap)" in found.cautions[0].text
    assert codes(found) == []


def test_weights_that_leave_nothing_at_sglang_s_own_share_are_told_and_not_refused() -> None:
    # L4: about 0.68 of 22.5 GiB, 15.4 GiB; two GPUs' worth of certainty is not there.
    found = fits(sized(17 * GIB), gpus())
    assert codes(found) == []
    assert cautions(found) == ["POOL_TOO_SMALL"]


# --- weights


def test_an_index_that_names_more_than_the_files_have_is_not_believed() -> None:
    sizes = {"model.safetensors": 5 * GIB}
    assert shape.weights_of(sizes, 20 * GIB) == shape.Weights(
        5 * GIB, 5 * GIB, "the sizes of *.safetensors"
    )


@pytest.mark.parametrize(
    ("sizes", "total"),
    [
        ({"model-1.safetensors": 5, "model-2.safetensors": 6, "pytorch_model.bin": 99}, 11),
        ({"model.safetensors": 5, "consolidated.safetensors": 5}, 5),
        ({"consolidated.safetensors": 5}, 5),
        ({"pytorch_model.bin": 7, "training_args.bin": 1, "original/x.pth": 50}, 7),
        ({"x-00001-of-00002.gguf": 3, "x-00002-of-00002.gguf": 4}, 7),
    ],
)
def test_the_weights_are_those_that_sglang_would_read(sizes: dict[str, int], total: int) -> None:
    found = shape.weights_of(sizes, None)
    assert isinstance(found, shape.Weights)
    assert (found.bytes, found.read_bytes) == (total, total)


def test_several_gguf_files_are_no_sum() -> None:
    found = fits(locked("qwen3-8b-gguf"), gpus())
    assert found.weights_per_gpu is None
    assert "weights not computed: 2 GGUF files, of which one is served" in found.lines[0]


def test_layers_for_speculation_are_not_counted_against_a_fit() -> None:
    """671 billion parameters of one byte and their scales: all but the 14 of the MTP layer."""
    found = shape.least_in_memory(
        shape.Weights(688586727753, 688586727753, ""), recorded("deepseek-v3")["config"], {}, 8
    )
    assert isinstance(found, int)
    assert 0.95 * 671e9 < found < 674e9


@pytest.mark.parametrize(
    "arguments", [{"quantization": "fp8"}, {"language_model_only": True}, {"torchao_config": "x"}]
)
def test_weights_that_change_while_they_load_refuse_nothing(arguments: dict[str, Any]) -> None:
    found = fits(sized(90 * GIB), gpus(), **arguments)
    assert codes(found) == []
    assert "changes the weights while they load" in found.lines[0]


def test_weights_of_32_bits_may_become_16() -> None:
    config = {**recorded("llama-3.1-8b")["config"], "torch_dtype": "float32"}
    files = [{"path": "model.safetensors", "size_bytes": 40 * GIB, "sha256": "a" * 64}]
    halved = locked(config=config, files=files, index_bytes=None)
    assert codes(fits(halved, gpus())) == []
    assert codes(fits(sized(40 * GIB), gpus())) == ["DOES_NOT_FIT"]


# --- the boundary of what fits


@pytest.mark.parametrize("mib", [16380, L4, 46068, H100, 143771])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_weights_are_refused_where_they_alone_are_as_much_as_the_memory(
    mib: int, ranks: int
) -> None:
    most = mib * MIB * ranks
    node, service = gpus(ranks, mib), {"tp_size": ranks}
    for weights, refused in ((most + GIB, True), (most, True), (most - ranks, False), (GIB, False)):
        found = fits(sized(weights), node, service)
        assert (codes(found) == ["DOES_NOT_FIT"]) == refused, weights
        if refused:
            assert f"{mib / 1024:.1f} GiB" in found.refusals[0].seen


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8, 0.95])
def test_a_share_that_the_weights_alone_fill_is_refused(share: float) -> None:
    most = int(L4 * MIB * share)
    assert codes(fits(sized(most + 2), gpus(), mem_fraction_static=share)) == ["DOES_NOT_FIT"]
    assert codes(fits(sized(most - 2), gpus(), mem_fraction_static=share)) == []


def test_the_advice_names_a_tp_size_that_divides_and_holds() -> None:
    found = fits(sized(100 * GIB), gpus(8, L4))
    assert "tp_size: 8" in found.refusals[0].advice
    assert "tp_size: 5" not in found.refusals[0].advice
    alone = fits(sized(100 * GIB), gpus(1, L4))
    assert "tp_size" not in alone.refusals[0].advice
    assert "quantised" in alone.refusals[0].advice


def test_the_gpu_with_the_least_memory_decides() -> None:
    mixed = (gpu(0, memory_total_mib=H100), gpu(1, memory_total_mib=L4))
    found = fits(sized(60 * GIB), survey(*mixed), {"tp_size": 2})
    assert codes(found) == ["DOES_NOT_FIT"]
    assert "GPU 1" in found.refusals[0].seen


@pytest.mark.parametrize(
    ("name", "tp_size", "good"),
    [
        ("llama-3.1-8b", 3, "1, 2, 4, 8"),
        ("llama-3.1-8b", 6, "1, 2, 4, 8"),
        ("qwen3-30b-a3b", 5, "1, 2, 4, 8"),
        ("deepseek-v3", 7, "1, 2, 4, 8"),
    ],
)
def test_heads_that_cannot_be_split_are_refused_with_the_sizes_that_do(
    name: str, tp_size: int, good: str
) -> None:
    found = fits(sized(GIB, name), gpus(8, H100), {"tp_size": tp_size})
    assert codes(found) == ["TP_DOES_NOT_DIVIDE"]
    assert found.refusals[0].advice.endswith(f": {good}")


@pytest.mark.parametrize("name", [name for name in NAMES if "qwen3-next" not in name])
@pytest.mark.parametrize("tp_size", [1, 2, 4, 8])
def test_heads_that_can_be_split_are_not_refused(name: str, tp_size: int) -> None:
    found = fits(sized(GIB, name), gpus(8, H100), {"tp_size": tp_size})
    assert "TP_DOES_NOT_DIVIDE" not in codes(found)


# --- what others hold


def test_others_that_leave_no_room_are_named_and_refused() -> None:
    busy = gpus(processes=(GpuProcess(77, "/usr/bin/trainer", 12000),), memory_used_mib=12100)
    found = fits(locked(), busy)
    assert codes(found) == ["GPU_MEMORY_TAKEN"]
    assert "trainer (pid 77, 12000 MiB)" in found.refusals[0].seen
    small = fits(sized(4 * GIB), busy, mem_fraction_static=0.9)
    assert codes(small) == []
    assert "held by /usr/bin/trainer (pid 77, 12000 MiB)" in small.lines[0]
    assert small.pool_tokens == int(((L4 - 12000) * MIB * 0.9 - 4 * GIB) / 131072)


def test_memory_that_nobody_is_named_for_is_told_and_not_refused() -> None:
    found = fits(locked(), gpus(memory_used_mib=12100))
    assert codes(found) == []
    assert "GPU_MEMORY_TAKEN" in cautions(found)


def test_our_own_server_that_will_be_replaced_is_no_other() -> None:
    busy = gpus(processes=(GpuProcess(77, "sglang::scheduler", 20000),), memory_used_mib=20100)
    assert codes(fits(locked(), busy)) == ["GPU_MEMORY_TAKEN"]
    for state in ("active", "activating", "deactivating"):
        services = {"chat": ServiceState("chat", active_state=state)}
        node = replace(survey(*busy), services=services)
        assert codes(fits(locked(), node)) == []


def test_a_service_on_the_cpu_is_left_alone() -> None:
    found = fits(sized(900 * GIB), gpus(), {"tp_size": 1}, device="cpu")
    assert (found.lines, found.refusals, found.cautions) == ((), (), ())
    assert found.read_bytes == 900 * GIB, "how much a start reads is known all the same"


# --- memory that is not known, parts of a GPU, and memory that is the host's


@pytest.mark.parametrize("why", ["unreadable", "unsupported", "absent", "malformed"])
def test_a_memory_that_is_not_known_refuses_nothing(why: Why) -> None:
    found = fits(sized(900 * GIB), gpus(1, Unknown(why, "[N/A]")))
    assert codes(found) == []
    assert "room not computed: the memory of GPU 0 (NVIDIA L4) is" in found.lines[0]
    assert found.pool_tokens is None


def test_a_mig_device_has_its_own_memory() -> None:
    part = MigDevice(0, 1, 0, "MIG-7", memory_total_mib=9856)
    node = survey(gpu(0, "NVIDIA A100-PCIE-40GB", "8.0", mig_enabled=True, mig_pending=True,
                      memory_total_mib=40960, mig_devices=(part,)))  # fmt: skip
    found = fits(sized(12 * GIB), node, {"gpus": ["MIG-7"]})
    assert codes(found) == ["DOES_NOT_FIT"]
    assert "MIG device 0 of GPU 0" in found.refusals[0].seen
    assert "9.6 GiB" in found.refusals[0].seen


def spark(**changes: Any) -> Survey:
    """Return the survey of a DGX Spark, as /proc/meminfo of a public one says."""
    host = replace(
        HOST,
        architecture="aarch64",
        memory_total_bytes=127535104 * 1024,
        memory_available_bytes=119537664 * 1024,
        memory_cached_bytes=2 * GIB,
        swap_total_bytes=16 * GIB,
    )
    nothing = Unknown("unsupported", "[N/A]")
    one = gpu(0, "NVIDIA GB10", "12.1", memory_total_mib=nothing, memory_used_mib=nothing)
    return survey(one, host=replace(host, **changes))


def test_on_unified_memory_the_host_s_is_the_gpu_s() -> None:
    found = fits(locked(), spark(), mem_fraction_static=0.8)
    assert codes(found) == []
    line = found.lines[0]
    assert "of 121.6 GiB" in line
    assert "the host's memory is the GPU's" in line
    assert "the container has no limit of its own" in line
    assert "114.0 GiB are available now; 2.0 GiB are page cache" in line
    assert "swap (16.0 GiB) is not counted" in line
    assert found.pool_tokens == int((119537664 * 1024 * 0.8 - 16060522496) / 131072)
    assert codes(fits(sized(130 * GIB), spark())) == ["DOES_NOT_FIT"]


def test_page_cache_where_the_weights_should_go_is_told_with_the_command() -> None:
    found = fits(sized(60 * GIB), spark(memory_cached_bytes=118489088 * 1024))
    assert "PAGE_CACHE" in cautions(found)
    text = next(one.text for one in found.cautions if one.code == "PAGE_CACHE")
    assert "113.0 GiB" in text
    assert "/proc/sys/vm/drop_caches" in text
    assert "PAGE_CACHE" not in cautions(fits(sized(60 * GIB), spark()))


def test_a_host_whose_memory_is_not_known_refuses_nothing() -> None:
    for key in ("memory_total_bytes", "memory_available_bytes", "swap_total_bytes"):
        node = spark(**{key: Unknown("unreadable")})
        assert codes(fits(sized(60 * GIB), node)) == []


# --- the data


class Recording(dict[str, Any]):
    """A config that remembers which of its keys were asked for."""

    asked: ClassVar[set[str]] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)


@pytest.mark.parametrize("name", [name for name in NAMES if "gguf" not in name])
def test_every_key_that_the_sums_read_is_kept_in_the_lock(name: str) -> None:
    data = Recording(recorded(name)["config"])
    if "text_config" in data:
        data["text_config"] = Recording(data["text_config"])
    Recording.asked.clear()
    shape.cache_of(data, {}, 2)
    shape.heads_of(data)
    shape.is_multimodal(data)
    shape.least_in_memory(shape.Weights(1, 1, ""), data, {"quantization": "fp8"}, 1)
    shape.least_in_memory(shape.Weights(1, 1, ""), data, {}, 1)
    assert {"text_config", "vision_config"} <= Recording.asked <= set(KEPT)
    whole, short = (locked(name, config=one) for one in (recorded(name)["config"], kept(data)))
    assert fits(whole, gpus(8, H100), {"tp_size": 8}) == fits(short, gpus(8, H100), {"tp_size": 8})


def test_no_kind_of_cache_stands_twice() -> None:
    data = memory_data().cache
    kinds = [*data.mha, *data.mla, *data.other]
    assert len(kinds) == len(set(kinds))
