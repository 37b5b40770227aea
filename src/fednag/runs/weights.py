"""A model's weights on disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from fednag.core.files import write_atomically
from fednag.errors import FednagError


def save_model(module: nn.Module, path: Path) -> str:
    """A module's state as safetensors: ``module.load_state_dict(load_file(path))`` reads it.

    Returns the file's digest.
    """
    # Cloned, because safetensors refuses tensors that share memory, as tied weights do.
    state = {
        name: value.detach().clone().contiguous() for name, value in module.state_dict().items()
    }
    content = save(state)
    write_atomically(path, content)
    return hashlib.sha256(content).hexdigest()


def load_model(module: nn.Module, path: Path, digest: object) -> nn.Module:
    """The same module with the state that ``save_model`` wrote, if the file is as it was."""
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError("another digest")
        module.load_state_dict(load(content))
    except (OSError, ValueError, SafetensorError, RuntimeError) as error:
        raise FednagError(
            path,
            "it is missing, damaged or of another model",
            "restore it, or run again without resuming",
        ) from error
    return module
