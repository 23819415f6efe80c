// Runs a source file. With arguments, calls its main(arguments) and writes the returned value to descriptor 3, as
// docs/results.md describes.
'use strict';

const fs = require('fs');
const Module = require('module');
const path = require('path');
const { pathToFileURL } = require('url');
const { types } = require('util');

// The limits of a result; the host checks them, too, and its size.
const MAX_DEPTH = 100;
const MAX_DIGITS = 100_000;
const NO_MAIN = 'arguments were given, so the code must define main(args)';

// A value that has no JSON form.
class Unreturnable extends Error {}

// Errors of the program are caught nowhere, because Node.js shows the source of an error only where it was first
// thrown. The callbacks keep the frames of this file out of their stack traces.
function callMain(source, argumentsText) {
  import(pathToFileURL(source).href).then((module) => {
    const main = findMain(module);
    if (!main) return fail(`ReferenceError: main is not defined: ${NO_MAIN}`);
    let settled = false;
    process.once('beforeExit', () => {
      if (!settled) fail('Error: main() returned a promise that is never settled', 13);
    });
    const called = Promise.resolve(parseArguments(argumentsText)).then(main);
    called.finally(() => (settled = true)).then(writeResult);
  });
}

function findMain(module) {
  const candidates = [globalThis[Symbol.for('belljar.main')], module.main, module.default?.main, module.default];
  return candidates.find((candidate) => typeof candidate === 'function');
}

function writeResult(value) {
  try {
    fs.writeFileSync(3, encode(value, 'result', 0));
  } catch (error) {
    if (!(error instanceof Unreturnable)) throw error;
    fail(`TypeError: ${error.message}`);
  }
}

function fail(message, status = 1) {
  process.stderr.write(`${message}\n`);
  process.exitCode = status;
}

// Parses the arguments. Integers that a number would round become BigInt.
function parseArguments(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  let mark;
  do mark = `${Math.random()}:`; while (text.includes(mark));
  const token = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g;
  const isRounded = (found) => /^-?\d+$/.test(found) && !Number.isSafeInteger(Number(found));
  const marked = text.replace(token, (found) => (isRounded(found) ? `"${mark}${found}"` : found));
  const isMarked = (value) => typeof value === 'string' && value.startsWith(mark);
  return JSON.parse(marked, (_key, value) => (isMarked(value) ? BigInt(value.slice(mark.length)) : value));
}

// Returns the JSON of a value. JSON.stringify would leave out or change what JSON does not have.
function encode(value, path, depth) {
  switch (typeof value) {
    case 'string':
      return encodeText(value, path);
    case 'number':
      return encodeNumber(value, path);
    case 'bigint':
      return encodeInteger(value, path);
    case 'boolean':
      return String(value);
    case 'undefined':
      return 'null';
    case 'object':
      return value === null ? 'null' : encodeObject(value, path, depth);
    default:
      throw new Unreturnable(`${path} is a ${typeof value}, which JSON does not have; return data only`);
  }
}

function encodeText(value, path) {
  if (/\p{Surrogate}/u.test(value)) {
    throw new Unreturnable(`${path} has a lone surrogate, so it is not valid text; encode it, for example as base64`);
  }
  return JSON.stringify(value);
}

function encodeNumber(value, path) {
  if (!Number.isFinite(value)) {
    throw new Unreturnable(`${path} is ${value}, which JSON does not have; return null or a string instead`);
  }
  return Object.is(value, -0) ? '-0.0' : String(value);
}

function encodeInteger(value, path) {
  const text = value.toString();
  if (text.length > MAX_DIGITS) {
    throw new Unreturnable(`${path} is an integer of more than ${MAX_DIGITS} digits; return it as a string`);
  }
  return text;
}

