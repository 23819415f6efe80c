import hashlib, importlib._bootstrap_external as external, importlib.util as util, os, shutil, sys
from concurrent.futures import ProcessPoolExecutor

FOLDER, TARGET, CACHE = sys.argv[1:]
TAG = sys.implementation.cache_tag


def modules():
    for folder, folders, files in os.walk(FOLDER):
        # Tests of packages are not imported, and are half of some packages.
        folders[:] = [name for name in folders if name not in ("tests", "test", "__pycache__")]
        yield from (os.path.join(folder, name) for name in files if name.endswith(".py"))


def compiled(path):
    with open(path, "rb") as file:
        source = file.read()
    place = os.path.join(TARGET, os.path.relpath(path, FOLDER))
    name = hashlib.sha256(b"%s\0%s\0%s" % (TAG.encode(), place.encode(), source)).hexdigest()
    kept = os.path.join(CACHE, name[:2], name)
    target = util.cache_from_source(path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if not os.path.exists(kept):
        try:
            code = compile(source, place, "exec", dont_inherit=True, optimize=0)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return  # Some packages contain files for other Python versions.
        # A layer never changes, so Python does not need to check the source (unchecked hash-based pyc).
        data = external._code_to_hash_pyc(code, util.source_hash(source), False)
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        half = "%s.%d" % (kept, os.getpid())
        with open(half, "wb") as file:
            file.write(data)
        os.rename(half, kept)
    shutil.copyfile(kept, target)


if __name__ == "__main__":
    paths = list(modules())
    if len(paths) < 64:
        list(map(compiled, paths))
    else:
        import multiprocessing
        with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
            list(pool.map(compiled, paths, chunksize=16))
