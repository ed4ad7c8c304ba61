"""Checks an environment that was built beside its place, marks it and puts it in its place.

Run by the environment's own Python on the node. Takes the path of a file of JSON and the place. Prints what
does not fit in one line and ends with 75.
"""

import ctypes
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import sysconfig
import time

CUDA = ("bin/nvcc", "nvvm/bin/cicc", "lib64", "lib64/libcudart.so", "lib/stubs/libcuda.so")
NEEDED = (*CUDA[:4], "include/cuda_runtime.h")
EXCHANGE = 2  # RENAME_EXCHANGE of linux/fs.h
HERE = -100  # AT_FDCWD


def refuse(job, sentence):
    print(f"{job['refusal_mark']}ENVIRONMENT_NOT_WHOLE {sentence}", flush=True)
    sys.exit(75)


def everyone_reads(job, path):
    """Refuse what the service's user could not read: the file, and each directory above it."""
    path = os.path.realpath(path)
    if not os.stat(path).st_mode & stat.S_IROTH:
        refuse(job, f"{path} may not be read by user {job['user']}")
    above = os.path.dirname(path)
    while True:
        if not os.stat(above).st_mode & stat.S_IXOTH:
            refuse(job, f"{path} may not be read by user {job['user']}: {above} is closed to it")
        if above == "/":
            return
        above = os.path.dirname(above)


def only_site(job, new):
    lib = os.path.join(new, "lib")
    found = [name for name in sorted(os.listdir(lib)) if re.fullmatch(r"python3\.\d+", name)]
    if found != [f"python{job['python']}"]:
        refuse(job, f"it has {', '.join(found) or 'no Python'} and not Python {job['python']}")
    return f"lib/{found[0]}/site-packages"


def cuda_parts(job, site):
    """Return the parts of the CUDA tree that are there, after a look that it is whole."""
    if job["cuda"] is None:
        return []
    folder = f"cu{job['cuda'].split('.')[0]}"
    tree = os.path.join(site, "nvidia", folder)
    missing = [part for part in NEEDED if not os.path.exists(os.path.join(tree, part))]
    if missing:
        refuse(job, f"its CUDA tree {tree} has no {', no '.join(missing)}")
    done = subprocess.run(
        [os.path.join(tree, "bin/nvcc"), "--version"], capture_output=True, text=True
    )
    release = re.search(r"release (\d+\.\d+)", done.stdout)
    if release is None or release[1] != job["cuda"]:
        said = release[1] if release else (done.stdout + done.stderr).strip()[-200:]
        refuse(job, f"its nvcc is of CUDA {said}, the lock of CUDA {job['cuda']}")
    return [f"{folder}/{part}" for part in CUDA if os.path.exists(os.path.join(tree, part))]


def write(path, text):
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)


def put_in_place(new, directory):
    """Exchange the two at once where the file system can; else there is a moment without either."""
    if not os.path.lexists(directory):
        os.rename(new, directory)
        return
    try:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
        if exchange(HERE, os.fsencode(new), HERE, os.fsencode(directory), EXCHANGE) == 0:
            return
    except (OSError, AttributeError):
        pass
    os.rename(directory, directory + ".old")
    os.rename(new, directory)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    directory = sys.argv[2]
    new = directory + ".new"
    with open(os.path.join(new, "requirements.txt"), "rb") as file:
        if hashlib.sha256(file.read()).hexdigest() != job["requirements"]:
            refuse(job, "its requirements.txt is not the lock that was sent: see df -h /opt")
    place = only_site(job, new)
    site = os.path.join(new, place)
    include = sysconfig.get_paths()["include"]
    header = os.path.join(include, "Python.h")
    if not os.path.exists(header):
        refuse(job, f"{header} is not there: Triton compiles with it")
    everyone_reads(job, header)
    everyone_reads(job, sys.executable)
    parts = ["bin/python3", "Python.h", *cuda_parts(job, site)]
    packages = sorted(name for name in os.listdir(site) if name.endswith(".dist-info"))
    if len(packages) < job["least"]:
        refuse(job, f"it has {len(packages)} packages of {job['least']}")
    # A Python that root runs there by hand must not count as a change.
    os.makedirs(os.path.join(site, "__pycache__"), exist_ok=True)
    for name in ("finish.py", "finish.json"):
        os.remove(os.path.join(new, name))
    write(os.path.join(new, "packages.txt"), "".join(f"{name}\n" for name in packages))
    # The mark says that all else is there: also after the power was cut.
    os.sync()
    mark = {
        "schema": 1,
        "key": job["key"],
        "release": job["release"],
        "requirements": job["requirements"],
        "python": sys.version.split()[0],
        "python_home": os.path.realpath(sys.executable),
        "include": include,
        "cuda_home": job["cuda_home"],
        "site_packages": place,
        "site_time": int(os.stat(site).st_mtime),
        "parts": parts,
        "time": int(time.time()),
    }
    write(os.path.join(new, "environment.json"), json.dumps(mark, indent=1) + "\n")
    put_in_place(new, directory)
    print(f"{directory} is whole: {len(packages)} packages, Python {mark['python']}", flush=True)


main()
