// Inspects its surroundings and leaves traces when it is installed, as malicious packages have done; records
// what it found.
const fs = require('fs'), net = require('net');
const words = /SECRET|TOKEN|INDEX|PIP_|UV_|PROXY|_REGISTRY|USERCONFIG=\/opt/;
const seen = { environment: [], reached: [], left: [], read: [] };
for (const [name, value] of Object.entries(process.env)) {
  if (value && words.test(name.toUpperCase() + '=' + value) && !/registry.npmjs.org/.test(value)) seen.environment.push(name);
}
for (const path of ['/etc/shadow', HOME + '/secret', '/opt/belljar/tools/.npmrc', '/opt/belljar/cache', '/opt/belljar/tools', HOME + '/cache']) {
  try { fs.accessSync(path, fs.constants.R_OK); seen.read.push(path); } catch {}
}
for (const folder of ['/', '/opt', '/opt/belljar', '/opt/belljar/cache/npm', '/opt/belljar/cache/bun', '/etc', '/usr', '/node_modules', HOME]) {
  try { fs.writeFileSync(folder + '/bell-was-here', ''); seen.left.push(folder); } catch {}
}
const socket = net.connect({ host: '127.0.0.1', port: PORT });
const end = () => { fs.writeFileSync('seen.json', JSON.stringify(seen)); process.exit(0); };
socket.on('connect', () => { seen.reached.push('index'); end(); });
socket.on('error', end);
