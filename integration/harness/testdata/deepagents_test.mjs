// Checks the sandbox for deepagents against the contract of its backends, as its standard tests for sandboxes do: node deepagents_test.mjs
import assert from "node:assert/strict";
import { AgentvmSandbox } from "../deepagents.mjs";

const image = process.env.AGENTVM_IMAGE ?? "busybox";
const bytes = (text) => new TextEncoder().encode(text);
const text = (content) => new TextDecoder().decode(content);
const s = await AgentvmSandbox.create({ image, initialFiles: { "/w/seed/file.txt": "seeded\n" }, env: { A: "a b" } });
try {
  assert.equal(typeof s.id, "string");
  assert.equal(s.isRunning, true);
  // execute
  assert.deepEqual(await s.execute("echo hello"), { output: "hello\n", exitCode: 0, truncated: false });
  assert.equal((await s.execute("exit 42")).exitCode, 42);
  assert.equal((await s.execute("echo one\necho two\n")).output, "one\ntwo\n");
  assert.equal((await s.execute("echo out; echo err >&2")).output, "out\nerr\n");
  assert.equal((await s.execute('echo "$A"')).output, "a b\n");
  const unknown = await s.execute("nosuchcommand");
  assert.notEqual(unknown.exitCode, 0);
  assert.match(unknown.output, /nosuchcommand/);
  assert.equal((await new AgentvmSandbox(s.vm, { timeoutSeconds: 1 }).execute("sleep 1000")).exitCode, null);
  const long = await s.execute("yes | head -c 3000000");
  assert.ok(long.truncated && long.output.length <= 1 << 20);
  assert.equal((await s.execute("echo " + "x".repeat(300_000) + " | wc -c")).output.trim(), "300001");

  // uploadFiles and downloadFiles: partial success, in the order of the input
  const binary = new Uint8Array([0, 255, 10, 195]);
  assert.deepEqual(await s.uploadFiles([["/w/a b/ß.bin", binary], ["relative", binary], ["/w/seed", binary], ["/w/empty", new Uint8Array()]]), [
    { path: "/w/a b/ß.bin", error: null },
    { path: "relative", error: "invalid_path" },
    { path: "/w/seed", error: "is_directory" },
    { path: "/w/empty", error: null },
  ]);
  assert.equal((await s.execute("od -An -tx1 '/w/a b/ß.bin'")).output.trim(), "00 ff 0a c3");
  const down = await s.downloadFiles(["/w/none", "/w/a b/ß.bin", "/w/seed", "/w/empty", "../x"]);
  assert.deepEqual(down.map((f) => f.error), ["file_not_found", null, "is_directory", null, "invalid_path"]);
  assert.deepEqual(down.map((f) => f.content && [...f.content]), [null, [...binary], null, [], null]);

  // write, read, edit
  assert.equal((await s.write("/w/new/dir/f.txt", "one\ntwo\n")).error, undefined);
  await s.write("/w/new/dir/g.txt", "first");
  assert.equal(text((await s.downloadFiles(["/w/new/dir/f.txt"]))[0].content), "one\ntwo\n");
  assert.match((await s.read("/w/seed/file.txt")).content, /seeded/);
  await s.uploadFiles([["/w/lines", bytes(Array.from({ length: 100 }, (_, i) => `line ${i + 1}`).join("\n") + "\n")]]);
  const part = (await s.read("/w/lines", 10, 3)).content;
  assert.match(part, /line 11\n(.|\n)*line 13/);
  assert.doesNotMatch(part, /line 10\b|line 14/);
  assert.ok((await s.read("/w/none")).error);
  assert.equal((await s.edit("/w/lines", "line 100", "the ß[.*] $1 end")).error, undefined);
  assert.match((await s.execute("tail -n 1 /w/lines")).output, /^the ß\[\.\*\] \$1 end$/m);
  assert.match((await s.edit("/w/lines", "line 1", "x")).error, /multiple|times|unique/i);
  assert.match((await s.edit("/w/lines", "absent", "x")).error, /not found/i);
  assert.equal((await s.edit("/w/lines", "line 1", "x", true)).occurrences, 11);
  assert.ok((await s.edit("/w/none", "a", "b")).error);

  // ls, grep, glob
  await s.execute("cd /w && mkdir many && cd many && for i in $(seq 50); do echo $i >file$i; done; echo hidden >.hidden; echo x >'with space'; mkdir sub; echo needle.x >sub/deep.js");
  const names = (await s.ls("/w/many")).files.map((f) => f.path);
  assert.equal(names.length, 53);
  for (const name of [".hidden", "with space", "file50"]) assert.ok(names.some((n) => n.includes(name)), name);
  assert.deepEqual((await s.ls("/w/none")).files ?? [], []);
  const matches = (await s.grep("needle.x", "/w/many")).matches;
  assert.deepEqual(matches.map((m) => [m.path, m.line, m.text]), [["/w/many/sub/deep.js", 1, "needle.x"]]);
  assert.equal((await s.grep("needle_x", "/w/many")).matches.length, 0);
  assert.deepEqual((await s.glob("**/*.js", "/w/many")).files.map((f) => f.path), ["sub/deep.js"]);
  assert.equal((await s.glob("file[1-3]", "/w/many")).files.length, 3);
} finally {
  await s.close();
}
assert.equal(s.isRunning, false);
await assert.rejects(s.execute("true"), { status: 404 });
console.log("deepagents: the contract holds");
