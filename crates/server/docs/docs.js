// Fills the page from openapi.json. Strings are only ever inserted as text, never as HTML.
"use strict";

const base = location.origin + location.pathname.replace(/\/docs\/?$/, "");
const find = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

/** Creates an element with a class and children. */
function make(tag, name, ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function prose(tag, name, text) {
  const parts = text.split("`").map((part, index) => (index % 2 ? make("code", "", part) : part));
  return make(tag, name, ...parts);
}

/* ── Schemas ─────────────────────────────────────────────────────────────────────────────────────────── */

class Schemas {
  constructor(document) {
    this.named = document.components?.schemas ?? {};
  }

  /** Resolves a schema: follows references, adds its name, and drops "or null". */
  resolve(schema = {}) {
    if (schema.$ref) {
      const name = schema.$ref.split("/").pop();
      return { ...this.named[name], ...(schema.description && { description: schema.description }), name };
    }
    const choices = (schema.oneOf ?? schema.anyOf ?? schema.allOf)?.filter((choice) => choice.type !== "null");
    if (choices?.length !== 1) return schema;
    return { ...this.resolve(choices[0]), ...(schema.description && { description: schema.description }) };
  }

  type(given) {
    const schema = this.resolve(given);
    const choices = schema.oneOf ?? schema.anyOf;
    if (choices) return choices.map((choice) => this.type(choice)).join(" or ");
    const types = [schema.type ?? (schema.name ? "object" : "any")].flat().filter((type) => type !== "null");
    const words = types.map((type) => {
      if (type === "array") return `list of ${this.type(schema.items)}`;
      return type === "object" && schema.name ? schema.name : type;
    });
    return words.join(" or ") || "null";
  }

  /** Returns the schema with the fields of an object, or of a list's items. */
  inner(given) {
    const schema = this.resolve(given);
    if (schema.properties) return schema;
    return schema.items ? this.inner(schema.items) : null;
  }

  example(given, depth = 0) {
    const schema = this.resolve(given);
    if (schema.example !== undefined) return schema.example;
    if (schema.examples?.length) return schema.examples[0];
    if (schema.enum) return schema.enum[0];
    if (schema.oneOf ?? schema.anyOf) return this.example((schema.oneOf ?? schema.anyOf)[0], depth + 1);
    const type = [schema.type].flat().find((type) => type && type !== "null");
    if (schema.properties) return depth > 3 ? {} : this.exampleFields(schema, depth);
    return { string: "…", integer: 1, number: 1.0, boolean: true, array: [], object: {} }[type] ?? null;
  }

  exampleFields(schema, depth) {
    const names = Object.keys(schema.properties);
    const wanted = schema.required?.length ? schema.required : depth ? [] : names;
    return Object.fromEntries(wanted.map((name) => [name, this.example(schema.properties[name], depth + 1)]));
  }

  /** Lists fields. Nested fields are collapsed, and recursion stops at a schema that contains itself. */
  fields(schema, within = []) {
    const required = new Set(schema.required ?? []);
    const list = make("ul", "fields");
    for (const [name, given] of Object.entries(schema.properties)) {
      list.append(this.field(name, given, required.has(name), within));
    }
    return list;
  }

  field(name, given, required, within) {
    const schema = this.resolve(given);
    const item = make("li", "", make("span", "name", name), make("span", "type", this.type(given)));
    if (required) item.append(make("span", "must", "required"));
    if (schema.description) item.append(prose("p", "about", schema.description));
    const words = schema.enum ?? this.resolve(schema.items).enum;
    if (words) item.append(make("ul", "words", ...words.map((word) => make("li", "", make("code", "", String(word))))));
    const inner = this.inner(given);
    if (inner && !within.includes(inner.name)) item.append(this.folded(inner, within));
    return item;
  }

  folded(inner, within, open = false) {
    const details = make("details", "", make("summary", "", inner.name ? `Fields of ${inner.name}` : "Fields"));
    const fill = () => details.children.length > 1 || details.append(this.fields(inner, [...within, inner.name]));
    details.addEventListener("toggle", fill);
    if (open) fill(), (details.open = true);
    return details;
  }
}

/* ── Samples ─────────────────────────────────────────────────────────────────────────────────────────── */

const JSON_TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d+(?:\.\d+)?)|\b(?:true|false|null)\b/g;
const SHELL_TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?/g;

function colored(text) {
  const code = make("code");
  let end = 0;
  for (const token of text.matchAll(text.startsWith("curl") ? SHELL_TOKEN : JSON_TOKEN)) {
    const [whole, string, colon, number] = token;
    code.append(text.slice(end, token.index));
    if (string) code.append(make("span", colon ? "k" : "s", string), colon ?? "");
    else code.append(make("span", number ? "n" : "o", whole));
    end = token.index + whole.length;
  }
  code.append(text.slice(end));
  return code;
}

