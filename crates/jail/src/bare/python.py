"""A warm Python: imports what the operator named, and has children in which code of a tenant's runs.

Everything that confines a child is done by the extension module, before a child comes back from have_children(). Until
then nothing is imported but the standard library, what the image has, and the operator's locked packages: the packages
of a request are not even visible here.

This script ends by an exception, so that the interpreter calls drive() of the extension module as its `sys.excepthook`
with an empty stack. drive() resumes the generator serve(), and runs the program that serve() returns: no frame of this
file is below those of a program, as none is in an interpreter that was started for it.
"""
import _imp
import atexit
import builtins
import functools
import gc
import linecache
import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader

# What the shortest programs import; a child has them for nothing.
USUAL = ("collections", "datetime", "functools", "itertools", "json", "math", "random", "re", "time", "typing")
# Where code is that came without a name.
USUAL_SOURCE = "/workspace/main.py"
# What calls main(), and where it finds the arguments.
RUNNER = "/run/belljar/runner.py"
ARGUMENTS = "/run/belljar/arguments.json"
# Where the operator's packages are, and what puts all packages on sys.path: see site.py of the runners.
PROFILE_PACKAGES = "/opt/belljar/python-profile"
SITE = "/opt/belljar/site/sitecustomize.py"
# What a short program does.
REHEARSED = b"def main(): return [str(x) for x in range(3)]\nprint(*main()[3:], end='')\n"
# What programs do first with what they import.
REHEARSALS = {
    "numpy": b"import numpy\nx = numpy.arange(6.0).reshape(2, 3)\n(x @ x.T).sum(), str(x)\n",
    "pandas": b"import pandas\nx = pandas.DataFrame({'a': [1, 2], 'b': [3.0, 4.0]})\nstr(x.groupby('a').sum().describe())\n",
}


def connect():
    """Loads the extension module, which no program finds."""
    line = _imp.create_dynamic(ModuleSpec("_belljar", None, origin="/run/belljar/zygote.so"))
    sys.modules.pop("_belljar", None)
    return line


def warm_up(line, names):
    """Makes this interpreter ready to have children."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        sys.exit("this build of Python has no global lock, and cannot be forked safely")
    line.begin()
    for name in USUAL:
        __import__(name)
    # What there is without any module that was asked for.
    line.imported(b"")
    if names and os.path.isdir(PROFILE_PACKAGES):
        add_profile_packages()
    for name in names:
        try:
            __import__(name)
        except BaseException as error:
            line.refused(f"{name}: {type(error).__name__}: {error}".encode())
        else:
            fork_once()
            line.imported(name.encode())


def compile_runner():
    """Compiles what calls main(). Its source is shown in tracebacks although a child does not see the file."""
    with open(RUNNER, encoding="utf-8") as file:
        text = file.read()
    linecache.cache[RUNNER] = (len(text), None, text.splitlines(True), RUNNER)
    return compile(text, RUNNER, "exec", 0, True)


def add_profile_packages():
    """Puts the operator's packages behind the standard library, and processes none of their hooks."""
    library = os.path.dirname(os.__file__)
    found = [at for at, entry in enumerate(sys.path) if entry == library or entry.endswith("/lib-dynload")]
    sys.path.insert(max(found, default=-1) + 1, PROFILE_PACKAGES)


def add_packages():
    """Puts all packages on sys.path, as an interpreter that was started for the program would have them from its start."""
    if not os.path.exists(SITE):
        return
    if PROFILE_PACKAGES in sys.path:
        sys.path.remove(PROFILE_PACKAGES)
    with open(SITE, "rb") as file:
        code = compile(file.read(), SITE, "exec")
    error = yield exec, code, {"__name__": "sitecustomize", "__file__": SITE, "__builtins__": builtins}
    if error is not None:
        # As `site` does with a hook that fails: says so, and goes on.
        yield sys.__excepthook__, type(error), error, None


def import_ahead(names):
    """Imports what programs like this one keep importing, while nobody waits; gives what that wrote, for the program's streams."""
    from io import StringIO

    streams = sys.stdout, sys.stderr
    held = sys.stdout, sys.stderr = StringIO(), StringIO()
    yield from add_packages()
    for name in names:
        # Where that fails, the program itself will be told why, if it comes to import it.
        yield __import__, name
    sys.stdout, sys.stderr = streams
    return [stream.getvalue() for stream in held]


