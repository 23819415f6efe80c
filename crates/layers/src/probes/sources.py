# Lists the source archives of a package, or fetches one. Runs and unpacks nothing of it.
import base64, hashlib, html.parser, json, os, sys, urllib.parse, urllib.request, zipfile

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
MAX_PAGE, MAX_ARCHIVE, MAX_FILES = 64 << 20, 1 << 30, 2000
ENDINGS = (".zip", ".tar.bz2", ".tgz", ".tar.gz")  # The last one wins.


def first_variable(*names):
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def indexes():
    if first_variable("UV_NO_INDEX", "PIP_NO_INDEX"):
        return []
    first = first_variable("UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL").split()
    last = first_variable("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL") or "https://pypi.org/simple"
    # uv allows named indexes: `name=https://…`.
    return [url if url.startswith("http") else url.partition("=")[2] for url in [*first, last]]


def get(url, accept="*/*"):
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    request = urllib.request.Request(parts._replace(netloc=host).geturl(), headers={"Accept": accept})
    for index in map(urllib.parse.urlsplit, indexes()):
        # An index's credentials are sent to its own host only, and never after a redirect.
        if index.username and index.netloc.rpartition("@")[2] == host and index.scheme == parts.scheme:
            secret = urllib.parse.unquote("%s:%s" % (index.username, index.password or ""))
            basic = base64.b64encode(secret.encode()).decode()
            request.add_unredirected_header("Authorization", "Basic " + basic)
            break
    return urllib.request.urlopen(request, timeout=60)


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.files = []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag == "a" and found.get("href"):
            address, _, fragment = found["href"].partition("#")
            kind, _, value = fragment.partition("=")
            self.files.append({
                "filename": urllib.parse.unquote(address.rpartition("/")[2]),
                "url": address,
                "hashes": {kind: value},
                "requires-python": found.get("data-requires-python"),
                "yanked": "data-yanked" in found,
            })


def page(url):
    try:
        with get(url, ACCEPT) as answer:
            text, base = answer.read(MAX_PAGE), answer.geturl()
            is_json = "json" in answer.headers.get("Content-Type", "")
    except urllib.error.HTTPError as error:
        if error.code in (401, 403, 404, 410):
            return []
        raise
    if is_json:
        files = json.loads(text)["files"]
    else:
        parser = Links()
        parser.feed(text.decode("utf-8", "replace"))
        files = parser.files
    for file in files:
        address = urllib.parse.urlsplit(urllib.parse.urljoin(base, file["url"]))
        file["url"] = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()
    return [file for file in files if file["url"].startswith(("https://", "http://"))]


def folder(path):
    for name in sorted(os.listdir(path)):
        if name.endswith(ENDINGS + (".whl",)):
            with open(os.path.join(path, name), "rb") as file:
                digest = hashlib.sha256(file.read()).hexdigest()
            yield {"filename": name, "url": "file://" + os.path.join(path, name), "hashes": {"sha256": digest}}


def files_of(name):
    for place in first_variable("UV_FIND_LINKS").split(","):
        if "://" in place:
            yield from page(place)
        elif place:
            yield from folder(place)
    for index in indexes():
        found = page("%s/%s/" % (index.rstrip("/"), name))
        yield from found
        # The first index that knows the name is used.
        if found:
            return


def version_of(name, file):
    """Returns the version of a source archive, from its file name."""
    ending = next((ending for ending in ENDINGS if file.endswith(ending)), None)
    stem = file[:-len(ending)] if ending else ""
    for at, letter in enumerate(stem):
        if letter == "-" and normal_name(stem[:at]) == name:
            version = normal_version(stem[at + 1:])
            if version:
                return version
    return None


def write_empty_wheel(name, version, requires):
    """Writes an empty wheel, so that an installer can choose among source versions."""
    stem = "%s-%s" % (name.replace("-", "_"), version)
    requires = "".join(letter for letter in requires or "" if letter.isprintable())
    about = "Metadata-Version: 2.1\nName: %s\nVersion: %s\n" % (name, version)
    about += "Requires-Python: %s\n" % requires if requires else ""
    kind = "Wheel-Version: 1.0\nGenerator: belljar\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(stem + "-py3-none-any.whl", "w") as wheel:
        for file, text in (("METADATA", about), ("WHEEL", kind), ("RECORD", "")):
            wheel.writestr("%s.dist-info/%s" % (stem, file), text)


def list_sources(name):
    files = [file for file in files_of(name) if not file.get("yanked")]
    has_name = lambda file: normal_name(file["filename"].partition("-")[0]) == name
    wheels = any(file["filename"].endswith(".whl") and has_name(file) for file in files)
    sources = {}
    # Registries list the oldest version first.
    for file in [file for file in files if file["filename"].endswith(ENDINGS)][-MAX_FILES:]:
        version, digest = version_of(name, file["filename"]), file.get("hashes", {}).get("sha256")
        if version and digest:
            write_empty_wheel(name, version, file.get("requires-python"))
            ending = max(at for at, ending in enumerate(ENDINGS) if file["filename"].endswith(ending))
            one = {"version": version, "url": file["url"], "hash": "sha256:" + digest, "ending": ending}
            if version not in sources or sources[version]["ending"] < ending:
                sources[version] = one
    print(json.dumps({"sources": list(sources.values()), "wheels": wheels}))


def fetch(url, expected):
    digest, size = hashlib.sha256(), 0
    with get(url) as answer, open("archive", "wb") as archive:
        while True:
            piece = answer.read(1 << 20)
            size += len(piece)
            if not piece or size > MAX_ARCHIVE:
                break
            digest.update(piece)
            archive.write(piece)
    if "sha256:" + digest.hexdigest() != expected or size > MAX_ARCHIVE:
        sys.exit("the archive does not match the registry's hash, or is larger than 1 GB")


if __name__ == "__main__":
    try:
        {"list": list_sources, "fetch": fetch}[sys.argv[1]](*sys.argv[2:])
    except (OSError, ValueError, LookupError) as error:
        sys.exit("sources of %s: %s" % (sys.argv[2], error))
