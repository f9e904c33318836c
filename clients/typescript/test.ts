// Calls a server: AGENTVM_URL and AGENTVM_KEY say where, and with which key. go test ./integration/harness runs it.
import assert from "node:assert/strict";
import { Agentvm, ProblemError, type Job } from "./agentvm.ts";

const client = new Agentvm({ url: process.env.AGENTVM_URL!, key: process.env.AGENTVM_KEY! });
const vm = "typescript-client";
const path = { vm };
const problem = (status: number) => (error: unknown) => error instanceof ProblemError && error.status === status;

const seen: string[] = [];
const leave = new AbortController();
const listening = (async () => {
  try {
    for await (const e of client.events("GET /v1/events", { query: { vm }, signal: leave.signal })) {
      seen.push(e.data.kind);
    }
  } catch (error) {
    if (!leave.signal.aborted) throw error;
  }
})();

const made = await client.call("POST /v1/vms", { body: { name: vm, memory: 128 << 20, network: { mode: "none" } } });
try {
  assert.equal(made.state, "running");
  assert.ok((await client.call("GET /v1/vms", {})).some((v) => v.name === vm));

  const ran = await client.call("POST /v1/vms/{vm}/exec", { path, body: { command: "echo out; echo err >&2; exit 3" } });
  assert.deepEqual([ran.exitCode, ran.stdout, ran.stderr], [3, "out\n", "err\n"]);
  const once = { path, body: { command: "echo x >>/tmp/once; wc -l </tmp/once" }, headers: { "Idempotency-Key": "once" } };
  for (let i = 0; i < 2; i++) assert.equal((await client.call("POST /v1/vms/{vm}/exec", once)).stdout.trim(), "1");

  const events = [];
  for await (const e of client.events("POST /v1/vms/{vm}/exec/stream", { path, body: { command: "echo a; sleep 0.2; echo é€😀; exit 4" } })) events.push(e);
  assert.equal(events.map((e) => (e.event === "stdout" ? e.data.data : "")).join(""), "a\né€😀\n");
  const last = events.at(-1);
  assert.ok(last?.event === "exit" && last.data.exitCode === 4);

  for await (const e of client.events("POST /v1/vms/{vm}/exec/stream", { path, body: { command: "echo $$; exec sleep 1000" } })) {
    if (e.event !== "stdout") continue;
    break; // the command is killed
  }

  const bytes = new Uint8Array(300_000).map((_, i) => i * 7);
  const file = "/root/a b/ü+%.bin";
  await client.call("PUT /v1/vms/{vm}/files", { path, query: { path: file, mode: "600" }, body: bytes });
  assert.deepEqual(await client.call("GET /v1/vms/{vm}/files", { path, query: { path: file } }), bytes);
  assert.equal((await client.call("GET /v1/vms/{vm}/files/info", { path, query: { path: file } })).mode, "0600");
  await client.call("DELETE /v1/vms/{vm}/files", { path, query: { path: "/root/a b" } });
  await assert.rejects(client.call("GET /v1/vms/{vm}/files", { path, query: { path: file } }), problem(404));

  let job: Job = await client.call("POST /v1/vms/{vm}/jobs", { path, body: { command: "cat; exit 5", input: true } });
  const ofJob = { path: { vm, job: job.id } };
  await client.call("POST /v1/vms/{vm}/jobs/{job}/input", { ...ofJob, query: { end: "true" }, body: new TextEncoder().encode("to a job") });
  let text = "";
  for (let from = 0, ended = false; !ended; ) {
    const part = await client.call("GET /v1/vms/{vm}/jobs/{job}/output", { ...ofJob, query: { from, waitSeconds: 10 } });
    for (const chunk of part.chunks) text += Buffer.from(chunk.data, "base64").toString();
    from = part.next;
    ended = part.ended === true;
  }
  job = await client.call("GET /v1/vms/{vm}/jobs/{job}", ofJob);
  assert.deepEqual([text, job.exitCode], ["to a job", 5]);

  assert.equal((await client.call("GET /v1/vms/{vm}/network", { path })).mode, "none");
  await assert.rejects(client.call("POST /v1/vms", { body: { name: vm } }), problem(409));
  await assert.rejects(client.call("POST /v1/vms", { body: { name: "../x" } }), problem(400));
  await assert.rejects(new Agentvm({ url: client.url, key: "another-key-0123" }).call("GET /v1/vms", {}), problem(401));
  const late = AbortSignal.timeout(300);
  await assert.rejects(client.call("POST /v1/vms/{vm}/exec", { path, body: { command: "sleep 100" }, signal: late }), { name: "TimeoutError" });
} finally {
  await client.call("DELETE /v1/vms/{vm}", { path });
}
for (let i = 0; i < 100 && !seen.includes("removed"); i++) await new Promise((done) => setTimeout(done, 100));
leave.abort();
await listening;
for (const what of ["running", "job-started", "job-ended", "removed"]) assert.ok(seen.includes(what), `no ${what} in ${seen}`);
