"""Parts of the user's own, named in an experiment: ``my_file.py:Name`` or ``package.module:Name``.

A file is imported by its path, once for its content. Its digest, and those of the neighbours that
it imports, are written down with the experiment, so that another text is another run.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar, cast, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from fednag.config.messages import cut, explain, nearest, plain
from fednag.config.sections import STRICT, is_own
from fednag.core.controller import Schedule
from fednag.core.files import write_atomically
from fednag.errors import FednagError
from fednag.problems.metrics import Metric

T = TypeVar("T")

MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Loaded:
    """A module of the user's, and the digests of the files it was made from."""

    module: ModuleType
    files: Mapping[str, str]


_loaded: dict[str, Loaded] = {}  # by file
_neighbours: dict[str, ModuleType] = {}  # that the file loaded last has imported, by name


def short(name: str) -> str:
    """What a part is called in tables: its name without the file."""
    return name.rpartition(":")[2] if is_own(name) else name


def short_names(names: Iterable[str]) -> dict[str, str]:
    """A label for each name: as short as it can be and still be the only one."""
    found = {name: (short(name), Path(name).name, name) for name in names}
    return {
        name: next(
            way for i, way in enumerate(ways) if [w[i] for w in found.values()].count(way) < 2
        )
        for name, ways in found.items()
    }


def placed_name(name: Any, folder: Path | None = None) -> Any:
    """The same with an absolute path: from ``folder`` if the file is there, else from here."""
    place, colon, part = name.rpartition(":") if is_own(name) else ("", "", "")
    if not place.endswith(".py"):
        return name
    here = os.path.abspath(place)
    beside = here if folder is None else os.path.abspath(folder / place)
    return f"{beside if os.path.isfile(beside) else here}{colon}{part}"


def load(spec: str, field: str, base: Path | None = None) -> Any:
    """What ``spec`` names; ``field`` is named in errors, ``base`` is where paths start."""
    place, name = _parts(placed_name(spec, base), field)
    module = _of(place, field).module
    try:
        return getattr(module, name)
    except AttributeError:
        known = sorted(key for key in vars(module) if not key.startswith("_"))
        raise FednagError(
            field,
            f"{_shown(place)} has no {plain(name)}{_nearest(name, known)}",
            "name something that it defines",
        ) from None


def files_of(spec: str, field: str = "") -> dict[str, str]:
    """The files that a part is made from, with their digests."""
    place, _ = _parts(placed_name(spec), field)
    return dict(_of(place, field).files)


@dataclass(frozen=True)
class Carried:
    """Files of the user's own, to be put into another folder with the neighbours they import."""

    names: Mapping[str, str]  # of parts, as they are called there, by what they are called here
    digests: Mapping[str, str]  # by path there
    contents: Mapping[str, bytes]

    def write(self, folder: Path) -> None:
        for path, content in self.contents.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / path, content)


def carried(specs: Iterable[object]) -> Carried:
    """The files of these parts, each part in a folder of its own: files of one name do not meet."""
    names, digests, contents = dict[str, str](), dict[str, str](), dict[str, bytes]()
    for spec in specs:
        if not isinstance(spec, str) or not is_own(spec):
            continue
        if not (place := place_of(spec)).endswith(".py"):
            continue
        files = files_of(spec, "own")
        folder = f"own/{hashlib.sha256(''.join(files.values()).encode()).hexdigest()[:12]}"
        for file, digest in files.items():
            path = f"{folder}/{Path(file).relative_to(Path(place).parent).as_posix()}"
            digests[path], contents[path] = digest, Path(file).read_bytes()
        names[spec] = f"{folder}/{Path(place).name}:{short(spec)}"
    return Carried(names, digests, contents)


def place_of(spec: str) -> str:
    """The file or module that a part is in."""
    return spec.rpartition(":")[0]


def load_class(spec: str, base_class: type[T], field: str) -> type[T]:
    """The class that ``spec`` names: a dataclass below ``base_class``."""
    found: Any = load(spec, field)
    kind = base_class.__name__
    if issubclass(base_class, Schedule) and inspect.isfunction(found):
        return cast(type[T], base_class.of(found))
    if isinstance(found, base_class):
        name = type(found).__name__
        raise FednagError(field, f"{short(spec)} is an instance", f"name its class, {name}")
    if not isinstance(found, type) or not issubclass(found, base_class) or found is base_class:
        raise FednagError(
            field,
            f"{short(spec)} is {_kind(found)}, not a subclass of fednag.{kind}",
            "derive it from that",
        )
    # Its base may be a dataclass, and it itself not: then its own numbers would be passed over.
    known = getattr(found, "__dataclass_fields__", {})
    if not is_dataclass(found) or not set(inspect.get_annotations(found)) <= set(known):
        raise FednagError(
            field,
            f"{found.__name__} is no dataclass",
            f"put @dataclass(frozen=True) above class {found.__name__}",
        )
    if lacking := sorted(getattr(found, "__abstractmethods__", ())):
        raise FednagError(field, f"{found.__name__} lacks {', '.join(lacking)}", "write it there")
    checker(found)  # while the neighbours are there that its annotations may name
    return cast(type[T], found)


