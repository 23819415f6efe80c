import re

VERSION = re.compile(
    r"v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>alpha|beta|preview|pre|rc|a|b|c)[-_.]?(?P<pre_number>\d*))?"
    r"(?:-(?P<short_post>\d+)|[-_.]?(?P<post>post|rev|r)[-_.]?(?P<post_number>\d*))?"
    r"(?:[-_.]?(?P<dev>dev)[-_.]?(?P<dev_number>\d*))?"
    r"(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?",
    re.IGNORECASE | re.ASCII,
)
SHORT = {"alpha": "a", "beta": "b", "preview": "rc", "pre": "rc", "c": "rc"}


def normal_name(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def normal_version(text):
    """Normalizes a version according to PEP 440; returns None if it is invalid."""
    found = VERSION.fullmatch(text) if len(text) < 200 else None
    if not found:
        return None
    number = lambda name: int(found[name] or 0)
    version = ".".join(str(int(part)) for part in found["release"].split("."))
    if number("epoch"):
        version = "%d!%s" % (number("epoch"), version)
    if found["pre"]:
        kind = found["pre"].lower()
        version += "%s%d" % (SHORT.get(kind, kind), number("pre_number"))
    if found["short_post"] or found["post"]:
        version += ".post%d" % int(found["short_post"] or found["post_number"] or 0)
    if found["dev"]:
        version += ".dev%d" % number("dev_number")
    if found["local"]:
        version += "+" + re.sub(r"[-_.]", ".", found["local"].lower())
    return version


def same_version(one, other):
    """Compares normalized versions, ignoring trailing zeros of the release."""
    plain = lambda version: re.sub(r"^((?:\d+!)?\d+(?:\.\d+)*?)(?:\.0)*(?!\.?\d)", r"\1", version)
    return plain(one) == plain(other)


