// A warm Node.js: loads what programs usually need, and has children in which code of a tenant's runs.
//
// Everything that confines a child is done by the addon, before a child comes back from haveChildren().
'use strict';

const fs = require('fs');
const Module = require('module');
const v8 = require('v8');
const { pathToFileURL } = require('url');

const line = {};
process.dlopen({ exports: line }, '/run/belljar/zygote.so');
line.begin();

// What even the shortest program makes Node.js load and compile; a child has it for nothing.
for (const name of ['assert', 'buffer', 'events', 'net', 'os', 'path', 'stream', 'timers', 'tty', 'util', 'vm']) require(name);
delete process.env.LD_PRELOAD;
const variables = Object.entries(process.env).map(([name, value]) => `${name}=${value}`).join('\0');
const usualText = `/workspace/main.js\0${variables}`;
const usualMain = adopt(usualText);
console.error('');
rehearse();

const awaited = line.haveChildren();

// Math.random() begins when it is first called, with this; everything else asks the kernel, or sees that it is a fork.
const seed = Buffer.alloc(4);
const source = fs.openSync('/dev/urandom');
fs.readSync(source, seed);
fs.closeSync(source);
v8.setFlagsFromString(`--random-seed=${(seed.readUInt32LE() & 0x7fffffff) || 1}`);

// A page of memory is copied when a child first writes to it; here nobody waits for that.
if (!awaited) rehearse();
leaveEarly();
const [text, given] = line.awaitTask();
const main = text === usualText ? usualMain : adopt(text);
if (given === undefined) Module.runMain(main);
else returnValue(main, given);

// Does what a short program will do, and leaves no trace of it.
function rehearse() {
  fs.writeFileSync('/tmp/rehearsal.js', 'console.log(JSON.stringify([1].map((x) => x + 1)).slice(3))');
  Module.runMain('/tmp/rehearsal.js');
  fs.unlinkSync('/tmp/rehearsal.js');
  delete process.mainModule;
  for (const cache of [Module._cache, Module._pathCache]) for (const known of Object.keys(cache)) delete cache[known];
}

// Makes the process look as if it had been started for this program; gives where that is.
function adopt(text) {
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

// A program's end is known when nothing is left to do and its last listener has been called. An exception that nobody
// caught is an end, too, but there is something left to say about it, which Node.js does itself.
function leaveEarly() {
  const value = line.pid();
  Object.defineProperty(process, 'pid', { value, configurable: true, enumerable: true, writable: false });
  const { emit, _fatalException } = process;
  let fatal = false;
  hide('_fatalException', (...exception) => {
    fatal = true;
    fatal = !_fatalException.apply(process, exception);
    if (fatal) line.failWith(process.exitCode ?? 1);
    return !fatal;
  });
  hide('emit', function (event, ...values) {
    if (event === 'beforeExit' && this.listenerCount(event) === 0) {
      // Nobody is there to give it something to do again.
      this._exiting = true;
      return this.emit('exit', this.exitCode ?? 0);
    }
    const heard = emit.call(this, event, ...values);
    if (event === 'exit' && !fatal) line.leave(process.exitCode ?? values[0] ?? 0);
    return heard;
  });
}

function hide(name, value) {
  Object.defineProperty(process, name, { value, configurable: true, enumerable: false, writable: true });
}

// Calls main(arguments) of the code, and sends what it returns by descriptor 3.
async function returnValue(path, given) {
  process.argv = [process.argv[0], path];
  const module = await import(pathToFileURL(path).href);
  const candidates = [globalThis[Symbol.for('belljar.main')], module.main, module.default?.main, module.default];
  const main = candidates.find((candidate) => typeof candidate === 'function');
  if (!main) {
    throw new ReferenceError('main is not defined: arguments were given, so the code must define main(args)');
  }
  const value = await main(JSON.parse(given));
  fs.writeSync(3, JSON.stringify(value === undefined ? null : value));
}