function encodeObject(value, path, depth) {
  if (depth >= MAX_DEPTH) {
    throw new Unreturnable(`result is nested deeper than ${MAX_DEPTH} levels, or contains itself; flatten it`);
  }
  if (types.isBoxedPrimitive(value)) return encode(value.valueOf(), path, depth);
  if (types.isDate(value) && Number.isNaN(value.getTime())) {
    throw new Unreturnable(`${path} is an invalid Date; return null or a string instead`);
  }
  if (Buffer.isBuffer(value)) return JSON.stringify(value.toString('base64'));
  if (types.isAnyArrayBuffer(value)) return JSON.stringify(Buffer.from(value).toString('base64'));
  if (types.isTypedArray(value) || types.isSet(value)) return encodeList([...value], path, depth);
  if (types.isMap(value)) return encodeFields([...value], path, depth);
  if (typeof value.toJSON === 'function') return encode(value.toJSON(), path, depth + 1);
  if (Array.isArray(value)) return encodeList(value, path, depth);
  const hint = unreturnableHint(value);
  if (hint) throw new Unreturnable(`${path} is ${hint}`);
  return encodeFields(Object.entries(value).filter(([, field]) => field !== undefined), path, depth);
}

// Says what to return instead of an object whose own properties are not its value.
function unreturnableHint(value) {
  if (types.isPromise(value)) return 'a Promise; await it';
  if (types.isNativeError(value)) return 'an Error; return its message';
  if (types.isGeneratorObject(value)) return 'a generator; return a list of its values, as [...values]';
  if (typeof value.next === 'function' && typeof value[Symbol.iterator] === 'function') {
    return 'an iterator; return a list of its values, as [...values]';
  }
  const others = ['RegExp', 'WeakMap', 'WeakSet', 'WeakRef', 'DataView'];
  const other = others.find((name) => value instanceof globalThis[name]);
  return other && `a ${other}, which JSON does not have; return data only`;
}

function encodeList(values, path, depth) {
  // Array.from fills the holes of a sparse list.
  return `[${Array.from(values, (value, index) => encode(value, `${path}[${index}]`, depth + 1)).join(',')}]`;
}

function encodeFields(entries, path, depth) {
  const fields = new Map();
  for (const [key, value] of entries) {
    if (!['string', 'number', 'bigint', 'boolean'].includes(typeof key)) {
      throw new Unreturnable(`${path} has a key that is a ${typeof key}; the keys of JSON are strings`);
    }
    const name = String(key);
    if (fields.has(name)) {
      throw new Unreturnable(`${path} has two keys that become ${JSON.stringify(name)}; the keys of JSON are strings`);
    }
    const inner = /^\w{1,60}$/.test(name) ? `${path}.${name}` : `${path}[${JSON.stringify(name.slice(0, 60))}]`;
    fields.set(name, `${encodeText(name, inner)}:${encode(value, inner, depth + 1)}`);
  }
  return `{${[...fields.values()].join(',')}}`;
}

module.exports = callMain;

if (require.main === module) {
  const [, , source, argumentsFile] = process.argv;
  process.argv = [process.argv[0], source];
  if (path.dirname(source) === __dirname) resolveFromWorkspace(source);
  if (argumentsFile !== undefined) callMain(source, fs.readFileSync(argumentsFile, 'utf8'));
  // Called by the event loop, the program has no frame of this file below it.
  else process.nextTick(Module.runMain, source);
}

// Lets code beside this file find its modules as if it were in the workspace.
function resolveFromWorkspace(source) {
  const filename = path.join('/workspace', path.basename(source));
  const [from, to] = [source, filename].map((file) => pathToFileURL(file).href);
  if (Module.registerHooks) {
    const resolve = (specifier, context, next) =>
      next(specifier, context.parentURL === from ? { ...context, parentURL: to } : context);
    Module.registerHooks({ resolve });
    return;
  }
  const resolve = Module._resolveFilename;
  Module._resolveFilename = function (request, parent, ...more) {
    const moved = { filename, id: filename, paths: Module._nodeModulePaths('/workspace') };
    return resolve.call(this, request, parent?.filename === source ? moved : parent, ...more);
  };
  if (!Module.register || !/\bimport\b/.test(fs.readFileSync(source, 'utf8'))) return;
  const hook = `export const resolve = (specifier, context, next) => next(specifier,
    context.parentURL === ${JSON.stringify(from)} ? { ...context, parentURL: ${JSON.stringify(to)} } : context);`;
  Module.register(`data:text/javascript,${encodeURIComponent(hook)}`);
}
