//! Real workloads under the filter and the limits: scientific Python, servers and images in Node.js, git,
//! compilers, databases, and every way to start a process.
#![cfg(target_os = "linux")]

mod common;
mod expect;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::{Answer, belljar, finish, run};
use expect::{Expect, packages, run_code, skip};

/// Real packages need more resources than the defaults.
const ROOMY: &[&str] = &["--memory", "1G", "--processes", "256", "--timeout", "2m", "--cpus", "2"];

fn python(code: &str) {
    run_code("python", code, ROOMY).printed("fine\n");
}

fn bash(code: &str) {
    run_code("bash", &format!("set -euo pipefail\n{code}\necho fine"), ROOMY).printed("fine\n");
}

// ── Python ───────────────────────────────────────────────────────────────────────────────────────────────────────

const NUMBERS: &str = "
import numpy, pandas
a = numpy.random.default_rng(0).random((300, 300))
assert numpy.allclose(a @ numpy.linalg.inv(a), numpy.eye(300), atol=1e-6)
frame = pandas.DataFrame({'key': ['a', 'b', 'a'], 'value': [1, 2, 3]})
frame.to_csv('table.csv', index=False)
assert pandas.read_csv('table.csv').groupby('key').value.sum().to_dict() == {'a': 4, 'b': 2}
print('fine')
";

const PLOT: &str = "
import matplotlib
matplotlib.use('Agg')
import matplotlib.pyplot as plt
plt.plot([1, 4, 9])
plt.title('squares')
plt.savefig('artifacts/plot.png')
print('fine')
";

/// Puts a virtual environment first on `PATH`, like `source venv/bin/activate`.
fn in_environment(test: &str, code: &str) -> Option<Answer> {
    // Resolved, because an environment whose interpreter this user cannot access does not count.
    let Some(environment) = packages("venv/bin/python3").and_then(|_| packages("venv/bin")) else {
        skip(test, "numpy, pandas and matplotlib are not installed; ./test installs them");
        return None;
    };
    let path = format!("{}:{}", environment.display(), std::env::var("PATH").unwrap_or_default());
    Some(finish(belljar().env("PATH", path).args(["run", "--json", "-c", code]).args(ROOMY)))
}

#[test]
fn numpy_and_pandas_in_a_virtual_environment() {
    if let Some(answer) = in_environment("numpy_and_pandas_in_a_virtual_environment", NUMBERS) {
        answer.printed("fine\n");
    }
}

#[test]
fn matplotlib_draws_an_artifact() {
    let Some(answer) = in_environment("matplotlib_draws_an_artifact", PLOT) else { return };
    answer.printed("fine\n");
    let artifact = &answer.json["artifacts"][0];
    assert_eq!((&artifact["name"], &artifact["mime_type"]), (&"plot.png".into(), &"image/png".into()));
    let content = STANDARD.decode(artifact["content_base64"].as_str().unwrap()).unwrap();
    assert!(content.starts_with(b"\x89PNG") && artifact["size"] == content.len());
}

/// Figures that are shown or left open; one is saved by the program, and one has nothing on it.
const FIGURES: &str = "
import matplotlib
matplotlib.use('Agg')
import matplotlib.pyplot as plt
plt.plot([1, 4, 9])
plt.show()
plt.plot([9, 4, 1])
plt.show()
plt.figure()
figure, axes = plt.subplots()
axes.bar(['a'], [1])
import os
os.makedirs('artifacts', exist_ok=True)
plt.savefig('artifacts/own.png')
plt.figure()
plt.plot([1])
print('fine')
";

fn picture_names(answer: &Answer) -> Vec<&str> {
    let artifacts = answer.json["artifacts"].as_array().expect("a list");
    for artifact in artifacts {
        let content = STANDARD.decode(artifact["content_base64"].as_str().expect("text")).expect("base64");
        assert!(content.starts_with(b"\x89PNG"), "{artifact}");
    }
    artifacts.iter().map(|artifact| artifact["name"].as_str().expect("a name")).collect()
}

