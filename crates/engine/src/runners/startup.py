"""Prepares Python for a program: its output survives a kill, and its figures become pictures in ./artifacts.

Python imports this file as its `sitecustomize`. A warm child executes it instead. Then the `sitecustomize` that
Python would have found without this file is imported in its place. None of this is in a stack trace of the program.

Every program pays for what is here, so figures.py, the text in FIGURES, is compiled only when matplotlib is used.
"""
import os
import sys

HERE = os.path.dirname(__file__)


def leave_path():
    """Removes the entry with which Python found this file."""
    sys.path[:] = [entry for entry in sys.path if entry != HERE]
    given = [entry for entry in os.environ.pop("PYTHONPATH", "").split(":") if entry not in ("", HERE)]
    if given:
        os.environ["PYTHONPATH"] = ":".join(given)


def buffer_lines():
    """Writes each line when it is complete: a pipe keeps it when the process is killed, a larger buffer is lost."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)


class FigureHook:
    """Notices the import of matplotlib.pyplot, and finds no module itself."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "matplotlib.pyplot" and "matplotlib" in sys.modules:
            show_figures()
        return None


def show_figures():
    if FigureHook in sys.meta_path:
        sys.meta_path.remove(FigureHook)
    exec(compile(FIGURES, __file__, "exec"), {"__name__": "figures"})


buffer_lines()
sys.meta_path.insert(0, FigureHook)
if "matplotlib.pyplot" in sys.modules:
    show_figures()
if getattr(sys.modules.get("sitecustomize"), "__file__", None) == __file__:
    leave_path()
    # If there is no other one, the import fails, which `site` expects.
    del sys.modules["sitecustomize"]
    import sitecustomize
