"""A warm Python: imports what the operator named, and has children in which code of a tenant's runs.

Everything that confines a child is done by the extension module, before a child comes back from have_children(). Until
then nothing is imported but the standard library, what the image has, and the operator's locked packages: the packages
of a request are not even visible here.
"""
import _imp
import atexit
import builtins
import gc
import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader

# What the shortest programs import; a child has them for nothing.
USUAL = ("collections", "datetime", "functools", "itertools", "json", "math", "random", "re", "time", "typing")
# Where code is that came without a name.
USUAL_SOURCE = "/workspace/main.py"
# Where the operator's packages are, and what puts all packages on sys.path: see site.py of the runners.
PROFILE_PACKAGES = "/opt/belljar/python-profile"
SITE = "/opt/belljar/site/sitecustomize.py"
# What programs do first with what they import.
REHEARSALS = {
    "numpy": b"import numpy\nx = numpy.arange(6.0).reshape(2, 3)\n(x @ x.T).sum(), str(x)\n",
    "pandas": b"import pandas\nx = pandas.DataFrame({'a': [1, 2], 'b': [3.0, 4.0]})\nstr(x.groupby('a').sum().describe())\n",
}


def warm_up(names):
    """Makes this interpreter ready to have children."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        sys.exit("this build of Python has no global lock, and cannot be forked safely")
    line = _imp.create_dynamic(ModuleSpec("_belljar", None, origin="/run/belljar/zygote.so"))
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
    return line


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
    try:
        with open(SITE, "rb") as file:
            code = compile(file.read(), SITE, "exec")
        exec(code, {"__name__": "sitecustomize", "__file__": SITE, "__builtins__": builtins})
    except BaseException as error:
        # As `site` does with a hook that fails: says so, and goes on.
        sys.__excepthook__(type(error), error, None)


def import_ahead(names):
    """Imports what programs like this one keep importing, while nobody waits; gives what that wrote, for the program's streams."""
    from io import StringIO

    streams = sys.stdout, sys.stderr
    held = sys.stdout, sys.stderr = StringIO(), StringIO()
    add_packages()
    for name in names:
        try:
            __import__(name)
        except BaseException:
            # The program itself will be told why, if it comes to import it.
            pass
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
    line.rehearse()
    adopt(usual_text, None)
    module = main_module(USUAL_SOURCE)
    status = execute(module, b"def main(): return [str(x) for x in range(3)]\nprint(*main()[3:], end='')\n", None)
    let_go(module, status)
    for name, code in REHEARSALS.items():
        if name in sys.modules:
            execute(module, code, None)


def run(line, usual_text, packages_are_due, held):
    """Waits for code and runs it as a script; does not come back."""
    module = main_module(USUAL_SOURCE)
    text, code, arguments = line.await_task()
    if text != usual_text:
        module = main_module(adopt(text, usual_text))
    if packages_are_due:
        add_packages()
    for stream, text in zip((sys.stdout, sys.stderr), held):
        stream.write(text)
    status = execute(module, code, arguments)
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        status = let_go(module, status)
    except BaseException as error:
        sys.__excepthook__(type(error), error, error.__traceback__)
        status = status or 120
    line.leave(status)


def adopt(text, usual_text):
    """Makes the process look as if it had been started for this program; gives where that is."""
    source, _, variables = text.partition(b"\0")
    source = os.fsdecode(source)
    if usual_text is not None and variables != usual_text.partition(b"\0")[2]:
        os.environ.clear()
        os.environ.update(variable.split("=", 1) for variable in os.fsdecode(variables).split("\0"))
    sys.argv[:] = [source]
    sys.path[0] = os.path.dirname(source)
    return source


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


def execute(module, code, arguments):
    """Runs code, or a file where that is none of ours, as the main module; gives the exit status."""
    source = module.__file__
    try:
        if code is None:
            with open(source, "rb") as file:
                code = file.read()
        exec(compile(code, source, "exec", 0, True), module.__dict__)
        if arguments is not None:
            return_value(module, arguments)
    except BaseException as error:
        return show(error)
    return 0


def return_value(module, arguments):
    """Calls main(**arguments), and sends what it returns by descriptor 3."""
    import json

    main = module.__dict__.get("main")
    if main is None:
        raise NameError("name 'main' is not defined: arguments were given, so the code must define main()")
    value = main(**json.loads(arguments))
    if hasattr(value, "__await__"):
        import asyncio

        async def wait():
            return await value

        value = asyncio.run(wait())
    with os.fdopen(3, "w", encoding="utf-8") as result:
        json.dump(value, result)


def show(error):
    """Does with an exception what the interpreter does; gives the exit status."""
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        if isinstance(error.code, int):
            return error.code & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    # The frame of execute() is none of the reader's business.
    trace = error.__traceback__ and error.__traceback__.tb_next
    try:
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    except BaseException as worse:
        sys.__excepthook__(type(worse), worse, worse.__traceback__)
    if isinstance(error, KeyboardInterrupt):
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 1


def let_go(module, status):
    """What an interpreter does at its end, as far as a program can tell: destructors, then buffers."""
    variables = module.__dict__
    for name in list(variables):
        if name != "__builtins__":
            variables[name] = None
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    return status


def main():
    # Modules to import here, and behind two dashes those that waiting children import.
    split = sys.argv.index("--")
    frequent = sys.argv[split + 1:]
    line = warm_up(sys.argv[1:split])
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = [sys.executable, "main.py"]
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
        held, packages_are_due = import_ahead(frequent), False
    if not awaited:
        rehearse(line, usual_text)
    run(line, usual_text, packages_are_due, held)


main()
