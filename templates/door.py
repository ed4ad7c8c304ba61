"""The door before SGLang servers: the address and the keys that clients know.

    python3 -I door.py SETTINGS RUNTIME OUT LISTENER KEEPER     (as keeper.py does)

Has the socket where clients come from its keeper, LISTENER, and a line to it, KEEPER. Looks at their key, lets through what serves an answer and nothing else,
and hands it to sglang-router, which runs as a child on a port of loopback and chooses the server.
A request that no server can take waits here, for as long as the settings say; after that it gets
503 with Retry-After. No byte of an answer was sent by then, so that trying again loses nothing.

sglang-router itself takes one key, and from its argument list; answers without a key at several of
its endpoints; changes its servers for whoever has the key; knows no Retry-After; and forgets a
server that was down when it was named. So its keys are made here at each start, go to it over a
pipe, and nobody else has them; and which servers it has is seen to here, twice a second.

Where the servers are halves of prefill/decode pairs, each says itself which one it is, and the router
gives every request to two. That a pair generates is tried whenever other servers are in rotation.

RUNTIME/state says in lines of text what holds now. A file OUT/NAME, which root makes, takes a server
out of rotation until it is gone; its first word says why. `away SECONDS` is of a run that lets it back
itself; where that run was cut, the server is back once it has answered for so long, and where no
other serves, as soon as it answers again.
"""

import asyncio
import contextlib
import ctypes
import hashlib
import hmac
import json
import os
import resource
import secrets
import socket
import ssl
import sys
import time

LOOPBACK = "127.0.0.1"
ROUND_S = 0.5  # between two looks at the servers
ASKED_AGAIN_S = 0.3  # at least, between two tries of one request
LOST_S = 5.0  # a try that was lost after so long may have been begun: it is made once more only
RETRY_AFTER_S = 15
LINGER_S = 15  # of connections without a request, when another process takes over
DRAIN_S = 600  # of requests in flight when this process stops
NEVER_AWAY_S = 120  # more, of a server that was never seen to be away: its stop may be to come
MOST_BYTES = 512 * 1024 * 1024  # of a request: what sglang-router takes itself
MOST_OF_LINE = 8 * 1024 * 1024  # of one word of the keeper's
PROOF_S = 30  # for an answer of a pair that is tried: halves that do not meet say nothing
PROOF_AGAIN_S = 5
PROOF_TOKENS = 8
BEGIN_S = 12  # for the servers that answer to be in rotation, before clients are taken

ASKED = {
    "POST": {
        "/generate",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/classify",
        "/v1/rerank",
        "/rerank",
    },
    "GET": {"/v1/models"},
}
"""All that is let through. /server_info, which gives away keys and arguments, is not among it."""

HOP = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "host",
    "content-length",
    "expect",
}
"""Headers of one connection alone (RFC 9110, 7.6.1), and what a client of ours writes itself."""


def say(text):
    print(text, flush=True)


# --- the child


def free_ports(count):
    held = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


