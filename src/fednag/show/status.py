"""A deployment as it is now, for people and Prometheus: who is here, what was refused, its cost.

All of it is read from run folders, so this needs neither the server's process nor its port, and a
machine that has a copy of the folder can show it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from fednag.errors import FednagError
from fednag.flower.silo_log import read
from fednag.runs.view import RunView
from fednag.show.watch import Follower, as_data, time_text

ANSWERS = ("ok", "missed", "refused")
LOST = 3  # answers that a silo has missed in a row when it is said to be away


@dataclass(frozen=True)
class Silo:
    """What is known of a silo."""

    number: int
    answers: Mapping[str, int]  # how many were ok, missed, refused
    last: str  # which its last one was
    row: int  # how many there are in a row like that one
    seen: float | None  # when it last answered well, in seconds since 1970
    why: str  # the last one's reason, if it was refused or missed
    node: str
    samples: int | None
    share: float | None  # of all samples, by which its updates weigh

    @property
    def state(self) -> str:
        if self.last == "ok":
            return "here"
        if self.last == "missed":
            return "away" if self.row >= LOST else "late"
        return "refused"


@dataclass(frozen=True)
class Deployed:
    """A run, and its silos."""

    run: Mapping[str, Any]
    silos: tuple[Silo, ...]
    expected: int
    turned_away: tuple[Mapping[str, Any], ...]  # nodes that were not let in
    bytes_up: int
    bytes_down: int
    seconds: float
    key: str


@dataclass
class Deployments:
    """Looks at a folder of runs for those that silos trained."""

    root: Path
    _follower: Follower = field(init=False)
    _logs: dict[Path, tuple[tuple[int, int], list[dict[str, Any]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._follower = Follower(self.root)

    def look(self) -> tuple[list[Deployed], list[FednagError]]:
        look = self._follower.look()
        failed, found = list(look.failed), []
        for view in look.views:
            path = (view.folder or self.root) / "silos.jsonl"
            if view.info.get("runner") != "flower" or not path.exists():
                continue
            try:
                found.append(deployed(view, self._log(path)))
            except FednagError as error:
                failed.append(error)
        return found, failed

    def _log(self, path: Path) -> list[dict[str, Any]]:
        status = path.stat()
        stamp = status.st_size, status.st_mtime_ns
        if self._logs.get(path, (None,))[0] != stamp:
            self._logs[path] = stamp, read(path)
        return self._logs[path][1]


def deployed(view: RunView, lines: Sequence[Mapping[str, Any]]) -> Deployed:
    """A run, from its records and the lines of its ``silos.jsonl``."""
    last = view.records[-1] if view.records else None
    by_silo: dict[int, list[Mapping[str, Any]]] = {}
    for line in lines:
        if line.get("status") in ANSWERS and type(line.get("silo")) is int:
            by_silo.setdefault(line["silo"], []).append(line)
    weighs = {silo: _weight(own) for silo, own in by_silo.items()}
    total = sum(weight for weight in weighs.values() if weight)
    silos = [
        _silo(number, own, (weighs[number] or 0) / total if total and weighs[number] else None)
        for number, own in sorted(by_silo.items())
    ]
    return Deployed(
        run=as_data(view),
        silos=tuple(silos),
        expected=int(view.info.get("silos") or len(silos)),
        turned_away=tuple(line for line in lines if line.get("status") == "turned away"),
        bytes_up=last.bytes_up if last else 0,
        bytes_down=last.bytes_down if last else 0,
        seconds=last.seconds if last else 0.0,
        key=view.folder.name if view.folder else view.label,
    )


def _weight(lines: Sequence[Mapping[str, Any]]) -> int | None:
    for line in reversed(lines):
        if line.get("samples"):
            return int(line.get("counted") or line["samples"])
    return None


def _silo(number: int, lines: Sequence[Mapping[str, Any]], share: float | None) -> Silo:
    last = lines[-1]
    row = 0
    for line in reversed(lines):
        if line["status"] != last["status"]:
            break
        row += 1
    good = [line for line in lines if line["status"] == "ok"]
    return Silo(
        number=number,
        answers=dict(Counter(line["status"] for line in lines)),
        last=last["status"],
        row=row,
        seen=_when(good[-1].get("at")) if good else None,
        why=str(last.get("why", "")) if last["status"] != "ok" else "",
        node=next((str(x["node"]) for x in reversed(lines) if x.get("node")), ""),
        samples=next((int(x["samples"]) for x in reversed(good) if x.get("samples")), None),
        share=share,
    )


def _when(text: object) -> float | None:
    """Seconds since 1970; logs of earlier versions say no times."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def metrics(found: Sequence[Deployed], failed: int = 0) -> str:
    """The text that Prometheus reads."""
    lines: dict[str, list[str]] = {}

    def add(name: str, kind: str, about: str, value: float | None, **labels: object) -> None:
        if value is None:
            return
        known = lines.setdefault(
            f"fednag_{name}", [f"# HELP fednag_{name} {about}", f"# TYPE fednag_{name} {kind}"]
        )
        inside = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
        known.append(f"fednag_{name}{{{inside}}} {float(value):.17g}")

    for each in found:
        run, by = each.run, {"run": each.key}
        state = {"state": run["state"], "method": run["label"]}
        add("run_info", "gauge", "A run, and its state.", 1, **by, **state)
        add("round", "gauge", "Rounds that are over.", run["round"], **by)
        add("rounds_planned", "gauge", "Rounds the run will have.", run["rounds"], **by)
        for name in ("loss", "accuracy", "test_loss", "epsilon"):
            add(name, "gauge", f"The run's {name.replace('_', ' ')}.", run[name], **by)
        add("bytes_up_total", "counter", "Bytes from silos.", each.bytes_up, **by)
        add("bytes_down_total", "counter", "Bytes to silos.", each.bytes_down, **by)
        add("run_seconds_total", "counter", "Seconds of rounds.", each.seconds, **by)
        add("silos_expected", "gauge", "Silos of the run.", each.expected, **by)
        here = sum(silo.last == "ok" for silo in each.silos)
        add("silos_here", "gauge", "Silos whose last answer was used.", here, **by)
        add(
            "nodes_turned_away_total",
            "counter",
            "Nodes that were not let in.",
            len(each.turned_away),
            **by,
        )
        for silo in each.silos:
            whose = {**by, "silo": silo.number}
            up = float(silo.last == "ok")
            add("silo_up", "gauge", "Whether a silo's last answer was used.", up, **whose)
            for status in ANSWERS:
                many = silo.answers.get(status, 0)
                add("silo_answers_total", "counter", "Answers.", many, **whose, status=status)
            about = "When a silo's answer was last used, since 1970."
            add("silo_last_answer_seconds", "gauge", about, silo.seen, **whose)
            add("silo_share", "gauge", "A silo's share of the weight.", silo.share, **whose)
    add("folders_unreadable", "gauge", "Run folders that cannot be read.", failed)
    return "".join(f"{line}\n" for block in lines.values() for line in block).replace("{}", "")


