"""What uv 0.13.9 really said when it failed, and the one sentence that is made of it."""

from __future__ import annotations

import pytest

from plans.mirrors import Mirrors
from plans.wheel.failures import MARK, failure_in

NETWORK = """
error: Request failed after 3 retries in 9.5s
  cause: Failed to fetch: http://nohost.invalid/simple/six/
  cause: error sending request for url (http://nohost.invalid/simple/six/)
  cause: client error (Connect)
  cause: dns error
  cause: error resolving DNS
  cause: failed to lookup address information: Name or service not known
"""
HASH = """
Resolved 1 package in 171ms
error: Failed to download `six==1.17.0`
  cause: Hash mismatch for `six==1.17.0`

         Expected:
           sha256:0000000000000000000000000000000000000000000000000000000000000000

         Computed:
           sha256:4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274
"""
NO_VERSION = """
error: No solution found when resolving dependencies
  cause: Because there is no version of six==99.1 and you require six==99.1, we can conclude that your requirements are unsatisfiable.
"""
NO_WHEEL = """
error: No solution found when resolving dependencies
  cause: Because cuda-tile==1.6.0rc5 has no usable wheels and you require cuda-tile==1.6.0rc5, we can conclude that your requirements are unsatisfiable.

hint: Wheels are required for `cuda-tile` because building from source is disabled for all packages (i.e., with `--no-build`)
"""
DISK = """
error: Failed to download `nvidia-nvvm==13.0.88`
  cause: Failed to extract archive: nvidia_nvvm-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl
  cause: I/O operation failed during extraction
  cause: failed to write to file `/var/cache/sglang/uv/.tmpBhIvvu/nvidia/cu13/lib/libnvvm.so.4`: No space left on device (os error 28)
"""
OTHER = """
error: Failed to inspect Python interpreter
  cause: it printed nonsense
"""


@pytest.mark.parametrize(
    ("said", "code", "seen"),
    [
        (NETWORK, "PACKAGES_UNREACHABLE", "Name or service not known"),
        (HASH, "PACKAGE_HASH", "six==1.17.0 is not the file that was locked"),
        (HASH, "PACKAGE_HASH", "what came has sha256:4721f391ed90541f"),
        (NO_VERSION, "PACKAGE_NO_WHEEL", "no wheel of six==99.1"),
        (NO_WHEEL, "PACKAGE_NO_WHEEL", "no wheel of cuda-tile==1.6.0rc5"),
        (DISK, "DISK_FULL", "when nvidia-nvvm==13.0.88 was unpacked"),
        (OTHER, "ENVIRONMENT_FAILED", "Failed to inspect Python interpreter: it printed nonsense"),
    ],
)
def test_what_uv_says_becomes_a_sentence_that_names_the_package(
    said: str, code: str, seen: str
) -> None:
    failure = failure_in(["installs 206 packages", MARK, *said.splitlines()], "chat")
    assert failure is not None
    assert (failure.code, failure.service) == (code, "chat")
    assert seen in failure.seen
    assert failure.needed
    assert failure.advice


def test_what_another_program_says_is_no_failure_of_uv() -> None:
    assert failure_in(["E: Unable to locate package g++", *HASH.splitlines()]) is None


def test_uv_that_was_killed_without_a_word_is_named_too() -> None:
    failure = failure_in([MARK])
    assert failure is not None
    assert failure.code == "ENVIRONMENT_FAILED"


def test_a_mirror_of_the_operator_that_does_not_answer_is_named_with_its_address() -> None:
    mirrors = Mirrors(index="http://nohost.invalid/simple", python="http://nohost.invalid/python")
    failure = failure_in([MARK, *NETWORK.splitlines()], "chat", mirrors)
    assert failure is not None
    assert failure.code == "PACKAGES_UNREACHABLE"
    assert failure.seen.startswith(
        "the mirror http://nohost.invalid/simple (mirrors: index) does not answer the node: "
    )
    assert "Name or service not known" in failure.seen
    assert "curl -I http://nohost.invalid/simple;" in failure.advice
    assert "name mirrors" not in failure.advice
    # The files of an index may be beside it; an answer that is an error is one.
    said = "error: Failed to fetch: `http://nohost.invalid/files/six.whl`\n  cause: HTTP status 502"
    failure = failure_in([MARK, *said.splitlines()], "chat", Mirrors(index=mirrors.index))
    assert failure is not None
    assert "(mirrors: index) answers with an error" in failure.seen


def test_where_another_address_did_not_answer_no_mirror_is_blamed() -> None:
    other = Mirrors(flashinfer="http://mirror.example/flashinfer")
    failure = failure_in([MARK, *NETWORK.splitlines()], "chat", other)
    assert failure is not None
    assert "mirror.example" not in failure.seen
    assert "name mirrors: {index: URL}" in failure.advice
