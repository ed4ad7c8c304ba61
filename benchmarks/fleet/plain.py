"""What a converged host is asked and told, by plain pyinfra operations: the playbook's eight steps."""

from pyinfra import host
from pyinfra.facts.server import Command
from pyinfra.operations import files, python, systemd
from pyinfra.operations.util import any_changed


def ask(command: str) -> str:
    """Return what a command prints on the host; a host where it fails is given up."""
    printed: str = host.get_fact(Command, command)
    if not printed:
        python.raise_exception(name=f"{command}: nothing", exception=RuntimeError)
    return printed


ask("nvidia-smi --query-gpu=index,uuid,compute_cap,driver_version --format=csv,noheader")
ask(f"docker image inspect --format '{{{{.Id}}}}' {host.data.image}")

unit = host.data.unit
written = [
    files.put(
        name=f"Write {path}",
        src=f"{host.data.files}/{path.rsplit('/', 1)[1]}",
        dest=path,
        user="root",
        group="root",
        mode="644",
        create_remote_dir=False,
    )
    for path in (
        f"{host.data.deployment}/server.yaml",
        f"{host.data.deployment}/launch.env",
        "/etc/systemd/system/sglang@.service",
        f"/etc/systemd/system/{unit}.d/10-toolkit.conf",
    )
]
systemd.daemon_reload(name="Reload systemd", _if=any_changed(*written))
systemd.service(name="Run the service", service=unit, running=True, enabled=True)
systemd.service(
    name="Restart it", service=unit, running=True, restarted=True, _if=any_changed(*written)
)
ask(f"curl -s -o /dev/null -m 5 -w '%{{http_code}}' {host.data.ready}")
