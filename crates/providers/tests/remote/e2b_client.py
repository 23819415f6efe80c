"""Uses the test server with the official SDK, which shows that the server is faithful to that extent."""

import sys

from e2b import AuthenticationException, CommandExitException, NotFoundException, Sandbox, SandboxException

with Sandbox.create(timeout=60, allow_internet_access=False, metadata={"by": "test"}) as sandbox:
    assert sandbox.is_running()
    assert sandbox.get_info().metadata == {"by": "test"}
    assert [found.sandbox_id for found in Sandbox.list().next_items()] == [sandbox.sandbox_id]

    heard = []
    result = sandbox.commands.run("echo out; echo err >&2", on_stdout=heard.append)
    assert (result.stdout, result.stderr, result.exit_code, "".join(heard)) == ("out\n", "err\n", 0, "out\n")
    assert sandbox.commands.run("echo $A; pwd", envs={"A": "x y"}, cwd="/tmp").stdout == "x y\n/tmp\n"
    try:
        sandbox.commands.run("exit 7")
        sys.exit("a failed command did not fail")
    except CommandExitException as failed:
        assert failed.exit_code == 7

    sandbox.files.write("/tmp/a/b.txt", "content")
    assert sandbox.files.read("/tmp/a/b.txt") == "content"
    assert bytes(sandbox.files.read("/tmp/a/b.txt", format="bytes")) == b"content"
    assert [entry.name for entry in sandbox.files.list("/tmp/a")] == ["b.txt"]
    assert sandbox.files.exists("/tmp/a/b.txt") and not sandbox.files.exists("/tmp/nope")
    try:
        sandbox.files.read("/tmp/nope")
        sys.exit("a missing file was read")
    except NotFoundException:
        pass

    started = sandbox.commands.run("cat; echo done", background=True, stdin=True)
    sandbox.commands.send_stdin(started.pid, "typed\n")
    assert started.pid in [process.pid for process in sandbox.commands.list()]
    sandbox.commands.close_stdin(started.pid)
    assert started.wait().stdout == "typed\ndone\n"
    endless = sandbox.commands.run("exec sleep 100", background=True)
    assert endless.kill()
    try:
        endless.wait()
        sys.exit("a killed command ended well")
    except CommandExitException:
        pass

    sandbox.set_timeout(100)
    assert Sandbox.connect(sandbox.sandbox_id).commands.run("echo again").stdout == "again\n"
    gone = sandbox.sandbox_id
assert not Sandbox.kill(gone)
try:
    Sandbox.create(template="nope")
    sys.exit("a missing template was found")
except SandboxException as refused:
    assert "template 'nope' not found" in str(refused)
try:
    Sandbox.create(api_key="e2b_" + "1" * 40)
    sys.exit("a wrong key was accepted")
except AuthenticationException:
    pass
print("the SDK and this server understand each other")