class Router:
    """The child, and what is asked of it."""

    def __init__(self, session, policy, pairs):
        self.session = session
        self.policy = policy
        self.pairs = pairs
        self.key, self.admin = secrets.token_hex(32), secrets.token_hex(32)
        self.base = ""
        self.process = None

    async def start(self):
        port, metrics = free_ports(2)
        words = [f"--host={LOOPBACK}", f"--port={port}", f"--policy={self.policy}"]
        words += [f"--prometheus-host={LOOPBACK}", f"--prometheus-port={metrics}"]
        if self.pairs:
            words.append("--pd-disaggregation")
        self.base = f"http://{LOOPBACK}:{port}"
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            os.path.join(os.path.dirname(os.path.abspath(__file__)), "router.py"),
            stdin=asyncio.subprocess.PIPE,
            # It would ask the hub for the model's tokenizer, which only gRPC needs: it is to ask
            # nobody but its servers. No port of this number listens.
            env={**os.environ, "HF_ENDPOINT": f"http://{LOOPBACK}:1"},
        )
        told = {"words": words, "key": self.key, "admin": self.admin}
        self.process.stdin.write(json.dumps(told).encode())
        self.process.stdin.close()
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.returncode is None:
            if await self.workers() is not None:
                say(f"sglang-router answers on {self.base}")
                return
            await asyncio.sleep(0.1)
        raise SystemExit("sglang-router did not start")

    async def ask(self, method, path, **more):
        """Return status and text of what it says to an administrator, or None."""
        headers = {"Authorization": f"Bearer {self.admin}"}
        try:
            async with self.session.request(
                method, self.base + path, headers=headers, timeout=short(), **more
            ) as answer:
                return answer.status, await answer.text()
        except (TimeoutError, OSError, ClientError):
            return None

    async def workers(self):
        """Return its servers by address, each with its id and whether it is healthy, or None."""
        answer = await self.ask("GET", "/workers")
        if answer is None or answer[0] != 200:
            return None
        return {
            one["url"].rstrip("/"): (one["id"], one["is_healthy"])
            for one in json.loads(answer[1])["workers"]
        }

    async def generate(self):
        """Have its servers generate; return None where they do, or what came instead."""
        wanted = {"max_new_tokens": PROOF_TOKENS, "temperature": 0, "ignore_eos": True}
        try:
            async with self.session.post(
                f"{self.base}/generate",
                json={"text": "The capital of France is", "sampling_params": wanted},
                headers={"Authorization": f"Bearer {self.key}"},
                timeout=ClientTimeout(total=PROOF_S),
            ) as answer:
                text = await answer.text()
            if answer.status != 200:
                return f"status {answer.status}: {text[:300]}"
            tokens = json.loads(text)["meta_info"]["completion_tokens"]
            return None if tokens == PROOF_TOKENS else f"{tokens} tokens of {PROOF_TOKENS}"
        except (TimeoutError, OSError, ClientError, ValueError, KeyError, TypeError) as problem:
            return f"{type(problem).__name__}: {problem}"


# --- the servers


class Away:
    """A server that a run took out, and will let back: unless that run was cut."""

    def __init__(self, mark, seconds):
        self.mark = mark  # of the file that says so
        self.seconds = seconds
        # Left behind: what it was for was over before this process of the door began to look.
        self.is_old = time.time() - mark[1] / 1e9 > seconds + NEVER_AWAY_S
        self.since = None  # it answers
        self.was_away = False
        self.is_over = False  # it has answered for so long that nobody else will let it back

    def see(self, answers, alone):
        """Take down whether it answers now, where that is asked; ``alone``: no other serves."""
        if answers is None or self.is_over:
            return
        if not answers:
            self.was_away, self.since = True, None
            return
        now = time.monotonic()
        self.since = now if self.since is None else self.since
        enough = self.seconds + (0 if self.was_away else NEVER_AWAY_S)
        old = self.is_old and not self.was_away
        self.is_over = now - self.since >= enough or old or (alone and self.was_away)