function sample(text) {
  const button = make("button", "copy", "Copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  const block = make("pre", "code", colored(text));
  block.tabIndex = 0;
  return make("div", "sample", block, button);
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function curl(method, path, operation, schemas) {
  const lines = ["curl"];
  if (method !== "get" && method !== "post") lines[0] += ` -X ${method.toUpperCase()}`;
  if (!isOpen(operation)) lines.push(`-H "Authorization: Bearer $BELLJAR_API_KEY"`);
  const [kind, media] = Object.entries(operation.requestBody?.content ?? {})[0] ?? [];
  if (kind === "application/json") {
    lines.push(`--json ${quoted(JSON.stringify(schemas.example(media.schema)))}`);
  } else if (kind) {
    lines.push(`-H 'Content-Type: ${kind}'`, "--data-binary @FILE");
  } else if (method === "post") {
    lines[0] += " -X POST";
  }
  const place = path.replace(/\{\*?(\w+)\}/g, (_, name) => name.toUpperCase());
  const query = (operation.parameters ?? []).filter((each) => each.in === "query" && each.required);
  const pairs = query.map((each) => `${each.name}=${each.name.toUpperCase()}`).join("&");
  lines.push(quoted(base + place + (pairs && `?${pairs}`)));
  return lines.join(" \\\n  ");
}

/* ── Operations ──────────────────────────────────────────────────────────────────────────────────────── */

const isOpen = (operation) => operation.security?.some((one) => Object.keys(one).length === 0) ?? false;

function parameters(operation, schemas) {
  const list = make("ul", "fields");
  for (const each of operation.parameters ?? []) {
    const item = schemas.field(each.name, each.schema, each.required, []);
    find(".type", item).textContent += ` in ${each.in}`;
    if (each.description) item.append(prose("p", "about", each.description));
    list.append(item);
  }
  return list.children.length ? [make("h4", "", "Parameters"), list] : [];
}

function body(operation, schemas) {
  const parts = [];
  for (const [kind, media] of Object.entries(operation.requestBody?.content ?? {})) {
    parts.push(make("h4", "", `Body, ${kind}`));
    const inner = schemas.inner(media.schema);
    const about = inner?.description ?? operation.requestBody.description;
    if (about) parts.push(prose("p", "about", about));
    if (inner) parts.push(schemas.fields(inner, [inner.name]));
  }
  return parts;
}

function responses(operation, schemas) {
  const list = make("ul", "fields");
  for (const [status, response] of Object.entries(operation.responses ?? {})) {
    const item = make("li", "", make("span", `status s${status[0]}`, status));
    const [[kind, media] = []] = Object.entries(response.content ?? {});
    if (kind) item.append(make("span", "type", kind));
    item.append(prose("p", "about", response.description));
    const inner = media && schemas.inner(media.schema);
    if (inner) item.append(schemas.folded(inner, []));
    list.append(item);
  }
  return [make("h4", "", "Responses"), list];
}

function answer(operation, schemas) {
  const [status, response] = Object.entries(operation.responses ?? {}).find(([status]) => status[0] === "2") ?? [];
  const schema = response?.content?.["application/json"]?.schema;
  if (!schema || !schemas.inner(schema)) return [];
  return [make("h4", "", `Response, ${status}`), sample(JSON.stringify(schemas.example(schema), null, 2))];
}

function fill(article, document, schemas) {
  const { method, path } = article.dataset;
  const operation = document.paths[path]?.[method];
  if (!operation) return;
  find(".summary", article).replaceWith(prose("p", "summary", operation.summary ?? ""));
  if (operation.description) article.append(prose("p", "summary", operation.description));
  if (isOpen(operation)) find("h3", article).append(make("span", "open", "no key needed"));
  const told = make("div", "", ...parameters(operation, schemas), ...body(operation, schemas));
  told.append(...responses(operation, schemas));
  const shown = make("div", "samples", make("h4", "", "Request"), sample(curl(method, path, operation, schemas)));
  shown.append(...answer(operation, schemas));
  article.append(make("div", "parts", told, shown));
}

/* ── Navigation ──────────────────────────────────────────────────────────────────────────────────────── */

function filter(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const link of all("nav a")) {
    const article = document.getElementById(link.hash.slice(1));
    const { method, path } = article.dataset;
    const known = `${method} ${path} ${find(".summary", article).textContent}`.toLowerCase();
    const hidden = !words.every((word) => known.includes(word));
    link.parentElement.hidden = article.hidden = hidden;
  }
  for (const group of all(".group")) group.hidden = !find(".op:not([hidden])", group);
  for (const group of all("nav section")) group.hidden = !find("li:not([hidden])", group);
  find(".nothing").hidden = Boolean(find(".op:not([hidden])"));
  find(".hero").hidden = words.length > 0;
}

/** Keyboard navigation: arrows move through the list, Enter opens an operation, Escape clears the filter. */
function keys(event) {
  const input = find("#filter");
  const typing = event.target === input;
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    input.select();
    input.focus();
  } else if (event.key === "Escape" && input.value) {
    input.value = "";
    filter("");
  } else if (["ArrowDown", "ArrowUp", "Enter"].includes(event.key)) {
    const links = all("nav a").filter((link) => link.offsetParent);
    const at = links.indexOf(document.activeElement);
    if (at < 0 && !typing) return;
    if (event.key === "Enter") return void (typing && links[0]?.click());
    event.preventDefault();
    const next = at + (event.key === "ArrowDown" ? 1 : -1);
    (links[next] ?? (next < 0 ? input : links[at]))?.focus();
  }
}

/** Marks the operation that is currently visible. */
function follow() {
  const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
  const seen = new Set();
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) seen[isIntersecting ? "add" : "delete"](target.id);
    const first = all(".op").find((article) => seen.has(article.id));
    if (!first) return;
    for (const [id, link] of links) {
      if (id === first.id) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }, { rootMargin: "0px 0px -70% 0px" });
  all(".op").forEach((article) => observer.observe(article));
}

async function start() {
  find("#base").textContent = base;
  const first = find("#start");
  first.replaceWith(sample(`curl -H "Authorization: Bearer $BELLJAR_API_KEY" \\\n  --json '{"language": "python", "code": "print(6 * 7)"}' \\\n  ${base}/v1/executions`));
  find(".filter").hidden = false;
  find("#filter").addEventListener("input", (event) => filter(event.target.value));
  document.addEventListener("keydown", keys);
  const described = await (await fetch("openapi.json")).json();
  const schemas = new Schemas(described);
  all(".op").forEach((article) => fill(article, described, schemas));
  follow();
  // The content above has grown, so scroll to the target again.
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

start();
