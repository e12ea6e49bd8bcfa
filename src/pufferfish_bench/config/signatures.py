"""Checks the settings of a config group against its constructor: names, types and ranges, before anything is built."""

import functools
import importlib
import inspect
import math
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.extras import EXTRAS, missing_package
from pufferfish_bench.base.ranges import Range
from pufferfish_bench.config.suggestions import did_you_mean

TARGET = "_target_"
LARGEST = 2**63  # torch accepts integers below this
PLAIN = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


def check(
    path: str, node: Any, *, given: Collection[str] = (), complete: bool = False, places: Mapping[str, str] | None = None
) -> None:
    """Refuse arguments in `node` that its constructor does not accept; `given` names those that the program adds.

    If `complete`, or if the call is not partial, all other required arguments must be set. `places` maps an argument to the
    setting that holds it, if that is not below `path`.
    """
    if not isinstance(node, Mapping) or not isinstance(node.get(TARGET), str):
        raise InputError(f"{path}={shown(node)}: a mapping with {TARGET} is expected, which names the class or function to call")
    settings = {key: value for key, value in node.items() if not key.startswith("_")}
    complete = complete or not node.get("_partial_")
    check_arguments(path, settings, located(node[TARGET], path), given=given, complete=complete, places=places)


def check_arguments(
    path: str,
    settings: Mapping[str, Any],
    target: Callable[..., Any],
    *,
    given: Collection[str] = (),
    complete: bool = True,
    places: Mapping[str, str] | None = None,
) -> None:
    """Refuse keyword arguments that `target` does not accept and, if `complete`, missing ones."""
    takes, elsewhere = parameters(target), places or {}
    if takes is None:
        return
    for key, value in settings.items():
        if key not in takes or key in given:
            known = sorted(elsewhere.get(name, f"{path}.{name}") for name in set(takes) - set(given))
            raise InputError(f"there is no setting {elsewhere.get(key, f'{path}.{key}')}; there are {', '.join(known) or 'none'}")
        check_value(elsewhere.get(key, f"{path}.{key}"), value, takes[key].annotation, foreign=is_foreign(target))
    for key, parameter in takes.items():
        if complete and parameter.default is parameter.empty and key not in settings and key not in given:
            raise InputError(f"{path}.{key} is not set: use {path}.{key}=VALUE")


def located(target: str, path: str) -> Callable[..., Any]:
    """The class or function that a `_target_` names."""
    if target.split(".")[0] not in ("pufferfish_bench", "torch"):
        import pufferfish_bench.models.torchvision_import  # noqa: F401  (foreign code may import torchvision, which needs this first with a CPU build of torch)
    parts = target.split(".")
    found: Any = None
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        try:
            found = getattr(found, parts[count - 1]) if found is not None else importlib.import_module(name)
            continue
        except AttributeError:
            pass
        except Exception as error:  # a module may raise anything while it is imported
            raise not_importable(path, target, name, error) from error
        try:
            found = importlib.import_module(name)
        except Exception as error:
            near = did_you_mean(parts[count - 1], [each for each in dir(found) if not each.startswith("_")])
            raise not_importable(path, target, name, error, near) from error
    if not callable(found):
        raise InputError(f"{path}.{TARGET}={target} is not a class or a function")
    return found


def not_importable(path: str, target: str, name: str, error: Exception, near: str = "") -> InputError:
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        return missing_package(error.name, f"{path}.{TARGET}={target}")
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ModuleNotFoundError) and error.name == name and "." in name:
        reason = f"{name.rpartition('.')[0]} has no {name.rpartition('.')[2]}{near}"
    return InputError(
        f"{path}.{TARGET}={target} cannot be imported: {name}: {reason} (modules in the current directory can be imported too)"
    )


