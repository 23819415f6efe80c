"""Runs a source file. With arguments, calls its main(**arguments) and writes the returned value to descriptor 3.

docs/results.md describes how values are converted.
"""
import json
import os
import sys

WORKSPACE = "/workspace"
# The limits of a result; the host checks them, too, and its size.
MAX_DEPTH = 100
MAX_DIGITS = 100000
BITS_OF_A_DIGIT = 3.32193
# Characters of a path that an error shows.
MAX_SHOWN_PATH = 200


class Unreturnable(Exception):
    """A value that has no JSON form; the path to it grows as the exception passes its containers."""

    def __init__(self, why):
        super().__init__(why)
        self.path = ""


def read(path):
    """Returns the content of a file. A warm interpreter already has it in memory, in GIVEN."""
    given = globals().get("GIVEN", {})
    if path in given:
        return given[path]
    with open(path, "rb") as file:
        return file.read()


def run(source, arguments_file=None):
    if arguments_file is not None:
        os.set_inheritable(3, False)
        arguments = with_any_integers(json.loads, read(arguments_file))
    code = compile(read(source), source, "exec", 0, True)
    sys.argv = [source]
    folder = os.path.dirname(source)
    # Code beside this file has its modules in the workspace.
    sys.path[0] = WORKSPACE if folder == os.path.dirname(__file__) else folder
    module = type(sys)("__main__")
    module.__file__ = source
    module.__builtins__ = __builtins__
    sys.modules["__main__"] = module
    exec(code, module.__dict__)
    if arguments_file is None:
        return
    main = module.__dict__.get("main")
    if main is None:
        raise NameError("name 'main' is not defined: arguments were given, so the code must define main()")
    value = main(**arguments)
    if hasattr(value, "__await__"):
        value = wait_for(value)
    with os.fdopen(3, "wb") as result:
        result.write(result_json(value))


def wait_for(value):
    import asyncio

    async def wait():
        return await value

    return asyncio.run(value if asyncio.iscoroutine(value) else wait())


def with_any_integers(function, *arguments, **options):
    """Calls a function without Python's own limit on the digits of an integer."""
    if not hasattr(sys, "set_int_max_str_digits"):
        return function(*arguments, **options)
    digits = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return function(*arguments, **options)
    finally:
        sys.set_int_max_str_digits(digits)


def result_json(value):
    return with_any_integers(json.dumps, plain(value, 0), ensure_ascii=False, separators=(",", ":")).encode()


