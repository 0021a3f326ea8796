// The administration API over HTTP: requests, credentials, and errors.

const PATIENCE_MS = 8000;

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Credentials are kept only in this object: they are lost with the page, and no other page can read them. */
export class Api {
  #credentials = null;
  #refused;

  /** `refused` is called when the node does not accept the credentials. */
  constructor(refused) {
    this.#refused = refused;
  }

  /** `{token}`, `{user, password}`, or null. */
  get credentials() {
    return this.#credentials;
  }

  set credentials(credentials) {
    this.#credentials = credentials;
  }

  node = (signal) => this.#ask("GET", "node", {}, undefined, signal);
  shards = (page, signal) => this.#ask("GET", "shards", page, undefined, signal);
  shard = (name, signal) => this.#ask("GET", "shard", { name }, undefined, signal);
  queues = (page, signal) => this.#ask("GET", "queues", page, undefined, signal);
  cursors = (page, signal) => this.#ask("GET", "cursors", page, undefined, signal);
  connections = (page, signal) => this.#ask("GET", "connections", page, undefined, signal);
  setMode = (name, mode) => this.#ask("PUT", "shard/mode", { name }, { mode });
  configure = (name, changes) => this.#ask("PATCH", "shard", { name }, changes);
  roll = (name) => this.#ask("POST", "shard/roll", { name });
  deleteShard = (name) => this.#ask("DELETE", "shard", { name });
  deleteCursor = (shard, name, version) => this.#ask("DELETE", "cursor", { shard, name, version });

  async #ask(method, path, query, body = undefined, signal = undefined) {
    const headers = { Accept: "application/json" };
    if (this.#credentials !== null) headers.Authorization = authorization(this.#credentials);
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const asked = new URL(`api/v1/${path}?${new URLSearchParams(query)}`, document.baseURI);
    const late = AbortSignal.timeout(PATIENCE_MS);
    const ended = signal === undefined ? late : AbortSignal.any([signal, late]);
    let response;
    try {
      // Otherwise the browser would show its own password dialog over the page.
      response = await fetch(asked, { method, headers, body: body && JSON.stringify(body), signal: ended, credentials: "omit" });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new ApiError(0, "unreachable", "The node does not answer. The page shows its last answer.");
    }
    if (response.ok) return response.status === 204 ? null : response.json();
    const error = await refusal(response);
    if (response.status === 401) this.#refused(error);
    throw error;
  }
}

async function refusal(response) {
  let problem = {};
  try {
    problem = await response.json();
  } catch {
    // Most likely the page of a proxy, which has no more information than its status.
  }
  const detail = problem.detail ?? `The node answered ${response.status} ${response.statusText}`;
  return new ApiError(response.status, problem.code ?? "unknown", detail);
}

function authorization(credentials) {
  if ("token" in credentials) return `Bearer ${credentials.token}`;
  const bytes = new TextEncoder().encode(`${credentials.user}:${credentials.password}`);
  return `Basic ${btoa(String.fromCharCode(...bytes))}`;
}

/** Address of the WebSocket listener, from the node that served this page; null if it has none. */
export async function websocketUrl() {
  const response = await fetch(new URL("console/listeners.json", document.baseURI), { credentials: "omit" });
  const { websocket_port: port } = await response.json();
  if (port === null) return null;
  return `${location.protocol === "https:" ? "wss" : "ws"}://${location.hostname}:${port}/`;
}
