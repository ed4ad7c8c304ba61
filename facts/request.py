"""What a caller wants surveyed beside the machine itself.

``facts/`` knows nothing of the toolkit's layout on a node: whoever asks gives
the paths (they are in ``plans/paths.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

LAUNCH_FILE = "launch.env"
PLAN_FILE = "plan.json"
RECORD_FILE = "record.json"
"""Files of a deployment whose text the records carry; ``launch.env`` says where it listens."""

DEADLINE_S = 20
"""Seconds after which parts of the survey that did not return are abandoned.

nvidia-smi takes up to about 10 s where no persistence daemon keeps the driver
initialised and there are eight GPUs; nothing else that is asked takes seconds.
"""


@dataclass(frozen=True)
class SurveyRequest:
    """What a survey reads beside the machine itself; all paths are absolute, on the node.

    ``spaces``: paths whose free space, file system and state matter (they need not exist).
    ``models``: models whose config.json and sizes of weights matter: directories, or GGUF files.
    ``files``: files whose checksum, mode and owner are wanted.
    ``texts``: files of which the text is wanted as well; never one that holds a secret.
    ``weights``: hub models whose files are wanted, each as ``HF_HOME:models--OWNER--NAME``.
    ``secrets``: files of which not even the checksum is wanted.
    ``deployments``: directory with one directory per service, holding numbered deployments and
    the links ``current`` and ``previous``; every file of the current one is surveyed.
    ``deployment_texts``: names of its files whose text is wanted as well.
    ``drop_ins``: directory of a service's drop-ins, with ``%`` for the name of the service.
    ``drop_in_text``: name of the drop-in whose text is wanted; of all others the checksum is.
    ``door``: directory of the door's settings and the link to those that hold; empty: not asked.
    ``door_tls``: files of the certificate that the door is to have, and of its key.
    ``pythons``: directory under which the toolkit keeps Pythons of its own.
    ``environments``: directory of the environments of Python packages; ``tools``: of programs that
    the toolkit brought; ``account``: the user of the wheel runtime.
    ``history``: how many deployments of a service are read beside the current one, the newest first.
    ``whole``: of which of them every file is read: a number, ``previous``, or ``back``:
    the one that a way back which was cut leads to, else the previous one.
    ``deadline_s``: seconds for the whole survey on the node.
    ``version``: version of the toolkit, written into the survey.
    """

    spaces: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    deployments: str = "/var/lib/sglang/deployments"
    deployment_texts: tuple[str, ...] = ("server.yaml", LAUNCH_FILE, PLAN_FILE, RECORD_FILE)
    drop_ins: str = "/etc/systemd/system/sglang@%.service.d"
    drop_in_text: str = "10-toolkit.conf"
    door: str = "/var/lib/sglang/door"
    door_tls: tuple[str, str] | None = None
    pythons: str = "/opt/sglang/python"
    environments: str = "/opt/sglang/environments"
    tools: str = "/opt/sglang/tools"
    account: str = "sglang"
    deadline_s: int = DEADLINE_S
    version: str = "0"
    models: tuple[str, ...] = ()
    history: int = 0
    whole: str = ""

    def words(self) -> tuple[str, ...]:
        """Return the words that survey.sh takes: ``key=value`` each, in a fixed order."""
        pairs = [
            ("version", self.version),
            ("deadline", str(self.deadline_s)),
            ("deployments", self.deployments),
            ("launch", LAUNCH_FILE),
            ("dropins", self.drop_ins),
            ("dropin-text", self.drop_in_text),
            ("door", self.door),
            *zip(("tls", "tls-key"), self.door_tls or (), strict=False),
            ("pythons", self.pythons),
            ("environments", self.environments),
            ("tools", self.tools),
            ("account", self.account),
            *([("history", str(self.history))] if self.history else []),
            *([("whole", self.whole)] if self.whole else []),
            *(("deployment-text", name) for name in self.deployment_texts),
            *(("space", path) for path in self.spaces),
            *(("model", path) for path in self.models),
            *(("file", path) for path in self.files),
            *(("text", path) for path in self.texts),
            *(("weights", model) for model in self.weights),
            *(("secret", path) for path in self.secrets),
        ]
        for key, value in pairs:
            if "\n" in value or "\0" in value:
                raise ValueError(f"{key}: {value!r} has a line break or a null byte")
        return tuple(f"{key}={value}" for key, value in pairs)
