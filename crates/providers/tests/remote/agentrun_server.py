"""AgentRun's API and the daemon on each machine, as its SDK sees them. For tests: runs any code."""

import email
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
from urllib.parse import parse_qsl, quote

from machine import FrontHandler, Handler, Machine, inside, serve

KEY, SECRET, REGION, TEMPLATE = "test-id", "test-secret", "cn-hangzhou", "python"
LONGEST = 30


class Api(FrontHandler):
    """The API, which creates machines."""

    def control(self):
        body = self.body()
        if not self.signed():
            return self.fail(403, "SignatureDoesNotMatch", "The request signature does not match.")
        words = self.url.path.strip("/").split("/")
        match [self.command, *words]:
            case ["POST", "sandboxes"]:
                return self.create(json.loads(body))
            case ["GET", "sandboxes", lent] if lent in self.server.machines:
                return self.good(self.shown(self.server.machines[lent]))
            case ["DELETE", "sandboxes", lent] | ["POST", "sandboxes", lent, "stop"] if lent in self.server.machines:
                shown = self.shown(self.server.machines[lent]) | {"status": "TERMINATED"}
                self.server.end(lent)
                return self.good(shown)
            case [_, "sandboxes", lent, *rest] if rest and lent in self.server.machines:
                self.path = self.path.removeprefix(f"/sandboxes/{lent}")
                return self.server.machines[lent].relay(self, body)
        return self.fail(404, "SandboxNotFound", "sandbox not found")

    def signed(self):
        """Returns whether the signature matches this request and our key."""
        words = self.headers.get("Agentrun-Authorization", "").split(" ", 1)
        if words[0] != "AGENTRUN4-HMAC-SHA256":
            return False
        given = dict(part.split("=", 1) for part in words[1].split(","))
        date, names = self.headers["x-acs-date"][:10].replace("-", ""), given["SignedHeaders"]
        if given["Credential"] != f"{KEY}/{date}/{REGION}/agentrun/aliyun_v4_request":
            return False
        pairs = sorted(parse_qsl(self.url.query, keep_blank_values=True))
        query = "&".join(f"{quote(name, safe='~')}={quote(text, safe='~')}" for name, text in pairs)
        listed = "".join(f"{name}:{self.headers[name]}\n" for name in names.split(";"))
        canonical = "\n".join([self.command, self.url.path, query, listed, names, "UNSIGNED-PAYLOAD"])
        key = ("aliyun_v4" + SECRET).encode()
        text = "AGENTRUN4-HMAC-SHA256\n" + hashlib.sha256(canonical.encode()).hexdigest()
        for part in (date, REGION, "agentrun", "aliyun_v4_request", text):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return hmac.compare_digest(key.hex(), given["Signature"])

    def fail(self, status, code, message):
        return self.answer(status, {"code": code, "requestId": "test", "message": message})

    def good(self, data):
        return self.answer(200, {"code": "SUCCESS", "requestId": "test", "data": data})

    def create(self, asked):
        if asked.get("templateName") != TEMPLATE:
            return self.fail(404, "TemplateNotFound", f"template {asked.get('templateName')} not found")
        with self.server.lock:
            if asked.get("sandboxId") in self.server.machines:
                return self.fail(409, "SandboxAlreadyExists", "sandbox already exists")
            machine = Machine(__file__)
            machine.id = asked.get("sandboxId") or machine.id
            machine.asked = asked
            self.server.machines[machine.id] = machine
        return self.good(self.shown(machine))

    def shown(self, machine):
        return {"sandboxId": machine.id, "templateName": TEMPLATE, "status": "READY",
                "sandboxIdleTimeoutSeconds": machine.asked.get("sandboxIdleTimeoutSeconds")}  # fmt: skip


class Daemon(Handler):
    """The daemon on a machine."""

    def do_GET(self):
        match self.url.path:
            case "/health":
                return self.answer(200, {"status": "ok"})
            case "/files" | "/filesystem/download" as path:
                try:
                    with open(self.query["path"], "rb") as file:
                        content = file.read()
                except OSError as error:
                    return self.fail(404, "FileNotFound", str(error))
                if path == "/filesystem/download":
                    return self.answer(200, content, kind="application/octet-stream")
                return self.answer(200, {"path": self.query["path"], "content": content.decode()})
            case "/filesystem/stat" if os.path.exists(self.query["path"]):
                return self.answer(200, {"path": self.query["path"], "size": os.path.getsize(self.query["path"])})
            case "/filesystem":
                names = sorted(os.listdir(self.query["path"]))
                return self.answer(200, {"path": self.query["path"], "entries": [{"name": name} for name in names]})
            case "/processes":
                return self.answer(200, {"processes": []})
        return self.fail(404, "NotFound", "not found")

    def do_POST(self):
        body = self.body()
        match self.url.path:
            case "/processes/cmd":
                return self.answer(200, self.run(**json.loads(body)))
            case "/files":
                asked = json.loads(body)
                return self.write(asked["path"], asked["content"].encode())
            case "/filesystem/upload":
                whole = b"Content-Type: " + self.headers["Content-Type"].encode() + b"\r\n\r\n" + body
                parts = email.message_from_bytes(whole).get_payload()
                fields = {part.get_param("name", header="content-disposition"): part for part in parts}
                return self.write(fields["path"].get_payload().strip(), fields["file"].get_payload(decode=True))
            case "/filesystem/mkdir":
                os.makedirs(json.loads(body)["path"], exist_ok=True)
                return self.answer(200, {"success": True})
            case "/contexts/execute":
                return self.answer(200, self.execute(**json.loads(body)))
        return self.fail(404, "NotFound", "not found")

    def fail(self, status, code, message):
        return self.answer(status, {"code": code, "requestId": "test", "message": message})

    def write(self, path, content):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
        return self.answer(200, {"path": path, "size": len(content)})

    def run(self, command, cwd, timeout=LONGEST):
        text = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
        process = subprocess.Popen(["/bin/sh", "-c", command], cwd=cwd, stdin=subprocess.DEVNULL, **text)
        try:
            out, err = process.communicate(timeout=min(timeout, LONGEST))
            return {"stdout": out, "stderr": err, "exitCode": process.returncode}
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            return {"stdout": out, "stderr": err, "exitCode": -1, "error": "timeout"}

    def execute(self, code, timeout=LONGEST, language="python", contextId=None):
        done = subprocess.run(["python3", "-c", code], capture_output=True, text=True, timeout=timeout, check=False)
        results = [{"type": "stdout", "text": done.stdout}, {"type": "stderr", "text": done.stderr}]
        results.append({"type": "endOfExecution", "status": "ok" if done.returncode == 0 else "error"})
        return {"results": [result for result in results if result.get("text", True)], "contextId": contextId}


if __name__ == "__main__":
    if sys.argv[1:2] == ["inside"]:
        inside(sys.argv[2], Daemon)
    else:
        serve(Api)
