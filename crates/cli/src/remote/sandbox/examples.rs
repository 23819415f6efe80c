//! The examples at the end of `--help` texts.

pub(super) const SANDBOX: &str = "\
Examples:
  id=$(belljar sandbox create --timeout 30m)            create a sandbox
  belljar sandbox cp ./project $id:/workspace           copy files into it
  belljar sandbox exec $id -- make -C project test      run a program in it
  belljar sandbox shell $id                             open a terminal in it
  belljar sandbox cp $id:project/report.html .          copy files out of it
  belljar sandbox rm $id                                remove it

Set the server with --server or BELLJAR_SERVER, and its API key with BELLJAR_API_KEY.";

pub(super) const CREATE: &str = "\
Examples:
  id=$(belljar sandbox create)                          prints only the id
  belljar sandbox create --timeout 2h --on-timeout pause --memory 2G --cpus 2
  belljar sandbox create --network internet --env TOKEN
  belljar sandbox create --dep pandas --dep npm:lodash
  belljar sandbox create --image debian:13 --root writable --disk 4G
  belljar sandbox create --volume data:/data:ro --metadata job=42";

pub(super) const LIST: &str = "\
Examples:
  belljar sandbox list --state running --metadata job=42
  belljar sandbox list --json | jq -r '.sandboxes[].id'";

pub(super) const SHOW: &str = "\
Examples:
  belljar sandbox show $id | jq .expires";

pub(super) const PAUSE: &str = "\
Examples:
  belljar sandbox pause $id                             freeze it; memory and files are kept
  belljar sandbox resume $id";

pub(super) const PS: &str = "\
Examples:
  belljar sandbox ps $id";

pub(super) const RM: &str = "\
Examples:
  belljar sandbox rm $id
  belljar sandbox rm --all --yes";

pub(super) const EXTEND: &str = "\
Examples:
  belljar sandbox extend $id 30m                        expire when unused for 30 minutes";

pub(super) const NETWORK: &str = "\
Examples:
  id=$(belljar sandbox create --network pypi.org,files.pythonhosted.org)
  belljar sandbox network $id                           show hosts, counters and refusals
  belljar sandbox network $id '*.example.com:8443'      allow only these hosts from now on";

pub(super) const STATS: &str = "\
Examples:
  belljar sandbox stats $id --watch                     update the terminal every second";

pub(super) const EXEC: &str = "\
Examples:
  belljar sandbox exec $id -- ls -l
  belljar sandbox exec $id --workdir /tmp --env LANG=C -- sort -u names
  tar c . | belljar sandbox exec $id -i -- tar x        pass standard input
  n=$(belljar sandbox exec $id --detach -- python3 -m http.server 8000)
  belljar sandbox exec $id -c 'print(6 * 7)'            run code instead of a program
  belljar sandbox exec $id job.py                       packages that it imports are installed

Ctrl-C sends SIGINT to the command; a second one kills it.

Exit status: the command's own; 128+n when killed by signal n, 124 timed out, 125 when nothing ran
(the message says why).";

pub(super) const SHELL: &str = "\
Examples:
  belljar sandbox shell $id
  belljar sandbox shell $id -- python3
  belljar sandbox shell $id --attach 3                  join a terminal; others may join it too

Ctrl-P Ctrl-Q detaches: the shell keeps running, and --attach joins it again. A broken connection is
restored, and missed output is shown. Programs inside have full control of your terminal's display.

Exit status: the shell's own; 0 when detached.";

pub(super) const LOGS: &str = "\
Examples:
  belljar sandbox logs $id 3 --follow
  belljar sandbox logs $id 3 --from 4096 > rest.log";

pub(super) const KILL: &str = "\
Examples:
  belljar sandbox kill $id 3
  belljar sandbox kill $id 3 --signal KILL";

pub(super) const CP: &str = "\
Examples:
  belljar sandbox cp data.csv $id:                      copy into the workspace
  belljar sandbox cp ./project $id:/workspace           copy a folder, as /workspace/project
  belljar sandbox cp $id:project/. ./copy               copy the content of a folder
  belljar sandbox cp - $id:notes.txt < notes.txt
  belljar sandbox cp $id:project - | tar t              write a folder as a tar archive

Paths in a sandbox are relative to /workspace. Symbolic links are copied as links; an archive from a
server that tries to write outside of DEST is refused.";

pub(super) const RM_FILE: &str = "\
Examples:
  belljar sandbox rm-file $id old.csv /tmp/scratch
  belljar sandbox rm-file $id build --recursive         a folder with everything in it

Links are removed, not followed. A sandbox that was halted because a volume is full continues when
enough is removed.";

pub(super) const PORTS: &str = "\
Examples:
  belljar sandbox ports $id                             list the listening ports
  belljar sandbox ports $id 8000                        forward a port and print its URL
  belljar sandbox ports $id 8000 --listen 127.0.0.1:9000

Only HTTP and WebSocket are forwarded, no other TCP protocol. Cookies are not passed on, and pages
run without an origin of their own.";

pub(super) const WATCH: &str = "\
Examples:
  belljar sandbox watch $id . --recursive
  belljar sandbox watch $id src --json";

pub(super) const VOLUME: &str = "\
Examples:
  belljar sandbox volume create data --size 1G
  belljar sandbox create --volume data:/data";

pub(super) const SNAPSHOT: &str = "\
Examples:
  snapshot=$(belljar sandbox snapshot create $id --label clean)
  belljar sandbox create --snapshot $snapshot";