#[test]
fn shown_and_open_figures_become_pictures() {
    let Some(answer) = in_environment("shown_and_open_figures_become_pictures", FIGURES) else { return };
    answer.printed("fine\n");
    assert_eq!(picture_names(&answer), ["figure-1.png", "figure-2.png", "figure-3.png", "own.png"]);
    // Also of a program that fails, whose stack trace has no frames of ours.
    let failing = "import matplotlib.pyplot as plt\nplt.plot([1])\n1 / 0";
    let Some(answer) = in_environment("shown_and_open_figures_become_pictures", failing) else { return };
    assert_eq!((answer.status(), picture_names(&answer)), ("failed", vec!["figure-1.png"]));
    assert_eq!(answer.text("stderr").matches("File \"").count(), 1, "{answer:?}");
}

/// Values of numpy and pandas as the return value of main.
const RETURNED: &str = "
import numpy, pandas
def main():
    frame = pandas.DataFrame({'a': [1, 2], 'b': [1.5, None], 't': pandas.to_datetime(['2024-01-01', None])})
    return [
        numpy.float64(1.5), numpy.int64(3), numpy.bool_(True), numpy.array([[1, 2], [3, 4]]), numpy.array(3),
        numpy.array(['2024-01-01', 'NaT'], dtype='datetime64[D]'), numpy.timedelta64(5, 'm'),
        frame, frame['b'], frame['a'].value_counts().sort_index(), frame.set_index('a')[['b']],
        pandas.Timestamp('2024-01-01'), pandas.Timedelta('1s'), pandas.NaT, pandas.NA, pandas.Index([1, 2]),
        {numpy.int64(1): 2},
    ]
";

#[test]
fn numpy_and_pandas_values_are_returned() {
    let Some(environment) = packages("venv/bin/python3").and_then(|_| packages("venv/bin")) else {
        return skip(
            "numpy_and_pandas_values_are_returned",
            "numpy and pandas are not installed; ./test installs them",
        );
    };
    let path = format!("{}:{}", environment.display(), std::env::var("PATH").unwrap_or_default());
    let run = |code: &str| {
        finish(belljar().env("PATH", &path).args(["run", "--json", "--args", "{}", "-c", code]).args(ROOMY))
    };
    let wanted = serde_json::json!([
        1.5, 3, true, [[1, 2], [3, 4]], 3, ["2024-01-01", null], 300.0,
        [{"a": 1, "b": 1.5, "t": "2024-01-01T00:00:00"}, {"a": 2, "b": null, "t": null}], [1.5, null],
        {"1": 1, "2": 1}, [{"a": 1, "b": 1.5}, {"a": 2, "b": null}],
        "2024-01-01T00:00:00", 1.0, null, null, [1, 2], {"1": 2}
    ]);
    let answer = run(RETURNED);
    assert_eq!(answer.json["result"]["value"], wanted, "{answer:?}");
    let nan = run("import numpy\ndef main(): return {'m': numpy.array([[1, float('nan')]])}");
    assert!(nan.text("error").starts_with("TypeError: result.m[0][1] is NaN"), "{nan:?}");
    let infinite = run("import pandas\ndef main(): return pandas.DataFrame({'x': [1.0, float('inf')]})");
    assert!(infinite.text("error").starts_with("TypeError: result[1].x is Infinity"), "{infinite:?}");
}

#[test]
fn packages_from_a_mounted_folder() {
    let library = packages("venv/lib").and_then(|lib| std::fs::read_dir(lib).ok()?.next()?.ok());
    let Some(library) = library.map(|version| version.path().join("site-packages")) else {
        return skip(
            "packages_from_a_mounted_folder",
            "numpy and pandas are not installed; ./test installs them",
        );
    };
    let mount = format!("{}:/opt/site-packages:ro", library.display());
    let further = ["--mount", &mount, "--env", "PYTHONPATH=/opt/site-packages"];
    run_code("python", NUMBERS, &[ROOMY, &further].concat()).printed("fine\n");
}

#[test]
fn python_processes_and_threads() {
    python(
        "
import multiprocessing, concurrent.futures, threading
def square(n): return n * n
if __name__ == '__main__':
    for method in ('fork', 'spawn', 'forkserver'):
        with multiprocessing.get_context(method).Pool(3) as pool:
            assert pool.map(square, range(20)) == [n * n for n in range(20)], method
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(square, range(50))) == sum(n * n for n in range(50))
    queue = multiprocessing.Queue(); lock = multiprocessing.Lock(); value = multiprocessing.Value('i', 0)
    def child():
        with lock: value.value += 1
        queue.put('ok')
    children = [multiprocessing.get_context('fork').Process(target=child) for _ in range(4)]
    [c.start() for c in children]; [queue.get() for c in children]; [c.join() for c in children]
    assert value.value == 4
    print('fine')
",
    );
}

