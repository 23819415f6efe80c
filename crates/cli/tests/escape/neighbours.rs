//! Two sandboxes at the same time: neither can find anything of the other.

use super::programs::{Case, Verdict};
use crate::common::{Live, run};

pub(crate) const CASES: &[Case] = &[
    ("neighbours::have_no_way_to_each_other", sandboxes_cannot_find_each_other),
    ("neighbours::have_different_users", different_users),
];

/// Offers everything that another sandbox might find, then reports it. The last line is its user id on the
/// host.
const OFFERS: &str = "import ctypes, os, socket, sys, time\n\
    tcp = socket.socket(); tcp.bind(('0.0.0.0', 34567)); tcp.listen()\n\
    udp = socket.socket(type=socket.SOCK_DGRAM); udp.bind(('127.0.0.1', 34567))\n\
    abstract = socket.socket(socket.AF_UNIX); abstract.bind('\\0belljar-neighbour'); abstract.listen()\n\
    named = socket.socket(socket.AF_UNIX); named.bind('/tmp/neighbour'); named.listen()\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    if libc.shmget(0x42454C4C, 4096, 0o1666) < 0: sys.exit('no shared memory')\n\
    for folder in ('/dev/shm', '/tmp', '/workspace', '/home/sandbox'): open(folder + '/found', 'w').write('x')\n\
    print(open('/proc/self/uid_map').read().split()[1], flush=True)\n\
    time.sleep(60)\n";

/// Looks for everything that the other sandbox offers.
const SEEKS: &str = "import ctypes, os, socket\n\
    found = []\n\
    def attempt(what, way):\n\
    \x20   try: way(); found.append(what)\n\
    \x20   except OSError: pass\n\
    for address in ('127.0.0.1', 'localhost', '0.0.0.0'):\n\
    \x20   attempt('tcp ' + address, lambda: socket.create_connection((address, 34567), 2))\n\
    udp = socket.socket(type=socket.SOCK_DGRAM)\n\
    udp.connect(('127.0.0.1', 34567)); udp.send(b'x')\n\
    attempt('udp', lambda: udp.send(b'x'))\n\
    unix = socket.socket(socket.AF_UNIX)\n\
    attempt('abstract', lambda: unix.connect('\\0belljar-neighbour'))\n\
    attempt('named', lambda: unix.connect('/tmp/neighbour'))\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    if libc.shmget(0x42454C4C, 4096, 0) >= 0: found.append('shared memory')\n\
    for folder in ('/dev/shm', '/tmp', '/workspace', '/home/sandbox'):\n\
    \x20   attempt(folder, lambda: os.stat(folder + '/found'))\n\
    names = [n for n in os.listdir('/proc') if n.isdigit()]\n\
    if len(names) > 2: found.append(f'processes {names}')\n\
    if 'belljar-neighbour' in open('/proc/net/unix').read(): found.append('/proc/net/unix')\n\
    print(found)\n\
    print(open('/proc/self/uid_map').read().split()[1])\n";

fn sandboxes_cannot_find_each_other() -> Verdict {
    let mut offering = Live::start(&["-c", OFFERS]);
    let ready = offering.first_line();
    if ready.parse::<u32>().is_err() {
        return Err(format!("the neighbour did not get ready: {ready:?}"));
    }
    let answer = run(["-c", SEEKS]);
    match answer.lines().first() {
        Some(&"[]") => Ok(()),
        _ => Err(format!("the neighbour was found: {}", answer.json)),
    }
}

fn different_users() -> Verdict {
    let mut first = Live::start(&["-c", OFFERS]);
    let mut second = Live::start(&["-c", OFFERS]);
    // Both must run at the same time, because a user id may be reused after a sandbox ends.
    let mut users = vec![first.first_line(), second.first_line()];
    let third = run(["-c", SEEKS]);
    if !third.has_layer("separate_uid") {
        println!("skipped: this user has no subordinate ids");
        return Ok(());
    }
    users.extend(third.lines().last().map(|line| (*line).to_owned()));
    users.sort();
    users.dedup();
    if users.len() == 3 { Ok(()) } else { Err(format!("users are shared: {users:?}")) }
}
