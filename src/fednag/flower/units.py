"""``fednag flower units``: what an init system, or Compose, needs to run a deployment for good.

Units of systemd run each part as a user of its own, who can read what the part needs and nothing
else. A Compose file runs the same commands in containers.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednag.core.files import os_errors, write_atomically
from fednag.errors import FednagError
from fednag.flower.gateway import program

WORD = re.compile(r"[A-Za-z0-9_.:/@=-]+")
ROLES = ("server", "silo")

UNIT = """\
# Written by `fednag flower units`.
[Unit]
Description={about}
Wants=network-online.target
After=network-online.target{after}
StartLimitIntervalSec=0

[Service]
Type={kind}
User={user}
Group={user}
UMask=0077
WorkingDirectory={home}
ExecStart={start}
{more}\
Restart=always
# A SuperNode that was killed is let in again when its heartbeats have run out, a minute later.
RestartSec=10
Environment=FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 OMP_NUM_THREADS=1
Environment=PYTHONDONTWRITEBYTECODE=1 HOME={home} FLWR_HOME={home}/flwr

# It can write in these folders, and read no other user's.
ReadWritePaths={writes}
{reads}\
ProtectSystem=strict
ProtectHome={home_rule}
PrivateTmp=yes
PrivateDevices=yes
PrivateUsers={private_users}
ProtectProc=invisible
ProcSubset=pid
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
LockPersonality=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM
{limits}
[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Part:
    """A program that runs for good."""

    name: str  # of the unit, and of the service in a Compose file
    about: str
    command: tuple[str, ...]
    writes: tuple[str, ...]  # folders
    reads: tuple[str, ...] = ()  # folders
    needs: tuple[str, ...] = ()  # units
    ports: tuple[str, ...] = ()  # that others reach, in a Compose file
    memory: str = ""

    @property
    def executable(self) -> str:
        return self.command[0]


@dataclass(frozen=True)
class Host:
    """A machine of a deployment, and where its files are."""

    role: str
    home: str = "/srv/fednag"
    user: str = "fednag"
    silo: int = 0
    gate: str = "fl.example.org:8443"  # where a silo reaches the server
    mutual: bool = False
    agreed: Sequence[str] = ()
    passphrase: str = ""  # a file; systemd hands it on
    memory: str = "8G"  # a silo may use

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise FednagError("--role", remedy="use server or silo", given=self.role)
        given = {"--home": self.home, "--user": self.user, "--gate": self.gate}
        given |= {"--passphrase-file": self.passphrase, "--memory": self.memory}
        for option, text in given.items():
            if text and not WORD.fullmatch(text):
                raise FednagError(option, "cannot stand in a unit", "choose another", given=text)
        if not self.home.startswith("/"):
            raise FednagError("--home", "is no absolute path", "write e.g. /srv/fednag")
        if self.role == "silo" and not self.agreed:
            raise FednagError("--agreed", "is missing", "`fednag flower digest APP` prints one")

    def parts(self, fednag: str, nginx: str) -> list[Part]:
        """What runs on this machine."""
        return self._server(fednag, nginx) if self.role == "server" else self._silo(fednag, nginx)

    def _server(self, fednag: str, nginx: str) -> list[Part]:
        secrets = f"{self.home}/secrets"
        link = (*self._wrapped(fednag, "link"), "--database", f"{self.home}/state/superlink.db")
        link += ("--enable-supernode-auth", "--ssl-ca-certfile", f"{secrets}/ca.crt")
        link += (
            "--ssl-certfile",
            f"{secrets}/server.crt",
            "--ssl-keyfile",
            f"{secrets}/server.key",
        )
        state = (f"{self.home}/state", f"{self.home}/runs", f"{self.home}/flwr")
        gate = f"{self.home}/gate"
        show = (fednag, "flower", "status", f"{self.home}/runs", "--web", "--port", "9100")
        return [
            Part("fednag-link", "SuperLink, on loopback", link, state, (secrets,)),
            Part(
                "fednag-gate",
                "The gateway: silos come in, nobody else",
                _nginx(nginx, gate),
                (gate,),
                (secrets,),
                ("fednag-link",),
                (self.gate.rpartition(":")[2],),
            ),
            # It locks a run's folder for a moment, to see whether it is being written.
            Part("fednag-status", "Status and metrics, on loopback", show, (f"{self.home}/runs",)),
        ]

    def _silo(self, fednag: str, nginx: str) -> list[Part]:
        secrets, data = f"{self.home}/secrets", f"{self.home}/data"
        name = f"silo-{self.silo}"
        agreed = tuple(word for digest in self.agreed for word in ("--agreed", digest))
        root = f"{secrets}/{name}.local.crt" if self.mutual else f"{secrets}/ca.crt"
        node = f"partition-id={self.silo} data-folder='{data}' memory-folder='{self.home}/memory'"
        command = (*self._wrapped(fednag, "silo", *agreed), "--superlink")
        command += ("127.0.0.1:8444" if self.mutual else self.gate, "--root-certificates", root)
        command += ("--auth-supernode-private-key", f"{secrets}/{name}", "--node-config", node)
        proxy = f"{self.home}/proxy"
        parts = []
        if self.mutual:
            about = "Shows the silo's certificate to the gateway"
            parts = [Part("fednag-proxy", about, _nginx(nginx, proxy), (proxy,), (secrets,))]
        needs = ("fednag-proxy",) if self.mutual else ()
        writes = (f"{self.home}/memory", f"{self.home}/flwr")
        about = f"Silo {self.silo}: a SuperNode that runs the apps agreed to"
        return [
            *parts,
            Part("fednag-silo", about, command, writes, (data, secrets), needs, memory=self.memory),
        ]

    def _wrapped(self, fednag: str, command: str, *options: str) -> tuple[str, ...]:
        word = ("--passphrase-file", self.passphrase) if self.passphrase else ()
        return (fednag, "flower", command, *options, "--json-logs", *word, "--")


def _nginx(nginx: str, folder: str) -> tuple[str, ...]:
    return (nginx, "-p", folder, "-c", f"{folder}/nginx.conf", "-g", "daemon off;")


def unit(part: Part, host: Host) -> str:
    """A part as a unit of systemd."""
    nginx = part.name in ("fednag-gate", "fednag-proxy")
    more = "ExecReload=/bin/kill -HUP $MAINPID\n" if nginx else ""
    hidden = host.passphrase and part.name in ("fednag-link", "fednag-silo")
    command = list(part.command)
    if hidden:  # its owner is root; systemd shows it to this process alone
        more += f"LoadCredential=passphrase:{host.passphrase}\n"
        command[command.index(host.passphrase)] = "%d/passphrase"
    limits = f"MemoryMax={part.memory}\nTasksMax=512\n" if part.memory else "TasksMax=512\n"
    inside_home = host.home.startswith(("/home/", "/root/", "/run/user/"))
    return UNIT.format(
        about=part.about,
        after="".join(f" {name}.service" for name in part.needs),
        kind="exec",
        user=host.user,
        home=host.home,
        start=" ".join(_quoted(word) for word in command),
        more=more,
        writes=" ".join(part.writes),
        reads=f"ReadOnlyPaths={' '.join(part.reads)}\n" if part.reads else "",
        home_rule="tmpfs" if inside_home else "yes",
        private_users="yes",
        limits=limits,
    )


def _quoted(word: str) -> str:
    if WORD.fullmatch(word) or word == "%d/passphrase":
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def write_units(folder: Path, host: Host) -> tuple[list[Path], bool]:
    """The units of a machine, and whether systemd has verified them here."""
    parts = host.parts(shutil.which("fednag") or f"{Path(sys.executable).parent}/fednag", _proxy())
    paths = []
    with os_errors(folder, "cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        for part in parts:
            paths.append(folder / f"{part.name}.service")
            write_atomically(paths[-1], unit(part, host))
    return paths, verified(paths)


def _proxy() -> str:
    return program() or "/usr/sbin/nginx"


def verified(paths: Sequence[Path]) -> bool:
    """Whether ``systemd-analyze verify`` is here; raises a sentence for what it finds."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        return False
    command = [tool, "verify", "--recursive-errors=no", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.split())[-400:]
        raise FednagError(paths[0].parent, f"systemd refuses a unit: {said}", "mend what it names")
    return True


def exposure(path: Path) -> float | None:
    """How open a unit is, 0 to 10, as ``systemd-analyze security`` says; None where it cannot."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        return None
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / path.name).write_bytes(path.read_bytes())
        command = [tool, "security", "--offline=true", "--no-pager", str(Path(root) / path.name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    return float(found[1]) if found else None


def compose(host: Host, image: str = "fednag:latest") -> dict[str, Any]:
    """The same as a Compose file: containers that own nothing, and see their folders alone."""
    services: dict[str, Any] = {}
    for part in host.parts("fednag", "nginx"):
        volumes = [f"{folder}:{folder}" for folder in part.writes]
        volumes += [f"{folder}:{folder}:ro" for folder in part.reads]
        service: dict[str, Any] = {
            "image": "nginx:1" if part.executable == "nginx" else image,
            "command": list(part.command),
            "restart": "always",
            "read_only": True,
            "user": "${FEDNAG_UID:?the number of the user who owns the folders}",
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            "pids_limit": 512,
            "tmpfs": ["/tmp"],
            # Loopback is theirs together, as on a machine: nothing else of it can be reached.
            "network_mode": "host",
            "volumes": volumes,
            "logging": {"driver": "json-file", "options": {"max-size": "50m", "max-file": "5"}},
        }
        if part.executable == "fednag":
            service["environment"] = {
                **{"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"},
                **{"HOME": host.home, "FLWR_HOME": f"{host.home}/flwr"},
            }
        if part.needs:
            service["depends_on"] = list(part.needs)
        if part.memory:
            service["mem_limit"] = part.memory.lower()
        if host.passphrase and host.passphrase in part.command:
            service["volumes"].append(f"{host.passphrase}:{host.passphrase}:ro")
        services[part.name] = service
    return {"name": f"fednag-{host.role}", "services": services}


def as_yaml(table: Any, depth: int = 0) -> str:
    """A table of texts, lists and tables as YAML; texts are quoted as JSON does."""
    import json

    pad = "  " * depth
    if isinstance(table, Mapping):
        lines = []
        for key, given in table.items():
            nested = isinstance(given, Mapping | list) and given
            below = "\n" + as_yaml(given, depth + 1) if nested else " " + json.dumps(given) + "\n"
            lines.append(f"{pad}{key}:{below}")
        return "".join(lines)
    if isinstance(table, list):
        return "".join(f"{pad}- {json.dumps(each)}\n" for each in table)
    raise TypeError(type(table))


def steps(host: Host) -> list[str]:
    """What root types once, before the units are started."""
    home, user = shlex.quote(host.home), shlex.quote(host.user)
    mine = ["secrets", "flwr"]
    mine += ["state", "runs", "gate"] if host.role == "server" else ["data", "memory", "proxy"]
    folders = " ".join(f"{home}/{name}" for name in mine)
    return [
        f"useradd --system --home-dir {home} --shell /usr/sbin/nologin {user}",
        f"install -d -m 700 -o {user} -g {user} {home} {folders}",
    ]
