"""Keeps the door's address and secrets, and one process of the door at work.

    python3 -I keeper.py keep CURRENT RUNTIME OUT     (as sglang-door.service does)
    python3 -I keeper.py hand RUNTIME                 (as sglang-door-renew.service does)

Why: a change at the door must cost its clients nothing. A socket unit of systemd's keeps the address
over a restart, but the new door begins once the old one has ended, so whoever connects meanwhile
waits as long as the longest stream: minutes. With a listening socket for each process (SO_REUSEPORT)
the kernel resets what waits at the one that closes. So one process, this one, has the listening
socket and gives it to the door, its child. For another program, other packages or settings a second
child starts beside the first, with the same socket and so the same queue; once it serves, the first
takes no new connection, finishes what it has and ends. Nobody waits and nothing is cut. Keys and
certificates are handed to the child that runs. Before it starts a new child this process becomes
(exec) the keeper that came with it, so that it is never older than what it keeps.

systemd has the socket too (its store of descriptors): after a crash, or a restart for another unit,
who connects waits in the queue instead of being refused.

Secrets come to `keep` as credentials at its start, and later over RUNTIME/control from `hand`, to
which systemd gave them anew. It is the only one who is listened to there.
"""

import array
import contextlib
import ipaddress
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time

BACKLOG = 4096
START_S = 75  # from the start of a child to its first word
AGAIN_S = 1  # before a child that ended is started again
MOST_BYTES = 4 * 1024 * 1024  # of all secrets together: a hundred keys, and a chain of certificates
STOPS = (signal.SIGTERM, signal.SIGINT)
RENEWS = "/sglang-door-renew.service"


def say(text):
    print(text, flush=True)


def notify(text, *files):
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    more = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        there.connect("\0" + address[1:] if address.startswith("@") else address)
        there.sendmsg([text.encode()], more)


