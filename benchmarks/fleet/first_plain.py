"""A first deploy by plain pyinfra operations: the steps of ``first.yml``."""

from pathlib import Path

from pyinfra import host
from pyinfra.operations import files, server, systemd

data = host.data
folder, deployment, unit = Path(data.files), data.deployment, data.unit

server.shell(
    name="The driver and the GPUs",
    commands="nvidia-smi --query-gpu=index,uuid,compute_cap,driver_version --format=csv,noheader",
)
server.shell(name="The image, by its digest", commands=f"docker pull --quiet {data.image}")
server.shell(
    name="Its directories",
    commands=f"mkdir -p {deployment} {data.caches} /etc/systemd/system/{unit}.d",
)
for source in sorted((folder / "deployment").iterdir()):
    files.put(
        name=f"Write {source.name}",
        src=str(source),
        dest=f"{deployment}/{source.name}",
        user="root",
        group="root",
        mode=f"{source.stat().st_mode & 0o777:o}",
        create_remote_dir=False,
    )
files.link(
    name="Make it the current one",
    path=f"{deployment.rpartition('/')[0]}/current",
    target=deployment.rpartition("/")[2],
    create_remote_dir=False,
)
for own, place in (
    ("sglang@.service", "/etc/systemd/system/sglang@.service"),
    ("10-toolkit.conf", f"/etc/systemd/system/{unit}.d/10-toolkit.conf"),
):
    files.put(
        name=f"Write {place}",
        src=str(folder / own),
        dest=place,
        user="root",
        group="root",
        mode="644",
        create_remote_dir=False,
    )
systemd.daemon_reload(name="Reload systemd")
systemd.service(name="Run the service", service=unit, running=True, enabled=True)
body = f'{{"model": "{data.model}", "prompt": "Hello", "max_tokens": 8}}'
server.shell(
    name="That it answers",
    commands=(
        f"for i in $(seq 600); do curl -sf -o /dev/null -m 60 -H 'Content-Type: application/json' "
        f"-d '{body}' {data.answer} && exit 0; sleep 1; done; exit 1"
    ),
)
