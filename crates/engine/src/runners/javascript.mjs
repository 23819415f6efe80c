// Calls main(arguments) of the given source file and writes the returned value to descriptor 3.
import fs from 'node:fs';
import { pathToFileURL } from 'node:url';

const [, , source, argumentsFile] = process.argv;
const given = JSON.parse(fs.readFileSync(argumentsFile, 'utf8'));
process.argv = [process.argv[0], source];

const module = await import(pathToFileURL(source).href);
const candidates = [globalThis[Symbol.for('belljar.main')], module.main, module.default?.main, module.default];
const main = candidates.find((candidate) => typeof candidate === 'function');
if (!main) {
  throw new ReferenceError('main is not defined: arguments were given, so the code must define main(args)');
}
const value = await main(given);
const text = JSON.stringify(value === undefined ? null : value);
fs.writeSync(3, text);