def _label(text: object) -> str:
    return str(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width">
<meta http-equiv="refresh" content="5">
<style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem }}
table {{ border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem }}
th, td {{ text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8884 }}
td.n, th.n {{ text-align: right; font-variant-numeric: tabular-nums }}
.here {{ color: light-dark(#11702e, #6fd08c) }} .late {{ color: light-dark(#8a5a00, #f0b848) }}
.away, .refused {{ color: light-dark(#b3261e, #ff8a80); font-weight: 600 }}
h1 {{ font-size: 1.3rem }} h2 {{ font-size: 1.05rem; margin-bottom: 0 }} small {{ opacity: .7 }}
</style></head><body><h1>{title}</h1>
{body}
<p><small>As of {now}; this page asks again every 5 seconds. For programs:
<a href="metrics">/metrics</a>, <a href="status.json">/status.json</a>.</small></p></body></html>
"""
COLUMNS = ("silo", "state", "last used", "ok", "missed", "refused", "samples", "share", "why")


def page(found: Sequence[Deployed], failed: Sequence[FednagError], root: str) -> str:
    """The same for people."""
    now = time.time()
    body = "".join("".join(_run(each, now)) for each in found)
    body += "".join(f"<p class='refused'>{escape(str(error))}</p>" for error in failed)
    if not body:
        body = f"<p>No run of silos in {escape(root)} yet.</p>"
    stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return PAGE.format(title=f"fednag: silos of {escape(root)}", body=body, now=stamp)


def _run(each: Deployed, now: float) -> Iterator[str]:
    run = each.run
    yield f"<h2>{escape(each.key)}: {escape(str(run['state']))}</h2><p>"
    facts = [f"round {run['round']} of {run['rounds'] or '?'}"]
    facts += [f"loss {run['loss']:.4f}"] if run["loss"] is not None else []
    facts += [f"accuracy {run['accuracy']:.1%}"] if run["accuracy"] is not None else []
    facts += [f"epsilon {run['epsilon']:.2f}"] if run["epsilon"] is not None else []
    here = sum(silo.last == "ok" for silo in each.silos)
    facts += [f"{here} of {each.expected} silos here"]
    facts += [f"{each.bytes_up / 1e6:.1f} MB up, {each.bytes_down / 1e6:.1f} MB down"]
    if run["seconds_left"] is not None:
        facts.append(f"{time_text(run['seconds_left'])} left")
    yield escape(", ".join(facts)) + "</p><table><tr>"
    for name in COLUMNS:
        yield f"<th class='{'n' if name in COLUMNS[3:8] else ''}'>{name}</th>"
    yield "</tr>"
    for silo in each.silos:
        seen = f"{time_text(max(0.0, now - silo.seen))} ago" if silo.seen else "-"
        counts = "".join(f"<td class='n'>{silo.answers.get(s, 0)}</td>" for s in ANSWERS)
        share = f"{silo.share:.1%}" if silo.share is not None else "-"
        yield f"<tr><td>{silo.number}</td><td class='{silo.state}'>{silo.state}</td><td>{seen}</td>"
        yield f"{counts}<td class='n'>{silo.samples or '-'}</td><td class='n'>{share}</td>"
        yield f"<td>{escape(silo.why)}</td></tr>"
    yield "</table>"
    if each.turned_away:
        last = each.turned_away[-1]
        why = escape(f"{len(each.turned_away)} turned away, the last: {last.get('why', '')}")
        yield f"<p class='refused'>{why}</p>"


def document(found: Sequence[Deployed], failed: Sequence[FednagError]) -> dict[str, Any]:
    """The same for programs."""
    runs = [
        {
            **each.run,
            "silos_expected": each.expected,
            "bytes_up": each.bytes_up,
            "bytes_down": each.bytes_down,
            "turned_away": [dict(line) for line in each.turned_away],
            "silos": [{**vars(silo), "state": silo.state} for silo in each.silos],
        }
        for each in found
    ]
    return {"runs": runs, "failed": [error.to_dict() for error in failed]}
