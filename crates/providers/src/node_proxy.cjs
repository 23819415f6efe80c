// Makes http, https and fetch of Node.js use the proxy that HTTP_PROXY and HTTPS_PROXY name, as other languages do.
// NODE_OPTIONS loads it with --require. The syntax is that of Node.js 10, so that no image's Node.js fails to start.
'use strict';

const http = require('http');
const https = require('https');
const net = require('net');
const tls = require('tls');

/** Longest response of a proxy to CONNECT, with the reason for a refusal. */
const MAX_RESPONSE_BYTES = 16 << 10;

const [major, minor] = process.versions.node.split('.').map(Number);
const readsVariables = major > 24 || (major === 24 && minor >= 5) || (major === 22 && minor >= 21);
if (!readsVariables) {
  connectAgentsThroughProxy();
  connectFetchThroughProxy();
}
sendHttpsThroughTunnel();

function variable(name) {
  return process.env[name] || process.env[name.toUpperCase()];
}

function parseUrl(text) {
  try {
    return new URL(text);
  } catch {
    return null;
  }
}

/** Returns the proxy for a host, or null if it is reached directly. */
function proxyFor(protocol, host, port) {
  const address = variable(protocol === 'https:' ? 'https_proxy' : 'http_proxy');
  const proxy = address && !isBypassed(host, port) && parseUrl(address);
  return proxy && proxy.protocol === 'http:' ? proxy : null;
}

function isBypassed(host, port) {
  const entries = (variable('no_proxy') || '').toLowerCase().split(/[\s,]+/).filter(Boolean);
  return entries.some((entry) => {
    if (entry === '*') return true;
    const [, name, only] = /^(.*?)(?::(\d+))?$/.exec(entry);
    if (only && Number(only) !== Number(port)) return false;
    const suffix = name.replace(/^\*?\./, '.');
    return host.toLowerCase() === suffix || (suffix.startsWith('.') && host.toLowerCase().endsWith(suffix));
  });
}

/** Connects to a host through a proxy: calls back with an error, or with the connected socket. */
function openTunnel(proxy, host, port, callback) {
  const authority = `${net.isIPv6(host) ? `[${host}]` : host}:${port}`;
  const credentials = Buffer.from(decodeURIComponent(`${proxy.username}:${proxy.password}`)).toString('base64');
  const login = proxy.username ? `Proxy-Authorization: Basic ${credentials}\r\n` : '';
  const socket = net.connect(Number(proxy.port) || 80, proxy.hostname.replace(/^\[|\]$/g, ''));
  socket.setNoDelay();
  let response = Buffer.alloc(0);
  const finish = (error) => {
    socket.off('readable', read).off('end', refuse).off('error', finish).off('close', refuse);
    if (error) socket.destroy();
    callback(error || null, error ? undefined : socket);
  };
  function refuse() {
    const [head, ...body] = response.toString('latin1').split('\r\n\r\n');
    const why = body.join(' ').trim() || head.split('\r\n')[0] || 'no answer';
    finish(Object.assign(new Error(`connect ${authority} through the proxy: ${why}`), { code: 'ECONNREFUSED' }));
  }
  function read() {
    for (let chunk; (chunk = socket.read()) !== null; ) {
      response = Buffer.concat([response, chunk]);
      const end = response.indexOf('\r\n\r\n');
      if (end >= 0 && /^HTTP\/1\.[01] 2/.test(response.toString('latin1', 0, 12))) {
        if (response.length > end + 4) socket.unshift(response.subarray(end + 4));
        return finish();
      }
      if (response.length > MAX_RESPONSE_BYTES) return refuse();
    }
  }
  socket.on('readable', read).on('end', refuse).on('error', finish).on('close', refuse);
  socket.write(`CONNECT ${authority} HTTP/1.1\r\nHost: ${authority}\r\n${login}\r\n`);
}

