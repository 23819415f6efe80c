"""Runs a command, keeps head and tail of its output in files, reports its ending: the API is text-only."""
import collections, json, os, signal, subprocess, sys, threading

seconds, keep, folder, words = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]


def pump(pipe, name):
    with open(f"{folder}/{name}", "wb", buffering=0) as file:
        head, size, tail = keep + 1, 0, collections.deque()
        while part := os.read(pipe.fileno(), 1 << 16):
            file.write(part[:head])
            part, head = part[head:], head - min(head, len(part))
            if part:
                tail.append(part)
                size += len(part)
            while tail and size - len(tail[0]) >= keep:
                size -= len(tail.popleft())
            kept[name] = tail


kept, said = {}, {}
pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
process = subprocess.Popen(words, stdin=subprocess.DEVNULL, **pipes)
pumps = [threading.Thread(target=pump, args=pair, daemon=True) for pair in ((process.stdout, "stdout"), (process.stderr, "stderr"))]
[thread.start() for thread in pumps]
try:
    code = process.wait(seconds)
    said = {"signal": -code} if code < 0 else {"exit": code}
except subprocess.TimeoutExpired:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    said = {"late": True}
# Processes that keep a stream open are not awaited.
[thread.join(0.3) for thread in pumps]
for name, tail in list(kept.items()):
    with open(f"{folder}/{name}", "ab") as file:
        file.write(b"".join(tail))
print(json.dumps(said | {name: os.path.getsize(f"{folder}/{name}") for name in ("stdout", "stderr")}), flush=True)
os._exit(0)