def build(cls: type[T], numbers: Mapping[str, Any], field: str) -> T:
    """A part with these numbers, checked; ``field`` is the table they stand in."""
    model = checker(cls)  # type: ignore[arg-type]  # a class is hashable
    try:
        checked = model.model_validate(
            {key: _frozen(own, model.model_fields.get(key)) for key, own in numbers.items()}
        )
    except ValidationError as error:
        raise explain(error, model, (field,)) from None
    # Only what was given: the rest is the class's own default, whatever it is.
    given = {name: getattr(checked, name) for name in checked.model_fields_set}
    try:
        return cls(**given)
    except FednagError:
        raise
    except Exception as error:  # whatever a class of the user's own raises
        raise FednagError(
            field,
            f"{cls.__name__} refuses its numbers ({_first(error)})",
            "change them",
        ) from error


def _frozen(given: Any, field: Any) -> Any:
    """A list as a tuple, where the part has one: files have lists alone."""
    wants = field is not None and get_origin(field.annotation) is tuple
    return tuple(given) if wants and isinstance(given, list) else given


def build_part(
    table: Mapping[str, Any],
    registry: Mapping[str, type[T]],
    base_class: type[T],
    field: str,
    key: str = "kind",
) -> T:
    """The part that a table describes: its name under ``key``, its numbers beside it."""
    cls = class_of(table.get(key), registry, base_class, f"{field}.{key}")
    return build(cls, {k: v for k, v in table.items() if k != key}, field)


def class_of(
    name: object, registry: Mapping[str, type[T]], base_class: type[T], field: str
) -> type[T]:
    """The class of a part, shipped or in a file of the user's own."""
    if isinstance(name, str) and name in registry:
        return registry[name]
    if isinstance(name, str) and is_own(name):
        return load_class(name, base_class, field)
    kind = base_class.__name__.lower()
    own = f"; one of your own is FILE.py:{base_class.__name__}" if "." in str(name) else ""
    raise FednagError(
        field,
        f"no {kind} {cut(name)}{nearest(str(name)[:60], registry)}",
        f"there are {', '.join(registry)}{own}",
    )


def own_model(name: str, field: str) -> Any:
    """A module of the user's, or what makes one; None for a model that is shipped."""
    if not is_own(name):
        return None
    from torch import nn

    found = load(name, field)
    is_class = isinstance(found, type)
    if not callable(found) or (is_class and not issubclass(found, nn.Module)):
        raise FednagError(
            field,
            f"{short(name)} is {_kind(found)}",
            "name an nn.Module, its class, or a function that makes one",
        )
    return found


def own_loss(name: str | None, field: str) -> Any:
    """A loss of the user's; else the name as it stands."""
    if not is_own(name) or name is None:
        return name
    from torch import nn

    found = load(name, field)
    if isinstance(found, type) and issubclass(found, nn.Module):
        try:
            found = found()
        except Exception as error:  # whatever a class of the user's own raises
            raise FednagError(
                field, f"{short(name)} cannot be made ({_first(error)})", "name an instance"
            ) from error
    if isinstance(found, type) or not callable(found):
        raise FednagError(
            field,
            f"{short(name)} is {_kind(found)}",
            "name a function of (outputs, targets), or a loss module",
        )
    return found


def own_anchor(name: str | None, field: str) -> Any:
    """A function of the user's that is given the head of a run's ledger; None without one."""
    if name is None:
        return None
    found = load(name, field)
    if isinstance(found, type) or not callable(found):
        raise FednagError(
            field, f"{short(name)} is {_kind(found)}", "name a function that takes a head"
        )
    return found


def own_metrics(names: Iterable[str], field: str) -> dict[str, Metric]:
    """The metrics of the user's among these, by the names they are recorded under."""
    found = {}
    for name in names:
        if not is_own(name):
            continue
        given = load(name, field)
        if isinstance(given, type) or not (callable(given) or isinstance(given, Metric)):
            raise FednagError(
                field,
                f"{short(name)} is {_kind(given)}",
                "name a function of (outputs, targets), or a fednag.Metric",
            )
        found[short(name)] = given if isinstance(given, Metric) else Metric(given)
    return found


def _kind(found: object) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else type(found).__name__