/** Agents make the connections of http and https, also those that a program creates. */
function connectAgentsThroughProxy() {
  for (const [agent, protocol] of [[http.Agent.prototype, 'http:'], [https.Agent.prototype, 'https:']]) {
    const connectDirectly = agent.createConnection;
    agent.createConnection = function createConnection(options, callback, ...rest) {
      const { host = 'localhost', port, socketPath, socket } = Object(options);
      const proxy = typeof callback === 'function' && !socketPath && !socket && proxyFor(protocol, host, port);
      if (!proxy) return connectDirectly.call(this, options, callback, ...rest);
      openTunnel(proxy, host, port, (error, tunnel) => {
        if (error) callback(error);
        else if (protocol === 'http:') callback(null, tunnel);
        else callback(null, connectDirectly.call(this, { ...options, socket: tunnel }));
      });
      return undefined;
    };
  }
}

/** Replaces the dispatcher of fetch at its first use: loading the client takes longer than many programs run. */
function connectFetchThroughProxy() {
  let isReplaced = false;
  const replaceDispatcher = () => {
    if (isReplaced) return;
    isReplaced = true;
    const dispatcher = Symbol.for('undici.globalDispatcher.1');
    // Loads the client, which creates its dispatcher.
    void global.Headers;
    const Agent = global[dispatcher] && global[dispatcher].constructor;
    if (Agent && Agent.name === 'Agent') global[dispatcher] = new Agent({ connect: connectForFetch });
  };
  for (const name of ['fetch', 'WebSocket', 'EventSource']) {
    const original = Object.getOwnPropertyDescriptor(global, name);
    if (!original || !original.configurable) continue;
    const { configurable, enumerable } = original;
    Object.defineProperty(global, name, {
      configurable,
      enumerable,
      get() {
        replaceDispatcher();
        Object.defineProperty(global, name, original);
        return global[name];
      },
      set(value) {
        Object.defineProperty(global, name, { configurable, enumerable, writable: true, value });
      },
    });
  }
}

/** Connects to a host for fetch. */
function connectForFetch({ protocol, hostname, port, servername }, callback) {
  const isSecure = protocol === 'https:';
  const host = hostname.replace(/^\[|\]$/g, '');
  const number = Number(port) || (isSecure ? 443 : 80);
  const begin = (error, socket) => {
    if (error || !isSecure) return callback(error, socket);
    const name = servername || (net.isIP(host) ? undefined : host);
    const secured = tls.connect({ socket, host, servername: name, ALPNProtocols: ['http/1.1'] });
    const failed = (why) => callback(why);
    secured.once('error', failed).once('secureConnect', () => {
      secured.off('error', failed);
      callback(null, secured);
    });
  };
  const proxy = proxyFor(protocol, host, number);
  if (proxy) return openTunnel(proxy, host, number, begin);
  const socket = net.connect(number, host);
  socket.once('error', begin).once('connect', () => {
    socket.off('error', begin);
    begin(null, socket);
  });
}

/**
 * Sends requests for https URLs through a tunnel. Some clients, such as axios, send them to the proxy as plain
 * requests, which no proxy can forward without seeing what they say.
 */
function sendHttpsThroughTunnel() {
  const sendPlain = http.request;
  http.request = function request(options, ...rest) {
    const path = Object(options).path;
    const target = typeof path === 'string' && path.startsWith('https://') ? parseUrl(path) : null;
    const proxy = target && proxyFor('https:', target.hostname, target.port || 443);
    const isForProxy =
      proxy && (options.hostname || options.host) === proxy.hostname && String(options.port) === proxy.port;
    if (!isForProxy) return sendPlain.call(this, options, ...rest);
    const agent = options.agent instanceof https.Agent ? options.agent : undefined;
    const { hostname, port } = target;
    const own = { protocol: 'https:', host: hostname, hostname, port: port || 443, path: target.pathname + target.search, agent };
    return https.request({ ...options, ...own }, ...rest);
  };
}
