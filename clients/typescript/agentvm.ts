// A client of `agentvm serve` without dependencies, for Node 22.18 or later, Deno, Bun and browsers' bundlers. Operations are named by method and
// path, as in the server's /openapi.json; types.ts says what each takes and answers.
//
//   const client = new Agentvm({ url: "http://127.0.0.1:8480", key });
//   await client.call("POST /v1/vms", { body: { name: "dev" } });
//   const { stdout } = await client.call("POST /v1/vms/{vm}/exec", { path: { vm: "dev" }, body: { command: "uname -a" } });
//   for await (const { event, data } of client.events("GET /v1/events", {})) console.log(event, data);
import type { Operations, Problem } from "./types.ts";

export type * from "./types.ts";

type Calls = { [O in keyof Operations as Operations[O] extends { answer: unknown } ? O : never]: Operations[O] };
type Streams = { [O in keyof Operations as Operations[O] extends { events: unknown } ? O : never]: Operations[O] };
type Input<O> = Omit<O, "answer" | "events"> & { signal?: AbortSignal; headers?: Record<string, string> };
type Anything = { path?: Record<string, string>; query?: Record<string, string | number>; body?: unknown; signal?: AbortSignal; headers?: Record<string, string> };

/** An answer of the server that is an error (RFC 9457). */
export class ProblemError extends Error {
  readonly problem: Problem;

  constructor(problem: Problem) {
    super(problem.detail);
    this.name = "ProblemError";
    this.problem = problem;
  }

  get status(): number {
    return this.problem.status;
  }
}

export class Agentvm {
  readonly url: string;
  readonly #key: string;

  constructor({ url, key }: { url: string; key: string }) {
    this.url = url;
    this.#key = key;
  }

  /** Makes a call. An aborted signal ends it, and the command that it runs. */
  async call<O extends keyof Calls>(operation: O, input: Input<Calls[O]>): Promise<(Calls[O] & { answer: unknown })["answer"]> {
    const response = await this.#fetch(operation, input as Anything);
    const json = /json/.test(response.headers.get("Content-Type") ?? "");
    const answer = response.status === 204 ? undefined : json ? await response.json() : new Uint8Array(await response.arrayBuffer());
    return answer as (Calls[O] & { answer: unknown })["answer"];
  }

  /** Yields the events of an operation that streams them. Leaving the loop ends it, and the command that it runs. */
  async *events<O extends keyof Streams>(operation: O, input: Input<Streams[O]>): AsyncGenerator<(Streams[O] & { events: unknown })["events"]> {
    const response = await this.#fetch(operation, input as Anything);
    const decoder = new TextDecoder();
    let rest = "";
    for await (const piece of response.body as unknown as AsyncIterable<Uint8Array>) {
      const blocks = (rest + decoder.decode(piece, { stream: true })).split("\n\n");
      rest = blocks.pop() as string;
      for (const block of blocks) {
        const [event, data] = ["event: ", "data: "].map((start) => block.split("\n").find((line) => line.startsWith(start))?.slice(start.length));
        if (event && data) yield { event, data: JSON.parse(data) } as (Streams[O] & { events: unknown })["events"];
      }
    }
  }

  async #fetch(operation: string, { path = {}, query = {}, body, signal, headers = {} }: Anything): Promise<Response> {
    const [method, pattern] = operation.split(" ") as [string, string];
    const url = new URL(pattern.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(path[name] as string)), this.url);
    for (const [name, value] of Object.entries(query)) if (value !== undefined) url.searchParams.set(name, String(value));
    const raw = body instanceof Uint8Array;
    const type: Record<string, string> = body === undefined ? {} : { "Content-Type": raw ? "application/octet-stream" : "application/json" };
    const response = await fetch(url, {
      method,
      headers: { ...headers, ...type, Authorization: "Bearer " + this.#key },
      body: (raw || body === undefined ? body : JSON.stringify(body)) as BodyInit | undefined,
      signal,
    });
    if (response.ok) return response;
    const detail = await response.text();
    let problem: Problem = { type: "about:blank", title: response.statusText, status: response.status, detail };
    if (/problem\+json/.test(response.headers.get("Content-Type") ?? "")) problem = JSON.parse(detail);
    throw new ProblemError(problem);
  }
}