class Servers:
    """Which servers are in rotation: `in`, `leaving`, `out-WHY`, or `down`."""

    def __init__(self, told, settings, runtime, out, router, session):
        self.told = told  # lines of the state beside those of the servers
        self.speaks = True  # False: another process of the door says now what holds
        self.runtime = runtime
        self.out = out
        self.router = router
        self.session = session
        self.wanted = {one["name"]: one["url"].rstrip("/") for one in settings["servers"]}
        self.states = dict.fromkeys(self.wanted, "down")
        self.some = asyncio.Event()
        self.written = None
        self.away = {}  # by name
        self.halves = {}  # by name, where they are those of pairs: prefill or decode
        self.pair = "nobody"  # whether a pair `answers`, `fails`, or is `tried`
        self.tried = None  # the servers in rotation when it was
        self.proof = None

    def serve(self):
        """Say whether a request can be answered: by one in rotation, or by one half of each kind."""
        there = [name for name, state in self.states.items() if state == "in"]
        if not self.router.pairs:
            return bool(there)
        return {self.halves.get(name) for name in there} >= {"prefill", "decode"}

    async def begin(self):
        """Wait until all servers that answer are in rotation, or for as long as clients may."""
        end = time.monotonic() + BEGIN_S
        answering = [
            name
            for name, url in self.wanted.items()
            if not os.path.exists(os.path.join(self.out, name)) and await self.answers(url)
        ]
        self.speaks = False
        while time.monotonic() < end:
            await self.look()
            if all(self.states[name] == "in" for name in answering):
                break
            await asyncio.sleep(ROUND_S)
        self.speaks = True

    async def watch(self):
        while True:
            try:
                await self.look()
            except (OSError, ValueError, KeyError) as error:
                say(f"the servers could not be looked at: {type(error).__name__}: {error}")
            await asyncio.sleep(ROUND_S)

    async def look(self):
        workers = await self.router.workers()
        if workers is None:
            return
        out = {name: self.why_out(name) for name in os.listdir(self.out)}
        self.away = {name: one for name, one in self.away.items() if out.get(name) == "away"}
        for url in workers.keys() - set(self.wanted.values()):
            await self.router.ask("DELETE", f"/workers/{workers[url][0]}")
        # Side by side: one whose node is silent must not hold up what is seen of the others.
        asked = [
            name
            for name, url in self.wanted.items()
            if url not in workers and (name not in out or name in self.away)
        ]
        said = await asyncio.gather(*(self.answers(self.wanted[name]) for name in asked))
        answers = dict(zip(asked, said, strict=True))
        for name, one in self.away.items():
            one.see(answers.get(name), not self.serve())
            if one.is_over:
                del out[name]
        for name, url in self.wanted.items():
            there = workers.get(url)
            if name in out:
                if there is not None:
                    await self.router.ask("DELETE", f"/workers/{there[0]}")
                self.set(name, "leaving" if there is not None else f"out-{out[name]}")
            elif there is not None:
                self.set(name, "in" if there[1] else "down")
            else:
                if answers.get(name):
                    await self.let_in(name, url)
                self.set(name, "down")
        if self.serve():
            self.some.set()
        else:
            self.some.clear()
        if self.router.pairs:
            self.try_pair()
        self.write()

    async def let_in(self, name, url):
        told = {"url": url}
        if self.router.pairs:
            half = await self.half_at(url)
            if half is None:
                if self.halves.get(name, "") is not None:
                    say(f"{name} answers, and is no half of a prefill/decode pair")
                self.halves[name] = None
                return
            told |= half
            self.halves[name] = half["worker_type"]
        await self.router.ask("POST", "/workers", json=told)

    async def half_at(self, url):
        """Return what the router is to know of a half, as that says it itself; None of another server."""
        try:
            async with self.session.get(f"{url}/server_info", timeout=short()) as answer:
                said = await answer.json()
            half = said["disaggregation_mode"]
            if half == "prefill":
                port = int(said["disaggregation_bootstrap_port"])
                return {"worker_type": half, "bootstrap_port": port}
            return {"worker_type": half} if half == "decode" else None
        except (TimeoutError, OSError, ClientError, ValueError, KeyError, TypeError):
            return None

    def try_pair(self):
        """Have a pair generate whenever other servers are in rotation: each half alone proves little."""
        there = {name for name, state in self.states.items() if state == "in"}
        if not self.serve():
            self.tried, self.pair = None, "nobody"
        elif there != self.tried:
            self.tried, self.pair = there, "tried"
            self.proof = asyncio.create_task(self.prove(there))  # kept: else it may be collected

    async def prove(self, there):
        while self.tried is there:
            why = await self.router.generate()
            if self.tried is not there:
                return
            said, self.pair = self.pair, "fails" if why else "answers"
            if why is None:
                say("a prefill/decode pair generates")
                return
            if said != self.pair:
                say(f"no prefill/decode pair generates: {why}")
            await asyncio.sleep(PROOF_AGAIN_S)

    def why_out(self, name):
        """Return "held" where somebody wants it out, "passing" where a restart does, "away" where
        a run does that lets it back."""
        try:
            with open(os.path.join(self.out, name), encoding="utf-8") as file:
                words = file.read(80).split()
                there = os.fstat(file.fileno())
        except (OSError, ValueError):
            return "held"
        if words[:1] == ["away"] and words[1:2] and words[1].isdecimal():
            mark = there.st_ino, there.st_mtime_ns
            if name not in self.away or self.away[name].mark != mark:
                self.away[name] = Away(mark, int(words[1]))
            return "away"
        return "passing" if words[:1] == ["passing"] else "held"

    async def answers(self, url):
        try:
            async with self.session.get(f"{url}/health", timeout=short()) as answer:
                return answer.status == 200
        except (TimeoutError, OSError, ClientError):
            return False

    def set(self, name, state):
        if self.states[name] != state:
            say(f"{name}: {self.states[name]} -> {state}")
            self.states[name] = state

    def write(self):
        if not self.speaks:
            return
        lines = [
            *self.told,
            *([f"pair {self.pair}"] if self.router.pairs else []),
            *(f"server {name} {self.states[name]} {url}" for name, url in self.wanted.items()),
        ]
        text = "".join(f"{line}\n" for line in lines)
        path = os.path.join(self.runtime, "state")
        with contextlib.suppress(FileNotFoundError):
            # The process before may have written once more.
            if (text, os.stat(path).st_ino) == self.written:
                return
        beside = f"{path}.{os.getpid()}"
        with open(beside, "w", encoding="utf-8") as file:
            file.write(text)
            self.written = text, os.stat(file.fileno()).st_ino
        os.rename(beside, path)