@functools.lru_cache
def parameters(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The keyword parameters of a class or function with their types; None if it accepts any keyword.

    A class passes `**further` on to its base class, a function to the class that it returns.
    """
    found: dict[str, inspect.Parameter] = {}
    takes_anything = True
    for handed_on, function in enumerate(constructors(target)):
        try:
            signature = inspect.signature(function)
            hints = typed_hints(function)
        except (TypeError, ValueError):  # a builtin without a signature
            return None
        own = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
        for parameter in own:
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                # the function that passes keywords on may supply this argument itself
                default = None if handed_on and parameter.default is parameter.empty else parameter.default
                found.setdefault(parameter.name, parameter.replace(annotation=hints.get(parameter.name, Any), default=default))
        takes_anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own)
        if not takes_anything:
            break
    return None if takes_anything else found


def constructors(target: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """The functions that receive the keywords of a call, outermost first; those of an unknown class are left out."""
    if not inspect.isclass(target):
        yield target
        target = typed_hints(target).get("return", Any)
        if inspect.isclass(target) and not names_parameters(target):
            return  # such as nn.Module: the function may return a class that is derived from it
    if inspect.isclass(target):
        yield from (vars(kind)["__init__"] for kind in target.__mro__ if kind is not object and "__init__" in vars(kind))
        yield nothing


def names_parameters(kind: type) -> bool:
    """Whether the constructor of a class has parameters with names."""
    own = inspect.signature(kind.__init__).parameters.values()
    return any(parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) for parameter in list(own)[1:])


def nothing() -> None:
    """Accepts no keywords: stands for `object`, the base of all classes."""


def typed_hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:  # type hints of foreign code may name things that do not exist at run time
        return {}


def is_foreign(target: Callable[..., Any]) -> bool:
    """Whether a class or function is not of this package."""
    return (getattr(target, "__module__", None) or "").split(".")[0] != "pufferfish_bench"


def check_value(path: str, value: Any, annotation: Any, *, foreign: bool) -> None:
    """Refuse a value of the wrong type; a value with its own `_target_` is checked as a group.

    The author of a `foreign` constructor may have had more in mind than its types say: those that are not plain data allow any
    value, such as the name of a member of an Enum.
    """
    if isinstance(value, Mapping) and TARGET in value:
        check(path, value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{path}={value}: a finite number is expected")
    elif not fits(value, annotation, foreign):
        raise InputError(f"{path}={shown(value)}: {expected(annotation)} is expected")


def fits(value: Any, annotation: Any, foreign: bool = False) -> bool:
    """Whether a plain value matches a type; types that are not plain data match no value, or any if they are `foreign`."""
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if annotation in (Any, object, inspect.Parameter.empty):
        return not (isinstance(value, float) and math.isnan(value))
    if annotation is float:
        return (isinstance(value, float) and math.isfinite(value)) or fits(value, int)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST
    if annotation in (bool, str, type(None)):
        return isinstance(value, annotation)
    if origin is Annotated:
        return fits(value, arguments[0], foreign) and all(value in limit for limit in arguments[1:] if isinstance(limit, Range))
    if origin in (Union, types.UnionType):
        return any(fits(value, argument, foreign) for argument in arguments)
    if origin is Literal:
        return isinstance(value, str | int) and value in arguments
    if is_kind(origin, Mapping):
        return isinstance(value, Mapping)
    if is_fixed(origin, arguments):
        pairs = zip(value, arguments, strict=True) if isinstance(value, list) and len(value) == len(arguments) else None
        return pairs is not None and all(fits(item, argument, foreign) for item, argument in pairs)
    if holds_items(origin):
        return isinstance(value, list) and all(fits(item, argument, foreign) for item in value for argument in arguments[:1])
    return foreign and not is_built_only(origin)


def is_kind(origin: Any, kind: type) -> bool:
    return inspect.isclass(origin) and issubclass(origin, kind)


def is_fixed(origin: Any, arguments: Sequence[Any]) -> bool:
    """Whether a type is a tuple with a fixed number of items."""
    return origin is tuple and bool(arguments) and Ellipsis not in arguments


def holds_items(origin: Any) -> bool:
    """Whether a list is or becomes a value of this type: a list, a tuple, a set, or an abstract type that a list has."""
    abstract = getattr(origin, "__module__", "") == "collections.abc" and is_kind(list, origin)
    return abstract or origin in (list, tuple, set, frozenset)


def is_built_only(origin: Any) -> bool:
    """Whether values of a type have to be built by a `_target_`: functions, and objects of torch."""
    return origin is Callable or (inspect.isclass(origin) and origin.__module__.split(".")[0] == "torch")


def expected(annotation: Any) -> str:
    """A description of the values that an annotation allows."""
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if annotation in PLAIN:
        return PLAIN[annotation]
    if annotation is type(None):
        return "null"
    if origin is Annotated:
        limits = [str(limit) for limit in arguments[1:] if isinstance(limit, Range)]
        return " ".join([expected(arguments[0]), *limits])
    if origin in (Union, types.UnionType):
        return " or ".join(expected(argument) for argument in arguments)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if is_fixed(origin, arguments):
        return f"a list of {len(arguments)} ({', '.join(map(expected, arguments))})"
    if is_kind(origin, Mapping):
        return "a mapping"
    if holds_items(origin):
        return f"a list whose items are each {expected(arguments[0])}" if arguments else "a list"
    return f"a mapping with {TARGET}"


def shown(value: Any) -> str:
    """A value as the command line spells it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
