"""A paced load over an OpenAI-compatible server, with a ledger of its own.

    python tests/node/load.py http://10.213.0.2:30000 --model tiny --seconds 60 --ledger FILE

Each client asks, reads its answer to the end, thinks, and asks again; every other request is
streamed. Every request that was begun is in the ledger with how it ended, and is counted once:

    answered    its status was 200, it ended as it should (a stream with [DONE], both with `usage`)
                and the tokens that came are those that were asked for
    turned away no connection was made, or 503 with Retry-After: nobody had taken it on
    truncated   an answer began and did not end as it should
    failed      anything else: the connection was made and no whole answer came

It needs the standard library alone, so that it runs on a node too, and ends by itself: after so
many seconds, or requests. It talks to private and loopback addresses only.
"""

from __future__ import annotations

import argparse
import http.client
import ipaddress
import json
import signal
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

MOST_REQUESTS = 20_000
MOST_SECONDS = 1800

End = Literal["answered", "turned away", "truncated", "failed"]


@dataclass
class Request:
    """One line of the ledger. Times are seconds of Unix time."""

    number: int
    client: int
    streamed: bool
    kept: bool  # sent over a connection that had served another
    begun: float
    connected: float | None = None
    ended: float = 0.0
    end: End = "failed"
    status: int | None = None
    tokens: int = 0
    why: str = ""


@dataclass
class Load:
    """What is sent: how many clients, how fast, how long the answers are, and for how long."""

    url: str
    model: str
    clients: int = 3
    think_s: float = 1.0
    tokens: int = 40
    seconds: float = 60.0
    most: int = 1000
    keep_alive: bool = False
    timeout_s: float = 120.0
    key: str = ""  # sent as a Bearer token
    ledger: list[Request] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        address = ipaddress.ip_address(socket.gethostbyname(host) if ":" not in host else host)
        if not (address.is_private or address.is_loopback):
            raise ValueError(f"{self.url} is not of this lab")
        if self.most > MOST_REQUESTS or self.seconds > MOST_SECONDS:
            raise ValueError(f"at most {MOST_REQUESTS} requests and {MOST_SECONDS} s")
        self._host, self._port = host, parts.port or 80

    def run(self) -> None:
        """Send until the time is over, the count is reached, or it is told to stop."""
        until = time.monotonic() + self.seconds
        threads = [
            threading.Thread(target=self._client, args=(number, until), daemon=True)
            for number in range(self.clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _client(self, client: int, until: float) -> None:
        # Not all at once.
        self.stopping.wait(self.think_s * client / self.clients)
        connection: http.client.HTTPConnection | None = None
        while time.monotonic() < until and not self.stopping.is_set():
            with self._lock:
                if len(self.ledger) >= self.most:
                    return
                number = len(self.ledger)
                one = Request(number, client, number % 2 == 1, connection is not None, time.time())
                self.ledger.append(one)
            connection = self._ask(one, connection)
            one.ended = time.time()
            if connection is not None and not self.keep_alive:
                connection.close()
                connection = None
            self.stopping.wait(self.think_s)
        if connection is not None:
            connection.close()

    def _ask(
        self, one: Request, connection: http.client.HTTPConnection | None
    ) -> http.client.HTTPConnection | None:
        """Send one request; return the connection where it may be used again."""
        if connection is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self.timeout_s)
            try:
                connection.connect()
            except OSError as error:
                one.end, one.why = "turned away", _said(error)
                return None
        one.connected = time.time()
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": f"request {one.number}",
            "max_tokens": self.tokens,
            "ignore_eos": True,
        }
        if one.streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            headers = {"Content-Type": "application/json"}
            if self.key:
                headers["Authorization"] = f"Bearer {self.key}"
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            one.status = answer.status
            self._read(one, answer)
        except (OSError, http.client.HTTPException) as error:
            one.end = "failed" if one.status is None else "truncated"
            one.why = _said(error)
            connection.close()
            return None
        return connection if not answer.will_close else None

    def _read(self, one: Request, answer: http.client.HTTPResponse) -> None:
        if answer.status != 200:
            text = answer.read(300).decode("utf-8", "replace")
            answer.read()
            waits = answer.status == 503 and answer.headers.get("Retry-After")
            one.end, one.why = "turned away" if waits else "failed", f"{answer.status}: {text}"
            return
        done = not one.streamed
        usage: dict[str, Any] = {}
        if one.streamed:
            for raw in answer:
                line = raw.decode("utf-8", "replace").strip()
                if line == "data: [DONE]":
                    done = True
                elif line.startswith("data: {"):
                    usage = json.loads(line[6:]).get("usage") or usage
        else:
            usage = json.loads(answer.read()).get("usage") or {}
        one.tokens = int(usage.get("completion_tokens") or 0)
        if done and one.tokens == self.tokens:
            one.end = "answered"
        else:
            one.end = "truncated"
            one.why = f"{one.tokens} of {self.tokens} tokens" + ("" if done else ", no [DONE]")


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def summary(ledger: list[Request]) -> dict[str, Any]:
    """Return what a ledger says: counts that add up to its length, the rate, the longest wait."""
    counts = {end: sum(one.end == end for one in ledger) for end in End.__args__}  # type: ignore[attr-defined]
    assert sum(counts.values()) == len(ledger)
    begun = [one.begun for one in ledger]
    span = max((one.ended for one in ledger), default=0.0) - min(begun, default=0.0)
    answered = [one.ended - one.begun for one in ledger if one.end == "answered"]
    return {
        "requests": len(ledger),
        "streamed": sum(one.streamed for one in ledger),
        **counts,
        "seconds": round(span, 1),
        "requests_per_second": round(len(ledger) / span, 2) if span > 0 else 0.0,
        "longest_wait_seconds": round(max(answered, default=0.0), 2),
    }


def main() -> int:
    """Send the load that the words say; 1 where a request failed or was truncated."""
    parser = argparse.ArgumentParser(description="A paced load with a ledger of its own.")
    parser.add_argument("url")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--think", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--most", type=int, default=1000, metavar="REQUESTS")
    parser.add_argument("--keep-alive", action="store_true", help="one connection per client")
    parser.add_argument("--ledger", metavar="FILE", help="every request, one JSON line each")
    words = parser.parse_args()
    load = Load(
        words.url, words.model, words.clients, words.think, words.tokens, words.seconds,
        words.most, words.keep_alive,
    )  # fmt: skip
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: load.stopping.set())
    load.run()
    if words.ledger:
        with open(words.ledger, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(one)) + "\n" for one in load.ledger)
    found = summary(load.ledger)
    print(json.dumps(found))
    return 1 if found["failed"] or found["truncated"] else 0


if __name__ == "__main__":
    sys.exit(main())
