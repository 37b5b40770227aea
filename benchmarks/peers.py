"""Environments for the peers: each its own, since they pin packages of their own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
HOME = HERE / ".peers"


@dataclass(frozen=True)
class Peer:
    name: str
    requirement: str


FLOWER = Peer("flower", "flwr[simulation]==1.41.0")
PFL = Peer("pfl-research", "pfl==0.6.0")
JAX = Peer("jax", "jax==0.10.2")


def python_of(peer: Peer) -> tuple[Path | None, str]:
    """(the peer's Python, or None; what was installed, or why it could not be)."""
    folder = HOME / peer.name
    python = folder / "bin" / "python"
    done = folder / f"installed {peer.requirement}"
    if not done.exists():
        print(f"installing {peer.requirement} in {folder.relative_to(HERE.parent)}", flush=True)
        torch = next(
            line
            for line in (HERE.parent / "constraints.txt").read_text().splitlines()
            if line.startswith("torch==")
        )
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # torch first and pinned: a peer's looser request may pull gigabytes of CUDA libraries.
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [*install, torch],
            [*install, torch, peer.requirement],
        ):
            found = subprocess.run(command, capture_output=True, text=True, check=False)
            if found.returncode:
                last = (found.stderr.strip().splitlines() or ["no reason given"])[-1]
                return None, f"{peer.requirement} cannot be installed here: {last}"
        done.touch()
    return python, peer.requirement
