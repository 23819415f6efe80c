# Its own user, host name, environment and descriptors, and no privileges at all.
# expect: succeeded
import os

from probe import check, fails, finish

check("the host name is its own", os.uname().nodename == "sandbox", os.uname().nodename)
check("the user is its own", os.getresuid() == (1000,) * 3 and os.getresgid() == (1000,) * 3, os.getresuid())
check("there are no further groups", set(os.getgroups()) <= {1000, 65534}, os.getgroups())
outside = [int(line.split()[1]) for line in open("/proc/self/uid_map")]
check("no user is the host's root", 0 not in outside, outside)
check("the maps are one user each", all(line.split()[2] == "1" for line in open("/proc/self/uid_map")))
status = dict(line.rstrip("\n").split(":\t", 1) for line in open("/proc/self/status") if ":\t" in line)
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    check(f"{name} is empty", int(status[name], 16) == 0, status[name])
check("no new privileges", status["NoNewPrivs"] == "1")
check("a filter is in force", status["Seccomp"] == "2")

# A gate that is a proxy adds the variables that point programs to it, with fixed values, and none that loads code.
PROXY, LOCAL = "http://127.0.0.1:3128", "localhost,127.0.0.1"
gate = {"NODE_USE_ENV_PROXY": "1"}
for name, value in (("http_proxy", PROXY), ("https_proxy", PROXY), ("all_proxy", PROXY), ("no_proxy", LOCAL)):
    gate.update({name: value, name.upper(): value})
names = {name for name, value in os.environ.items() if gate.get(name) != value}
allowed = {
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "LC_CTYPE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "RAYON_NUM_THREADS", "GOMAXPROCS",
    "PYTHONDONTWRITEBYTECODE", "PYTHONIOENCODING", "PYTHONUTF8", "MPLBACKEND", "MPLCONFIGDIR",
    "POLARS_MAX_THREADS", "BLIS_NUM_THREADS", "PYTHONHASHSEED",
}
check("the environment is clean", names <= allowed, sorted(names - allowed))
own = set(os.listdir("/proc/self/fd"))
check("only descriptors 0 to 2 are open", own - {"0", "1", "2"} == {max(own, key=int)} and len(own) == 4, own)
kinds = {os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in (0, 1, 2)}
check("they are pipes", kinds == {"pipe"}, kinds)
groups = [line.strip().split(":", 2)[2] for line in open("/proc/self/cgroup")]
check("control groups look like the root", set(groups) == {"/"}, groups)
check("it starts in the workspace", os.getcwd() == "/workspace")
check("it leads a session of its own", os.getsid(0) == os.getpid())
mounts = [line.split(" ")[3] for line in open("/proc/self/mountinfo")]
check("there are no more mounts than ours", len(mounts) < 120, len(mounts))
finish(18)
