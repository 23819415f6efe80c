"""E2B as its SDKs see it: the API, and the daemon on each machine. For tests: it runs any code it is sent."""

import base64
import gzip
import json
import os
import secrets
import signal
import struct
import subprocess
import sys
import threading
import time

from machine import FrontHandler, Handler, Machine, inside, serve

KEY = "e2b_" + "0" * 40
TEMPLATES = {"base", "code-interpreter-v1"}
QUOTA = 30
SIGNALS = {
    1: "hangup", 2: "interrupt", 3: "quit", 4: "illegal instruction", 5: "trace/breakpoint trap", 6: "aborted",
    7: "bus error", 8: "floating point exception", 9: "killed", 10: "user defined signal 1",
    11: "segmentation fault", 12: "user defined signal 2", 13: "broken pipe", 14: "alarm clock", 15: "terminated",
}  # fmt: skip


def stamp(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


class Api(FrontHandler):
    """The API, which creates machines."""

    def control(self):
        body = self.body()
        if lent := self.headers.get("E2b-Sandbox-Id"):
            return self.to_machine(lent, body)
        if self.headers.get("X-API-KEY") != KEY:
            return self.fail(401, "Invalid API key, please visit https://e2b.dev/docs/api-key for more information.")
        asked = json.loads(body) if body else {}
        words = self.url.path.strip("/").split("/")
        words = words[1:] if words[0] == "v2" else words
        match [self.command, *words]:
            case ["POST", "sandboxes"]:
                return self.create(asked)
            case ["GET", "sandboxes"]:
                return self.answer(200, [self.shown(lent) for lent in self.server.machines.values()])
            case ["GET", "sandboxes", lent] if lent in self.server.machines:
                return self.answer(200, self.shown(self.server.machines[lent]))
            case ["DELETE", "sandboxes", lent]:
                return self.answer(204) if self.server.end(lent) else self.gone(lent)
            case ["POST", "sandboxes", lent, "timeout"] if lent in self.server.machines:
                self.lives(self.server.machines[lent], asked["timeout"])
                return self.answer(204)
            case ["POST", "sandboxes", lent, "connect"] if lent in self.server.machines:
                return self.answer(200, self.made(self.server.machines[lent]))
            case [_, "sandboxes", lent, *_]:
                return self.gone(lent)
        return self.fail(404, "not found")

    def to_machine(self, lent, body):
        machine = self.server.machines.get(lent)
        if machine is None:
            message = "The sandbox was not found"
        elif self.headers.get("E2b-Sandbox-Port") != "49983":
            message = "The sandbox is running but port is not open"
        elif self.headers.get("X-Access-Token") != machine.token and self.url.path != "/health":
            return self.fail(401, "unauthorized, please provide a valid access token")
        else:
            return machine.relay(self, body)
        return self.answer(502, {"sandboxId": lent, "message": message, "code": 502})

    def fail(self, status, message):
        return self.answer(status, {"code": status, "message": message})

    def gone(self, lent):
        return self.fail(404, f"sandbox \"{lent}\" not found")

    def create(self, asked):
        server, key = self.server, self.headers.get("Idempotency-Key")
        if asked.get("templateID") not in TEMPLATES:
            return self.fail(404, f"template '{asked.get('templateID')}' not found")
        if asked.get("timeout", 15) > 3600:
            return self.fail(400, "Timeout cannot be greater than 1 hours")
        with server.lock:
            if len(server.machines) >= QUOTA:
                return self.fail(429, f"you have reached the maximum number of concurrent E2B sandboxes ({QUOTA})")
            known = next((lent for lent in server.machines.values() if key and lent.key == key), None)
            if known:
                return self.answer(201, self.made(known))
            machine = Machine(__file__)
            machine.key, machine.asked, machine.token = key, asked, secrets.token_hex(16)
            server.machines[machine.id] = machine
        self.lives(machine, asked.get("timeout", 300))
        return self.answer(201, self.made(machine))

    def lives(self, machine, seconds):
        machine.end_at = time.time() + seconds

        def over():
            if time.time() >= machine.end_at:
                self.server.end(machine.id)

        timer = threading.Timer(seconds + 0.01, over)
        timer.daemon = True
        timer.start()

    def made(self, machine):
        return {"templateID": machine.asked["templateID"], "sandboxID": machine.id, "clientID": "test",
                "envdVersion": "0.6.4", "envdAccessToken": machine.token, "domain": None}  # fmt: skip

    def shown(self, machine):
        fixed = {"templateID": machine.asked["templateID"], "sandboxID": machine.id, "clientID": "test", "state": "running",
                 "cpuCount": 2, "memoryMB": 512, "diskSizeMB": 1024, "envdVersion": "0.6.4"}  # fmt: skip
        times = {"startedAt": stamp(machine.made), "endAt": stamp(machine.end_at)}
        return fixed | times | {"metadata": machine.asked.get("metadata") or {}}


class Refusal(Exception):
    """A Connect error."""

    def __init__(self, code, message):
        super().__init__(message)
        self.error = {"code": code, "message": message}


STATUS = {"not_found": 404, "already_exists": 409, "invalid_argument": 400, "unimplemented": 501}


class Daemon(Handler):
    """The daemon on a machine."""

    running = {}

    def do_GET(self):
        if self.url.path == "/health":
            return self.answer(204)
        try:
            with open(self.home(self.query["path"]), "rb") as file:
                return self.answer(200, file.read(), kind="application/octet-stream")
        except FileNotFoundError:
            return self.answer(404, {"code": 404, "message": f"file '{self.query['path']}' not found"})

    def do_POST(self):
        body, path = self.body(), self.url.path
        if path == "/files":
            return self.upload(body)
        if path == "/process.Process/Start":
            return self.start(json.loads(body[5:]))
        service, _, method = path.strip("/").partition("/")
        try:
            ask = getattr(self, f"on_{method}", None)
            if ask is None:
                raise Refusal("unimplemented", f"{service}.{method}")
            return self.answer(200, ask(json.loads(body)))
        except Refusal as refusal:
            return self.answer(STATUS[refusal.error["code"]], refusal.error)

    def home(self, path):
        return os.path.join("/home/user", path)

    def upload(self, body):
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        files = [(self.query.get("path"), body)]
        if "multipart" in self.headers["Content-Type"]:
            import email

            whole = b"Content-Type: " + self.headers["Content-Type"].encode() + b"\r\n\r\n" + body
            parts = email.message_from_bytes(whole).get_payload()
            files = [(self.query.get("path") or part.get_filename(), part.get_payload(decode=True)) for part in parts]
        written = []
        for path, content in files:
            path = self.home(path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
            written.append({"name": os.path.basename(path), "path": path, "type": "file"})
        return self.answer(200, written)

    def start(self, asked):
        lock = threading.Lock()

        def send(value, flags=0):
            text = json.dumps(value).encode()
            with lock:
                self.chunk(struct.pack(">BI", flags, len(text)) + text)

        self.begin_chunks("application/connect+json")
        try:
            process = self.launch(asked)
        except Refusal as refusal:
            send({"error": refusal.error}, 2)
            return self.chunk(b"")
        send({"event": {"start": {"pid": process.pid}}})
        late = threading.Event()

        def expire():
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        limit = int(self.headers.get("Connect-Timeout-Ms") or 0)
        timer = threading.Timer(limit / 1000, expire)
        if limit:
            timer.start()

        def pump(name, pipe):
            try:
                while part := pipe.read1(1 << 15):
                    send({"event": {"data": {name: base64.b64encode(part).decode()}}})
            except OSError:
                pass  # The client is gone.

        pumps = [threading.Thread(target=pump, args=pair) for pair in (("stdout", process.stdout), ("stderr", process.stderr))]
        for thread in pumps:
            thread.start()
        # Waits for processes that keep a stream open.
        for thread in pumps:
            thread.join()
        code = process.wait()
        timer.cancel()
        self.running.pop(process.pid, None)
        if late.is_set():
            send({"error": {"code": "deadline_exceeded", "message": "context deadline exceeded"}}, 2)
            return self.chunk(b"")
        end = {"exited": code >= 0, "status": f"exit status {code}" if code >= 0 else f"signal: {SIGNALS[-code]}"}
        if code:
            end |= {"exitCode": max(code, -1), "error": end["status"]}
        send({"event": {"end": end}})
        send({}, 2)
        return self.chunk(b"")

    def launch(self, asked):
        wanted = asked["process"]
        cwd = wanted.get("cwd") or "/home/user"
        if not os.path.isdir(cwd):
            raise Refusal("invalid_argument", f"cwd '{cwd}' does not exist")
        words = [wanted["cmd"], *wanted.get("args", [])]
        stdin = subprocess.PIPE if asked.get("stdin", True) else subprocess.DEVNULL
        try:
            process = subprocess.Popen(words, cwd=cwd, env=dict(os.environ) | wanted.get("envs", {}), stdin=stdin,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)  # fmt: skip
        except OSError as error:
            raise Refusal("invalid_argument", f"fork/exec {words[0]}: {error.strerror.lower()}") from error
        self.running[process.pid] = (process, wanted)
        return process

    def chosen(self, asked):
        found = self.running.get(asked["process"].get("pid"))
        if found is None:
            raise Refusal("not_found", f"process with pid {asked['process'].get('pid')} not found")
        return found[0]

    def on_List(self, _asked):
        return {"processes": [{"pid": pid, "config": wanted} for pid, (_, wanted) in self.running.items()]}

    def on_SendInput(self, asked):
        pipe = self.chosen(asked).stdin
        pipe.write(base64.b64decode(asked["input"]["stdin"]))
        pipe.flush()
        return {}

    def on_CloseStdin(self, asked):
        self.chosen(asked).stdin.close()
        return {}

    def on_SendSignal(self, asked):
        self.chosen(asked).send_signal(signal.Signals[asked["signal"].removeprefix("SIGNAL_")])
        return {}

    def entry(self, path):
        try:
            found = os.lstat(path)
        except FileNotFoundError as error:
            raise Refusal("not_found", f"path not found: {path}") from error
        kind = "FILE_TYPE_DIRECTORY" if os.path.isdir(path) else "FILE_TYPE_FILE"
        return {"name": os.path.basename(path), "type": kind, "path": path, "size": str(found.st_size), "mode": found.st_mode & 0o777,
                "permissions": "", "owner": "user", "group": "user", "modifiedTime": stamp(found.st_mtime)}  # fmt: skip

    def on_Stat(self, asked):
        return {"entry": self.entry(self.home(asked["path"]))}

    def on_ListDir(self, asked):
        folder = self.home(asked["path"])
        return {"entries": [self.entry(os.path.join(folder, name)) for name in sorted(os.listdir(folder))]}

    def on_MakeDir(self, asked):
        try:
            os.makedirs(self.home(asked["path"]))
        except FileExistsError as error:
            raise Refusal("already_exists", "the folder exists already") from error
        return {"entry": self.entry(self.home(asked["path"]))}

    def on_Remove(self, asked):
        subprocess.run(["rm", "-rf", self.home(asked["path"])], check=True)
        return {}


if __name__ == "__main__":
    if sys.argv[1:2] == ["inside"]:
        inside(sys.argv[2], Daemon)
    else:
        serve(Api)
