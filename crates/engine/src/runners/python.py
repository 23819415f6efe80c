"""Calls main(**arguments) of the given source file and writes the returned value to descriptor 3."""
import json
import os
import sys


def read(path):
    """Returns the content of a file. A warm interpreter already has it in memory, in GIVEN."""
    given = globals().get("GIVEN", {})
    if path in given:
        return given[path]
    with open(path, "rb") as file:
        return file.read()


def run(source, arguments_file):
    os.set_inheritable(3, False)
    arguments = json.loads(read(arguments_file))
    code = compile(read(source), source, "exec", 0, True)
    sys.argv = [source]
    sys.path[0] = os.path.dirname(source)
    module = type(sys)("__main__")
    module.__file__ = source
    module.__builtins__ = __builtins__
    sys.modules["__main__"] = module
    exec(code, module.__dict__)
    main = module.__dict__.get("main")
    if main is None:
        raise NameError("name 'main' is not defined: arguments were given, so the code must define main()")
    value = main(**arguments)
    if hasattr(value, "__await__"):
        value = wait_for(value)
    with os.fdopen(3, "w", encoding="utf-8") as result:
        json.dump(value, result)


def wait_for(value):
    import asyncio

    async def wait():
        return await value

    return asyncio.run(value if asyncio.iscoroutine(value) else wait())


def skip_own_frames(trace):
    """Returns the traceback without the leading frames of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


try:
    run(sys.argv[1], sys.argv[2])
except BaseException as error:
    # Shows the program's own frames only. Has no effect before Python 3.11.
    error.__traceback__ = skip_own_frames(error.__traceback__)
    raise
