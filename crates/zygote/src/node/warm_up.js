// A warm Node.js: loads the modules that programs usually need, and forks children in which tenant code runs.
//
// The addon confines a child before serveForks() returns in it.
'use strict';

const fs = require('fs');
const Module = require('module');
const v8 = require('v8');
const callMain = require('/run/belljar/runner.cjs');

const launcher = {};
process.dlopen({ exports: launcher }, '/run/belljar/zygote.so');
launcher.start();

// Modules that even the shortest program makes Node.js load and compile; children inherit them for free.
for (const name of ['assert', 'buffer', 'events', 'net', 'os', 'path', 'stream', 'timers', 'tty', 'util', 'vm']) require(name);
delete process.env.LD_PRELOAD;
const variables = Object.entries(process.env).map(([name, value]) => `${name}=${value}`).join('\0');
const defaultText = `/workspace/main.js\0${variables}`;
const defaultMain = setProgramIdentity(defaultText);
console.error('');
dryRun();

const awaited = launcher.serveForks();

// Math.random() is seeded from this flag on first use. All other sources ask the kernel or notice the fork.
const seed = Buffer.alloc(4);
const source = fs.openSync('/dev/urandom');
fs.readSync(source, seed);
fs.closeSync(source);
v8.setFlagsFromString(`--random-seed=${(seed.readUInt32LE() & 0x7fffffff) || 1}`);

// Writing to a page for the first time copies it; here no run is waiting for that.
if (!awaited) dryRun();
exitEarly();
const [text, args] = launcher.awaitTask();
const main = text === defaultText ? defaultMain : setProgramIdentity(text);
if (args === undefined) Module.runMain(main);
else {
  process.argv = [process.argv[0], main];
  callMain(main, args);
}

// Runs a typical short program, and removes every trace of it.
function dryRun() {
  fs.writeFileSync('/tmp/dry-run.js', 'console.log(JSON.stringify([1].map((x) => x + 1)).slice(3))');
  Module.runMain('/tmp/dry-run.js');
  fs.unlinkSync('/tmp/dry-run.js');
  delete process.mainModule;
  for (const cache of [Module._cache, Module._pathCache]) for (const known of Object.keys(cache)) delete cache[known];
}

// Makes the process look as if it had been started for this program, and returns the program's path.
function setProgramIdentity(text) {
  const end = text.indexOf('\0');
  const main = text.slice(0, end);
  if (text.slice(end + 1) !== variables) {
    for (const name of Object.keys(process.env)) delete process.env[name];
    for (const variable of text.slice(end + 1).split('\0')) {
      const at = variable.indexOf('=');
      process.env[variable.slice(0, at)] = variable.slice(at + 1);
    }
  }
  process.argv = [process.argv[0], main];
  process.execArgv = [];
  return main;
}

// Exits as soon as nothing is left to do and the last listener has been called. For an uncaught exception
// Node.js first prints its own report.
function exitEarly() {
  const value = launcher.pid();
  Object.defineProperty(process, 'pid', { value, configurable: true, enumerable: true, writable: false });
  const { emit, _fatalException } = process;
  let fatal = false;
  hide('_fatalException', (...exception) => {
    fatal = true;
    fatal = !_fatalException.apply(process, exception);
    if (fatal) launcher.setFailureStatus(process.exitCode ?? 1);
    return !fatal;
  });
  hide('emit', function (event, ...values) {
    if (event === 'beforeExit' && this.listenerCount(event) === 0) {
      // There is no listener that could schedule more work.
      this._exiting = true;
      return this.emit('exit', this.exitCode ?? 0);
    }
    const heard = emit.call(this, event, ...values);
    if (event === 'exit' && !fatal) launcher.exit(process.exitCode ?? values[0] ?? 0);
    return heard;
  });
}

function hide(name, value) {
  Object.defineProperty(process, name, { value, configurable: true, enumerable: false, writable: true });
}
