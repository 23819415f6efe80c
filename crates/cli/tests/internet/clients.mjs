// Every HTTP client that comes with Node.js, in ways that programs use them. Prints one line for each.
import { execFileSync } from 'node:child_process';
import http from 'node:http';
import { get as httpsGet, request as httpsRequest } from 'node:https';
import { Worker } from 'node:worker_threads';

const PLAIN = 'http://public.test:8080/';
const SECURE = 'https://public.test:8443/';

const body = (response) =>
  new Promise((resolve, reject) => {
    let text = '';
    response.setEncoding('utf8').on('data', (part) => (text += part)).on('end', () => resolve(text)).on('error', reject);
  });
const ask = (start, url, options = {}) =>
  new Promise((resolve, reject) => start(url, options, (response) => resolve(body(response))).on('error', reject));
const post = (start, url) =>
  new Promise((resolve, reject) => {
    start(url, { method: 'POST' }, (response) => resolve(body(response))).on('error', reject).end('posted\n');
  });
const show = async (what, answer) => process.stdout.write(`${what}: ${await answer}`);

await show('http', ask(http.get, PLAIN));
await show('https', ask(httpsGet, SECURE));
await show('http post', post(http.request, PLAIN));
await show('https post', post(httpsRequest, SECURE));
const proxy = new URL(process.env.HTTPS_PROXY);
const viaProxy = { host: proxy.hostname, port: proxy.port, path: SECURE, headers: { host: 'public.test:8443' } };
await show('https as axios does', new Promise((resolve, reject) => {
  http.request(viaProxy, (response) => resolve(body(response))).on('error', reject).end();
}));
const agent = new http.Agent({ keepAlive: true });
await show('agent', ask(http.get, PLAIN, { agent }));
await show('agent again', ask(http.get, PLAIN, { agent }));
agent.destroy();
await show('fetch', (await fetch(PLAIN)).text());
await show('fetch https', (await fetch(SECURE)).text());
await show('fetch post', (await fetch(SECURE, { method: 'POST', body: 'posted\n' })).text());
await show('many', Promise.all(Array.from({ length: 20 }, () => fetch(PLAIN).then((each) => each.text()))).then((all) => all[19]));

const own = http.createServer((_, response) => response.end('own server\n')).listen(0, '127.0.0.1');
await new Promise((resolve) => own.once('listening', resolve));
await show('own server', ask(http.get, `http://localhost:${own.address().port}/`));
await show('own server by fetch', (await fetch(`http://127.0.0.1:${own.address().port}/`)).text());
own.close();

const script = `fetch('${PLAIN}').then((each) => each.text()).then((text) => process.stdout.write(text))`;
await show('child', execFileSync(process.execPath, ['-e', script], { encoding: 'utf8' }));
await show('worker', new Promise((resolve, reject) => {
  const code = `fetch('${PLAIN}').then((each) => each.text()).then((text) => require('worker_threads').parentPort.postMessage(text))`;
  new Worker(code, { eval: true }).once('message', resolve).once('error', reject);
}));

for (const refused of [() => ask(http.get, 'http://private.test:8080/'), () => fetch('https://private.test:8443/')]) {
  await refused().catch((error) => console.log('refused:', (error.cause ?? error).message));
}
