// A sandbox for deepagents: createDeepAgent({ backend: await AgentvmSandbox.create() }). See agentvm.mjs for where the server is.
import { BaseSandbox } from "deepagents";
import { Problem, VM } from "./agentvm.mjs";

const MAX_OUTPUT = 1 << 20; // bytes

export class AgentvmSandbox extends BaseSandbox {
  isRunning = true;

  /** timeoutSeconds is what a command may take. */
  constructor(vm, { timeoutSeconds = 1800 } = {}) {
    super();
    Object.assign(this, { vm, timeoutSeconds });
  }

  /** Makes a VM. initialFiles has texts by path; the other options are those of VM.create. */
  static async create({ initialFiles = {}, timeoutSeconds, ...options } = {}) {
    const sandbox = new AgentvmSandbox(await VM.create(options), { timeoutSeconds });
    const files = Object.entries(initialFiles).map(([path, text]) => [path, new TextEncoder().encode(text)]);
    const failed = (await sandbox.uploadFiles(files)).find((f) => f.error);
    if (failed) throw new Error(`${failed.path}: ${failed.error}`);
    return sandbox;
  }

  get id() {
    return this.vm.name;
  }

  async close() {
    this.isRunning = false;
    await this.vm.remove();
  }

  async execute(command) {
    const r = await this.vm.run({ command: "exec 2>&1\n" + command, timeoutSeconds: this.timeoutSeconds, maxOutput: MAX_OUTPUT });
    const note = r.timedOut ? `\n[the command was killed after ${this.timeoutSeconds} seconds]` : "";
    return { output: r.stdout + note, exitCode: r.timedOut ? null : r.exitCode, truncated: r.stdoutTruncated !== undefined };
  }

  uploadFiles(files) {
    return this.each(files, async ([path, content]) => {
      const error = await this.try(path, () => this.vm.write(path, content));
      return { path, error: error.code };
    });
  }

  downloadFiles(paths) {
    return this.each(paths, async (path) => {
      const { code, value } = await this.try(path, () => this.vm.read(path));
      return { path, content: value ?? null, error: code };
    });
  }

  /** One after another, so that many files do not take many connections. */
  async each(list, work) {
    const results = [];
    for (const item of list) results.push(await work(item));
    return results;
  }

  async try(path, work) {
    if (!path.startsWith("/") || path.includes("\0")) return { code: "invalid_path" };
    try {
      return { code: null, value: await work() };
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (problem.status === 403) return { code: "permission_denied" };
      const info = await this.vm.info(path).catch(() => undefined);
      if (info?.type === "directory") return { code: "is_directory" };
      if (problem.status === 404) return { code: "file_not_found" };
      if (problem.status === 400 || /not a directory/i.test(problem.message)) return { code: "invalid_path" };
      throw problem;
    }
  }
}
