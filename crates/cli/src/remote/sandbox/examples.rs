//! Examples that `--help` ends with.

pub(super) const SANDBOX: &str = "\
Examples:
  id=$(belljar sandbox create --timeout 30m)            open one
  belljar sandbox cp ./project $id:/workspace           put files into it
  belljar sandbox exec $id -- make -C project test      run something in it
  belljar sandbox shell $id                             look around
  belljar sandbox cp $id:project/report.html .          take files out of it
  belljar sandbox rm $id                                end it

The server is named by --server or BELLJAR_SERVER, and its key by BELLJAR_API_KEY.";

pub(super) const CREATE: &str = "\
Examples:
  id=$(belljar sandbox create)                          only the id is printed
  belljar sandbox create --timeout 8h --on-timeout pause --memory 2G --cpus 2
  belljar sandbox create --network full --env TOKEN
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
  belljar sandbox pause $id                             nothing in it runs, and all of it is kept
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
  belljar sandbox extend $id 30m                        it ends half an hour from now";

pub(super) const NETWORK: &str = "\
Examples:
  id=$(belljar sandbox create --network pypi.org,files.pythonhosted.org)
  belljar sandbox network $id                           hosts, figures, and what was refused
  belljar sandbox network $id '*.example.com:8443'      these from now on, and no others";

pub(super) const STATS: &str = "\
Examples:
  belljar sandbox stats $id --watch                     redrawn on a terminal, lines elsewhere";

pub(super) const EXEC: &str = "\
Examples:
  belljar sandbox exec $id -- ls -l
  belljar sandbox exec $id --workdir /tmp --env LANG=C -- sort -u names
  tar c . | belljar sandbox exec $id -i -- tar x        our standard input is passed on
  n=$(belljar sandbox exec $id --detach -- python3 -m http.server 8000)
  belljar sandbox exec $id -c 'print(6 * 7)'            code instead of a program
  belljar sandbox exec $id job.py

Ctrl-C sends SIGINT to the command; a second one kills it.

Exit status: the command's own; 128+n when a signal ended it, 124 timed out, 125 when nothing ran
(the message says why).";

pub(super) const SHELL: &str = "\
Examples:
  belljar sandbox shell $id
  belljar sandbox shell $id -- python3
  belljar sandbox shell $id --attach 3                  join one; any number of people can

Ctrl-P Ctrl-Q detaches: the shell goes on, and --attach joins it again. A connection that breaks is
made anew, and shows what was missed. What runs inside draws on your terminal as it likes.

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
  belljar sandbox cp data.csv $id:                      into the workspace
  belljar sandbox cp ./project $id:/workspace           a folder, as /workspace/project
  belljar sandbox cp $id:project/. ./copy               what is in a folder
  belljar sandbox cp - $id:notes.txt < notes.txt
  belljar sandbox cp $id:project - | tar t              a folder is an archive there

Paths in a sandbox are relative to /workspace. Links are copied as links; an archive from a server
that tries to write outside of DEST is refused.";

pub(super) const PORTS: &str = "\
Examples:
  belljar sandbox ports $id                             on which ports somebody listens
  belljar sandbox ports $id 8000                        forwards, and prints the URL to open
  belljar sandbox ports $id 8000 --listen 127.0.0.1:9000

HTTP and WebSocket are forwarded, and nothing else that TCP can carry. Cookies are not passed on,
and pages are shown without the rights of an origin.";

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
