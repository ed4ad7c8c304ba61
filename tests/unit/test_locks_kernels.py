"""FlashInfer's index, as a small real HTTP server, and what of it stands in sglang.lock."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from locks.index import KernelProblem
from locks.kernels import kernels_words, resolve_kernels
from locks.lockfile import parse_lock, render_lock
from locks.make import KernelRequest, make_lock
from locks.records import Lock, LockedKernels
from tests.unit.kernel_index import (
    KEY,
    PROVIDERS,
    VERSION,
    WANTED,
    KernelIndex,
    file_name,
    kernel_index,
    options,
    wheel,
)
from tests.unit.lock_servers import Asked, Reply, free_port, one_line, played

NOW = "2026-11-30T12:00:00Z"
SHIM_PAGE = "cu130/flashinfer-jit-cache"


def ask(index: KernelIndex, said: list[str] | None = None) -> LockedKernels:
    with played(index.answer) as server:
        return resolve_kernels(
            VERSION,
            "13.0",
            now=NOW,
            options=options(server.host),
            progress=(said if said is not None else []).append,
        )


def fails(index: KernelIndex, code: str) -> str:
    with pytest.raises(KernelProblem) as caught:
        ask(index)
    assert caught.value.code == code, str(caught.value)
    one_line(caught.value)
    return str(caught.value)


def data_of(index: KernelIndex) -> dict[str, bytes]:
    return {file: data for page in index.files.values() for file, data in page.items()}


@pytest.mark.parametrize("as_json", [False, True], ids=["html", "json"])
def test_every_file_of_the_version_is_locked_with_its_size_and_the_hash_of_its_link(
    as_json: bool,
) -> None:
    index = kernel_index()
    index.as_json = as_json
    found = ask(index)
    names = {"flashinfer-jit-cache", "flashinfer-cubin"}
    names |= {f"flashinfer-jit-cache-{target}" for target in PROVIDERS}
    assert {one.name for one in found.wheels} == names
    files = data_of(index)
    assert {one.file for one in found.wheels} == set(files)
    for one in found.wheels:
        assert one.hash == f"sha256:{hashlib.sha256(files[one.file]).hexdigest()}"
        assert one.size_bytes == len(files[one.file])
        assert one.hash_from == "link"
    assert kernels_words(found).endswith("14 files, hashes from their links")


def test_a_file_whose_link_says_no_hash_is_downloaded_and_hashed_and_the_lock_says_so() -> None:
    index = kernel_index()
    index.hashes = False
    said: list[str] = []
    found = ask(index, said)
    files = data_of(index)
    for one in found.wheels:
        assert one.hash == f"sha256:{hashlib.sha256(files[one.file]).hexdigest()}"
        assert one.hash_from == "download"
    assert any("sm90a" in line and "downloaded" in line for line in said)
    assert kernels_words(found).endswith("downloading 14 of them")


def test_the_providers_are_those_that_the_shim_names_and_no_page_is_guessed() -> None:
    index = kernel_index()
    with played(index.answer) as server:
        resolve_kernels(VERSION, "13.0", now=NOW, options=options(server.host))
        pages = {one.path for one in server.asked if one.path.endswith("/")}
    assert pages == {f"/{page}/" for page in index.files}


def test_kernels_of_another_version_or_another_cuda_release_are_not_taken() -> None:
    assert WANTED in fails(kernel_index("0.7.1+cu130"), "KERNELS_NOT_THERE")
    assert WANTED in fails(kernel_index("0.7.2+cu134"), "KERNELS_NOT_THERE")
    assert WANTED in fails(kernel_index("0.7.20+cu130"), "KERNELS_NOT_THERE")


def test_versions_are_compared_by_their_parts() -> None:
    index = KernelIndex()
    for page, files in kernel_index("0.7.2.0+cu130").files.items():
        for file, data in files.items():
            index.add(page, file, data)
    assert {one.version for one in ask(index).wheels} == {WANTED, VERSION}


def test_what_was_taken_back_is_not_locked() -> None:
    index = kernel_index()
    index.yanked = set(index.files["flashinfer-cubin"])
    found = ask(index)
    assert "flashinfer-cubin" not in {one.name for one in found.wheels}
    assert "no cubins" in kernels_words(found)


def test_a_shim_with_another_hash_than_its_link_says_is_refused() -> None:
    index = kernel_index()
    index.wrong = set(index.files[SHIM_PAGE])
    assert "another hash" in fails(index, "KERNEL_INDEX_GARBAGE")


def test_a_shim_that_asks_for_providers_of_another_version_is_refused() -> None:
    index = kernel_index()
    shim = wheel("flashinfer-jit-cache", WANTED, ("flashinfer-jit-cache-sm89==0.7.1+cu130",))
    index.add(SHIM_PAGE, file_name("flashinfer-jit-cache", WANTED), shim)
    assert "0.7.1+cu130" in fails(index, "KERNEL_INDEX_GARBAGE")


def test_a_shim_without_providers_and_one_that_is_no_wheel_are_refused() -> None:
    index = kernel_index()
    file = file_name("flashinfer-jit-cache", WANTED)
    index.add(SHIM_PAGE, file, wheel("flashinfer-jit-cache", WANTED))
    fails(index, "KERNELS_NOT_THERE")
    index.add(SHIM_PAGE, file, b"not a wheel")
    fails(index, "KERNEL_INDEX_GARBAGE")


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, {"Content-Type": "application/vnd.pypi.simple.v1+json"}, b"[]"),
        Reply(200, {"Content-Type": "application/vnd.pypi.simple.v1+json"}, b"{"),
        Reply(200, {"Content-Type": "text/html"}, b"\xff\xfe"),
        Reply(200, {"Content-Type": "text/plain"}, b"hello"),
        Reply(403),
    ],
)
def test_what_is_no_index_is_said(reply: Reply) -> None:
    with played(lambda one: reply) as server, pytest.raises(KernelProblem) as caught:
        resolve_kernels(VERSION, "13.0", now=NOW, options=options(server.host))
    assert caught.value.code == "KERNEL_INDEX_GARBAGE"
    one_line(caught.value)


def test_an_index_in_trouble_is_asked_again() -> None:
    index = kernel_index()
    failed: list[Asked] = []

    def answer(one: Asked) -> Reply:
        if one.path == f"/{SHIM_PAGE}/" and not failed:
            failed.append(one)
            return Reply(503)
        return index.answer(one)

    with played(answer) as server:
        found = resolve_kernels(VERSION, "13.0", now=NOW, options=options(server.host))
    assert failed
    assert found.wheels


# In the lock


def made(host: str | None, existing: Lock | None = None, *, refresh: bool = False) -> Lock:
    return make_lock(
        [],
        [],
        now=NOW,
        existing=existing,
        kernels=[KernelRequest(VERSION, "13.0")],
        kernel_options=options(host),
        refresh=refresh,
    )


def test_the_lock_has_them_in_the_same_bytes_again_and_asks_nobody_twice() -> None:
    with played(kernel_index().answer) as server:
        lock = made(server.host)
        asked = len(server.asked)
        text = render_lock(lock)
        again = made(server.host, parse_lock(text, Path("sglang.lock")))
        assert len(server.asked) == asked
    assert render_lock(again) == text
    assert b'"schema_version": 2' in text
    assert lock.kernels[KEY].index == f"http://{server.host}"


def test_a_lock_without_kernels_is_written_as_it_was_before_there_were_any() -> None:
    text = render_lock(Lock())
    assert b'"schema_version": 1' in text
    assert b"kernels" not in text
    assert parse_lock(text, Path("sglang.lock")).to_json() == Lock().to_json()


def test_an_index_that_cannot_be_reached_stands_in_the_lock_with_the_command() -> None:
    lock = made(f"127.0.0.1:{free_port()}")
    (one,) = lock.unresolved
    assert (one.kind, one.what, one.code) == ("kernels", KEY, "KERNEL_INDEX_UNREACHABLE")
    assert one.command == "sglang-node lock TARGET"
    assert not lock.kernels
    assert parse_lock(render_lock(lock), Path("sglang.lock")).why_not(KEY) == one


def test_without_an_address_the_lock_says_how_to_get_it() -> None:
    (one,) = made(None).unresolved
    assert one.code == "KERNEL_INDEX_UNKNOWN"
    assert "install-cubin-wheel --dry-run" in one.why


def test_a_refresh_that_fails_keeps_what_is_locked_and_one_that_goes_well_takes_the_new() -> None:
    with played(kernel_index().answer) as server:
        lock = made(server.host)
        host = server.host
    kept = made(host, lock, refresh=True)
    assert kept.kernels == lock.kernels
    assert [one.code for one in kept.unresolved] == ["KERNEL_INDEX_UNREACHABLE"]
    newer = kernel_index()
    newer.add(
        "cu130/flashinfer-jit-cache-sm80",
        file_name("flashinfer-jit-cache-sm80", WANTED, "cp312-cp312-manylinux_2_28_x86_64"),
        wheel("flashinfer-jit-cache-sm80", WANTED),
    )
    with played(newer.answer) as server:
        moved = made(server.host, lock, refresh=True)
    assert len(moved.kernels[KEY].wheels) == len(lock.kernels[KEY].wheels) + 1
    assert not moved.unresolved
