"""Types "Three hosts, step by step" of docs/deployment.md, on hosts made of network namespaces.

    sudo python benchmarks/hosts.py          every block of the page, in its order, as it is printed
    sudo python benchmarks/hosts.py --cut    and a run in which a host's line is dead for a while
    sudo python benchmarks/hosts.py --with privacy    or secure, or ledger: see below

Each host has a network stack, an address, a home and an /etc/hosts of its own; a bridge in a
further namespace is the switch. Nothing outside the namespaces gets an address, and all is taken
down at the end. Only ``scp`` is not the real one: it copies between the homes. What a reader does
with his hands (stop a server, pull its plug, read a node id) is done in ``Reader``.

``--with`` types the blocks that set up the server and three silos, and then one run with what its
name says, in place of the page's runs: ``privacy``, clip and noise at the silos, counted;
``ledger``, silos that sign what they send, and the ledger verified; ``secure``, updates under
masks, from silos that know each other's keys, in which the server has no part.

Linux, root, iproute2. Takes about ten minutes, ``--with`` two or three; a block that fails ends it,
with its output.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fednag.flower import guardian
from fednag.flower.processes import Processes
from fednag.flower.silo_log import read
from fednag.runs.folder import RunFolder

PAGE = Path(__file__).parents[1] / "docs" / "deployment.md"
SECTION = "## Three hosts, step by step"
SWITCH = "fednag-switch"
HOSTS = {"server": "10.77.0.1", "a": "10.77.0.2", "b": "10.77.0.3", "c": "10.77.0.4"}
NAMED = {"server": "fl.example.org"}
PATIENCE = 900.0  # seconds a block may take
SETTING_UP = ("0", "1", "2", "3", "4", "5", "9")  # steps of the page
SILOS = ("a", "b", "c")
RUN = """fednag flower init app --silos 3 --set data.name=silos --set flower.shape=1,8,8 \\
    --set flower.classes=10 --set flower.bind=silo --set flower.out=$HOME/runs --set rounds=4 {sets}
flwr run app mine --stream
"""
LEDGER_KEY = " ledger-key='$HOME/secrets/ledger'"


@dataclass(frozen=True)
class Part:
    """What a run has beside those of the page."""

    sets: str = ""  # fields of the experiment
    node: str = ""  # of each silo's node-config
    after: str = ""  # typed on the server when the run is over


PRIVATE = ("uplink.0.kind=clip", "uplink.0.norm=1", "uplink.1.kind=noise", "uplink.1.sigma=2")
PARTS = {
    "privacy": Part(" ".join(f"--set {field}" for field in (*PRIVATE, "privacy.delta=1e-5"))),
    "ledger": Part(node=LEDGER_KEY, after="fednag ledger verify runs/*/*\n"),
    "secure": Part("--set aggregator.kind=secure", LEDGER_KEY + " known-keys='$HOME/known'"),
}
SCP = """#!{python}
import shutil, sys

def place(given):
    host, colon, path = given.partition(":")
    return f"{homes}/{{host}}/{{path}}" if colon else given

*sources, target = map(place, sys.argv[1:])
for source in sources:
    shutil.copy(source, target)
"""


@dataclass(frozen=True)
class Block:
    """Commands of the page, and where they are typed."""

    hosts: tuple[str, ...]
    stays: bool  # it is a server, and left running
    text: str
    step: str


def blocks(page: str) -> list[Block]:
    """The blocks of the section; the first line of each says where it is typed."""
    section = page.split(SECTION, 1)[1].split("\n## ", 1)[0]
    found, step = [], ""
    for title, text in re.findall(r"^\*\*(\d+\. [^*]+)\*\*|^```\n(.*?)^```", section, re.M | re.S):
        if title:
            step = title
            continue
        where, _, commands = text.partition("\n")
        place, _, remark = where.removeprefix("# ").partition(":")
        hosts = tuple(place.split(", "))
        if not where.startswith("# ") or not set(hosts) <= set(HOSTS):
            raise SystemExit(f"{PAGE.name}: the block {where!r} does not say where it is typed")
        found.append(Block(hosts, "leave it running" in remark, commands, step))
    return found


def space(host: str) -> str:
    return f"fednag-{host}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def network() -> Iterator[None]:
    """The hosts' namespaces, each on a port of a switch."""
    _remove()
    try:
        ip("netns", "add", SWITCH)
        ip("-n", SWITCH, "link", "add", "switch", "type", "bridge")
        ip("-n", SWITCH, "link", "set", "dev", "switch", "up")
        for host, address in HOSTS.items():
            there = space(host)
            ip("netns", "add", there)
            far = ("peer", "name", host, "netns", SWITCH)
            ip("link", "add", "eth0", "netns", there, "type", "veth", *far)
            ip("-n", SWITCH, "link", "set", "dev", host, "master", "switch", "up")
            ip("-n", there, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", there, "link", "set", "dev", "eth0", "up")
            ip("-n", there, "link", "set", "dev", "lo", "up")
        yield
    finally:
        _remove()


def _remove() -> None:
    for name in (*map(space, HOSTS), SWITCH):
        subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)


