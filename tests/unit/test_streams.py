"""Bytes to and from a program, here: whole, with its own word where it fails."""

from __future__ import annotations

from operations.streams import _Local


def test_what_is_written_comes_out_and_how_it_ended_is_told() -> None:
    pipe = _Local("cat; echo why >&2; exit 3", merged=False)
    sent = bytes(range(256)) * 100  # less than a pipe holds
    came = b""
    pipe.write(sent)
    pipe.end()
    while piece := pipe.read():
        came += piece
    assert came == sent
    assert pipe.wait() == (3, "why\n")


def test_a_program_that_is_abandoned_ends() -> None:
    pipe = _Local("exec sleep 100", merged=True)
    pipe.abandon()
    assert pipe.wait()[0] == -9
