"""``fednag flower gateway``: a proxy in front of a SuperLink, which lets silos in and nobody else.

A SuperLink serves its silos, its own processes and whoever submits runs on one port, and does not
ask the last who they are. So it listens on loopback, and this configuration passes on the requests
a silo makes, by their exact paths; all else ends here.

With ``clients``, silos must show a certificate of the CA. Flower's SuperNode has none to show, so a
proxy of the same kind stands on the silo (:class:`SiloProxy`): it listens on the silo's loopback,
and has the certificate.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from fednag.core.files import os_errors, write_atomically
from fednag.errors import FednagError

# What a silo with a registered key asks for; those without one would register themselves.
PATHS = (
    *("activate-node", "deactivate-node", "send-node-heartbeat", "get-run", "get-fab"),
    *("pull-messages", "push-messages", "pull-object", "push-object", "confirm-message-received"),
)
ADDRESS = re.compile(r"[A-Za-z0-9.:\[\]-]+:\d{1,5}")
NAME = re.compile(r"[A-Za-z0-9._-]+")
PLACE = re.compile(r"[^\s;{}\"'\\$#]+")  # a path that nginx reads as it stands
TIMES = ("client_header_timeout 10s", "client_body_timeout 30s", "send_timeout 30s")
Given = Mapping[str, tuple[str, re.Pattern[str]]]  # by option
KINDS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")

CONFIGURATION = """\
# Written by `fednag flower gateway`. {about}
worker_processes 2;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    server_tokens off;
    log_format json escape=json '{{"time":"$time_iso8601","from":"$remote_addr",'
        '"{who}":"{whose}","path":"$uri","status":$status,'
        '"bytes":$request_length,"seconds":$request_time}}';
    access_log {folder}/access.log json;
{temporary}
{zones}
    server {{
{server}
        # In memory, and not on the disk.
        client_max_body_size {megabytes}m;
        client_body_buffer_size {megabytes}m;
        proxy_max_temp_file_size 0;
{times}
        proxy_http_version 1.1;
        proxy_read_timeout 60s;
        proxy_ssl_verify on;
        proxy_ssl_verify_depth 2;
        proxy_ssl_trusted_certificate {authority};
        proxy_ssl_name {upstream};
{client}
        location / {{ return 403; }}
{locations}
    }}
}}
"""
# 503, since Flower's SuperNode comes again after it; after a 429 it gives up for good.
ZONES = """\
    # By address: requests a second, and connections at a time.
    limit_req_zone $binary_remote_addr zone=requests:10m rate={rate}r/s;
    limit_conn_zone $binary_remote_addr zone=connections:10m;
    limit_req_status 503;
    limit_conn_status 503;
"""
SERVER = """\
        listen {listen} ssl;
        server_name {host};
        ssl_certificate {certificate};
        ssl_certificate_key {key};
{password}
        ssl_protocols TLSv1.2 TLSv1.3;
        limit_req zone=requests burst={burst} nodelay;
        limit_conn connections {connections};
"""
LOCAL = """\
        listen {listen} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        {password}
        ssl_protocols TLSv1.2 TLSv1.3;
"""
CLIENTS = """\
        # A certificate for clients, of this CA.
        ssl_client_certificate {authority};
        ssl_verify_client on;
        ssl_verify_depth 1;
"""
LOCATION = """\
        location = /v1/fleet/{path} {{
            limit_except POST {{ deny all; }}
            proxy_pass https://{superlink}/v1/fleet/{path};
        }}
