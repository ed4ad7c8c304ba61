"""A network that is some way off: relays TCP ports, and lets everything arrive later.

    python -m benchmarks.fleet.relay ADDRESS FIRST LAST MILLISECONDS

Listens on 127.0.0.1 at the ports FIRST to LAST and relays each to the same port of ADDRESS.
A connection is made one round trip later, and each piece of data arrives half a one later. For
machines whose kernel has no ``tc netem``, which delays packets and needs no process.
"""

from __future__ import annotations

import asyncio
import sys


async def later(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, one_way_s: float
) -> None:
    """Pass on what comes from ``source``, each piece ``one_way_s`` seconds later, in order."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        if not target.is_closing():
            target.close()

    try:
        while data := await source.read(1 << 16):
            loop.call_later(one_way_s, target.write, data)
    except ConnectionError:
        pass
    loop.call_later(one_way_s, end)


async def serve(address: str, first: int, last: int, round_trip_s: float) -> None:
    """Relay the ports until this process is ended."""

    async def one(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(round_trip_s)
        try:
            there, back = await asyncio.open_connection(address, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            later(reader, back, round_trip_s / 2), later(there, writer, round_trip_s / 2)
        )

    for port in range(first, last + 1):
        await asyncio.start_server(
            lambda r, w, port=port: one(port, r, w),  # type: ignore[misc]
            "127.0.0.1",
            port,
            backlog=128,
        )
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    words = sys.argv[1:]
    asyncio.run(serve(words[0], int(words[1]), int(words[2]), float(words[3]) / 1000))
