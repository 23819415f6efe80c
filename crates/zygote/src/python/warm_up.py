"""A warm Python: imports the operator's modules, and forks children in which tenant code runs.

The extension module confines a child before serve_forks() returns in it. Until then only the standard library,
the image's packages and the operator's locked packages are imported; the packages of a request are not visible
here.

This script ends with an exception, so that the interpreter calls run_generator() of the extension module as
`sys.excepthook` with an empty stack. run_generator() resumes the generator serve(), and runs the program that
serve() returns. As in an interpreter started for the program, no frame of this file is below the program's own.
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

# Modules that even short programs import; children inherit them for free.
COMMON_MODULES = (
    "collections", "datetime", "functools", "itertools", "json", "math", "random", "re", "time", "typing",
)
# Path of code that came without a file name.
DEFAULT_SOURCE = "/workspace/main.py"
# The module that prepares a cold interpreter; a child executes it instead.
STARTUP = "/run/belljar/sitecustomize.py"
# The runner, which calls main(), and the file with the arguments.
RUNNER = "/run/belljar/runner.py"
ARGUMENTS = "/run/belljar/arguments.json"
# The operator's packages, and the hook that puts all packages on sys.path; see site.py of the runners.
PROFILE_PACKAGES = "/opt/belljar/python-profile"
SITE = "/opt/belljar/site/sitecustomize.py"
# A typical short program.
DRY_RUN_CODE = b"def main(): return [str(x) for x in range(3)]\nprint(*main()[3:], end='')\n"
# Typical first uses of imported libraries.
LIBRARY_DRY_RUNS = {
    "numpy": b"import numpy\nx = numpy.arange(6.0).reshape(2, 3)\n(x @ x.T).sum(), str(x)\n",
    "pandas": b"import pandas\nx = pandas.DataFrame({'a': [1, 2], 'b': [3.0, 4.0]})\nstr(x.groupby('a').sum().describe())\n",
}


def load_extension():
    """Loads the extension module, and hides it from programs."""
    launcher = _imp.create_dynamic(ModuleSpec("_belljar", None, origin="/run/belljar/zygote.so"))
    sys.modules.pop("_belljar", None)
    return launcher


def warm_up(launcher, names):
    """Prepares this interpreter for forking children."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        sys.exit("this build of Python has no global lock, so it cannot be forked safely")
    launcher.start()
    for name in COMMON_MODULES:
        __import__(name)
    # The baseline, before any requested module.
    launcher.module_imported(b"")
    if names and os.path.isdir(PROFILE_PACKAGES):
        add_profile_packages()
    for name in names:
        try:
            __import__(name)
        except BaseException as error:
            launcher.import_failed(f"{name}: {type(error).__name__}: {error}".encode())
        else:
            fork_once()
            launcher.module_imported(name.encode())


def compile_script(path):
    """Compiles a script. Tracebacks show its source although a child cannot see the file."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    linecache.cache[path] = (len(text), None, text.splitlines(True), path)
    return compile(text, path, "exec", 0, True)


def add_profile_packages():
    """Puts the operator's packages on sys.path after the standard library, without running their hooks."""
    library = os.path.dirname(os.__file__)
    found = [at for at, entry in enumerate(sys.path) if entry == library or entry.endswith("/lib-dynload")]
    sys.path.insert(max(found, default=-1) + 1, PROFILE_PACKAGES)


def add_packages():
    """Puts all packages on sys.path, where an interpreter started for the program would have them."""
    if not os.path.exists(SITE):
        return
    if PROFILE_PACKAGES in sys.path:
        sys.path.remove(PROFILE_PACKAGES)
    with open(SITE, "rb") as file:
        code = compile(file.read(), SITE, "exec")
    error = yield exec, code, {"__name__": "sitecustomize", "__file__": SITE, "__builtins__": builtins}
    if error is not None:
        # Like `site` does for a failing hook: report it and continue.
        yield sys.__excepthook__, type(error), error, None


def preimport(names):
    """Imports frequently used modules while the child is idle, and returns what they wrote to the streams."""
    from io import StringIO

    streams = sys.stdout, sys.stderr
    captured = sys.stdout, sys.stderr = StringIO(), StringIO()
    yield from add_packages()
    for name in names:
        # If this fails, the program gets the error when it imports the module itself.
        yield __import__, name
    sys.stdout, sys.stderr = streams
    return [stream.getvalue() for stream in captured]


