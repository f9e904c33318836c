// A sandbox client for the OpenAI Agents SDK: run(agent, input, { sandbox: { client: new AgentvmSandboxClient() } }). See agentvm.mjs for where the
// server is. Commands have no terminal: with tty their input stays open for write_stdin.
import { posix } from "node:path";
import { applyDiff } from "@openai/agents";
import { Manifest, normalizeSandboxClientCreateArgs } from "@openai/agents/sandbox";
import { deserializeManifest, formatExecResponse, imageOutputFromBytes, serializeManifest, truncateOutput } from "@openai/agents-core/sandbox/internal";
import { Problem, VM } from "./agentvm.mjs";

export class AgentvmSandboxClient {
  backendId = "agentvm";

  /** options are those of VM.create. */
  constructor(options = {}) {
    this.options = options;
  }

  async create(args, manifestOptions) {
    const { manifest, options } = normalizeSandboxClientCreateArgs(args, manifestOptions);
    const vm = await VM.create({ ...this.options, ...options });
    const session = new AgentvmSession(vm, { manifest, vm: vm.name, workspaceReady: true, environment: {} });
    try {
      for (const [name, value] of Object.entries(manifest.environment)) session.state.environment[name] = await value.resolve();
      await session.applyManifest(manifest);
    } catch (error) {
      await vm.remove();
      throw error;
    }
    return session;
  }

  async resume(state) {
    const vm = new VM(state.vm, this.options);
    if ((await vm.call("GET", "")).state === "stopped") await vm.call("POST", "/start");
    return new AgentvmSession(vm, state);
  }

  async delete(state) {
    await new VM(state.vm, this.options).remove();
  }

  async serializeSessionState(state) {
    return { ...state, manifest: serializeManifest(state.manifest) };
  }

  async deserializeSessionState(state) {
    return { ...state, manifest: deserializeManifest(state.manifest) };
  }
}

class AgentvmSession {
  constructor(vm, state) {
    Object.assign(this, { vm, state, jobs: new Map(), last: 0 });
  }

  supportsPty() {
    return false;
  }

  async running() {
    return (await this.vm.call("GET", "")).state === "running";
  }

  async delete() {
    await this.vm.remove();
  }

  path(path = "") {
    return posix.resolve(this.state.manifest.root, path);
  }

  async exec({ cmd, workdir, shell = "/bin/sh", login = true, tty = false, yieldTimeMs = 10_000, maxOutputTokens, runAs }) {
    const command = { args: [shell, login ? "-lc" : "-c", cmd], dir: this.path(workdir), user: runAs, env: this.state.environment, input: tty, label: "exec_command" };
    const { id } = await this.vm.call("POST", "/jobs", command);
    const sessionId = ++this.last;
    this.jobs.set(sessionId, { id, next: 0 });
    return this.poll(sessionId, yieldTimeMs, maxOutputTokens);
  }

  /** Reads what a command has written since the last time, until it ends or the time has passed. */
  async poll(sessionId, yieldTimeMs, maxOutputTokens) {
    const job = this.jobs.get(sessionId);
    if (!job) throw new Error(`session ${sessionId}: there is none: it has ended`);
    const began = Date.now();
    const chunks = { stdout: [], stderr: [], output: [] };
    for (let ended = false; !ended; ) {
      const left = Math.max(0, began + yieldTimeMs - Date.now()) / 1000;
      const part = await this.vm.call("GET", `/jobs/${job.id}/output`, undefined, { from: job.next, waitSeconds: Math.min(left, 60) });
      for (const { stream, data } of part.chunks) {
        const bytes = Buffer.from(data, "base64");
        chunks[stream].push(bytes);
        chunks.output.push(bytes);
      }
      job.next = part.next;
      ended = part.ended === true;
      if (!ended && part.chunks.length === 0 && left === 0) break;
    }
    const text = (list) => truncateOutput(Buffer.concat(list).toString(), maxOutputTokens).text;
    const whole = truncateOutput(Buffer.concat(chunks.output).toString(), maxOutputTokens);
    const result = { output: whole.text, originalTokenCount: whole.originalTokenCount, stdout: text(chunks.stdout), stderr: text(chunks.stderr) };
    const info = await this.vm.call("GET", "/jobs/" + job.id);
    if (info.ended && info.outputBytes <= job.next) {
      this.jobs.delete(sessionId);
      await this.vm.call("DELETE", "/jobs/" + job.id);
      result.exitCode = info.exitCode ?? null;
    } else result.sessionId = sessionId;
    return { ...result, wallTimeSeconds: (Date.now() - began) / 1000 };
  }

  async execCommand(args) {
    return formatExecResponse(await this.exec(args));
  }

  async writeStdin({ sessionId, chars = "", yieldTimeMs = 250, maxOutputTokens }) {
    const job = this.jobs.get(sessionId);
    if (job && chars) await this.vm.call("POST", `/jobs/${job.id}/input`, new TextEncoder().encode(chars));
    return formatExecResponse(await this.poll(sessionId, yieldTimeMs, maxOutputTokens));
  }

  async readFile({ path, maxBytes }) {
    const bytes = await this.vm.read(this.path(path));
    return maxBytes === undefined ? bytes : bytes.subarray(0, maxBytes);
  }

  async viewImage({ path }) {
    return imageOutputFromBytes(path, await this.vm.read(this.path(path)));
  }

  async listDir({ path }) {
    const dir = this.path(path);
    const types = { file: "file", directory: "dir" };
    const list = await this.vm.call("GET", "/files/list", undefined, { path: dir });
    return list.map((f) => ({ name: f.name, path: posix.join(dir, f.name), type: types[f.type] ?? "other" }));
  }

  async pathExists(path) {
    return (await this.type(path)) !== undefined;
  }

  async directoryExists(path) {
    return (await this.type(path)) === "directory";
  }

  async type(path) {
    try {
      return (await this.vm.info(this.path(path))).type;
    } catch (error) {
      if (error instanceof Problem && error.status === 404) return undefined;
      throw error;
    }
  }

  async materializeEntry({ path, entry }) {
    const at = this.path(path);
    if (entry.type === "file") await this.vm.write(at, typeof entry.content === "string" ? new TextEncoder().encode(entry.content) : entry.content);
    else if (entry.type === "dir") await this.vm.call("POST", "/files/directory", undefined, { path: at });
    else throw new Error(`${path}: entries of type ${entry.type} are not supported: want file or dir`);
  }

  async applyManifest(manifest) {
    await this.vm.call("POST", "/files/directory", undefined, { path: manifest.root });
    for (const { absolutePath, entry } of manifest.iterEntries()) await this.materializeEntry({ path: absolutePath, entry });
    this.state.manifest = new Manifest({ ...this.state.manifest, entries: { ...this.state.manifest.entries, ...manifest.entries } });
  }

  createEditor() {
    const write = (path, text) => this.vm.write(this.path(path), new TextEncoder().encode(text));
    const remove = (path) => this.vm.call("DELETE", "/files", undefined, { path: this.path(path) });
    return {
      createFile: ({ path, diff }) => write(path, applyDiff("", diff, "create")).then(() => undefined),
      updateFile: async ({ path, diff, moveTo }) => {
        await write(moveTo ?? path, applyDiff(new TextDecoder().decode(await this.vm.read(this.path(path))), diff));
        if (moveTo && this.path(moveTo) !== this.path(path)) await remove(path);
      },
      deleteFile: ({ path }) => remove(path).then(() => undefined),
    };
  }
}