def fork_once():
    """Libraries that keep threads, such as OpenBLAS, end them before a fork and start them again when they need them."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def be_different():
    """A fork is a copy: every source of randomness that the interpreter keeps to itself gets a new beginning."""
    # `random` knows of forks. What goes by the number of the process does not: it is the same in every sandbox.
    modules = sys.modules
    if "tempfile" in modules:
        modules["tempfile"]._name_sequence = None
    if "uuid" in modules:
        modules["uuid"]._node = None
        modules["uuid"]._last_timestamp = None
    if "_ssl" in modules:
        modules["_ssl"].RAND_add(os.urandom(48), 48.0)
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "torch" in modules:
        modules["torch"].seed()
    if "multiprocessing.process" in modules:
        process = modules["multiprocessing.process"]
        process.current_process()._config["authkey"] = process.AuthenticationString(os.urandom(32))


def rehearse(line, usual_text):
    """Does what a short program will do, and so writes to most of the memory that it will write to.

    A page that a child shares with its zygote is copied when it is first written to, and for a short program that takes
    longer than everything else. Here nobody waits for it.
    """
    adopt(usual_text, None)
    line.rehearse(script(main_module(USUAL_SOURCE), REHEARSED))
    module = main_module(USUAL_SOURCE)
    for name, code in REHEARSALS.items():
        if name in sys.modules:
            exec(compile(code, USUAL_SOURCE, "exec", 0, True), module.__dict__)


def script(module, code):
    """Returns a program as drive() takes it: what runs at its end, its variables, and its code or how to compile it."""
    return atexit._run_exitfuncs, module.__dict__, compile, (code, module.__file__, "exec", 0, True)


def receive_program(line, runner, usual_text, packages_are_due, held):
    """Waits for code; gives what drive() runs."""
    module = main_module(USUAL_SOURCE)
    text, code, arguments = line.await_task()
    if text != usual_text:
        module = main_module(adopt(text, usual_text))
    if packages_are_due:
        yield from add_packages()
    for stream, text in zip((sys.stdout, sys.stderr), held):
        stream.write(text)
    source = module.__file__
    if arguments is None:
        return script(module, read_source(line, source) if code is None else code)
    sys.argv[:] = [RUNNER, source, ARGUMENTS]
    set_command(sys.argv)
    given = {ARGUMENTS: arguments} if code is None else {ARGUMENTS: arguments, source: code}
    variables = {"__name__": "__main__", "__file__": RUNNER, "__builtins__": builtins, "GIVEN": given}
    return atexit._run_exitfuncs, variables, runner


def read_source(line, source):
    """Returns the content of a file that did not come with the task; without one the interpreter ends as it always does."""
    try:
        with open(source, "rb") as file:
            return file.read()
    except OSError as error:
        print(f"{sys.executable}: can't open file {source!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.stderr.flush()
        line.leave(2)


def adopt(text, usual_text):
    """Makes the process look as if it had been started for this program; gives where that is."""
    source, _, variables = text.partition(b"\0")
    source = os.fsdecode(source)
    if usual_text is not None and variables != usual_text.partition(b"\0")[2]:
        os.environ.clear()
        os.environ.update(variable.split("=", 1) for variable in os.fsdecode(variables).split("\0"))
    sys.argv[:] = [source]
    set_command(sys.argv)
    sys.path[0] = os.path.dirname(source)
    return source


def set_command(arguments):
    """Sets what Python 3.10 and later show as the command of this process."""
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = [sys.executable, *arguments]


def main_module(source):
    """The main module of a program that is to come."""
    module = type(sys)("__main__")
    module.__file__ = source
    module.__cached__ = None
    module.__loader__ = SourceFileLoader("__main__", source)
    module.__builtins__ = builtins
    if sys.version_info < (3, 14):
        module.__annotations__ = {}
    sys.modules["__main__"] = module
    return module


def forget_exception():
    """Removes what the interpreter keeps of the exception by which the script ended."""
    sys.excepthook = sys.__excepthook__
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)


def serve(line):
    """Warms up, has children, and in each of them returns the program to run.

    For code that is not ours it yields `function, *arguments`, which drive() calls with an empty stack. The value of the
    yield is the exception that was raised, or None.
    """
    forget_exception()
    # Modules to import here, and behind two dashes those that waiting children import.
    split = sys.argv.index("--")
    frequent = sys.argv[split + 1:]
    warm_up(line, sys.argv[1:split])
    runner = compile_runner()
    variables = b"\0".join(name + b"=" + value for name, value in os.environb.items())
    usual_text = os.fsencode(USUAL_SOURCE) + b"\0" + variables
    # What the interpreter sets up when it is first used, such as the types of syntax trees, it sets up here.
    rehearse(line, usual_text)
    gc.collect()
    gc.freeze()
    awaited = line.have_children()
    be_different()
    packages_are_due, held = os.path.exists(SITE), []
    if frequent and not line.is_awaited():
        # Not before somebody has seen from outside that this process is confined.
        line.await_inspection()
        held, packages_are_due = (yield from import_ahead(frequent)), False
    if not awaited:
        rehearse(line, usual_text)
    return (yield from receive_program(line, runner, usual_text, packages_are_due, held))


def main():
    line = connect()
    sys.excepthook = functools.partial(line.drive, serve(line))
    raise RuntimeError("this ends the script, and is never shown")


main()
