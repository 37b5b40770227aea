"""TensorBoard: a folder of event files a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fednag.errors import FednagError
from fednag.show.sheets import Sheet
from fednag.show.trackers import began, name_of, needs, scalars

SUFFIX = ".fednag"


def write(sheets: Sequence[Sheet], out: Path) -> list[Path]:
    """Write runs to ``out/<name>/<run>``; what was written there before is replaced."""
    needs("tensorboard", "tensorboard")
    try:
        return [_write(sheet, out) for sheet in sheets]
    except OSError as error:
        raise FednagError(
            f"--out {out}: cannot be written ({error.strerror or error}); choose another folder"
        ) from error


def _write(sheet: Sheet, out: Path) -> Path:
    from torch.utils.tensorboard import SummaryWriter

    run = sheet.folder.name if sheet.folder else f"{sheet.curve.label}-{sheet.curve.seed}"
    folder = out / name_of(sheet) / run
    folder.mkdir(parents=True, exist_ok=True)
    # Events are only ever added to: written twice, every point would be there twice.
    for old in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
        old.unlink()
    start = began(sheet)
    with SummaryWriter(str(folder), filename_suffix=SUFFIX) as writer:
        for record in sheet.curve.records:
            for name, value in scalars(record).items():
                writer.add_scalar(name, value, record.iteration, start + record.seconds)
        settings = "\n".join(f"    {key} = {value}" for key, value in sheet.settings.items())
        writer.add_text("settings", settings, 0, start)
    return folder