# --- the requests


def error(status, kind, text, **headers):
    said = {"error": {"message": text, "type": kind, "code": status}}
    return web.json_response(said, status=status, headers=headers)


class Door:
    """What is done with a request."""

    def __init__(self, settings, keys, servers, router, session):
        self.wait = settings["wait"]
        self.keys = keys
        self.retires = False
        self.servers = servers
        self.router = router
        self.session = session

    async def last_word(self, request, response):
        """Say that a connection ends with this answer, where another process took over."""
        if self.retires:
            response.force_close()
            response.headers["Connection"] = "close"

    def knows(self, request):
        if not self.keys:
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        # aiohttp decodes a header so: bytes that are no UTF-8 are a wrong key, and no fault of ours.
        sent = given.strip().encode(errors="surrogateescape")
        fits = [hmac.compare_digest(sent, key) for key in self.keys]
        return scheme.lower() == "bearer" and any(fits)

    async def handle(self, request):
        path = request.rel_url.raw_path
        if path == "/health" and request.method in ("GET", "HEAD"):
            there = list(self.servers.states.values()).count("in") if self.servers.serve() else 0
            return web.json_response({"servers": there}, status=200 if there else 503)
        if not self.knows(request):
            told = {"WWW-Authenticate": "Bearer"}
            return error(401, "authentication_error", "a key of this door is needed", **told)
        if path not in ASKED.get(request.method, ()):
            return error(404, "not_found_error", f"{request.method} {path} is not served here")
        return await self.forward(request, await request.read())

    async def forward(self, request, body):
        kept = {k: v for k, v in request.headers.items() if k.lower() not in HOP}
        kept["Authorization"] = f"Bearer {self.router.key}"
        url = self.router.base + str(request.rel_url)
        waits_since, lost = None, 0
        while True:
            tried = time.monotonic()
            try:
                async with self.session.request(
                    request.method, url, data=body, headers=kept, allow_redirects=False
                ) as answer:
                    # Only what the router says of itself: a server's own answer is handed on.
                    if answer.status < 500 or "x-smg-error-code" not in answer.headers:
                        return await self.hand_on(request, answer)
                    why = answer.headers["x-smg-error-code"]
            except (OSError, ClientError) as problem:
                why = type(problem).__name__
            now = time.monotonic()
            lost += now - tried > LOST_S
            if waits_since is None:
                waits_since = now
            if lost > 1:
                return error(502, "server_error", "the server was lost twice while it answered")
            left = waits_since + self.wait - now
            if left <= 0:
                told = {"Retry-After": str(RETRY_AFTER_S)}
                sentence = f"no server came back within {self.wait:g} s ({why}): try again later"
                return error(503, "overloaded_error", sentence, **told)
            await asyncio.sleep(min(left, ASKED_AGAIN_S))
            try:
                left = waits_since + self.wait - time.monotonic()
                await asyncio.wait_for(self.servers.some.wait(), max(left, 0.01))
            except TimeoutError:
                pass

    async def hand_on(self, request, answer):
        kept = [
            (k, v)
            for k, v in answer.headers.items()
            if k.lower() not in HOP and not k.lower().startswith("access-control-")
        ]
        given = web.StreamResponse(status=answer.status, reason=answer.reason)
        for name, value in kept:
            given.headers.add(name, value)
        if answer.status == 503 and "Retry-After" not in given.headers:
            given.headers["Retry-After"] = str(RETRY_AFTER_S)
        if answer.content_length is not None:
            given.content_length = answer.content_length
        await given.prepare(request)
        try:
            async for piece in answer.content.iter_any():
                await given.write(piece)
        except (OSError, ClientError):
            # An end that looks whole would pass for one: the client must see that it is cut.
            if request.transport is not None:
                request.transport.abort()
            raise
        await given.write_eof()
        return given


