# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Lets vLLM's own argument parser be built where neither torch nor vLLM's compiled parts are installed.

Importing this module puts a finder in front of Python's. Every third-party package but the few in REAL becomes a
stand-in: a module of which every attribute exists, is a class that can be subclassed, called or used as a decorator
or a type hint, and means nothing. A vLLM module that cannot live with that becomes a stand-in itself, unless it is one
that the flags come from: then the error is raised, because a catalogue with holes would be worse than none.
"""

# A stand-in takes whatever it is given and looks at none of it.
# ruff: noqa: ARG005

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import re
import sys
import types
import typing as t

# What the parser truly needs: the configuration classes are pydantic's, and flags are read with regex and yaml.
REAL: t.Final = frozenset(
    {
        "vllm",
        "pydantic",
        "pydantic_core",
        "annotated_types",
        "typing_extensions",
        "typing_inspection",
        "packaging",
        "regex",
        "yaml",
        "_yaml",
    }
)
# vLLM modules that must be read as they are.
ESSENTIAL: t.Final = ("vllm.config", "vllm.engine.arg_utils", "vllm.envs", "vllm.utils.argparse_utils")
# Patches torch, and does nothing else.
NEVER: t.Final = frozenset({"vllm.env_override"})
VERSION: t.Final = "99.0"

replaced: dict[str, str] = {}


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _decorates(args: tuple[t.Any, ...], kwargs: dict[str, t.Any]) -> bool:
    return len(args) == 1 and not kwargs and isinstance(args[0], (type, types.FunctionType))


class _AnyClass(type):
    """The class of stand-in classes, so that the classes themselves have every attribute and operator."""

    def __getattr__(cls, name: str) -> t.Any:
        if _is_dunder(name) or name.startswith("_pydantic"):
            raise AttributeError(name)
        value = stand_in(f"{cls.__module__}.{cls.__name__}.{name}")
        setattr(cls, name, value)
        return value

    def __call__(cls, *args: t.Any, **kwargs: t.Any) -> t.Any:
        if "_is_stand_in" in cls.__dict__ and _decorates(args, kwargs):
            return args[0]
        return super().__call__(*args, **kwargs)

    def __or__(cls, other: t.Any) -> t.Any:
        return t.Union[cls, other]  # noqa: UP007 - "|" is what is being defined

    def __ror__(cls, other: t.Any) -> t.Any:
        return t.Union[other, cls]  # noqa: UP007

    def __getitem__(cls, _key: t.Any) -> t.Any:
        return cls

    def __iter__(cls) -> t.Iterator[t.Any]:
        return iter(())

    def __len__(cls) -> int:
        return 0

    def __bool__(cls) -> bool:
        return True

    def __contains__(cls, _item: t.Any) -> bool:
        return False

    def __hash__(cls) -> int:
        return id(cls)

    def __eq__(cls, other: object) -> bool:
        return cls is other

    # Versions are compared at import: a stand-in is always new enough and never too new.
    def __lt__(cls, _other: t.Any) -> bool:
        return False

    __gt__ = __lt__

    def __ge__(cls, _other: t.Any) -> bool:
        return True

    __le__ = __ge__


def _schema(_cls: type, _source: t.Any, _handler: t.Any) -> t.Any:
    from pydantic_core import core_schema  # noqa: PLC0415 - pydantic is there only where a wheel is read

    return core_schema.any_schema()


def _attribute(_self: t.Any, name: str) -> t.Any:
    if _is_dunder(name):
        raise AttributeError(name)
    return stand_in(f"stand_in.{name}")()


def _call(_self: t.Any, *args: t.Any, **kwargs: t.Any) -> t.Any:
    return args[0] if _decorates(args, kwargs) else stand_in("stand_in.result")()


def _operate(*_args: t.Any) -> t.Any:
    return stand_in("stand_in.result")()


_OPERATORS: t.Final = [
    f"__{side}{name}__"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
    for side in ("", "r")
] + ["__neg__", "__invert__", "__matmul__", "__getitem__"]
_BODY: t.Final[dict[str, t.Any]] = {
    "_is_stand_in": True,
    "__init__": lambda self, *args, **kwargs: None,
    "__init_subclass__": classmethod(lambda cls, **kwargs: None),
    "__get_pydantic_core_schema__": classmethod(_schema),
    "__getattr__": _attribute,
    "__call__": _call,
    "__enter__": lambda self: self,
    "__exit__": lambda self, *error: False,
    "__iter__": lambda self: iter(()),
    "__len__": lambda self: 0,
    "__bool__": lambda self: True,
    "__contains__": lambda self, item: False,
    "__setitem__": lambda self, key, value: None,
    "__hash__": id,
    "__eq__": lambda self, other: self is other,
    "__lt__": lambda self, other: False,
    "__gt__": lambda self, other: False,
    "__le__": lambda self, other: True,
    "__ge__": lambda self, other: True,
    "__int__": lambda self: 0,
    "__index__": lambda self: 0,
    "__float__": lambda self: 0.0,
    "__str__": lambda self: "stand-in",
    "__fspath__": lambda self: "/nonexistent",
    **dict.fromkeys(_OPERATORS, _operate),
}


def stand_in(name: str) -> t.Any:
    """Return a class of a dotted name that can be anything and means nothing."""
    module, _, bare = name.rpartition(".")
    return _AnyClass(bare, (), {"__module__": module, **_BODY})


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> t.Any:
        if _is_dunder(name):
            raise AttributeError(name)
        value = stand_in(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Tolerant(importlib.abc.Loader):
    """Loads a vLLM module, or turns it into a stand-in where it cannot be loaded."""

    def __init__(self, inner: importlib.abc.Loader) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> t.Any:
        return getattr(self._inner, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        try:
            self._inner.exec_module(module)
            if module.__name__ == "vllm.platforms":
                # Each plugin looks for its own libraries, and every library seems to be there.
                module.builtin_platform_plugins = {"cpu": lambda: "vllm.platforms.cpu.CpuPlatform"}  # type: ignore[attr-defined]
        except Exception as error:
            if module.__name__.startswith(ESSENTIAL) or module.__name__.endswith(".cli_args"):
                raise
            replaced[module.__name__] = f"{type(error).__name__}: {error}"
            module.__class__ = _Module


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: t.Any, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        top = name.partition(".")[0]
        if name not in NEVER:
            if top == "vllm":
                spec = importlib.machinery.PathFinder.find_spec(name, path, target)
                if spec is not None and spec.loader is not None and name != "vllm":
                    spec.loader = _Tolerant(spec.loader)
                return spec
            if top in REAL or top in sys.stdlib_module_names:
                return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__version__ = VERSION  # type: ignore[attr-defined]


def install() -> None:
    """Put stand-ins in place of everything that is not needed to build vLLM's argument parser."""
    if importlib.util.find_spec("regex") is None:
        # Its patterns for flags are plain ones, which Python's own module reads the same.
        sys.modules["regex"] = re
    sys.meta_path.insert(0, _Finder())
    real_version = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return real_version(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            return VERSION

    importlib.metadata.version = version
