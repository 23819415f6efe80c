"""Shows figures of matplotlib as pictures in ./artifacts. startup.py runs this when matplotlib.pyplot is imported."""
import os
import sys
from importlib.machinery import ModuleSpec

ARTIFACTS = "/workspace/artifacts"
BACKEND = "belljar_figures"
# Figures that are saved; more would not be returned.
MAX_FIGURES = 10


class FigureBackend:
    """Finds and loads the backend with which matplotlib shows figures."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return ModuleSpec(name, FigureBackend) if name == BACKEND else None

    @staticmethod
    def select():
        settings = sys.modules["matplotlib"].rcParams
        # A backend that the program or the request chose stays, unless it only draws in memory.
        chosen = dict.get(settings, "backend")
        if not isinstance(chosen, str) or chosen.lower() == "agg":
            settings["backend"] = "module://" + BACKEND

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        import atexit

        from matplotlib._pylab_helpers import Gcf
        from matplotlib.backend_bases import FigureManagerBase
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        class FigureCanvas(FigureCanvasAgg):
            def print_figure(self, filename, *arguments, **options):
                super().print_figure(filename, *arguments, **options)
                if isinstance(filename, (str, os.PathLike)):
                    self.is_saved = os.path.realpath(filename).startswith(ARTIFACTS + "/")

        class FigureManager(FigureManagerBase):
            def show(self):
                save_figure(self.canvas)

        def show(*arguments, **options):
            for manager in Gcf.get_all_fig_managers():
                manager.show()
            Gcf.destroy_all()

        FigureCanvas.manager_class = FigureManager
        module.FigureCanvas, module.FigureManager, module.show = FigureCanvas, FigureManager, show
        # matplotlib closes all figures at exit, too, but registered that earlier, so that it happens later.
        atexit.register(show)


saved_figures = []


def save_figure(canvas):
    """Saves a figure as a picture, unless the program saved it among the artifacts."""
    if getattr(canvas, "is_saved", False) or not canvas.figure.axes or len(saved_figures) >= MAX_FIGURES:
        return
    try:
        os.makedirs(ARTIFACTS, exist_ok=True)
        path = free_path()
        canvas.figure.savefig(path, format="png", bbox_inches="tight")
        saved_figures.append(path)
    except Exception as error:
        sys.stderr.write("a figure could not be saved: %s\n" % error)


def free_path():
    number = len(saved_figures) + 1
    while os.path.lexists("%s/figure-%d.png" % (ARTIFACTS, number)):
        number += 1
    return "%s/figure-%d.png" % (ARTIFACTS, number)


sys.meta_path.insert(0, FigureBackend)
FigureBackend.select()