def read_credentials():
    """Return the texts of the credentials that systemd gave to this process, by name."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if folder is None:
        raise SystemExit("systemd gave no credentials: LoadCredential= of the unit")
    found = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), encoding="utf-8", errors="surrogateescape") as file:
            found[name] = file.read()
    return found


# --- the address


def address_of(settings):
    return str(ipaddress.ip_address(settings["host"])), settings["port"]


def has_address(listener, wanted):
    host, port = listener.getsockname()[:2]
    return (str(ipaddress.ip_address(host)), port) == wanted


def listen(wanted, before):
    """Return a new listening socket; ``before``: those of other addresses. Raises OSError."""
    family = socket.AF_INET6 if ":" in wanted[0] else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    both = [*before, listener]
    try:
        # From one address of a port to all of them, both stand for a moment.
        for one in both:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(wanted)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        # Not for longer: any process of this user could take a share of the connections.
        for one in both:
            if one.fileno() >= 0:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)
    return listener


def keep_in_store(listener):
    notify("FDSTOREREMOVE=1\nFDNAME=door")
    notify("FDSTORE=1\nFDNAME=door", listener.fileno())


def from_store(wanted):
    """Return the socket that systemd kept from the time before, where it has this address, or None;
    and those of other addresses, which systemd has open too until it is told to forget them."""
    mine = os.environ.pop("LISTEN_PID", "") == str(os.getpid())
    count = int(os.environ.pop("LISTEN_FDS", "0")) if mine else 0
    found, others = None, []
    for number in range(3, 3 + count):
        one = socket.socket(fileno=number)
        one.set_inheritable(False)
        if found is None and has_address(one, wanted):
            found = one
        else:
            others.append(one)
    return found, others


def stops_for_good():
    """Say whether this end is no restart: then who connects is to be refused, and not to wait."""
    try:
        jobs = subprocess.run(
            ["systemctl", "list-jobs", "--plain", "--no-legend"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=5,
            check=True,
            text=True,
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return False
    return not any(one.split()[1:3] == ["sglang-door.service", "restart"] for one in jobs)


# --- a child


class Front:
    """A process of the door, and the line to it: words of JSON, one a line."""

    def __init__(self, pid, line, directory):
        self.pid = pid
        self.line = line
        self.directory = directory
        self.heard = b""

    def tell(self, **told):
        self.line.setblocking(True)
        with contextlib.suppress(OSError):  # it ended, and its line will say so
            self.line.sendall(json.dumps(told).encode() + b"\n")
        self.line.setblocking(False)

    def words(self):
        """Return what it said since; None once it has ended."""
        try:
            piece = self.line.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            piece = b""
        if not piece:
            return None
        *lines, self.heard = (self.heard + piece).split(b"\n")
        return [json.loads(one) for one in lines]

    def end(self):
        self.line.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # and the router, where one was left behind
        os.waitpid(self.pid, 0)


def start_front(directory, settings, listener, runtime, out):
    ours, its = socket.socketpair()
    files = (listener, its)
    for one in files:
        one.set_inheritable(True)
    python = os.path.join(settings["environment"], "bin/python3")
    words = [python, "-I", f"{directory}/door.py", f"{directory}/door.json", runtime, out]
    words += [str(one.fileno()) for one in files]
    try:
        pid = os.posix_spawn(python, words, os.environ, setpgroup=0)
    except OSError:
        ours.close()
        raise
    finally:
        listener.set_inheritable(False)
        its.close()
    ours.setblocking(False)
    return Front(pid, ours, directory)


# --- the keeper


class Keeper:
    """Who serves, who starts, who ends, and who waits for an answer."""

    def __init__(self, current, runtime, out):
        self.current, self.runtime, self.out = current, runtime, out
        self.selector = selectors.DefaultSelector()
        self.credentials = {}
        self.before = {}  # what they were before those that nobody has taken yet
        self.listener = None
        self.next_listener = None  # of the one that starts, where it is to have another address
        self.control = None
        self.serving = None  # the front that has the address
        self.starting = None  # the one that takes it over
        self.retired = []  # those that finish what they have
        self.asker = None  # who waits for an answer
        self.until = None  # the time by which a front has to answer
        self.again = None  # the time at which a front is started again
        self.ending = False

    # Over exec, with all that is open.

    def carry(self):
        fronts = [one for one in (self.serving, *self.retired) if one is not None]
        files = [self.listener, self.control, self.asker, *(one.line for one in fronts)]
        for one in files:
            one.set_inheritable(True)
        told = {
            "credentials": self.credentials,
            "before": self.before,
            "listener": self.listener.fileno(),
            "control": self.control.fileno(),
            "asker": self.asker.fileno(),
            "serving": self.serving is not None,
            "fronts": [(one.pid, one.line.fileno(), one.directory) for one in fronts],
        }
        number = os.memfd_create("door")  # closed on exec, unless it is said otherwise
        os.write(number, json.dumps(told).encode())
        os.lseek(number, 0, os.SEEK_SET)
        os.set_inheritable(number, True)
        return number, files

    def become(self, directory, settings):
        """Go on as the keeper that came with other settings. Raises OSError."""
        number, files = self.carry()
        python = os.path.join(settings["environment"], "bin/python3")
        program = os.path.join(directory, "keeper.py")
        words = [python, "-I", program, "keep", self.current, self.runtime, self.out, str(number)]
        try:
            with open(program, encoding="utf-8"):
                pass
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
            os.execv(python, words)
        finally:  # exec did not happen
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
            os.close(number)
            for one in files:
                one.set_inheritable(False)

    def take_up(self, number):
        with open(number, encoding="utf-8") as file:
            told = json.load(file)
        self.credentials, self.before = told["credentials"], told["before"]
        self.listener = socket.socket(fileno=told["listener"])
        self.control = socket.socket(fileno=told["control"])
        self.asker = socket.socket(fileno=told["asker"])
        fronts = [
            Front(pid, socket.socket(fileno=line), directory)
            for pid, line, directory in told["fronts"]
        ]
        for one in (self.listener, self.control, self.asker, *(front.line for front in fronts)):
            one.set_inheritable(False)
        if told["serving"]:
            self.serving = fronts.pop(0)
            self.watch(self.serving)
        self.retired = fronts
        for one in fronts:
            self.watch(one)

    # The beginning.

    def heed(self):
        """Have a signal wake the loop; one that came while this process became another, too."""
        self.wake, woken = socket.socketpair()
        for one in (self.wake, woken):
            one.setblocking(False)
        signal.set_wakeup_fd(self.wake.fileno())
        for name in STOPS:
            signal.signal(name, lambda *_: None)
        self.selector.register(woken, selectors.EVENT_READ, "signal")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def settings(self):
        directory = os.path.realpath(self.current)
        with open(os.path.join(directory, "door.json"), encoding="utf-8") as file:
            return directory, json.load(file)

    def open_control(self):
        path = os.path.join(self.runtime, "control")
        if os.path.exists(path):
            os.unlink(path)
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        self.control.bind(path)
        os.umask(before)
        self.control.listen(8)

    def watch(self, front):
        self.selector.register(front.line, selectors.EVENT_READ, front)

    def start(self):
        """Start a front with the settings in place, beside the one that serves. Raises OSError."""
        directory, settings = self.settings()
        wanted = address_of(settings)
        listener, self.next_listener = self.listener, None
        if listener is None or not has_address(listener, wanted):
            listener, before = from_store(wanted)
            if self.listener is not None:
                before.append(self.listener)
            listener = listener or listen(wanted, before)
            for one in before:
                if one is not self.listener:
                    one.close()
            self.next_listener = listener
        self.starting = start_front(directory, settings, listener, self.runtime, self.out)
        self.watch(self.starting)
        self.until = time.monotonic() + START_S
        self.starting.tell(credentials=self.credentials, alone=self.serving is None)

    def try_start(self):
        try:
            self.start()
        except (OSError, ValueError, KeyError) as problem:
            self.not_started({"refused": f"{type(problem).__name__}: {problem}"})

    # What happens.

    def answer(self, **told):
        if self.asker is not None:
            with contextlib.suppress(OSError):
                self.asker.sendall(json.dumps(told).encode())
            self.asker.close()
            self.asker = None

    def heard(self, front):
        words = front.words()
        for one in words or ():
            if front is self.starting:
                self.started(one)
            elif front is self.serving and self.until is not None:
                self.until = None
                if "ready" not in one:
                    self.credentials = self.before
                self.answer(**one)
        if words is None:
            self.ended(front)

    def started(self, word):
        front, self.starting, self.until = self.starting, None, None
        if "ready" not in word:
            say(f"the door with the settings in place does not start: {word.get('refused')}")
            self.forget(front)
            self.not_started(word)
            return
        if self.next_listener is not None:
            if self.listener is not None:
                self.listener.close()
            self.listener, self.next_listener = self.next_listener, None
            keep_in_store(self.listener)
        before, self.serving = self.serving, front
        if before is not None:
            say("the door was handed over: the one before finishes what it has")
            before.tell(retire=True)
            self.retired.append(before)
        notify("READY=1\nSTATUS=serving")
        self.answer(**word)

    def not_started(self, word):
        if self.next_listener is not None:
            self.next_listener.close()
            self.next_listener = None
        if self.before:
            self.credentials = self.before
        self.answer(**word)
        if self.serving is None:
            self.give_up(word.get("refused"))

    def give_up(self, why):
        """End: systemd starts it anew, and keeps who connects waiting where it has the socket."""
        say(f"the door serves nobody: {why}")
        raise SystemExit(1)

    def forget(self, front):
        self.selector.unregister(front.line)
        front.end()

    def ended(self, front):
        self.forget(front)
        if front is self.starting:
            self.starting, self.until = None, None
            self.not_started({"refused": "it ended before it served: journalctl -u sglang-door"})
        elif front is self.serving:
            self.serving = None
            if self.starting is None:
                self.until = None
                self.answer(refused="the door ended")
            if not self.ending and self.starting is None:
                say("the door ended by itself: it is started again")
                self.again = time.monotonic() + AGAIN_S
        else:
            self.retired.remove(front)

    def asked(self):
        """Take what `hand` brings: other secrets, and word that the settings in place may be others."""
        self.control.setblocking(True)
        asker, _ = self.control.accept()
        asker.settimeout(10)
        try:
            if not is_renewal(asker):
                raise ValueError("only sglang-door-renew.service is listened to")
            text = b""
            while piece := asker.recv(65536):
                text += piece
                if len(text) > MOST_BYTES:
                    raise ValueError("too much")
            credentials = json.loads(text)
        except (OSError, ValueError) as problem:
            say(f"word on RUNTIME/control was not listened to: {problem}")
            asker.close()
            return
        self.asker, self.before, self.credentials = asker, self.credentials, credentials
        try:
            directory, settings = self.settings()
            serves = self.serving is not None and directory == self.serving.directory
            if serves and credentials == self.before:
                self.answer(ready="nothing has changed")
            elif serves:
                self.until = time.monotonic() + START_S
                self.serving.tell(credentials=credentials)
            else:
                self.become(directory, settings)
        except (OSError, ValueError, KeyError) as problem:
            self.credentials = self.before
            self.answer(refused=f"{type(problem).__name__}: {problem}")

    def run(self):
        while not self.ending:
            # One at a time: who comes meanwhile waits in the queue of RUNTIME/control.
            busy = self.asker is not None or self.starting is not None
            listening = self.control in self.selector.get_map()
            if busy and listening:
                self.selector.unregister(self.control)
            elif not busy and not listening:
                self.selector.register(self.control, selectors.EVENT_READ, "control")
            times = [one for one in (self.until, self.again) if one is not None]
            left = max(0, min(times) - time.monotonic()) if times else None
            for key, _ in self.selector.select(left):
                if key.data == "signal":
                    self.ending = True
                elif key.data == "control":
                    self.asked()
                elif key.fileobj.fileno() >= 0:
                    self.heard(key.data)
            now = time.monotonic()
            if self.again is not None and now >= self.again:
                self.again = None
                self.try_start()
            if self.until is not None and now >= self.until:
                self.late()
        self.finish()

    def late(self):
        self.until = None
        word = {"refused": f"no answer within {START_S} s: journalctl -u sglang-door"}
        if self.starting is not None:
            front, self.starting = self.starting, None
            self.forget(front)
            self.not_started(word)
        else:
            self.answer(**word)

    def finish(self):
        notify("STOPPING=1\nSTATUS=answers what is in flight")
        if stops_for_good():
            notify("FDSTOREREMOVE=1\nFDNAME=door")
            if self.listener is not None:
                self.listener.close()
        self.answer(refused="the door stops")
        if self.starting is not None:
            self.forget(self.starting)
        for key in list(self.selector.get_map().values()):
            if key.data in ("signal", "control"):  # nobody reads them any more
                self.selector.unregister(key.fileobj)
        left = [one for one in (self.serving, *self.retired) if one is not None]
        for one in left:
            one.tell(retire=True)
        while left:
            for key, _ in self.selector.select():
                if key.data in left and key.data.words() is None:
                    left.remove(key.data)
                    self.forget(key.data)


def is_renewal(asker):
    """Say whether the one who asks is a process of sglang-door-renew.service."""
    pid = int.from_bytes(
        asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder
    )
    with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
        return any(line.rstrip("\n").endswith(RENEWS) for line in file)


def hide_memory():
    """Let no other process of this user, as wheel servers are, read keys from memory: prctl(2)'s
    PR_SET_DUMPABLE, which each exec undoes. Not in `hand`, which the keeper must find in /proc."""
    import ctypes  # not above: older ones ask for memory that the unit of `hand` may not have

    ctypes.CDLL(None, use_errno=True).prctl(4, 0, 0, 0, 0)


def keep(current, runtime, out, carried=None):
    hide_memory()
    keeper = Keeper(current, runtime, out)
    keeper.heed()
    if carried is None:
        keeper.credentials = read_credentials()
        keeper.open_control()
    else:
        keeper.take_up(int(carried))
    keeper.try_start()
    keeper.run()


def hand(runtime):
    """Bring the secrets as they are now to the keeper; 1 where it does not take them."""
    text = b""
    try:
        there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        there.settimeout(START_S + 15)
        there.connect(os.path.join(runtime, "control"))
        there.sendall(json.dumps(read_credentials()).encode())
        there.shutdown(socket.SHUT_WR)
        while piece := there.recv(65536):
            text += piece
        word = json.loads(text)
    except (OSError, ValueError) as problem:
        word = {"refused": f"the door said nothing ({problem}): journalctl -u sglang-door"}
    if "ready" in word:
        say(word["ready"])
        return 0
    say(f"<3>the door goes on as before: {word.get('refused')}")  # an error, for the journal
    return 1


if __name__ == "__main__":
    sys.exit({"keep": keep, "hand": hand}[sys.argv[1]](*sys.argv[2:]))
