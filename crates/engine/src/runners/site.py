"""Adds the package layers to sys.path: after the standard library, before the image's own packages.

Python imports this file as its `sitecustomize`. A warm child executes it instead, after it is confined. Then the
`sitecustomize` that Python would have found without this file is imported in its place.
"""
import os
import site
import sys

HERE = "/opt/belljar/site"
LAYERS = ("/opt/belljar/python-profile", "/opt/belljar/python")


def after_standard_library():
    """Returns the index on sys.path after the last entry of the standard library."""
    library = os.path.dirname(os.__file__)
    places = (library, os.path.join(library, "lib-dynload"), getattr(sys, "_stdlib_dir", None))
    found = [index for index, entry in enumerate(sys.path) if entry in places or entry.endswith("/lib-dynload")]
    return max(found, default=-1) + 1


def add_layer(folder, index):
    """Adds a folder and the entries of its .pth files; returns the index after them."""
    if folder not in sys.path:
        sys.path.insert(index, folder)
        index += 1
    known = set(sys.path)
    site.addsitedir(folder)
    added = []
    while sys.path and sys.path[-1] not in known:
        added.insert(0, sys.path.pop())
    sys.path[index:index] = added
    return index + len(added)


def has_entries(folder):
    """Returns whether a layer is mounted: its mount point alone is an empty folder."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except OSError:
        return False


def add_layers():
    sys.path[:] = [entry for entry in sys.path if entry != HERE]
    index = after_standard_library()
    for folder in LAYERS:
        if has_entries(folder):
            index = add_layer(folder, index)


def next_hook_is_new():
    """Returns whether `import sitecustomize` would now find a different file than the one that already ran."""
    from importlib.machinery import PathFinder

    found = PathFinder.find_spec("sitecustomize")
    return found is not None and found.origin != getattr(sys.modules["sitecustomize"], "__file__", None)


add_layers()
if getattr(sys.modules.get("sitecustomize"), "__file__", None) == HERE + "/sitecustomize.py":
    # If there is no other one, the import fails, which `site` expects; it imports `usercustomize` afterwards.
    del sys.modules["sitecustomize"]
    import sitecustomize
else:
    if "sitecustomize" in sys.modules and next_hook_is_new():
        del sys.modules["sitecustomize"]
    site.execsitecustomize()
    if site.ENABLE_USER_SITE:
        site.execusercustomize()