# --- all together


class Refused(Exception):
    """What the keeper brought cannot be used: the sentence says why."""


def keys_of(credentials):
    """Return the keys, and the lines of the state that say which they are."""
    text = credentials["keys"].encode(errors="surrogateescape")
    lines = [line.strip() for line in text.splitlines()]
    # The file's own salted, slow checksums stand in it: this one lets nobody try out guesses.
    keys = [k for k in lines if k and not k.startswith(b"#")]
    return keys, [f"keys {hashlib.sha256(text).hexdigest()}"]


DATES = (9, 10)
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL's x509_vfy.h."""


def tls_of(credentials, wanted, alone=False):
    """Return TLS with the certificate that was brought, and the lines of the state; no TLS: None.

    Raises Refused where client and server would not understand each other with it: the key is
    another's, the time is not now, the name is not the wanted one. ``alone``: nobody serves
    instead, and a certificate that has ended is better than no door.
    """
    if wanted is None:
        return None, []
    certificate, key = credentials["certificate"], credentials["key"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # Python reads a key from a file alone: this one is in memory.
    with os.fdopen(os.memfd_create("pair"), "w", encoding="utf-8") as file:
        file.write(f"{certificate}\n{key}\n")
        file.flush()
        try:
            # Asked for a passphrase it must not wait at a terminal.
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")
        except (OSError, ValueError) as problem:
            raise Refused(
                f"certificate and key do not fit, or need a passphrase: {problem}"
            ) from None
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = wanted["name"] is not None
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it is trusted, whoever signed it
    try:
        client.load_verify_locations(cadata=certificate)
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        asks = client.wrap_bio(back, there, server_hostname=wanted["name"])
        answers = context.wrap_bio(there, back, server_side=True)
        for one in (asks, answers) * 3:
            with contextlib.suppress(ssl.SSLWantReadError):
                one.do_handshake()
        until = ssl.cert_time_to_seconds(asks.getpeercert()["notAfter"])
    except (OSError, ValueError, KeyError) as problem:
        if alone and getattr(problem, "verify_code", 0) in DATES:
            say(f"clients that look will turn away: {problem.verify_message}")
            return context, [f"certificate {count(certificate)}"]
        why = getattr(problem, "verify_message", None) or problem
        raise Refused(f"no client would take the certificate: {why}") from None
    return context, [f"certificate {count(certificate)}", f"until {int(until)}"]


def count(certificate):
    """Return a certificate's checksum as the survey counts it, whatever ends its lines."""
    text = " ".join(certificate.split())
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def take_files():
    """Have as many open files as the node allows: two for each request in flight."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Line:
    """What the keeper says, and what it is told: a line of JSON each."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def next(self):
        """Return its next word; None where it has gone."""
        with contextlib.suppress(OSError):
            if line := await self.reader.readline():
                return json.loads(line)
        return None

    def tell(self, **told):
        self.writer.write(json.dumps(told).encode() + b"\n")


class Entrance:
    """The keeper's socket, as clients find it: with a certificate, or without."""

    def __init__(self, runner, number):
        self.runner = runner
        self.address = socket.socket(fileno=number)
        self.address.set_inheritable(False)
        self.site = None

    async def open(self, context):
        """Take connections with this TLS from now on; those that are there keep theirs."""
        before, same = self.site, self.address.dup()
        self.site = web.SockSite(self.runner, same, backlog=4096, ssl_context=context)
        await self.site.start()
        if before is not None:
            await before.stop()

    async def close(self):
        """Leave the socket to who else has it: kept open here, an old address would take clients."""
        await self.site.stop()
        self.address.close()


async def obey(line, door, servers, entrance, fixed, settings):
    """Take what the keeper brings, until it says that another process takes over."""
    while (told := await line.next()) is not None and "retire" not in told:
        try:
            context, of_tls = tls_of(told["credentials"], settings["tls"])
        except Refused as problem:
            say(f"not taken: {problem}")
            line.tell(refused=str(problem))
            continue
        door.keys, of_keys = keys_of(told["credentials"])
        lines = [*fixed, *of_keys, *of_tls]
        if of_tls and not set(of_tls) <= set(servers.told):
            await entrance.open(context)
            say("a renewed certificate is taken")
        servers.told = lines
        servers.write()
        line.tell(ready="the door took what is in place while it serves")
    return told is not None


async def finish(runner, entrance, door):
    """Take no new connection, answer what is in flight, and end."""
    await entrance.close()
    # A client may be about to ask again over a connection that it has: it is answered, and told
    # that this was the last time.
    door.retires = True
    end = time.monotonic() + LINGER_S
    while runner.server.connections and time.monotonic() < end:
        await asyncio.sleep(0.1)
    await runner.cleanup()


async def main(path, runtime, out, listener, keeper):
    # No other process of this user, as wheel servers are, reads keys from memory: PR_SET_DUMPABLE.
    ctypes.CDLL(None, use_errno=True).prctl(4, 0, 0, 0, 0)
    take_files()
    with open(path, encoding="utf-8") as file:
        settings = json.load(file)
    there = socket.socket(fileno=int(keeper))
    there.set_inheritable(False)
    line = Line(*await asyncio.open_connection(sock=there, limit=MOST_OF_LINE))
    told = await line.next()
    if told is None:
        return 1
    keys, lines = keys_of(told["credentials"])
    try:
        context, of_tls = tls_of(told["credentials"], settings["tls"], told.get("alone", False))
    except Refused as problem:
        line.tell(refused=str(problem))
        await line.writer.drain()
        return 1
    lines += of_tls
    fixed = ["door 1", f"pid {os.getpid()}", f"settings {settings['key']}"]
    connector = TCPConnector(limit=0)
    forever = ClientTimeout(total=None, sock_connect=10)
    async with ClientSession(
        connector=connector, timeout=forever, auto_decompress=False, cookie_jar=DummyCookieJar()
    ) as session:
        router = Router(session, settings["policy"], settings.get("pd_disaggregation", False))
        servers = Servers([*fixed, *lines], settings, runtime, out, router, session)
        door = Door(settings, keys, servers, router, session)
        await router.start()
        await servers.begin()
        watching = asyncio.create_task(servers.watch())
        application = web.Application(client_max_size=MOST_BYTES)
        application.router.add_route("*", "/{path:.*}", door.handle)
        application.on_response_prepare.append(door.last_word)
        # A client that goes away ends its generation.
        runner = web.AppRunner(
            application, access_log=None, handler_cancellation=True, shutdown_timeout=DRAIN_S
        )
        await runner.setup()
        entrance = Entrance(runner, int(listener))
        await entrance.open(context)
        say(f"the door listens on {settings['host']} port {settings['port']}")
        servers.write()
        line.tell(ready="the door serves with its settings; what was in flight is finished")
        gone = asyncio.create_task(router.process.wait())
        obeying = asyncio.create_task(obey(line, door, servers, entrance, fixed, settings))
        await asyncio.wait({gone, obeying, watching}, return_when=asyncio.FIRST_COMPLETED)
        servers.speaks = False
        retires = obeying.done() and obeying.result()
        if retires:
            await finish(runner, entrance, door)
            router.process.terminate()
            await gone
        else:
            say("sglang-router or the keeper ended, or nobody looks at the servers any more")
        watching.cancel()
        return 0 if retires else 1


if __name__ == "__main__":
    from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web

    def short():
        return ClientTimeout(total=5)

    sys.exit(asyncio.run(main(*sys.argv[1:6])))
