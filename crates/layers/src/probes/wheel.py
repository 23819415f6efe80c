# Copies the one wheel that a build left, if it is of the expected package and version.
import hashlib, json, os, stat, sys

MAX_BYTES = 2 << 30


def take_wheel(name, version, source):
    found = [file for file in os.listdir(source) if file.endswith(".whl")]
    if len(found) != 1:
        sys.exit("the build left %d wheels instead of one" % len(found))
    parts = found[0][:-4].split("-")
    version_of = lambda text: normal_version(text) or text
    is_it = len(parts) in (5, 6) and normal_name(parts[0]) == name and same_version(version_of(parts[1]), version)
    if not is_it:
        sys.exit("the build left a wheel of another package or version: %r" % found[0])
    # O_NOFOLLOW: a symlink could point to one of our files.
    file = os.open(os.path.join(source, found[0]), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_BYTES:
        sys.exit("the build left a wheel that is not a regular file, or is larger than 2 GB")
    with os.fdopen(file, "rb") as wheel, open(found[0], "xb") as copy:
        while True:
            piece = wheel.read(1 << 20)
            if not piece:
                break
            copy.write(piece)


def print_hash(folder):
    [file] = os.listdir(folder)
    with open(os.path.join(folder, file), "rb") as wheel:
        print(json.dumps("sha256:" + hashlib.sha256(wheel.read()).hexdigest()))


if __name__ == "__main__":
    {"take": take_wheel, "hash": print_hash}[sys.argv[1]](*sys.argv[2:])