"""
CADDY = """\
# Written by `fednag flower gateway --program caddy`. Caddy limits no rates: have a firewall do it.
{{
\tauto_https off
\tadmin off
}}
https://{host}:{port} {{
\tbind {address}
\ttls {certificate} {key}{clients}
\t@silos {{
\t\tmethod POST
\t\tpath {paths}
\t}}
\thandle @silos {{
\t\trequest_body {{
\t\t\tmax_size {megabytes}MB
\t\t}}
\t\treverse_proxy https://{superlink} {{
\t\t\ttransport http {{
\t\t\t\ttls_trusted_ca_certs {authority}
\t\t\t\ttls_server_name localhost
\t\t\t}}
\t\t}}
\t}}
\thandle {{
\t\trespond 403
\t}}
\tlog {{
\t\toutput file {folder}/access.log
\t\tformat json
\t}}
}}
"""
CADDY_CLIENTS = """ {{
\t\tclient_auth {{
\t\t\tmode require_and_verify
\t\t\ttrusted_ca_cert_file {authority}
\t\t}}
\t}}"""


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
    clients: bool = False  # whether silos must show a certificate
    allow: Sequence[str] = ()  # the names in those certificates; none: any that the CA signed
    password: Path | None = None  # the file with the passphrase of server.key

    @property
    def needed(self) -> tuple[str, ...]:
        return "server.crt", "server.key", "ca.crt"

    def text(self, folder: Path) -> str:
        """The configuration of nginx, which writes what it writes into ``folder``."""
        certificate, key, authority = (self.secrets.resolve() / name for name in self.needed)
        given = {"--host": (self.host, NAME), "--listen": (self.listen, ADDRESS)}
        given |= {"--superlink": (self.superlink, ADDRESS)}
        for name in self.allow:
            _check({"--allow": (name, NAME)})
        _check({**given, **_places(folder, certificate, self.password)})
        server = SERVER.format(
            listen=self.listen,
            host=self.host,
            certificate=certificate,
            key=key,
            password=f"        ssl_password_file {self.password};" if self.password else "",
            burst=4 * self.rate,
            connections=self.connections,
        )
        zones = ZONES.format(rate=self.rate)
        if self.clients or self.allow:
            server += CLIENTS.format(authority=authority)
        if self.allow:
            names = "".join(f'        "CN={name}" 1;\n' for name in self.allow)
            zones += f"    map $ssl_client_s_dn $allowed {{\n        default 0;\n{names}    }}\n"
            server += "        if ($allowed = 0) { return 403; }\n"
        return _configuration(
            folder,
            about="Only the paths of silos pass; the SuperLink is on loopback.",
            zones=zones,
            server=server,
            megabytes=self.megabytes,
            authority=authority,
            upstream="localhost",
            whose="$ssl_client_s_dn",
            client="",
            superlink=self.superlink,
        )

    def write(self, folder: Path) -> Path:
        """``nginx.conf`` in ``folder``, checked by nginx itself where it is installed."""
        folder = folder.resolve()
        text = self.text(folder)
        remedy = f"make it with `fednag flower keys {self.secrets} --host {self.host}`"
        return _written(folder, text, self.secrets, self.needed, remedy)

    def caddyfile(self, folder: Path) -> str:
        """The same for Caddy, without limits of rates, which it has not."""
        certificate, key, authority = (self.secrets.resolve() / name for name in self.needed)
        given = {"--host": (self.host, NAME), "--listen": (self.listen, ADDRESS)}
        given |= {"--superlink": (self.superlink, ADDRESS)}
        _check({**given, **_places(folder, certificate, None)})
        address, _, port = self.listen.rpartition(":")
        return CADDY.format(
            host=self.host,
            port=port,
            address=address,
            certificate=certificate,
            key=key,
            authority=authority,
            clients=CADDY_CLIENTS.format(authority=authority) if self.clients else "",
            paths=" ".join(f"/v1/fleet/{path}" for path in PATHS),
            megabytes=self.megabytes,
            superlink=self.superlink,
            folder=folder,
        )

    def write_caddyfile(self, folder: Path) -> Path:
        """``Caddyfile`` in ``folder``; not checked, unless Caddy is there."""
        if self.allow or self.password:
            raise FednagError(
                "--program", "caddy has no list of clients and opens no encrypted key", "use nginx"
            )
        folder = folder.resolve()
        text = self.caddyfile(folder)
        with os_errors(folder, "cannot be written"):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / "Caddyfile", text)
        if caddy := shutil.which("caddy"):
            command = [caddy, "validate", "--config", str(folder / "Caddyfile")]
            _run_check(folder / "Caddyfile", "caddy", [*command, "--adapter", "caddyfile"])
        return folder / "Caddyfile"


@dataclass(frozen=True)
class SiloProxy:
    """On a silo: passes what its SuperNode asks for on to the gateway, with a certificate."""

    gateway: str  # where the gateway is, ADDRESS:PORT
    name: str  # of the certificate: NAME.client.crt, NAME.client.key
    listen: str = "127.0.0.1:8444"
    secrets: Path = Path("secrets")
    megabytes: int = 16
    password: Path | None = None

    @property
    def needed(self) -> tuple[str, ...]:
        kinds = (f"{self.name}.{which}" for which in ("client.crt", "client.key"))
        own = (f"{self.name}.{which}" for which in ("local.crt", "local.key"))
        return (*kinds, "ca.crt", *own)

    def text(self, folder: Path) -> str:
        certificate, key, authority, *own = (self.secrets.resolve() / n for n in self.needed)
        given = {"--certificate": (self.name, NAME), "--listen": (self.listen, ADDRESS)}
        given |= {"--gate": (self.gateway, ADDRESS)}
        _check({**given, **_places(folder, certificate, self.password)})
        if self.listen.rpartition(":")[0] not in ("127.0.0.1", "[::1]", "localhost"):
            raise FednagError(
                "--listen",
                "is beyond loopback, and whoever reaches it has the silo's certificate",
                "use 127.0.0.1:8444",
                given=self.listen,
            )
        host = self.gateway.rpartition(":")[0]
        client = f"        proxy_ssl_certificate {certificate};\n"
        client += f"        proxy_ssl_certificate_key {key};\n"
        if self.password:
            client += f"        proxy_ssl_password_file {self.password};\n"
        client += "        proxy_ssl_server_name on;\n        proxy_set_header Host $proxy_host;\n"
        return _configuration(
            folder,
            about="On a silo: its SuperNode comes in, and goes on with a certificate.",
            zones="",
            server=LOCAL.format(
                listen=self.listen,
                certificate=own[0],
                key=own[1],
                password=f"ssl_password_file {self.password};" if self.password else "",
            ),
            megabytes=self.megabytes,
            authority=authority,
            # nginx compares names alone; every server's certificate of the CA has this one too.
            upstream="localhost" if _is_address(host) else host,
            whose=self.name,
            client=client,
            superlink=self.gateway,
        )

    def write(self, folder: Path) -> Path:
        """``nginx.conf`` in ``folder``, checked by nginx itself where it is installed."""
        folder = folder.resolve()
        text = self.text(folder)
        remedy = f"`fednag flower keys {self.secrets} --client {self.name}` makes the key and the "
        remedy += "request, and on the server `--sign` the certificate"
        return _written(folder, text, self.secrets, self.needed, remedy)


def _is_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _places(folder: Path, certificate: Path, password: Path | None) -> Given:
    found = {"FOLDER": (str(folder), PLACE), "--secrets": (str(certificate), PLACE)}
    return {**found, **({"--passphrase-file": (str(password), PLACE)} if password else {})}


def _check(given: Given) -> None:
    for option, (text, pattern) in given.items():
        if not pattern.fullmatch(text):
            raise FednagError(
                option, "cannot stand in a configuration of a proxy", "choose another", given=text
            )


def _configuration(folder: Path, superlink: str, whose: str, **parts: object) -> str:
    text = CONFIGURATION.format(
        folder=folder,
        temporary="\n".join(f"    {kind}_temp_path {folder}/tmp-{kind};" for kind in KINDS),
        times="\n".join(f"        {time};" for time in TIMES),
        locations="".join(LOCATION.format(path=path, superlink=superlink) for path in PATHS),
        who="certificate",
        whose=whose,
        **parts,
    )
    return "".join(line + "\n" for line in text.splitlines() if line.strip())


def _written(folder: Path, text: str, secrets: Path, needed: Sequence[str], remedy: str) -> Path:
    for name in needed:
        if not (secrets / name).is_file():
            raise FednagError("--secrets", f"has no {name}", remedy, given=secrets)
    with os_errors(folder, "cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nginx.conf"
    write_atomically(path, text)
    if nginx := program():
        _run_check(path, "nginx", [nginx, "-t", "-p", str(folder), "-c", str(path)])
    return path


def _run_check(path: Path, name: str, command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.split())[-300:]
        raise FednagError(path, f"{name} refuses it: {said}", "change what it names")


def program() -> str | None:
    """nginx, if it is here; Debian keeps it where users without rights do not look."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
