"""TensorBoard: a folder of event files a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fednag.errors import FednagError
from fednag.runs.view import RunView
from fednag.show.trackers import began, name_of, needs, scalars

SUFFIX = ".fednag"


def write(views: Sequence[RunView], out: Path) -> list[Path]:
    """Write runs to ``out/<name>/<run>``; what was written there before is replaced."""
    needs("tensorboard", "tensorboard")
    try:
        return [_write(view, out) for view in views]
    except OSError as error:
        raise FednagError(
            f"--out {out}: cannot be written ({error.strerror or error}); choose another folder"
        ) from error


def _write(view: RunView, out: Path) -> Path:
    from torch.utils.tensorboard import SummaryWriter

    run = view.folder.name if view.folder else f"{view.label}-{view.seed}"
    folder = out / name_of(view) / run
    folder.mkdir(parents=True, exist_ok=True)
    # Events are only ever added to: written twice, every point would be there twice.
    for old in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
        old.unlink()
    start = began(view)
    with SummaryWriter(str(folder), filename_suffix=SUFFIX) as writer:
        for record in view.records:
            for name, value in scalars(record).items():
                writer.add_scalar(name, value, record.iteration, start + record.seconds)
        settings = "\n".join(f"    {key} = {value}" for key, value in view.settings.items())
        writer.add_text("settings", settings, 0, start)
    return folder
