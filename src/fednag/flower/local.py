"""``fednag flower up``: a whole federation on this machine, for one run.

A SuperLink and SuperNodes as they would run on machines of their own: real processes that talk HTTP
over loopback, with ``tls`` encrypted and with keys that were registered. Certificates and keys are
made for the occasion.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fednag.errors import FednagError
from fednag.flower.certificates import make_authority, make_node_key, make_server
from fednag.flower.processes import Processes, free_ports
from fednag.flower.project import write_app

CONNECTION = "here"
NAMED = "silo"


@dataclass
class Federation:
    """A SuperLink and its SuperNodes, running."""

    processes: Processes
    port: int
    tls: bool = False
    simulated: int = 0  # silos in Flower's own simulation, which has no SuperNodes

    def start_link(self) -> None:
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--database", str(self.processes.folder / "superlink.db")]
        command.append("--disable-runtime-dependency-installation")
        if self.simulated:
            command.append("--simulation")
        if self.tls:
            folder = self.processes.folder
            command += ["--ssl-ca-certfile", str(folder / "ca.crt"), "--enable-supernode-auth"]
            command += ["--ssl-certfile", str(folder / "server.crt")]
            command += ["--ssl-keyfile", str(folder / "server.key")]
        else:
            command.append("--insecure")
        self.processes.start("superlink", command)
        self.processes.wait_for_port("superlink", self.port)

    def register(self, number: int) -> None:
        """Make a silo's key and tell the SuperLink of it."""
        key = self.processes.folder / f"{NAMED}-{number}"
        public = make_node_key(key)
        self.processes.call(
            ["flwr", "supernode", "register", str(public), CONNECTION, "--name", key.name]
        )

    def start_node(
        self,
        number: int,
        node_config: Mapping[str, Any] | None = None,
        superlink: int | None = None,
        key: Path | None = None,
        authority: Path | None = None,
        program: Sequence[str] = ("fednag", "flower", "silo", "--any", "--"),
    ) -> subprocess.Popen[bytes]:
        """Start a silo's SuperNode; ``superlink`` is the port it is told to reach the server by."""
        folder, (own,) = self.processes.folder, free_ports(1)
        config = {"partition-id": number, "num-partitions": 0, **(node_config or {})}
        command = [*program, "--superlink", f"127.0.0.1:{superlink or self.port}"]
        command += ["--host", "127.0.0.1", "--port", str(own)]
        command += ["--node-config", node_config_text(config)]
        if self.tls:
            command += ["--root-certificates", str(authority or folder / "ca.crt")]
            command += ["--auth-supernode-private-key", str(key or folder / f"{NAMED}-{number}")]
        else:
            command.append("--insecure")
        return self.processes.start(f"{NAMED}-{number}", command)

    def submit(self, tables: Mapping[str, Any], tell: Callable[[str], None]) -> Path:
        """Run an app with this configuration to its end: its run's folder. Raises if it failed."""
        count = sum(1 for _ in self.processes.folder.glob("app-*"))
        app = self.processes.folder / f"app-{count}"
        write_app(app, tables, CONNECTION)
        return self.run(app, tell)

    def run(self, app: Path, tell: Callable[[str], None], changes: str = "") -> Path:
        """The same for an app that is there; ``changes`` of its configuration, as Flower's -c."""
        count = sum(1 for _ in self.processes.folder.glob("run-*.log"))
        command = ["flwr", "run", str(app), CONNECTION, "--stream"]
        command += ["--run-config", changes] if changes else []
        if self.simulated:
            command += ["--federation-config", f"num-supernodes={self.simulated}"]
        self.processes.journal.write_text("")
        process = self.processes.start(f"run-{count}", command)
        facts: dict[str, Any] = {}
        for line in self._lines(process):
            facts |= (told := json.loads(line))
            if "said" in told:
                tell(told["said"])
        if "stopped" in facts:
            raise FednagError.of(facts["stopped"])
        if process.returncode or "finished" not in facts:
            begun = "broke off" if facts else "was not started"
            raise FednagError(f"the run {begun}: {self.processes.last_words(f'run-{count}')}")
        return Path(facts["finished"])

    def _lines(self, process: subprocess.Popen[bytes]) -> Iterator[str]:
        """Those of the journal until the process ends; and the SuperLink's end is an end too."""
        with self.processes.journal.open(encoding="utf-8") as file:
            part = ""
            while True:
                over = process.poll() is not None
                while chunk := file.readline():
                    part += chunk
                    if part.endswith("\n"):
                        yield part
                        part = ""
                if over:
                    return
                link = self.processes.started["superlink"]
                if link.poll() is not None:
                    process.kill()
                    said = self.processes.last_words("superlink")
                    raise FednagError(f"the SuperLink ended: {said}")
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.2)


@contextmanager
def federation(
    silos: int,
    tls: bool = False,
    node_configs: Sequence[Mapping[str, Any]] = (),
    simulation: bool = False,
) -> Iterator[Federation]:
    """A federation of so many silos, taken down when the block is left, whatever happens."""
    with Processes() as processes:
        (port,) = free_ports(1)
        found = Federation(processes, port, tls, silos if simulation else 0)
        connection: dict[str, Any] = {"address": f"127.0.0.1:{port}"}
        if tls:
            make_authority(processes.folder)
            make_server(processes.folder, ["127.0.0.1"])
            connection["root-certificates"] = str(processes.folder / "ca.crt")
        else:
            connection["insecure"] = True
        config = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        (processes.folder / "home" / "config.toml").write_text(tomli_w.dumps(config))
        found.start_link()
        for number in range(0 if simulation else silos):
            if tls:
                found.register(number)
            found.start_node(number, node_configs[number] if node_configs else None)
        yield found


def node_config_text(config: Mapping[str, Any]) -> str:
    """Key-value pairs as ``flower-supernode --node-config`` takes them."""
    return " ".join(
        f'{key}="{given}"' if isinstance(given, str) else f"{key}={given}"
        for key, given in config.items()
    )
