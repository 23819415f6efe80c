// Tests the server with the official TypeScript client, over both transports.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const { BELLJAR_BIN, BELLJAR_MCP_URL, BELLJAR_ADMIN_KEY } = process.env;
const bearer = { headers: { Authorization: `Bearer ${BELLJAR_ADMIN_KEY}` } };
const transports = {
  stdio: () => new StdioClientTransport({ command: BELLJAR_BIN, args: ["mcp"], env: process.env }),
  http: () => new StreamableHTTPClientTransport(new URL(BELLJAR_MCP_URL), { requestInit: bearer }),
};

function alive(token) {
  return readdirSync("/proc").some((name) => {
    try {
      return /^\d+$/.test(name) && readFileSync(`/proc/${name}/cmdline`, "utf8").split("\0").includes(token);
    } catch {
      return false;
    }
  });
}

async function until(condition, message) {
  for (let attempt = 0; attempt < 1000; attempt++) {
    if (condition()) return;
    await sleep(20);
  }
  assert.fail(message);
}

async function drive(client, number) {
  const { tools } = await client.listTools();
  assert.equal(tools.length, 8);
  const call = (name, input, options) => client.callTool({ name, arguments: input }, undefined, options);

  const code = "export function main({ n }) { console.log(6 * n); return { n }; }";
  const ran = await call("run_code", { language: "javascript", code, arguments: { n: 7 } });
  assert.equal(ran.structuredContent.stdout, "42\n", JSON.stringify(ran));
  assert.deepEqual(ran.structuredContent.result.value, { n: 7 });
  assert.match(ran.content[0].text, /^Succeeded/);

  const opened = await call("sandbox_open", {});
  const { sandbox } = opened.structuredContent;
  await call("write_file", { sandbox, path: "a.txt", content: "kept" });
  const { resources } = await client.listResources();
  const file = resources.find((resource) => resource.uri.includes(sandbox));
  assert.equal((await client.readResource({ uri: file.uri })).contents[0].text, "kept");

  const token = `64.${process.pid}${number}`;
  const abort = new AbortController();
  const canceled = call("run_command", { sandbox, command: `sleep ${token}` }, { signal: abort.signal });
  await until(() => alive(token), "the command never started");
  abort.abort("no longer wanted");
  await assert.rejects(canceled);
  await until(() => !alive(token), "a canceled call still runs");
  await call("sandbox_close", { sandbox });
  assert.equal((await call("list_files", { sandbox })).isError, true);
}

for (const [number, [name, transport]] of Object.entries(transports).entries()) {
  const client = new Client({ name: "test", version: "1" });
  const connection = transport();
  await client.connect(connection);
  await drive(client, number);
  await connection.terminateSession?.();
  await client.close();
  console.log(`node, ${name}: passed`);
}
