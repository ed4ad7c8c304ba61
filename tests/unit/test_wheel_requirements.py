"""What a wheel service is installed from: the lock, FlashInfer's kernels for its GPUs, own locks."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from deploys.wheel_locks import with_own_locks
from facts.records import Gpu
from locks.kernels import resolve_kernels
from locks.make import KernelRequest, make_lock
from locks.records import Lock
from plans.decision import Decision
from plans.deployment import PRIVATE
from plans.findings import Findings
from plans.wheel.kernels import kernels_wanted, provider_for
from plans.wheel.locks import Requirements, requirements_of
from plans.wishes import WishesError, read_wishes
from releases.wheels import Package, WheelLock, problems, read_lock, wheel_lock, write_lock
from tests.unit.kernel_index import PROVIDERS, VERSION, WANTED, kernel_index, options
from tests.unit.lock_servers import played
from tests.unit.surveys import gpu, survey, wish, wishes

RELEASE = "0.5.23"
RECORDED = Path(__file__).parents[1] / "recorded" / "wheel-locks"
CPU = {"arguments": {"device": "cpu"}}


@cache
def with_kernels() -> Lock:
    with played(kernel_index().answer) as server:
        found = resolve_kernels(
            VERSION, "13.0", now="2026-11-30T12:00:00Z", options=options(server.host)
        )
    return Lock(kernels={found.key: found})


def ask(
    *gpus: Gpu,
    lock: Lock | None = None,
    service: dict[str, Any] | None = None,
    release: str = RELEASE,
    **more: Any,
) -> tuple[Requirements | None, Findings]:
    one, wanted = wish(service, **more)
    there = gpus or (gpu(),)
    decision = Decision("wheel", release, None, "cuda13", there)
    found = Findings()
    return requirements_of(one, wanted, decision, lock, survey(*there), found), found


def codes(found: Findings) -> list[str]:
    return [one.code for one in found.refusals]


def carried(machine: str = "x86_64") -> WheelLock:
    lock = wheel_lock(RELEASE, machine)
    assert lock is not None
    return lock


def own(lock: WheelLock | str) -> dict[str, Any]:
    text = lock if isinstance(lock, str) else write_lock(lock)
    return {"wheel_lock": {"path": "wheels/own.txt", "text": text}}


def cpu_lock() -> WheelLock:
    names = {"sglang", "transformers", "numpy"}
    kept = tuple(p for p in carried().packages if p.name in names)
    torch = Package(
        name="torch",
        version="2.14.1+cpu",
        file="torch-2.14.1+cpu-cp312-cp312-manylinux_2_28_x86_64.whl",
        size=200_000_000,
        hashes=("sha256:" + hashlib.sha256(b"a test").hexdigest(),),
    )
    packages = tuple(sorted([*kept, torch], key=lambda one: one.name))
    return carried().model_copy(
        update={
            "device": "cpu",
            "cuda": None,
            "data": None,
            "departures": (),
            "unresolved": (),
            "packages": packages,
        }
    )


def kernels_in(found: Requirements | None) -> list[str]:
    assert found is not None
    return [p.name for p in found.lock.packages if p.name.startswith("flashinfer-")]


# FlashInfer's kernels


@pytest.mark.parametrize(
    ("capability", "target"),
    [
        ("7.5", None), ("8.0", "sm80"), ("8.6", "sm80"), ("8.7", "sm80"), ("8.9", "sm89"),
        ("9.0", "sm90a"), ("10.0", "sm100a"), ("10.3", "sm103a"), ("11.0", "sm110a"),
        ("12.0", "sm120f"), ("12.1", "sm121a"),
    ],
)  # fmt: skip
def test_a_gpu_takes_the_kernels_that_flashinfer_itself_would_take(
    capability: str, target: str | None
) -> None:
    there = [*PROVIDERS, "sm103a", "sm107a", "sm110a"]
    assert provider_for(capability, there) == target
    assert provider_for(capability, reversed(there)) == target


def test_without_its_own_kernels_a_gpu_takes_those_of_its_family_and_no_others() -> None:
    assert provider_for("12.1", ["sm120f", "sm100a"]) == "sm120f"
    assert provider_for("8.9", ["sm80", "sm90a"]) == "sm80"
    assert provider_for("10.3", ["sm100a"]) is None
    assert provider_for("9.0", ["sm80", "sm89"]) is None


def test_a_node_gets_the_kernels_of_its_own_gpus_alone() -> None:
    found, said = ask(lock=with_kernels())
    assert kernels_in(found) == [
        "flashinfer-cubin",
        "flashinfer-jit-cache",
        "flashinfer-jit-cache-sm89",
        "flashinfer-python",
    ]
    assert not said.cautions
    both, _ = ask(gpu(), gpu(1, "NVIDIA H100 80GB HBM3", "9.0"), lock=with_kernels())
    assert {"flashinfer-jit-cache-sm89", "flashinfer-jit-cache-sm90a"} <= set(kernels_in(both))
    assert found is not None
    assert both is not None
    assert len({carried().digest, found.digest, both.digest}) == 3


def test_what_is_installed_is_a_lock_that_is_whole_with_the_pages_of_flashinfer_s_packages() -> (
    None
):
    found, _ = ask(lock=with_kernels(), mirrors={"flashinfer": "https://mirror.example.org/whl/"})
    assert found is not None
    again = read_lock(found.text)
    assert again == found.lock
    assert problems(again) == []
    (sm89,) = [p for p in again.packages if p.name == "flashinfer-jit-cache-sm89"]
    assert sm89.version == WANTED
    assert sm89.file.endswith("x86_64.whl")
    assert "flashinfer-jit-cache" not in {one.name for one in again.unresolved}
    assert found.size == carried().size + sum(
        p.size or 0 for p in again.packages if carried().package(p.name) is None
    )
    assert found.pages == (
        "https://mirror.example.org/whl/flashinfer-cubin/",
        "https://mirror.example.org/whl/cu130/flashinfer-jit-cache/",
        "https://mirror.example.org/whl/cu130/flashinfer-jit-cache-sm89/",
    )


def test_without_kernels_the_plan_goes_on_and_says_how_long_the_first_start_compiles() -> None:
    found, said = ask()
    assert found is not None
    assert found.digest == carried().digest
    told = {one.code: one.text for one in said.cautions}
    assert set(told) == {"JIT_CACHE_MISSING", "CUBINS_MISSING"}
    assert "about 10 seconds a kernel" in told["JIT_CACHE_MISSING"]
    assert "install-cubin-wheel --dry-run" in told["JIT_CACHE_MISSING"]
    assert not said.refusals


def test_kernels_that_are_required_and_not_locked_are_refused() -> None:
    found, said = ask(jit_cache="required")
    assert found is None
    assert codes(said) == ["JIT_CACHE_MISSING"]
    assert "8.9" in said.refusals[0].needed
    there, said = ask(jit_cache="required", lock=with_kernels())
    assert there is not None
    assert not said.refusals


def test_a_gpu_that_no_provider_runs_on_is_told_which_there_are() -> None:
    found, said = ask(gpu(0, "Tesla T4", "7.5"), lock=with_kernels())
    assert kernels_in(found) == ["flashinfer-cubin", "flashinfer-python"]
    (one,) = said.cautions
    assert one.code == "JIT_CACHE_MISSING"
    assert "sm90a" in one.text
    assert "7.5" in one.text


def test_the_command_of_an_unresolved_index_stands_in_the_plan() -> None:
    lock = make_lock(
        [],
        [],
        now="2026-11-30T12:00:00Z",
        kernels=[KernelRequest(VERSION, "13.0")],
        kernel_options=options(None),
    )
    _, said = ask(lock=lock, mirrors={"flashinfer": "https://mirror.example.org"})
    assert all(one.text.endswith("sglang-node lock TARGET") for one in said.cautions)


def test_flashinfer_s_kernels_of_another_version_in_a_lock_are_refused() -> None:
    shim = (
        carried()
        .packages[0]
        .model_copy(
            update={
                "name": "flashinfer-jit-cache",
                "version": "0.7.1+cu130",
                "file": "flashinfer_jit_cache-0.7.1+cu130-py3-none-any.whl",
            }
        )
    )
    packages = tuple(sorted([*carried().packages, shim], key=lambda one: one.name))
    _, said = ask(**own(carried().model_copy(update={"packages": packages})))
    assert codes(said) == ["WHEELS_FLASHINFER"]


@pytest.mark.parametrize(
    ("service", "more", "wanted"),
    [
        ({"runtime": "wheel"}, {}, {(VERSION, "13.0")}),
        ({"runtime": "wheel", "release": "0.5.22"}, {}, {("0.7.1", "13.0")}),
        ({"runtime": "image"}, {}, set()),
        ({}, {}, set()),
        ({}, {"mirrors": {"flashinfer": "https://mirror.example.org"}}, {(VERSION, "13.0")}),
        ({"runtime": "wheel", "release": "0.5.19"}, {}, set()),
    ],
)  # fmt: skip
def test_the_lock_asks_for_the_kernels_of_releases_that_the_wishes_come_to(
    service: dict[str, Any], more: dict[str, Any], wanted: set[tuple[str, str]]
) -> None:
    assert set(kernels_wanted([wishes(service, **more)])) == wanted


def test_an_own_lock_says_itself_which_kernels_it_wants() -> None:
    runtime = {"runtime": "wheel"}
    lock = wheel_lock("0.5.22", "x86_64")
    assert lock is not None
    assert kernels_wanted([wishes(runtime, **own(lock))]) == (("0.7.1", "13.0"),)
    assert kernels_wanted([wishes(runtime, **own(cpu_lock()))]) == ()
    assert kernels_wanted([wishes(runtime, **own("no lock"))]) == ()


# Locks of releases, and own ones


def test_where_the_lock_departs_is_one_line_and_each_departure_has_its_reason() -> None:
    found, _ = ask()
    assert found is not None
    assert found.departs is not None
    assert "nvidia-cuda-nvcc ==13.0.88" in found.departs
    assert "\n" not in found.departs
    assert len(found.departures) == len(carried().departures)
    assert found.departures[0][0] == "nvidia-cuda-nvcc ==13.0.88, not ==13.5.37"
    assert all("https://" in why for _, why in found.departures)


def test_a_release_without_a_lock_is_refused_with_the_image_to_use() -> None:
    found, said = ask(release="0.5.19")
    assert found is None
    assert codes(said) == ["WHEELS_NOT_LOCKED"]
    assert "cu129" in said.refusals[0].advice


def test_an_own_lock_is_taken_in_the_release_s_place_though_its_data_is_of_another_day() -> None:
    lock = carried().model_copy(update={"data": "0" * 16, "packages": carried().packages})
    found, said = ask(**own(lock))
    assert found is not None
    assert found.departs is not None
    assert "wheels/own.txt, the operator's own lock" in found.departs
    assert not said.refusals
    without, _ = ask(**own(lock.model_copy(update={"data": None})))
    assert without is not None
    assert without.digest == found.digest == carried().digest


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.txt")), ids=lambda path: path.stem)
def test_an_own_lock_passes_the_same_checks(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lock = read_lock(text)
    wanted = {one.code for one in problems(lock)} - {"WHEELS_LOCK_OUTDATED"}
    _, said = ask(release=lock.release, **own(text))
    assert set(codes(said)) == wanted


def test_an_own_lock_that_was_edited_is_of_another_release_or_machine_is_refused() -> None:
    _, said = ask(**own("torch==2.14.1\n"))
    assert codes(said) == ["WHEELS_DAMAGED"]
    assert "wheels/own.txt" in said.refusals[0].seen
    _, said = ask(release="0.5.22", **own(carried()))
    assert codes(said) == ["WHEELS_WRONG_RELEASE"]
    _, said = ask(**own(carried("aarch64")))
    assert codes(said) == ["WHEELS_WRONG_PLATFORM"]


def test_a_lock_for_the_cpu_is_written_and_read_and_names_no_cuda() -> None:
    text = write_lock(cpu_lock())
    assert "# device: cpu\n" in text
    assert "# cuda:" not in text
    assert read_lock(text) == cpu_lock()
    assert "# device:" not in write_lock(carried())


@pytest.mark.parametrize(
    ("old", "new"),
    [("# device: cpu\n", ""), ("# device: cpu\n", "# device: cpu\n# cuda: 13.0\n")],
)
def test_a_lock_is_for_the_gpu_with_cuda_or_for_the_cpu_without(old: str, new: str) -> None:
    text = write_lock(cpu_lock()).replace(old, new)
    _, said = ask(service=CPU, **own(text))
    assert codes(said) == ["WHEELS_DAMAGED"]


def test_a_lock_for_the_cpu_serves_a_service_on_the_cpu_alone() -> None:
    found, said = ask(service=CPU, **own(cpu_lock()))
    assert found is not None
    assert not said.refusals
    assert not said.cautions
    nothing, said = ask(**own(cpu_lock()))
    assert nothing is None
    assert codes(said) == ["WHEELS_DEVICE"]


def test_a_cpu_build_of_torch_in_a_lock_for_the_gpu_is_refused_on_either() -> None:
    packages = tuple(
        cpu_lock().package("torch") or p if p.name == "torch" else p for p in carried().packages
    )
    lock = carried().model_copy(update={"packages": packages})
    for service in ({}, CPU):
        nothing, said = ask(service=service, **own(lock))
        assert nothing is None
        assert codes(said) == ["WHEELS_CPU_TORCH"]


# Where it is read


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "own.txt").write_text(write_lock(carried()), encoding="utf-8")
    (tmp_path / "site.py").write_text("", encoding="utf-8")
    return tmp_path / "site.py"


def test_the_path_is_relative_to_the_inventory_file_else_to_where_the_command_runs(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("node", "service"):
        wanted = (
            wishes({}, wheel_lock="wheels/own.txt")
            if key == "node"
            else wishes({"wheel_lock": "wheels/own.txt"})
        )
        read = with_own_locks(wanted, "gpu-1", str(site))
        lock = read.wheel_lock_of(read.services[0])
        assert lock is not None
        assert lock.text == write_lock(carried())
        assert "sha256" not in repr(read)
    with pytest.raises(WishesError, match=r"gpu-1: wheel_lock: wheels/own.txt could not be read"):
        with_own_locks(wishes({}, wheel_lock="wheels/own.txt"), "gpu-1", "@local")
    monkeypatch.chdir(site.parent)
    assert with_own_locks(wishes({}, wheel_lock="wheels/own.txt"), "gpu-1", "@local").wheel_lock


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * (4 * 1024 * 1024 + 1), None])
def test_a_lock_that_cannot_be_read_is_a_sentence_with_the_key(
    site: Path, content: bytes | None
) -> None:
    path = site.parent / "wheels" / "own.txt"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    wanted = wishes({"name": "chat", "wheel_lock": "wheels/own.txt"})
    with pytest.raises(WishesError) as caught:
        with_own_locks(wanted, "gpu-1", str(site))
    assert caught.value.messages[0].startswith("gpu-1: services[chat].wheel_lock: wheels/own.txt")


@pytest.mark.parametrize("value", [7, "", "  ", ["a"], "a\nb"])
def test_what_is_no_path_is_said(value: Any) -> None:
    with pytest.raises(WishesError, match=r"wheel_lock: is no path"):
        wishes({}, wheel_lock=value)


def test_the_text_of_a_lock_goes_into_a_kept_plan_and_never_to_a_node() -> None:
    kept = wishes({}, **own(carried())).model_dump(mode="json", exclude_unset=True)
    assert kept["wheel_lock"]["text"] == write_lock(carried())
    assert read_wishes(kept, "node") == wishes({}, **own(carried()))
    assert "wheel_lock" in PRIVATE


# Mirrors


def test_mirrors_are_addresses_and_uv_s_variables() -> None:
    given = {
        "index": "https://mirror.example.org/simple/",
        "flashinfer": "http://10.0.0.1:8080/whl",
        "python": "https://mirror.example.org/pythons",
        "python_downloads": "https://[fd00::1]/pythons.json",
    }
    assert wishes({}, mirrors=given).mirrors.uv_environment() == {
        "UV_DEFAULT_INDEX": "https://mirror.example.org/simple",
        "UV_PYTHON_INSTALL_MIRROR": "https://mirror.example.org/pythons",
        "UV_PYTHON_DOWNLOADS_JSON_URL": "https://[fd00::1]/pythons.json",
    }
    assert wishes({}).mirrors.uv_environment() == {}


@pytest.mark.parametrize("key", ["index", "flashinfer", "python", "python_downloads"])
def test_a_user_or_password_in_a_mirror_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(WishesError) as caught:
        wishes({}, mirrors={key: "https://user:hunter2@mirror.example.org/simple"})
    (message,) = caught.value.messages
    assert message == (
        f"node: mirrors.{key}: holds a user or password: write the address without it"
    )


@pytest.mark.parametrize("value", ["mirror.example.org", "ftp://a/b", "https://", "file:///a", ""])
def test_what_is_no_address_is_refused_with_what_to_write(value: str) -> None:
    with pytest.raises(
        WishesError, match=r"mirrors\.index: is no address: write https://HOST/PATH"
    ):
        wishes({}, mirrors={"index": value})