def fork_once():
    """Forks once: libraries with threads, such as OpenBLAS, end them then, and restart them when needed."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def reseed_randomness():
    """Reseeds every source of randomness inside the interpreter, because a fork is an exact copy."""
    # `random` handles forks itself. State keyed by process id does not notice: the id is the same in every
    # sandbox.
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


def dry_run(launcher, default_text):
    """Runs a typical short program, which writes to most of the pages that a real one will write to.

    A page that a child shares with its zygote is copied on the first write, and for a short program this copying
    takes longer than everything else. Here no run is waiting for it.
    """
    set_program_identity(default_text, None)
    launcher.dry_run(make_program(main_module(DEFAULT_SOURCE), DRY_RUN_CODE))
    module = main_module(DEFAULT_SOURCE)
    for name, code in LIBRARY_DRY_RUNS.items():
        if name in sys.modules:
            exec(compile(code, DEFAULT_SOURCE, "exec", 0, True), module.__dict__)


def make_program(module, code):
    """Returns a program for run_generator(): exit functions, variables, and code or how to compile it."""
    return atexit._run_exitfuncs, module.__dict__, compile, (code, module.__file__, "exec", 0, True)


def receive_program(launcher, runner, default_text, needs_packages, captured):
    """Waits for a task, and returns the program for run_generator()."""
    module = main_module(DEFAULT_SOURCE)
    text, code, arguments = launcher.await_task()
    if text != default_text:
        module = main_module(set_program_identity(text, default_text))
    if needs_packages:
        yield from add_packages()
    for stream, text in zip((sys.stdout, sys.stderr), captured):
        stream.write(text)
    source = module.__file__
    if arguments is None:
        return make_program(module, read_source(launcher, source) if code is None else code)
    sys.argv[:] = [RUNNER, source, ARGUMENTS]
    set_command(sys.argv)
    given = {ARGUMENTS: arguments} if code is None else {ARGUMENTS: arguments, source: code}
    variables = {"__name__": "__main__", "__file__": RUNNER, "__builtins__": builtins, "GIVEN": given}
    return atexit._run_exitfuncs, variables, runner


def read_source(launcher, source):
    """Reads a source file that did not come with the task; exits like the interpreter if it is missing."""
    try:
        with open(source, "rb") as file:
            return file.read()
    except OSError as error:
        print(f"{sys.executable}: can't open file {source!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.stderr.flush()
        launcher.exit(2)


def set_program_identity(text, default_text):
    """Makes the process look as if it had been started for this program, and returns the program's path."""
    source, _, variables = text.partition(b"\0")
    source = os.fsdecode(source)
    if default_text is not None and variables != default_text.partition(b"\0")[2]:
        os.environ.clear()
        os.environ.update(variable.split("=", 1) for variable in os.fsdecode(variables).split("\0"))
    sys.argv[:] = [source]
    set_command(sys.argv)
    sys.path[0] = os.path.dirname(source)
    return source


def set_command(arguments):
    """Sets the original command line that Python 3.10 and later show."""
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = [sys.executable, *arguments]


def main_module(source):
    """Creates the main module of the next program."""
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
    """Removes the interpreter's traces of the exception that ended the script."""
    sys.excepthook = sys.__excepthook__
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)


def serve(launcher):
    """Warms up, forks children, and in each child returns the program to run.

    To run code that is not ours, it yields `function, *arguments`, which run_generator() calls with an empty
    stack. The value of the yield is the exception that was raised, or None.
    """
    forget_exception()
    # Modules to import in the zygote, then `--`, then modules that waiting children import.
    split = sys.argv.index("--")
    frequent = sys.argv[split + 1:]
    warm_up(launcher, sys.argv[1:split])
    runner, startup = compile_script(RUNNER), compile_script(STARTUP)
    variables = b"\0".join(name + b"=" + value for name, value in os.environb.items())
    default_text = os.fsencode(DEFAULT_SOURCE) + b"\0" + variables
    # Everything that the interpreter initializes on first use, such as the types of syntax trees, is
    # initialized here.
    dry_run(launcher, default_text)
    gc.collect()
    gc.freeze()
    awaited = launcher.serve_forks()
    reseed_randomness()
    needs_packages, captured = os.path.exists(SITE), []
    if frequent and not launcher.is_awaited():
        # Only after the launcher has verified from outside that this process is confined.
        launcher.await_inspection()
        captured, needs_packages = (yield from preimport(frequent)), False
    if not awaited:
        dry_run(launcher, default_text)
    exec(startup, {"__name__": "startup", "__file__": STARTUP, "__builtins__": builtins})
    return (yield from receive_program(launcher, runner, default_text, needs_packages, captured))


def main():
    launcher = load_extension()
    sys.excepthook = functools.partial(launcher.run_generator, serve(launcher))
    raise RuntimeError("this ends the script, and is never shown")


main()
