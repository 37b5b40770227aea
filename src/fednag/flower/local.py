"""``fednag flower up``: a whole federation on this machine, for one run.

A SuperLink and SuperNodes as they would run on machines of their own: real processes that talk HTTP
over loopback, with ``tls`` encrypted and with keys that were registered. Certificates and keys are
made for the occasion. Where nginx is installed, silos come in by the gateway that a deployment has;
with ``mutual``, each by a proxy of its own that shows a certificate.
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
from fednag.flower.certificates import (
    make_authority,
    make_node_key,
    make_request,
    make_server,
    sign_request,
    write_new,
)
from fednag.flower.gateway import Gateway, SiloProxy, program
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
    gate: int = 0  # the gateway's port, by which silos come in; 0: there is none
    mutual: bool = False  # whether silos must show a certificate there
    secret: bytes | None = None  # what private keys are encrypted with

    def start_link(self, program: Sequence[str] = ("flower-superlink",)) -> None:
        command = [*program, "--host", "127.0.0.1", "--port", str(self.port)]
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

    def start_gate(self, silos: int) -> None:
        """Start the gateway to the SuperLink, for so many silos on one address."""
        (port,) = free_ports(1)
        gate = Gateway(
            "127.0.0.1",
            f"127.0.0.1:{port}",
            f"127.0.0.1:{self.port}",
            self.processes.folder,
            rate=50 * max(silos, 1),
            connections=20 * max(silos, 1),
            clients=self.mutual,
            password=self._password,
        )
        self._start_nginx("gateway", gate)
        self.processes.wait_for_port("gateway", port)
        self.gate = port

    def start_proxy(self, number: int) -> int:
        """Start a silo's end of mutual TLS: its port."""
        folder, name, (port,) = self.processes.folder, f"{NAMED}-{number}", free_ports(1)
        if not (folder / f"{name}.client.crt").exists():
            sign_request(folder, make_request(folder, name, secret=self.secret), secret=self.secret)
        gate = f"127.0.0.1:{self.gate}"
        own = SiloProxy(gate, name, f"127.0.0.1:{port}", folder, password=self._password)
        self._start_nginx(f"proxy-{number}", own)
        self.processes.wait_for_port(f"proxy-{number}", port)
        return port

    @property
    def _password(self) -> Path | None:
        return self.processes.folder / "passphrase" if self.secret else None

    def _start_nginx(self, name: str, gate: Gateway | SiloProxy) -> None:
        folder = self.processes.folder / name
        command = [program() or "nginx", "-p", str(folder), "-c", str(gate.write(folder))]
        self.processes.start(name, [*command, "-g", "daemon off;"])

    def register(self, number: int) -> None:
        """Make a silo's key and tell the SuperLink of it."""
        key = self.processes.folder / f"{NAMED}-{number}"
        public = make_node_key(key, self.secret)
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
        by_proxy = self.mutual and not superlink
        port = self.start_proxy(number) if by_proxy else superlink or self.gate or self.port
        command = [*program, "--superlink", f"127.0.0.1:{port}"]
        command += ["--host", "127.0.0.1", "--port", str(own)]
        command += ["--node-config", node_config_text(config)]
        if self.tls:
            command += ["--auth-supernode-private-key", str(key or folder / f"{NAMED}-{number}")]
            local = folder / f"{NAMED}-{number}.local.crt" if by_proxy else folder / "ca.crt"
            command += ["--root-certificates", str(authority or local)]
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
    mutual: bool = False,
    secret: bytes | None = None,
) -> Iterator[Federation]:
    """A federation of so many silos, taken down when the block is left, whatever happens.

    With ``secret``, all private keys are encrypted with it.
    """
    with Processes() as processes:
        (port,) = free_ports(1)
        simulated = silos if simulation else 0
        found = Federation(processes, port, tls, simulated, mutual=mutual, secret=secret)
        connection: dict[str, Any] = {"address": f"127.0.0.1:{port}"}
        if secret:
            write_new(processes.folder / "passphrase", secret, 0o600)
        if tls:
            make_authority(processes.folder, secret=secret)
            make_server(processes.folder, ["127.0.0.1"], secret=secret)
            connection["root-certificates"] = str(processes.folder / "ca.crt")
        else:
            connection["insecure"] = True
        config = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        (processes.folder / "home" / "config.toml").write_text(tomli_w.dumps(config))
        opened = ("--passphrase-file", str(processes.folder / "passphrase"), "--")
        found.start_link(("fednag", "flower", "link", *opened) if secret else ("flower-superlink",))
        if tls and program():
            found.start_gate(silos)
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
