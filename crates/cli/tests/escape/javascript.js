// What a script can reach with the APIs of its runtime.
// expect: succeeded
const fs = require("fs");
const net = require("net");
const { spawnSync } = require("child_process");

const broken = [];
let attempts = 0;
const check = (what, holds) => {
  attempts += 1;
  if (!holds) broken.push(what);
};
const fails = (what, attempt) => {
  try {
    attempt();
    check(what, false);
  } catch {
    check(what, true);
  }
};

for (const path of ["/etc/shadow", "/root/.ssh", "/proc/1/environ", "/var/run/docker.sock"]) {
  fails(path, () => fs.readFileSync(path));
}
for (const path of ["/etc/passwd", "/usr/bin/env", process.execPath]) {
  fails(`write ${path}`, () => fs.openSync(path, "r+"));
}
fails("set-uid", () => fs.chmodSync("/workspace", 0o4755));
fails("become root", () => process.setuid(0));
fails("end PID 1", () => process.kill(1, "SIGKILL"));
check("a child is no more than we are", spawnSync("id", ["-u"]).stdout.toString().trim() === "1000");
check("the environment is clean", !Object.keys(process.env).some((name) => /SECRET|TOKEN|KEY|BELLJAR|CARGO/.test(name)));

// With a gate, what is public may be reached.
const gate = fs.readFileSync("/etc/resolv.conf", "utf8").includes("nameserver");
const socket = net.connect({ host: gate ? "10.0.0.1" : "1.1.1.1", port: 443, timeout: 20000 });
const finish = (holds) => {
  check("no way out", holds);
  console.log(broken.length ? `BROKEN: ${broken.join(", ")}` : `HELD: ${attempts} attempts`);
  process.exit(0);
};
socket.on("connect", () => finish(false));
socket.on("error", () => finish(true));
socket.on("timeout", () => finish(false));
