// Runs an agent of the OpenAI Agents SDK, with a scripted model, in a VM: node openai_agents_test.mjs
import assert from "node:assert/strict";
import { run, setTracingDisabled } from "@openai/agents";
import { Manifest, SandboxAgent, filesystem, shell } from "@openai/agents/sandbox";
import { ScriptedModel, assistantMessage, functionCall } from "@openai/agents/testing";
import { AgentvmSandboxClient } from "../openai_agents.mjs";

setTracingDisabled(true);
const client = new AgentvmSandboxClient({ image: process.env.AGENTVM_IMAGE ?? "busybox" });
const manifest = new Manifest({ entries: { "notes/a.txt": { type: "file", content: "one\ntwo\n" }, empty: { type: "dir" } }, environment: { A: "a b" } });

// The session by itself
const session = await client.create({ manifest });
try {
  assert.equal(await session.running(), true);
  const first = await session.exec({ cmd: 'cat notes/a.txt; echo "$A" >&2; exit 3' });
  assert.deepEqual([first.stdout, first.stderr, first.exitCode, first.sessionId], ["one\ntwo\n", "a b\n", 3, undefined]);
  const running = await session.exec({ cmd: "echo begun; read line; echo got $line", tty: true, yieldTimeMs: 1000 });
  assert.deepEqual([running.output, running.exitCode], ["begun\n", undefined]);
  assert.match(await session.writeStdin({ sessionId: running.sessionId, chars: "text\n", yieldTimeMs: 20_000 }), /exited with code 0(.|\n)*got text/);
  await assert.rejects(session.writeStdin({ sessionId: running.sessionId }), /has ended/);
  assert.match((await session.exec({ cmd: "seq 1 10000", maxOutputTokens: 20 })).output, /truncated/i);
  assert.equal((await session.exec({ cmd: "id -u", runAs: "65534", login: false })).stdout, "65534\n");
  assert.equal((await session.exec({ cmd: "pwd", workdir: "notes" })).stdout, session.path("notes") + "\n");
  assert.deepEqual([...(await session.readFile({ path: "notes/a.txt", maxBytes: 3 }))], [...Buffer.from("one")]);
  assert.deepEqual((await session.listDir({ path: "" })).map((f) => [f.name, f.type]), [["empty", "dir"], ["notes", "dir"]]);
  assert.deepEqual([await session.pathExists("notes/a.txt"), await session.pathExists("none"), await session.directoryExists("empty")], [true, false, true]);
  await assert.rejects(session.materializeEntry({ path: "x", entry: { type: "git_repo" } }), /not supported/);
  const editor = session.createEditor();
  await editor.createFile({ type: "create_file", path: "new.txt", diff: "+alpha\n+beta" });
  await editor.updateFile({ type: "update_file", path: "new.txt", diff: "@@\n alpha\n-beta\n+gamma" });
  await editor.updateFile({ type: "update_file", path: "new.txt", moveTo: "moved.txt", diff: "@@\n-alpha\n+omega\n gamma" });
  assert.match((await session.exec({ cmd: "cat moved.txt; ls new.txt" })).output, /^omega\ngammals: .*No such file/);
  await editor.deleteFile({ type: "delete_file", path: "moved.txt" });
  assert.equal(await session.pathExists("moved.txt"), false);

  // Another process continues from the serialized state.
  const state = JSON.parse(JSON.stringify(await client.serializeSessionState(session.state)));
  const again = await new AgentvmSandboxClient().resume(await client.deserializeSessionState(state));
  assert.equal((await again.exec({ cmd: "cat notes/a.txt" })).stdout, "one\ntwo\n");
  await client.delete(again.state);
} catch (error) {
  await session.delete().catch(() => {});
  throw error;
}
await assert.rejects(session.running(), { status: 404 });

// An agent with the SDK's own shell and files
const model = new ScriptedModel([
  [functionCall("exec_command", { cmd: "uname -m; cat notes/a.txt" }, { callId: "1" })],
  [{ type: "apply_patch_call", callId: "2", status: "completed", operation: { type: "update_file", path: "notes/a.txt", diff: "@@\n one\n-two\n+three" } }],
  [functionCall("exec_command", { cmd: "cat notes/a.txt" }, { callId: "3" })],
  [assistantMessage("done")],
]);
const agent = new SandboxAgent({ name: "tester", instructions: "test", model, defaultManifest: manifest, capabilities: [shell(), filesystem()] });
const result = await run(agent, "go", { sandbox: { client } });
assert.equal(result.finalOutput, "done");
const outputs = Object.fromEntries(result.newItems.filter((i) => i.type === "tool_call_output_item").map((i) => [i.rawItem.callId, JSON.stringify(i.rawItem.output)]));
assert.match(outputs[1], /riscv64\\+none\\+ntwo/);
assert.match(outputs[3], /one\\+nthree/);
const left = await fetch(new URL("/v1/vms", process.env.AGENTVM_URL), { headers: { Authorization: "Bearer " + process.env.AGENTVM_KEY } });
assert.deepEqual((await left.json()).filter((vm) => vm.name.startsWith("harness-")), [], "the SDK removes the VM of a run");
console.log("OpenAI Agents SDK: the contract holds");