def plain(value, depth):
    """Returns a value that consists only of what JSON has."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return checked_text(value)
    if kind is int:
        if value.bit_length() > MAX_DIGITS * BITS_OF_A_DIGIT + 1:
            raise Unreturnable("is an integer of more than 100000 digits; return it as a string")
        return value
    if kind is float:
        if value != value or value in (float("inf"), float("-inf")):
            name = "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
            raise Unreturnable("is " + name + ", which JSON does not have; return None or a string instead")
        return value
    if depth >= MAX_DEPTH:
        raise Unreturnable("is nested deeper than 100 levels, or contains itself; flatten it")
    if kind is list or kind is tuple:
        return [plain_item(item, depth + 1, index) for index, item in enumerate(value)]
    if kind is dict:
        return plain_fields(value.items(), depth)
    return plain(convert(value), depth + 1)


def checked_text(value):
    try:
        if not value.isascii():
            value.encode()
    except UnicodeEncodeError:
        raise Unreturnable("has a lone surrogate, so it is not valid text; encode it, for example as base64") from None
    return value


def plain_item(item, depth, index):
    try:
        return plain(item, depth)
    except Unreturnable as error:
        error.path = "[%d]%s" % (index, error.path)
        raise


def plain_fields(fields, depth):
    plain_dict = {}
    for key, value in fields:
        name = key_text(key)
        try:
            if name in plain_dict:
                raise Unreturnable("is the name of two keys; the keys of JSON are strings")
            plain_dict[checked_text(name)] = plain(value, depth + 1)
        except Unreturnable as error:
            simple = name.isidentifier() and len(name) <= 60
            error.path = ("." + name if simple else "[" + ascii(name[:60]) + "]") + error.path
            raise
    return plain_dict


def key_text(key):
    """Returns a key as text, like json.dumps where that can."""
    if not isinstance(key, (str, int, float, type(None), tuple, frozenset)):
        key = convert(key)
    if isinstance(key, str):
        return str.__str__(key)
    if key is None or isinstance(key, (int, float)):
        return with_any_integers(json.dumps, key)
    raise Unreturnable("has a key of type %s; the keys of JSON are strings" % type_name(key))


def type_name(value):
    kind = type(value)
    prefix = "" if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "."
    return prefix + kind.__qualname__


def convert(value):
    """Takes one step towards what JSON has."""
    for module, name, conversion in CONVERSIONS:
        # A program that returns a value of a class has imported its module.
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(value, kind):
            try:
                return conversion(value)
            except Unreturnable:
                raise
            except Exception as error:
                why = "is a value of type %s that could not be converted: %s" % (type_name(value), error)
                raise Unreturnable(why) from None
    if hasattr(type(value), "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__ if hasattr(value, name)}
    if hasattr(type(value), "__next__"):
        raise Unreturnable("is an iterator of type %s; return a list of its values" % type_name(value))
    what = "is a value of type %s, which JSON does not have" % type_name(value)
    raise Unreturnable(what + "; return numbers, text, lists and dicts")


def base64_text(value):
    from base64 import b64encode

    return b64encode(value).decode()


def sorted_list(values):
    """Returns the values of a set in a fixed order, if they have one."""
    try:
        return sorted(values)
    except TypeError:
        return list(values)


def array_list(array):
    if array.dtype.kind in "mM":
        # As numbers, the list would lose the unit.
        return list(array) if array.ndim else array[()]
    return array.tolist()


def scalar(number):
    if number.dtype.kind in "mM":
        if str(number) == "NaT":
            return None
        # Like dates and time differences of the standard library: text, and seconds.
        return str(number) if number.dtype.kind == "M" else float(number / type(number)(1, "s"))
    item = number.item()
    return float(item) if type(item) is type(number) else item


def only_counts(index):
    """Returns whether an index is 0, 1, 2, ... without a name."""
    is_range = isinstance(index, sys.modules["pandas"].RangeIndex)
    return is_range and (index.start, index.step, index.name) == (0, 1, None)


def frame_records(frame):
    """Returns the rows of a frame as dicts, with the index as columns unless it only counts the rows."""
    if not only_counts(frame.index):
        frame = frame.reset_index()
    columns = [present_list(frame.iloc[:, at]) for at in range(frame.shape[1])]
    names = [key_text(name) for name in frame.columns]
    if len(set(names)) < len(names):
        raise Unreturnable("is a frame with two columns of one name; rename one")
    return [dict(zip(names, row)) for row in zip(*columns)]


def series_values(series):
    """Returns a series as a list if its index only counts the values, otherwise as a dict."""
    values = present_list(series)
    if only_counts(series.index):
        return values
    if not series.index.is_unique:
        raise Unreturnable("is a series with two values of one label; return its list of values, or reset_index()")
    return dict(zip(series.index.tolist(), values))


def present_list(values):
    """Returns the values of a series, with None for the missing ones."""
    missing = values.isna().tolist()
    return [None if gone else value for value, gone in zip(values.tolist(), missing)]


# How values of other classes are converted. Classes before the classes that they extend.
CONVERSIONS = (
    ("enum", "Enum", lambda value: value.value),
    ("pandas", "DataFrame", frame_records),
    ("pandas", "Series", series_values),
    ("pandas", "Index", lambda value: present_list(value.to_series())),
    ("pandas", "Categorical", lambda value: present_list(sys.modules["pandas"].Series(value))),
    ("pandas._libs.tslibs.nattype", "NaTType", lambda value: None),
    ("pandas._libs.missing", "NAType", lambda value: None),
    ("pandas", "Period", str),
    ("pandas", "Interval", str),
    ("numpy", "ndarray", array_list),
    ("numpy", "generic", scalar),
    ("pydantic", "BaseModel", lambda value: value.model_dump()),
    ("builtins", "str", str.__str__),
    ("builtins", "int", int.__int__),
    ("builtins", "float", float.__float__),
    ("builtins", "dict", dict),
    ("builtins", "list", list),
    ("builtins", "tuple", list),
    ("builtins", "set", sorted_list),
    ("builtins", "frozenset", sorted_list),
    ("builtins", "range", list),
    ("builtins", "bytes", base64_text),
    ("builtins", "bytearray", base64_text),
    ("builtins", "memoryview", base64_text),
    ("collections", "deque", list),
    ("collections", "UserDict", dict),
    ("collections", "UserList", list),
    ("collections.abc", "KeysView", list),
    ("collections.abc", "ItemsView", list),
    ("collections.abc", "ValuesView", list),
    ("datetime", "datetime", lambda value: value.isoformat()),
    ("datetime", "date", lambda value: value.isoformat()),
    ("datetime", "time", lambda value: value.isoformat()),
    ("datetime", "timedelta", lambda value: value.total_seconds()),
    ("decimal", "Decimal", str),
    ("fractions", "Fraction", str),
    ("uuid", "UUID", str),
    ("pathlib", "PurePath", str),
)


def skip_own_frames(trace):
    """Returns the traceback without the leading frames of this file, and of the event loop that it started."""
    loop = os.path.dirname(sys.modules["asyncio"].__file__) if "asyncio" in sys.modules else None
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if filename != __file__ and os.path.dirname(filename) != loop:
            break
        trace = trace.tb_next
    return trace


try:
    run(*sys.argv[1:])
except Unreturnable as error:
    path = error.path if len(error.path) <= MAX_SHOWN_PATH else error.path[:MAX_SHOWN_PATH] + "..."
    sys.stderr.write("TypeError: result%s %s\n" % (path, error))
    sys.exit(1)
except (SystemExit, KeyboardInterrupt) as error:
    # Has no effect before Python 3.11.
    error.__traceback__ = skip_own_frames(error.__traceback__)
    raise
except BaseException as error:
    # Shows the program's own frames only. Raising the error again would add a frame of this file.
    error.__traceback__ = skip_own_frames(error.__traceback__)
    sys.excepthook(type(error), error, error.__traceback__)
    sys.exit(1)