@cache
def checker(cls: type[Any]) -> type[BaseModel]:
    """What checks the numbers of a dataclass."""
    hints = get_type_hints(cls, include_extras=True)
    definitions: dict[str, Any] = {}
    for field in fields(cls):
        if not field.init:
            continue
        default: Any = ... if field.default is MISSING else field.default
        if field.default_factory is not MISSING:
            default = Field(default_factory=field.default_factory)
        definitions[field.name] = (hints[field.name], default)
    config = ConfigDict(**STRICT, arbitrary_types_allowed=True)
    return create_model(cls.__name__, __config__=config, **definitions)


def _nearest(name: str, known: Iterable[str]) -> str:
    """As ``nearest``; a class may differ in its capitals alone, which is easily overlooked."""
    written = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), written, n=1, cutoff=0.6)
    return f" (did you mean {written[close[0]]}?)" if close else ""


def _parts(spec: str, field: str) -> tuple[str, str]:
    place, _, name = spec.rpartition(":")
    if not place:
        place, name = spec, ""
    if not (place.endswith(".py") or MODULE.fullmatch(place)) or not name.isidentifier():
        example = f"{Path(place).name if place.endswith('.py') else 'my_file.py'}:Name"
        raise FednagError(
            field, f"{cut(spec)} names nothing in a file", f"write FILE.py:Name, e.g. {example}"
        )
    return place, name


def _of(place: str, field: str) -> Loaded:
    return _file(place, field) if place.endswith(".py") else _module(place, field)


def _module(name: str, field: str) -> Loaded:
    try:
        with redirect_stdout(sys.stderr):
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise _failed(name, error, field) from error
        raise FednagError(
            field,
            f"there is no module {plain(name)} to import",
            "install it, or write the file, e.g. my_file.py:Name",
        ) from None
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise _failed(name, error, field) from error
    file = getattr(module, "__file__", None)
    return Loaded(module, {name: _digest(_content(file, field))} if file else {})


def _file(path: str, field: str) -> Loaded:
    content = _content(path, field)
    known = _loaded.get(path)
    if known and all(_is(file, digest) for file, digest in known.files.items()):
        return known
    # A name of its own: files of one name in two folders are two modules.
    name = f"fednag_own_{hashlib.sha256(path.encode()).hexdigest()[:12]}_{Path(path).stem}"
    spec = spec_from_file_location(name, path, loader=_Loader(name, path, content))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        with _importable(Path(path).parent) as imported:
            spec.loader.exec_module(module)
            found = [file for m in imported().values() if (file := getattr(m, "__file__", None))]
    except BaseException as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        if isinstance(error, Exception | SystemExit):
            raise _failed(path, error, field) from error
        raise
    files = {path: _digest(content)} | {file: _digest(_content(file, field)) for file in found}
    _loaded[path] = Loaded(module, files)
    return _loaded[path]


class _Loader(SourceFileLoader):
    """Compiles what was digested: a cached compilation may be that of an older text."""

    def __init__(self, name: str, path: str, content: bytes) -> None:
        super().__init__(name, path)
        self.content = content

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.content, self.path)
        return code


@contextmanager
def _importable(folder: Path) -> Iterator[Any]:
    """In the block, a file's neighbours can be imported; gives a function that says which were.

    Those of files loaded before are forgotten first: they may be of another folder, or changed.
    """
    for name, module in _neighbours.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    _neighbours.clear()
    there = set(sys.modules)
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()

    def fresh() -> dict[str, ModuleType]:
        found = {}
        for name, module in list(sys.modules.items()):
            top = name.partition(".")[0]
            home = getattr(sys.modules.get(top), "__file__", None)
            beside = (str(folder / f"{top}.py"), str(folder / top / "__init__.py"))
            if name not in there and top not in there and home in beside:
                found[name] = module
        return found

    try:
        # What a file prints as it is imported must not get into a command's result.
        with redirect_stdout(sys.stderr):
            yield fresh
    finally:
        _neighbours.update(fresh())
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = writes


def _content(path: str, field: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise FednagError(field, f"there is no file {_shown(path)}", "check the path") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise FednagError(
            field, f"{_shown(path)} cannot be read ({why})", "check the path"
        ) from None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is(path: str, digest: str) -> bool:
    try:
        return _digest(Path(path).read_bytes()) == digest
    except OSError:
        return False


def _failed(place: str, error: BaseException, field: str) -> FednagError:
    """One sentence on code that raises when it is imported: what, and where."""
    line = ""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith(".py")]
    own = [frame for frame in frames if frame.filename == place] or frames[-1:]
    if isinstance(error, SyntaxError) and error.filename:
        line = f", {Path(error.filename).name} line {error.lineno}"
    elif own:
        line = f", {Path(own[-1].filename).name} line {own[-1].lineno}"
    return FednagError(
        field, f"{_shown(place)} cannot be imported ({_first(error)}{line})", "correct it there"
    )


def _first(error: BaseException) -> str:
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    first = (message.strip().splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _shown(place: str) -> str:
    return place if place.isprintable() else cut(place)
