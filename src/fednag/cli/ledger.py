"""``fednag ledger``: what travelled in a run, verified and audited."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli.common import answer, beside, console, print_json, table
from fednag.cli.options import Json, PassphraseFile
from fednag.errors import FednagError, not_installed

if TYPE_CHECKING:
    from fednag.runs.folder import RunFolder
    from fednag.runs.ledger import Verified

ledger_app = typer.Typer(
    no_args_is_help=True,
    help="Verify, audit and show the ledger of a run: who was sent what, who sent what.\n\n"
    "Kept with `ledger.kind = 'chain'`; on real machines always, unless it is 'none'.",
)
Run = Annotated[Path, typer.Argument(help="The run's folder, or a folder with one run in it.")]


@ledger_app.command()
def verify(
    run: Run,
    head: Annotated[
        str, typer.Option(help="A head that was anchored: the chain must have had it.")
    ] = "",
    json: Json = False,
) -> None:
    """Check the chain and its signatures; name the first entry that is not as it was written.

    Example: fednag ledger verify runs/digits/fednag-1a2b3c4d
    """
    from fednag.runs.ledger import keys_of

    folder = _folder(run)
    found = _verified(folder)
    fault = found.fault
    known = found.hashes.index(head) + 1 if head in found.hashes else None
    entries = found.head.entries
    signed = f", {found.signed} of them signed" if keys_of(found.entries) else ""
    lines = [f"{entries} entries, each as it was written{signed}"]
    if head:
        lines.append(f"the head given is that of entry {known}")
    if not found.sealed:
        lines.append("the run is not over: entries after its last checkpoint may be cut off")
    wrong = fault is not None or bool(head and known is None)
    document = {
        "run": str(folder.path),
        "entries": entries,
        "head": found.head.head,
        "signed": found.signed,
        "over": found.sealed,
        "fault": fault and {"entry": fault.entry, "kind": fault.kind, "why": str(fault)},
        "at": known,
    }
    if json or not wrong:
        answer(json, document, *lines, f"head {found.head.head}")
    if fault:
        raise fault.error()
    if wrong:
        raise FednagError("--head", f"no entry of {folder.path} has that hash", given=head[:80])


@ledger_app.command()
def audit(
    run: Run,
    round_: Annotated[
        int | None, typer.Option("--round", help="The last round to play again; default: all.")
    ] = None,
    json: Json = False,
) -> None:
    """Play the run again from its configuration and data, and compare every digest, to the bit.

    Example: fednag ledger audit runs/digits/fednag-1a2b3c4d --round 12
    """
    from fednag.runs.audit import audit as audited
    from fednag.show.terminal import notes

    folder = _folder(run)
    if fault := _verified(folder).fault:
        raise fault.error("restore the file: there is nothing to compare with")
    found = audited(folder, round_)
    different = found.difference
    if json:
        told = None
        if different:
            told = {**vars(different), "why": str(different)}
        print_json(
            {
                "rounds": found.rounds,
                "digests": found.digests,
                "difference": told,
                "notes": found.notes,
            }
        )
    else:
        notes(beside(json), found.notes)
    if different:
        raise FednagError(run, f"{different} than when it is played again")
    if not json:
        console().print(
            f"{found.rounds} rounds played again: all {found.digests} digests are equal"
        )


@ledger_app.command()
def show(
    run: Run,
    round_: Annotated[int | None, typer.Option("--round", help="One round; default: all.")] = None,
    json: Json = False,
) -> None:
    """Print the entries that count, a line an upload and a line a round.

    Example: fednag ledger show runs/digits/fednag-1a2b3c4d --round 3
    """
    from fednag.runs.ledger import rounds_of

    folder = _folder(run)
    found = _verified(folder)
    if found.fault:
        raise found.fault.error()
    rounds = rounds_of(found.entries)
    if round_ is not None and round_ not in rounds:
        about = f"the ledger has rounds 1 to {max(rounds, default=0)}"
        raise FednagError("--round", about, given=round_)
    chosen = [e for n, own in rounds.items() if round_ in (None, n) for e in own]
    names = ("entry", "round", "worker", "status", "sent", "up", "samples", "steps", "signed")
    made = table(names)
    for entry in chosen:
        made.add_row(*(_cell(entry, name) for name in names))
    answer(json, {"run": str(folder.path), "entries": chosen}, made)


@ledger_app.command()
def key(
    path: Annotated[Path, typer.Argument(help="Where to write the private key; a new file.")],
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Make a silo's key, with which it signs its uploads; name it in its node-config's ledger-key.

    Example: fednag ledger key secrets/silo-0-ledger.key
    """
    if find_spec("cryptography") is None:
        raise not_installed("cryptography, which makes keys,", "flower")
    from fednag.flower.passphrase import passphrase
    from fednag.flower.signing import make_key

    public = make_key(path, passphrase(passphrase_file))
    lines = f"wrote {path} and {path}.pub", f"public key {public}"
    answer(json, {"files": [str(path), f"{path}.pub"], "public": public}, *lines)


def _folder(path: Path) -> RunFolder:
    from fednag.runs.folder import find_runs

    found = find_runs([path])
    if len(found) > 1:
        raise FednagError(path, f"has {len(found)} runs", "name the folder of one")
    return found[0]


def _verified(folder: RunFolder) -> Verified:
    """The chain, its head and its signatures, checked."""
    from fednag.runs.ledger import keys_of, verify

    found = verify(folder)
    if found.fault or not keys_of(found.entries):
        return found
    if find_spec("cryptography") is None:
        raise not_installed("cryptography, which checks signatures,", "flower")
    from fednag.flower.signing import is_signed

    return verify(folder, is_signed)


def _cell(entry: dict[str, Any], name: str) -> str:
    """What a table shows of an entry: digests by their first letters."""
    if entry["kind"] == "round":
        short: dict[str, str] = {"status": "aggregate", "sent": entry["server"][:12]}
        short["up"] = " ".join(one[:12] for one in entry["aggregates"])
        return short.get(name, str(entry.get(name, "")))
    if name == "signed":
        return "yes" if "signature" in entry else ""
    given = entry.get(name)
    return "" if given is None else str(given)[:12]
