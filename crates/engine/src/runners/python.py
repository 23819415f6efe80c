"""Calls main(**arguments) of the code beside it, and sends what it returns by descriptor 3."""
import json
import os
import sys


def run(source, arguments_file):
    os.set_inheritable(3, False)
    with open(arguments_file, encoding="utf-8") as file:
        arguments = json.load(file)
    with open(source, "rb") as file:
        code = compile(file.read(), source, "exec")
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
        import asyncio

        async def wait():
            return await value

        value = asyncio.run(wait())
    with os.fdopen(3, "w", encoding="utf-8") as result:
        json.dump(value, result)


run(sys.argv[1], sys.argv[2])
