// A VM of `agentvm serve`, for the adapters beside this file. It needs nothing but fetch. AGENTVM_URL and AGENTVM_KEY say where the server is and with
// which key it answers.
import { randomUUID } from "node:crypto";

/** An answer of the server that is an error (RFC 9457). */
export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export class VM {
  constructor(name, { url = process.env.AGENTVM_URL, key = process.env.AGENTVM_KEY } = {}) {
    Object.assign(this, { name, url, key });
  }

  /** Makes a VM. `options` has the members of POST /v1/vms: image, memory (bytes), network, env and others. */
  static async create({ url, key, ...options } = {}) {
    const vm = new VM(options.name ?? "harness-" + randomUUID().slice(0, 13), { url, key });
    await vm.call("POST", "", { ...options, name: vm.name }, {}, "/v1/vms");
    return vm;
  }

  /** Removes the VM. One that is gone already is no failure. */
  remove() {
    return this.call("DELETE", "").catch((problem) => {
      if (problem.status !== 404) throw problem;
    });
  }

  /** Makes a call of /v1/vms/NAME. A body that is no Uint8Array is sent as JSON; the answer is JSON, or bytes. */
  async call(method, path, body, query = {}, base = "/v1/vms/" + encodeURIComponent(this.name)) {
    const url = new URL(base + path, this.url);
    for (const [name, value] of Object.entries(query)) if (value !== undefined) url.searchParams.set(name, value);
    const headers = { Authorization: "Bearer " + this.key };
    const raw = body instanceof Uint8Array;
    if (body !== undefined) headers["Content-Type"] = raw ? "application/octet-stream" : "application/json";
    const response = await fetch(url, { method, headers, body: raw || body === undefined ? body : JSON.stringify(body) });
    const answer = new Uint8Array(await response.arrayBuffer());
    const json = /json/.test(response.headers.get("Content-Type") ?? "") ? JSON.parse(new TextDecoder().decode(answer)) : undefined;
    if (!response.ok) throw new Problem(response.status, json?.detail ?? response.statusText);
    return json ?? answer;
  }

  run(command) {
    return this.call("POST", "/exec", command);
  }

  read(path) {
    return this.call("GET", "/files", undefined, { path });
  }

  write(path, content, mode) {
    return this.call("PUT", "/files", content, { path, mode });
  }

  info(path) {
    return this.call("GET", "/files/info", undefined, { path });
  }
}
