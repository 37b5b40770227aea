"""``fednag flower gateway``: nginx in front of a SuperLink, which lets silos in and nobody else.

A SuperLink serves its silos, its own processes and whoever submits runs on one port, and does not
ask the last who they are. So it listens on loopback, and this configuration passes on the requests
a silo makes, by their exact paths; all else ends here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from fednag.core.files import os_errors, write_atomically
from fednag.errors import FednagError

# What a silo with a registered key asks for; those without one would register themselves.
PATHS = (
    *("activate-node", "deactivate-node", "send-node-heartbeat", "get-run", "get-fab"),
    *("pull-messages", "push-messages", "pull-object", "push-object", "confirm-message-received"),
)
ADDRESS = re.compile(r"[A-Za-z0-9.:\[\]-]+:\d{1,5}")
NAME = re.compile(r"[A-Za-z0-9.-]+")
PLACE = re.compile(r"[^\s;{}\"'\\$#]+")  # a path that nginx reads as it stands
TIMES = ("client_header_timeout 10s", "client_body_timeout 30s", "send_timeout 30s")

CONFIGURATION = """\
# Written by `fednag flower gateway`. Only the paths of silos pass; the SuperLink is on loopback.
worker_processes 2;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    server_tokens off;
    access_log {folder}/access.log;
{temporary}
    # By address: requests a second, and connections at a time.
    limit_req_zone $binary_remote_addr zone=requests:10m rate={rate}r/s;
    limit_conn_zone $binary_remote_addr zone=connections:10m;
    limit_req_status 429;
    limit_conn_status 429;
    server {{
        listen {listen} ssl;
        server_name {host};
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        ssl_protocols TLSv1.2 TLSv1.3;
        # In memory, and not on the disk.
        client_max_body_size {megabytes}m;
        client_body_buffer_size {megabytes}m;
        proxy_max_temp_file_size 0;
{times}
        limit_req zone=requests burst={burst} nodelay;
        limit_conn connections {connections};
        proxy_http_version 1.1;
        proxy_read_timeout 60s;
        proxy_ssl_verify on;
        proxy_ssl_trusted_certificate {authority};
        proxy_ssl_name localhost;
        location / {{ return 403; }}
{locations}
    }}
}}
"""
LOCATION = """\
        location = /v1/fleet/{path} {{
            limit_except POST {{ deny all; }}
            proxy_pass https://{superlink}/v1/fleet/{path};
        }}
"""


@dataclass(frozen=True)
class Gateway:
    """Where silos come in, and what they may ask for."""

    host: str  # the name in the certificate
    listen: str = "0.0.0.0:8443"
    superlink: str = "127.0.0.1:8000"
    secrets: Path = Path("secrets")  # the folder that `fednag flower keys` wrote
    rate: int = 50  # requests a second of an address
    connections: int = 20  # of an address, at a time
    megabytes: int = 16  # of a request; Flower's objects have 5 at most

    def text(self, folder: Path) -> str:
        """The configuration of nginx, which writes what it writes into ``folder``."""
        files = [self.secrets.resolve() / n for n in ("server.crt", "server.key", "ca.crt")]
        places = {"--host": (self.host, NAME), "--listen": (self.listen, ADDRESS)}
        places |= {"--superlink": (self.superlink, ADDRESS)}
        places |= {"FOLDER": (str(folder), PLACE), "--secrets": (str(files[0]), PLACE)}
        for option, (given, pattern) in places.items():
            if not pattern.fullmatch(given):
                raise FednagError(
                    option,
                    "cannot stand in a configuration of nginx",
                    "choose another",
                    given=given,
                )
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        return CONFIGURATION.format(
            folder=folder,
            temporary="\n".join(f"    {kind}_temp_path {folder}/tmp-{kind};" for kind in kinds),
            times="\n".join(f"        {time};" for time in TIMES),
            locations="".join(
                LOCATION.format(path=path, superlink=self.superlink) for path in PATHS
            ).rstrip(),
            certificate=files[0],
            key=files[1],
            authority=files[2],
            host=self.host,
            listen=self.listen,
            rate=self.rate,
            burst=4 * self.rate,
            connections=self.connections,
            megabytes=self.megabytes,
        )

    def write(self, folder: Path) -> Path:
        """``nginx.conf`` in ``folder``, checked by nginx itself where it is installed."""
        folder = folder.resolve()
        text = self.text(folder)
        for name in ("server.crt", "server.key", "ca.crt"):
            if not (self.secrets / name).is_file():
                raise FednagError(
                    "--secrets",
                    f"has no {name}",
                    f"make it with `fednag flower keys {self.secrets} --host {self.host}`",
                    given=self.secrets,
                )
        with os_errors(folder, "cannot be written"):
            folder.mkdir(parents=True, exist_ok=True)
        path = folder / "nginx.conf"
        write_atomically(path, text)
        if nginx := program():
            done = subprocess.run(
                [nginx, "-t", "-p", str(folder), "-c", str(path)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                said = " ".join(done.stderr.split())[-300:]
                raise FednagError(path, f"nginx refuses it: {said}", "change what it names")
        return path


def program() -> str | None:
    """nginx, if it is here; Debian keeps it where users without rights do not look."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
