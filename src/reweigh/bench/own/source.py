"""Where the user's training comes from: a function in a file, a function of this process, or a program.

A run on disk belongs to the code that made it, so a source carries a fingerprint of that code: when it changes, runs
are made again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import pickle
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from reweigh.bench.errors import MissingFileError, UserError
from reweigh.bench.files import write_atomically

#: What a training function is: it takes the run, and returns scores once or yields them once per epoch.
TrainFunction = Callable[[Any], Any]

_FILE, _FUNCTION, _COMMAND = "file:", "function:", "command:"
#: Functions of this process, by the text of their source.
_HERE: dict[str, TrainFunction] = {}


def of_function(function: TrainFunction, root: Path) -> tuple[str, str]:
    """The source of a function and the fingerprint of its code.

    The function is stored under `root`, so that other processes can load it whatever module or notebook it is from.
    """
    if not callable(function):
        raise TypeError(f"`train` must be a function that takes the run, got {type(function).__name__}.")
    # What was made from data has a fingerprint that covers them.
    fingerprint = getattr(function, "fingerprint", None) or _digest("\n".join(_sources(function)))
    path = _stored(root, fingerprint)
    source = f"{_FUNCTION}{fingerprint}"
    _HERE[source] = function
    import cloudpickle

    path.parent.mkdir(parents=True, exist_ok=True)
    # Where its modules are found comes with it: another process does not know this one's search path.
    write_atomically(path, pickle.dumps({"path": sys.path, "function": cloudpickle.dumps(function)}))
    return source, fingerprint


def of_file(text: str) -> tuple[str, str]:
    """The source of `train.py:train`, and the fingerprint of the file."""
    name, _, function = text.rpartition(":")
    path = Path(name).resolve()
    if not path.is_file():
        raise MissingFileError(f"there is no file {name}, named by {text!r}. Write it as path/to/file.py:function.")
    _load_file(path, function)  # a misspelt name is refused before anything runs
    # Relative, so that neither a run's identity nor its page depends on where the home folder is.
    return f"{_FILE}{os.path.relpath(path)}:{function}", _digest(path.read_bytes().decode(errors="replace"))


def of_command(template: str) -> tuple[str, str]:
    """The source of a program, and the fingerprint of its text and of the files that it names."""
    words = shlex.split(template)
    if not words:
        raise UserError("`--script` must be a command, got nothing.")
    files = [Path(word) for word in words if Path(word).is_file() and Path(word).stat().st_size < 1_000_000]
    content = [template, *(path.read_bytes().decode(errors="replace") for path in files)]
    return f"{_COMMAND}{template}", _digest("\n".join(content))


def command_of(source: str) -> str | None:
    """The command of a source that is a program; None for functions."""
    return source.removeprefix(_COMMAND) if source.startswith(_COMMAND) else None


def load(source: str, root: Path) -> TrainFunction:
    """The function behind a source, for runs in the folder `root`."""
    if source in _HERE:
        return _HERE[source]
    if source.startswith(_FUNCTION):
        stored = pickle.loads(_stored(root, source.removeprefix(_FUNCTION)).read_bytes())
        sys.path += [folder for folder in stored["path"] if folder not in sys.path]
        return pickle.loads(stored["function"])
    path, _, function = source.removeprefix(_FILE).rpartition(":")
    return _load_file(Path(path).resolve(), function)


def _stored(root: Path, fingerprint: str) -> Path:
    return root / "functions" / f"{fingerprint}.pickle"


def _load_file(path: Path, name: str) -> TrainFunction:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:  # its neighbours can be imported, as when it is run
        sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if isinstance(value, FunctionType)]
        raise UserError(f"{path.name} has no function {name!r}. It has: {', '.join(functions) or 'none'}.")
    return function


def _sources(function: Any) -> Iterator[str]:
    """The code of a function and of all that it uses from its own module, as text."""
    seen: set[int] = set()
    waiting = [getattr(function, "func", function)]  # a partial function is its function and what was filled in
    yield from map(_value, [*getattr(function, "args", ()), *getattr(function, "keywords", {}).items()])
    while waiting:
        part = waiting.pop(0)
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, FunctionType):
            yield _code(part.__code__)
            yield from map(_value, part.__defaults__ or ())
            names = _names(part.__code__)
            used = [part.__globals__[name] for name in names if name in part.__globals__]
            used += [cell.cell_contents for cell in part.__closure__ or () if _filled(cell)]
            waiting += [value for value in used if _belongs(value, part.__module__)]
            yield from map(_value, used)
        elif inspect.isclass(part):
            yield part.__qualname__
            waiting += [value for value in vars(part).values() if isinstance(value, FunctionType)]
        elif callable(part) and not isinstance(part, ModuleType):
            waiting.append(type(part).__call__)
            yield from map(_value, sorted(getattr(part, "__dict__", {}).items()))


def _code(code: CodeType) -> str:
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_name} {code.co_code.hex()} {code.co_names} {constants}"


def _names(code: CodeType) -> list[str]:
    inner = [name for c in code.co_consts if isinstance(c, CodeType) for name in _names(c)]
    return [*code.co_names, *inner]


def _belongs(value: Any, module: str) -> bool:
    return (isinstance(value, FunctionType) or inspect.isclass(value)) and value.__module__ == module


def _value(value: Any) -> str:
    """A plain value as text; of others only the type, since their `repr` may hold an address."""
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_value, value))})"  # pyright: ignore[reportUnknownArgumentType]
    return repr(value) if isinstance(value, (int, float, str, bool, type(None))) else type(value).__qualname__


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # raises where the cell is empty
    except ValueError:
        return False
    return True


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