#[test]
fn python_shared_memory_and_signals() {
    python(
        "
from multiprocessing import shared_memory
import signal, time, os, fcntl, mmap, tempfile, shutil
block = shared_memory.SharedMemory(create=True, size=1 << 20); block.buf[0] = 7
other = shared_memory.SharedMemory(block.name)
assert other.buf[0] == 7
other.close(); block.close(); block.unlink()
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
# Again and again: the first may come before anybody waits for it.
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
signal.pause(); signal.setitimer(signal.ITIMER_REAL, 0); assert seen
with open('f', 'w+b') as f:
    fcntl.flock(f, fcntl.LOCK_EX); fcntl.lockf(f, fcntl.LOCK_EX); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096); m[0] = 1
with tempfile.TemporaryDirectory() as folder:
    shutil.copytree('/usr/share/doc/bash' if os.path.isdir('/usr/share/doc/bash') else '.', folder + '/copy')
    shutil.make_archive(folder + '/a', 'gztar', folder + '/copy')
print('fine')
",
    );
}

#[test]
fn asyncio_with_processes_and_servers() {
    python(
        "
import asyncio, sys
async def main():
    child = await asyncio.create_subprocess_exec(sys.executable, '-c', 'print(input())',
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    out, _ = await child.communicate(b'through')
    assert (out, child.returncode) == (b'through\\n', 0)
    async def echo(reader, writer):
        writer.write(await reader.readline()); await writer.drain(); writer.close()
    server = await asyncio.start_server(echo, '127.0.0.1', 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b'hi\\n'); assert await reader.readline() == b'hi\\n'
    unix = await asyncio.start_unix_server(echo, '/tmp/socket')
    reader, writer = await asyncio.open_unix_connection('/tmp/socket')
    writer.write(b'hi\\n'); assert await reader.readline() == b'hi\\n'
    print(await asyncio.to_thread(lambda: 'fine'))
asyncio.run(main())
",
    );
}

#[test]
fn sqlite_keeps_a_database() {
    python(
        "
import sqlite3
for mode in ('delete', 'wal'):
    base = sqlite3.connect(mode + '.db'); base.execute('pragma journal_mode=' + mode)
    base.execute('create table t(a)'); base.executemany('insert into t values (?)', [(n,) for n in range(1000)])
    base.commit(); base.close()
    assert sqlite3.connect(mode + '.db').execute('select sum(a) from t').fetchone() == (499500,)
print('fine')
",
    );
}

#[test]
fn terminals_are_there() {
    python(
        "
import pty, os, subprocess
status = pty.spawn(['sh', '-c', 'test -t 0 && test -t 1 && stty size > /dev/null && tty > name'], lambda fd: os.read(fd, 1024))
assert status == 0, status
assert open('name').read().startswith('/dev/pts/')
print('fine')
",
    );
    let script = run_code(
        "bash",
        "script --quiet --return --command 'test -t 1 && echo a terminal' log < /dev/null",
        &[],
    );
    assert!(script.succeeded().text("stdout").contains("a terminal"), "{script:#?}");
}

// ── Node.js ──────────────────────────────────────────────────────────────────────────────────────────────────────

fn node(test: &str, code: &str) {
    let Some(modules) = packages("node/node_modules") else {
        return skip(test, "express and sharp are not installed; ./test installs them");
    };
    let mount = format!("{}:/workspace/node_modules:ro", modules.display());
    run_code("javascript", code, &[ROOMY, &["--mount", &mount]].concat()).printed("fine\n");
}

#[test]
fn express_serves_over_loopback() {
    node(
        "express_serves_over_loopback",
        "
const express = require('express');
const app = express();
app.use(express.json());
app.post('/sum', (request, response) => response.json({ sum: request.body.a + request.body.b }));
const server = app.listen(0, '127.0.0.1', async () => {
  const url = `http://127.0.0.1:${server.address().port}/sum`;
  const headers = { 'content-type': 'application/json' };
  const response = await fetch(url, { method: 'POST', headers, body: JSON.stringify({ a: 1, b: 2 }) });
  console.log((await response.json()).sum === 3 ? 'fine' : 'wrong');
  server.close();
  server.closeAllConnections();
});
",
    );
}

#[test]
fn sharp_resizes_an_image() {
    node(
        "sharp_resizes_an_image",
        "
const sharp = require('sharp');
const image = { create: { width: 640, height: 480, channels: 3, background: 'teal' } };
sharp(image).resize(64).blur(2).jpeg().toFile('small.jpg')
  .then(() => sharp('small.jpg').metadata())
  .then(({ width, height, format }) => console.log(`${width} ${height} ${format}` === '64 48 jpeg' ? 'fine' : 'wrong'));
",
    );
}

#[test]
fn node_workers_and_processes() {
    let code = "
const { Worker } = require('node:worker_threads');
const { execFileSync, spawn } = require('node:child_process');
const fs = require('node:fs');
const zlib = require('node:zlib');
if (zlib.gunzipSync(zlib.gzipSync('x')).toString() !== 'x') throw new Error('zlib');
fs.cpSync(__filename, '/tmp/copy.js');
fs.watch('/tmp').close();
if (String(execFileSync('echo', ['a'])) !== 'a\\n') throw new Error('exec');
spawn('true').on('exit', (code) => {
  const worker = new Worker(\"require('node:worker_threads').parentPort.postMessage('fine')\", { eval: true });
  worker.on('message', (message) => console.log(code === 0 ? message : code));
});
";
    run_code("javascript", code, ROOMY).printed("fine\n");
}

// ── Tools ────────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn git_keeps_a_history() {
    bash(
        "
git init --quiet --initial-branch=main repo && cd repo
git config user.name Ada && git config user.email ada@example.com
echo one > file && git add . && git commit --quiet -m first
echo two >> file && git commit --quiet -a -m second
git branch side HEAD~1 && git switch --quiet side && git merge --quiet main
test \"$(git log --format=%s | tr '\\n' ' ')\" = 'second first '
git clone --quiet . ../copy && git -C ../copy fsck --strict 2>/dev/null
git stash list && git gc --quiet && git archive --format=tar HEAD | tar -t > /dev/null
",
    );
}

#[test]
fn gcc_and_make_build_a_program() {
    bash(
        "
printf '#include <stdio.h>\\n#include <pthread.h>\\n#include <math.h>\\nstatic void *work(void *p) { return p; }\\nint main(void) { pthread_t t; pthread_create(&t, 0, work, 0); pthread_join(t, 0); printf(\"%%.0f\\\\n\", sqrt(1764)); }\\n' > a.c
gcc -O2 -Wall -g -o a a.c -lm -pthread && test \"$(./a)\" = 42
g++ -x c++ -shared -fPIC -o libempty.so /dev/null && ar rcs lib.a a.c && strip a && ./a > /dev/null
",
    );
}

#[test]
fn archives_and_pipes() {
    bash(
        "
mkdir -p d/e && seq 1000 > d/e/numbers && ln -s numbers d/e/link && ln d/e/numbers d/hard && chmod 750 d
tar -czf d.tar.gz d && mkdir out && tar -xpzf d.tar.gz -C out && diff -r d out/d
cp d/hard plain && gzip -k plain && gunzip -c plain.gz | cmp - d/e/numbers
cp -a d copy && find . -type f -newer d.tar.gz -print0 | xargs -0 -n1 sha256sum > /dev/null
seq 100000 | sort -R | sort -n | tail -1 | grep -qx 100000
(sleep 0.1; echo late > late) & wait; test -s late; mkfifo p; (echo x > p &) ; test \"$(cat p)\" = x
exec 5<> <(echo fd); read -r word <&5; test $word = fd
timeout 5 nice -n 5 env -i /bin/true; touch -d '2020-01-01' d; df . > /dev/null; ps > /dev/null || true
",
    );
}

#[test]
fn standard_streams_can_be_opened_by_name() {
    bash("echo out > /dev/stdout >/dev/null; echo err > /dev/stderr; tee /dev/fd/2 < /dev/null");
    let answer = run(["--", "sh", "-c", "echo a > /dev/stdout; echo b > /dev/stderr"]);
    answer.printed("a\n");
    assert_eq!(answer.text("stderr"), "b\n");
}
