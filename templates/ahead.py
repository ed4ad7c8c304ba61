"""Run by the new runtime's python3: compiles kernels of FlashInfer into the new build's cache.

Its words: ``kernel:NAME`` for each module that the build before has compiled; ``for:8.9`` for each
compute capability; ``build:KEY`` and ``before:KEY``; ``limit:SECONDS``; ``record:NAME`` of the file,
in the cache, that keeps what was done. The modules are those that FlashInfer itself offers to
compile ahead (flashinfer/aot.py); which of them a service needs, the build before knows. No GPU is
used: none is visible, and the targets are named. Each module is compiled by a process of its own,
so that one that fails or hangs is named and the others go on. The last line is ``@ahead`` and JSON.
"""

import contextlib
import ctypes
import json
import os
import platform
import shutil
import signal
import sys
import time

MIB = 1024 * 1024
PER_JOB_MIB = 4096  # what nvcc may take for one of FlashInfer's larger sources
LEAST_DISK_GIB = 4  # what a server that serves, and the switch, still have for their files
TELL_EVERY = 15  # seconds


def say(text):
    """Print a line for whoever watches."""
    print(text, flush=True)


def be_quiet():
    """Take what processors and disks are left over by the server that serves."""
    with contextlib.suppress(OSError):
        os.nice(19)
    call = {"x86_64": 251, "aarch64": 30}.get(platform.machine())  # ioprio_set(2)
    if call is not None:
        # Of this process (1, 0): the class that gets the disk when nobody else asks (3).
        ctypes.CDLL(None, use_errno=True).syscall(call, 1, 0, 3 << 13)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def free_mib():
    """Return the memory that is available, in MiB; 0 where it is not known."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) // 1024
    except OSError:
        pass
    return 0


def jobs():
    """Return how many compilers work at once: half of the processors, in half of the memory."""
    return max(1, min(len(os.sched_getaffinity(0)) // 2, free_mib() // 2 // PER_JOB_MIB))


def no_room(folder):
    """Return why nothing more is begun beside a server that serves, or None.

    One compiler works in half of the free memory: what is free must be two compilers' share.
    """
    free = shutil.disk_usage(folder).free / MIB / 1024
    if free < LEAST_DISK_GIB:
        return f"{free:.1f} GiB free for {folder}, of {LEAST_DISK_GIB} at least"
    free = free_mib()
    if 0 < free < 2 * PER_JOB_MIB:
        return f"{free / 1024:.1f} GiB of memory free, of {2 * PER_JOB_MIB // 1024} at least"
    return None


def read(path):
    """Return the record that an earlier run left, or an empty one."""
    try:
        with open(path) as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write(path, document):
    """Keep a record: beside its place, then renamed."""
    with open(path + ".new", "w") as file:
        json.dump(document, file, indent=1)
    os.replace(path + ".new", path)


def offered():
    """Return the modules that this FlashInfer can compile ahead, by name."""
    from flashinfer import aot
    from flashinfer.jit.core import jit_spec_registry

    try:
        aot.register_default_modules()
    except Exception as error:  # some fetch headers as they are named; those named before are whole
        say(f"not all modules could be named: {type(error).__name__}: {error}")
    return {
        name: one
        for name, one in jit_spec_registry.get_all_specs().items()
        if hasattr(one, "ninja_path")
    }


def begin(module, name, folder):
    """Compile a module in a process of its own; return its id and the file with what it says."""
    log = os.path.join(folder, name[:200] + ".log")
    pid = os.fork()
    if pid:
        return pid, log
    code = 1
    try:
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        module.build(verbose=False, need_lock=True)
        code = 0 if module.jit_library_path.exists() else 1
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def reason(log):
    """Return the line of a failed module that most likely says why."""
    try:
        with open(log, errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
    except OSError:
        lines = []
    told = [line for line in lines if "error" in line.lower() and "ninja" not in line.lower()]
    return (told or lines or ["it said nothing"])[0 if told else -1][:300]


def end(running):
    """End modules that still compile, with all that they began."""
    for pid in running:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def compile_all(modules, until, folder):
    """Compile modules until a time, or until there is no room for more.

    Return the names that came, why others failed, the rest, and why there was no room, or None.
    """
    workers = jobs()
    at_once = max(1, min(workers, len(modules)))
    os.environ["MAX_JOBS"] = str(max(1, workers // at_once))
    waiting, running = sorted(modules), {}
    compiled, failed, told, full = [], {}, time.monotonic(), None
    try:
        while (waiting or running) and time.monotonic() < until:
            while waiting and len(running) < at_once:
                full = no_room(folder)
                if full:  # those that run may leave some
                    break
                name = waiting.pop(0)
                pid, log = begin(modules[name], name, folder)
                running[pid] = (name, log, time.monotonic())
            if not running:
                say(f"no more is compiled: {full}")
                break
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in running:
                name, log, began = running.pop(pid)
                done = len(compiled) + len(failed) + 1
                where = f"({done} of {len(modules)})"
                if status == 0:
                    compiled.append(name)
                    say(f"{name}: compiled in {time.monotonic() - began:.0f} s {where}")
                else:
                    failed[name] = reason(log)
                    say(f"{name}: failed {where}: {failed[name]}")
                continue
            if time.monotonic() - told >= TELL_EVERY:
                told = time.monotonic()
                names = ", ".join(sorted(name for name, _, _ in running.values()))
                say(f"still compiling {names}")
            time.sleep(0.2)
    finally:
        late = [name for name, _, _ in running.values()] + waiting
        end(running)
    return compiled, failed, sorted(late), full


def main(words):
    """Compile what is missing, and keep what was done."""
    given = [word.partition(":")[::2] for word in words]

    def values(kind):
        return [value for name, value in given if name == kind]

    began = time.monotonic()
    cache, (build,) = os.environ["SGLANG_CACHE_DIR"], values("build")
    record, wanted = os.path.join(cache, values("record")[0]), sorted(set(values("kernel")))
    was = read(record)
    known = was.get("build") == build and {*was.get("compiled", ()), *was.get("not_offered", ())}
    if known and set(wanted) <= known:
        say("all kernels of FlashInfer that can be compiled ahead were compiled before")
        print("@ahead " + json.dumps({**was, "again": True}), flush=True)
        return
    be_quiet()
    # Before anything loads CUDA.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = " ".join(values("for"))
    targets = " and ".join(values("for"))
    say(f"kernels of FlashInfer to compile for {targets}: {len(wanted)}")
    there = offered()
    modules = {name: there[name] for name in wanted if name in there}
    whole = [name for name, one in modules.items() if one.is_compiled]
    folder = os.path.join(cache, ".ahead")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    until = began + int(values("limit")[0]) - 20
    todo = {name: one for name, one in modules.items() if name not in whole}
    compiled, failed, late, full = compile_all(todo, until, folder)
    if not failed:
        shutil.rmtree(folder, ignore_errors=True)
    import flashinfer

    document = {
        "schema": 1,
        "build": build,
        "before": (values("before") or [""])[0],
        "flashinfer": flashinfer.__version__,
        "for": values("for"),
        "compiled": sorted(whole + compiled),
        "not_offered": [name for name in wanted if name not in there],
        "failed": failed,
        "late": late,
        "no_room": full,
        "seconds": round(time.monotonic() - began, 1),
    }
    write(record, document)
    say(f"{len(document['compiled'])} of {len(wanted)} are there after {document['seconds']:.0f} s")
    print("@ahead " + json.dumps(document), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