class Reader:
    """Someone who does what the page says."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.homes = processes.folder / "homes"
        self.typed = 0
        self.serving: dict[str, Block] = {}  # host -> the server that runs in a terminal there
        for host in HOSTS:
            (self.homes / host).mkdir(parents=True)
        names = (f"{address} {host} {NAMED.get(host, '')}" for host, address in HOSTS.items())
        (self.homes / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(names) + "\n")
        (self.homes / "bin").mkdir()
        scp = self.homes / "bin" / "scp"
        scp.write_text(SCP.format(python=sys.executable, homes=self.homes))
        scp.chmod(0o755)

    def follow(self, page: list[Block], cut: bool) -> None:
        for block in page:
            if "flwr run app mine --stream\n" in block.text and "init app" in block.text:
                self.pull_the_plug(block)
            elif "NODE-ID" in block.text:
                self.stop("a")
                self.type(self.with_node_id(block))
            else:
                self.type(block)
            if "secrets/old" in block.text:
                self.stop("server")
                self.type(self.serving["server"])
            if cut and "split.workers=3" in block.text and not (self.homes / "cut").exists():
                (self.homes / "cut").touch()
                self.cut_the_line()

    def run_with(self, page: list[Block], part: Part) -> None:
        """Set up the server and three silos as the page says, and run with a part in addition."""
        for block in page:
            if block.step.split(".")[0] not in SETTING_UP or "flwr run" in block.text:
                continue
            if block.stays and "partition-id" in block.text and part.node:
                self.type(Block(block.hosts, False, "fednag ledger key secrets/ledger\n", "keys"))
                text = block.text.replace("memory'\"", f"memory'{part.node}\"")
                block = Block(block.hosts, True, text, block.step)
            self.type(block)
        if "known-keys" in part.node:  # the silos exchange keys, and the server has no part in it
            text = "".join(
                f"scp {host}:secrets/ledger.pub known/silo-{silo}.pub\n"
                for silo, host in enumerate(SILOS)
            )
            self.type(Block(SILOS, False, f"mkdir -p known\n{text}", "keys"))
        for text in (RUN.format(sets=part.sets), part.after):
            if text:
                self.type(Block(("server",), False, text, "run"))

    def type(self, block: Block) -> None:
        for host in block.hosts:
            say(f"{block.step}  [{host}]  {block.text.strip().splitlines()[-1].strip()}")
            process = self.terminal(host, block)
            if block.stays:
                self.serving[host] = block
                self.wait_until_up(host)
            else:
                self.finished(host, process)

    def terminal(self, host: str, block: Block) -> subprocess.Popen[bytes]:
        """A shell in the host's home that is given the block as it stands."""
        self.typed += 1
        clean = "unset FLWR_HOME FLWR_TELEMETRY_ENABLED FLWR_DISABLE_UPDATE_CHECK"
        bin_, home = self.homes / "bin", self.homes / host
        script = (
            f"mount --bind {self.homes / 'hosts'} /etc/hosts || exit 1\n{clean}\n"
            f"export HOME={home} PATH={bin_}:$PATH\ncd\n"
            f"[ ! -f .profile ] || . ./.profile\nset -e\n{block.text}"
        )
        command = ["ip", "netns", "exec", space(host), "bash", "-c", script]
        return self.processes.start(host if block.stays else f"block-{self.typed}", command)

    def finished(self, host: str, process: subprocess.Popen[bytes]) -> None:
        name = f"block-{self.typed}"
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = -1
        log = self.processes.log(name).read_text(errors="replace")
        for line in log.splitlines()[-40:]:
            say(f"    {line}")
        if code or "fednag: stopped" in log:
            for server in self.serving:
                say(f"  -- {server}: {self.processes.last_words(server)}")
            raise SystemExit(f"on {host} that ended with {code}")

    def wait_until_up(self, host: str) -> None:
        """The server listens; a silo has said that it is connected."""
        until = time.monotonic() + PATIENCE
        probe = f"</dev/tcp/{HOSTS['server']}/8000"
        while time.monotonic() < until:
            if self.processes.started[host].poll() is not None:
                raise SystemExit(f"on {host}: {self.processes.last_words(host)}")
            if host != "server":
                time.sleep(5)
                if self.processes.started[host].poll() is None:
                    return
                continue
            command = ["ip", "netns", "exec", space(host), "bash", "-c", probe]
            if not subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
                return
            time.sleep(0.5)
        raise SystemExit(f"on {host}: nothing listens")

    def stop(self, host: str) -> None:
        """Ctrl-C in its terminal."""
        say(f"(Ctrl-C on {host})")
        for pid in guardian.marked(self.processes.token, host):
            os.kill(pid, signal.SIGINT)
        try:
            self.processes.started[host].wait(60)
        except subprocess.TimeoutExpired:
            say(f"(it did not end; killed: {self.processes.last_words(host)})")
        self.processes.kill(host)

    def pull_the_plug(self, block: Block) -> None:
        """A run, and after its second round the server dies with all it has started."""
        say(f"{block.step}  [server]  {block.text.strip().splitlines()[-1]}")
        run = self.terminal("server", block)
        name = f"block-{self.typed}"
        self.wait_for(name, "fednag: round 2/", run)
        say("(the server's plug is pulled)")
        self.processes.kill("server")
        self.processes.kill(name)
        self.type(self.serving["server"])

    def wait_for(self, name: str, text: str, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + PATIENCE
        while text not in self.processes.log(name).read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{text!r} never came: {self.processes.last_words(name)}")
            time.sleep(0.2)

    def with_node_id(self, block: Block) -> Block:
        """The id that a's SuperNode said when it was started."""
        log = self.processes.log("a").read_text(errors="replace")
        node = re.findall(r"SuperNode ID: (\d+)", log)[-1]
        return Block(block.hosts, block.stays, block.text.replace("NODE-ID", node), block.step)

    def cut_the_line(self) -> None:
        """Packets of b vanish from the second round's start until the third one has begun."""
        text = 'flwr run app mine --stream -c "split.workers=3 rounds=6 flower.deadline=90"\n'
        run = self.terminal("server", Block(("server",), False, text, ""))
        name = f"block-{self.typed}"
        for number, state in ((1, "down"), (2, "up")):
            self.wait_for(name, f"fednag: round {number}/", run)
            ip("-n", SWITCH, "link", "set", "dev", "b", state)
            say(f"(the line of b is {state})")
        self.finished("server", run)

    def tell(self) -> None:
        """What the runs' folders say in the end."""
        for path in sorted(self.homes.glob("server/runs/*/*/run.json")):
            lines = [x for x in read(path.parent / "silos.jsonl") if x["phase"] == "train"]
            info = json.loads(path.read_text())
            rounds = max(line["round"] for line in lines)
            bad = [f"round {x['round']}: {x['silo']} {x['status']}" for x in lines]
            bad = [text for text in bad if not text.endswith("ok")]
            silos = len({line["silo"] for line in lines})
            tale = "; ".join(bad) or "every answer was used"
            print(f"{path.parent.name}: {info['status']}, {rounds} rounds, {silos} silos: {tale}")
            last = RunFolder(path.parent).records()[-1]
            spent = f", epsilon {last.epsilon:.2f}" if last.epsilon is not None else ""
            pace = f"{last.seconds / last.round:.1f} s a round"
            up, down = (nbytes // last.round for nbytes in (last.bytes_up, last.bytes_down))
            bytes_ = f"{up:,} bytes up, {down:,} down a round"
            print(f"    accuracy {last.accuracy:.1%}{spent}; {bytes_}; {pace}")
            if info["status"] != "finished":
                raise SystemExit("a run is not finished")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cut", action="store_true", help="also cut a host's line during a run")
    parser.add_argument("--with", dest="part", choices=PARTS, help="one run with this, see above")
    given = parser.parse_args()
    if os.geteuid() or not Path("/proc/self/ns").is_dir():
        raise SystemExit("network namespaces need Linux and root")
    page, began = blocks(PAGE.read_text(encoding="utf-8")), time.monotonic()
    with network(), Processes() as processes:
        reader = Reader(processes)
        if given.part:
            reader.run_with(page, PARTS[given.part])
        else:
            reader.follow(page, given.cut)
        reader.tell()
    done = f"a run with {given.part}" if given.part else f"all {len(page)} blocks of the page work"
    print(f"{done} ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
