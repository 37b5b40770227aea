"""``fednag time record`` and ``listen``: this machine's delays, really measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli.common import (
    answer,
    beside,
    blaming,
    console,
    print_json,
    set_fields,
    table,
    usable,
)
from fednag.cli.options import Json, Set, written_to

if TYPE_CHECKING:
    from rich.table import Table

RECORDED: dict[str, Any] = {"name": "record", "data": {"name": "digits"}, "model": {"name": "cnn"}}


def time_record(
    experiment: Annotated[
        Path | None,
        typer.Argument(help="TOML file whose iterations are sampled; else digits and the CNN."),
    ] = None,
    set_: Set = [],  # noqa: B006
    device: Annotated[str, typer.Option(help="What this machine is called.")] = "this-machine",
    iterations: Annotated[int, typer.Option(min=1, max=10**6, help="Iterations to sample.")] = 50,
    transfers: Annotated[
        int, typer.Option(min=1, max=10**5, help="Transfers to sample, each way and size.")
    ] = 10,
    host: Annotated[
        str, typer.Option(help="HOST:PORT where `fednag time listen` runs; else loopback.")
    ] = "",
    out: Annotated[
        Path, written_to("Folder of the fleet; a device is added if one is there.")
    ] = Path("fleet"),
    json: Json = False,
) -> None:
    """Sample this machine: iterations of a model, transfers, aggregations; writes a fleet.

    Example: fednag time record examples/digits.toml --device my-laptop --out my-fleet
    """
    from fednag.clock.recording import (
        add_device,
        aggregation_samples,
        check_name,
        iteration_samples,
        link_samples,
        reference,
    )
    from fednag.config import override, parse, read
    from fednag.devices.transfers import Peer
    from fednag.runs.build import Builder

    source = str(experiment) if experiment else "fednag time record"
    changes = set_fields(set_)
    raw = override(read(experiment) if experiment else RECORDED, changes)
    raw.pop("algorithms", None)
    # One worker on one thread: what a device of this kind does alone.
    with blaming(dict.fromkeys(changes, "--set")):
        parsed = parse(override(raw, {"engine.chunk": 1, "engine.threads": 1}), source)
    check_name(out, device)
    usable(out)
    terminal = console(stderr=True)
    with Peer.at(host) as peer:
        with terminal.status("preparing"):
            _, plan, _ = Builder().plan(parsed)
            sampled_on = reference(plan, parsed)
        with terminal.status(f"{iterations} iterations of {sampled_on['model']}"):
            samples = iteration_samples(plan, device, iterations)
        size = plan.problem.initial.nbytes
        with terminal.status(f"transfers of {size / 1e3:.0f} kB to {2 * size / 1e3:.0f} kB"):
            samples += link_samples(peer, device, size, transfers)
        with terminal.status("aggregations"):
            samples += aggregation_samples(plan, 10)
        where = peer.words
    path = add_device(out, device, sampled_on, samples, where)
    rows = _rows(samples, sampled_on["flops"])
    answer(
        json,
        {"device": device, "reference": sampled_on, "rows": rows},
        _table(rows),
        notes=[f"transfers were {where}", "iterations ran on one thread, one at a time"],
        files=[path, path.with_name("samples.csv")],
    )


def _rows(samples: list[Any], flops: float) -> list[dict[str, Any]]:
    """What was sampled, a row for each kind and size."""
    from statistics import mean, stdev

    rows: list[dict[str, Any]] = []
    for what, size in dict.fromkeys((sample.what, sample.size) for sample in samples):
        taken = [s.seconds for s in samples if (s.what, s.size) == (what, size)]
        computed = what == "iteration"
        rows.append(
            {
                "sampled": what,
                "samples": len(taken),
                "bytes": size,
                "seconds": mean(taken),
                "deviation": stdev(taken) if len(taken) > 1 else None,
                "gflops": flops / mean(taken) / 1e9 if computed else None,
                "mbit": size * 8 / mean(taken) / 1e6 if size and not computed else None,
            }
        )
    return rows


def _table(rows: list[dict[str, Any]]) -> Table:
    made = table(["sampled", "samples", "bytes", "mean seconds", "deviation", "rate"])
    for row in rows:
        spread = "-" if row["deviation"] is None else f"{row['deviation']:.3g}"
        rate = "-"
        if row["gflops"] is not None:
            rate = f"{row['gflops']:.3g} GFLOP/s"
        elif row["mbit"] is not None:
            rate = f"{row['mbit']:,.4g} Mbit/s"
        size = "-" if row["bytes"] is None else f"{row['bytes']:,}"
        numbers = (str(row["samples"]), size, f"{row['seconds']:.4g}", spread, rate)
        made.add_row(row["sampled"], *numbers)
    return made


def time_listen(
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any that is free.")] = 5209,
    once: Annotated[bool, typer.Option("--once", help="End after the first visitor.")] = False,
    json: Json = False,
) -> None:
    """Answer the transfers of `fednag time record --host` from another machine, until Ctrl-C.

    Example: fednag time listen --host 0.0.0.0
    """
    from fednag.devices.transfers import Listener

    terminal = beside(json)
    with Listener(host, port) as listener:
        if json:
            print_json({"host": listener.host, "port": listener.port})
        else:
            words = f"listening at {listener.host}:{listener.port}; Ctrl-C ends"
            terminal.print(words, highlight=False)
        if host not in ("127.0.0.1", "localhost", "::1"):
            terminal.print("anyone who reaches this port can make it send and receive bytes")
        listener.serve(once)
