"""Uses the test server with the official SDK, which shows that the server is faithful to that extent."""

import os
import sys
import tempfile

from agentrun.sandbox.api.code_interpreter_data import CodeInterpreterDataAPI
from agentrun.sandbox.client import SandboxClient
from agentrun.utils.config import Config
from agentrun.utils.exception import AgentRunError

client = SandboxClient()
made = client.create_sandbox("python", sandbox_idle_timeout_seconds=60, sandbox_id="named-by-us")
assert made.sandbox_id == "named-by-us", made
there = CodeInterpreterDataAPI(made.sandbox_id)
assert there.check_health()["status"] == "ok"

done = there.cmd("echo out; echo err >&2; exit 7", cwd="/tmp")
assert (done["stdout"], done["stderr"], done["exitCode"]) == ("out\n", "err\n", 7), done
done = there.execute_code("print(6 * 7)", context_id=None)
assert done["results"][0] == {"type": "stdout", "text": "42\n"}, done

there.write_file("/tmp/a/b c.txt", "content")
assert there.read_file("/tmp/a/b c.txt")["content"] == "content"
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "x")
    with open(path, "wb") as file:
        file.write(bytes(range(256)))
    there.upload_file(path, "/tmp/up")
    there.download_file("/tmp/up", path + "2")
    with open(path + "2", "rb") as file:
        assert file.read() == bytes(range(256))

client.delete_sandbox(made.sandbox_id)
for wrong in (lambda: client.delete_sandbox(made.sandbox_id), lambda: client.create_sandbox("nope")):
    try:
        wrong()
        sys.exit("a missing sandbox was found")
    except AgentRunError:
        pass
try:
    SandboxClient(Config(access_key_secret="wrong")).create_sandbox("python")
    sys.exit("a wrong signature was accepted")
except AgentRunError as refused:
    assert "signature" in str(refused), refused
print("the SDK and this server understand each other")
