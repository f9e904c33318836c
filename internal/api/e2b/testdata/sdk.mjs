// Calls a running `agentvm e2b` by E2B's own SDK, or with E2B_CLUSTER=1 `agentvm gateway`. Every public method that docs/guide/e2b.md lists as
// working or refused is here. Prints a line for each; exits with 1 when one is otherwise than said. Needs E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY.
import assert from 'node:assert/strict'
import http from 'node:http'
import fs from 'node:fs'
import * as e2b from 'e2b'
const { Sandbox } = e2b

const cluster = process.env.E2B_CLUSTER
let failed = 0
async function check(name, f) {
  try {
    await f()
    console.log('ok      ', name)
  } catch (e) {
    failed++
    console.log('FAILED  ', name, e)
  }
}
const refused = (f, what) => assert.rejects(f, what ?? /not supported|not served/)
const median = (l) => l.sort((a, b) => a - b)[l.length >> 1]

const s = await Sandbox.create({ timeoutMs: 120_000, envs: { A: 'b c' }, metadata: { who: 'me & you' } })
const other = await Sandbox.create()
await check('Sandbox.create: unknown template', () => assert.rejects(Sandbox.create('nothing'), cluster ? /no pool/ : /only base/))
await check('Sandbox.getInfo', async () => {
  const i = await s.getInfo()
  assert.equal(i.state, 'running')
  assert.equal(i.metadata.who, 'me & you')
})
await check('Sandbox.list', async () => {
  const page = await Sandbox.list({ query: { metadata: { who: 'me & you' } } }).nextItems()
  assert.deepEqual(page.map((x) => x.sandboxId), [s.sandboxId])
  const pages = Sandbox.list({ limit: 1 })
  const all = []
  while (pages.hasNext) all.push(...(await pages.nextItems()))
  assert.equal(all.filter((x) => [s.sandboxId, other.sandboxId].includes(x.sandboxId)).length, 2)
})
await check('Sandbox.connect', async () => {
  const again = await Sandbox.connect(s.sandboxId)
  assert.equal((await again.commands.run('echo $A')).stdout, 'b c\n')
})
await check('isRunning', async () => assert.equal(await s.isRunning(), true))
await check('setTimeout', async () => {
  await s.setTimeout(100_000)
  const left = (await s.getInfo()).endAt - Date.now()
  assert.ok(left > 90_000 && left < 101_000, String(left))
})
await check('getMetrics', async () => assert.ok((await s.getMetrics())[0].memTotal > 0))
await check('wrong key', () => assert.rejects(Sandbox.create({ apiKey: 'e2b_00000000000000000000' }), e2b.AuthenticationError))

await check('commands.run', async () => {
  const out = []
  const r = await s.commands.run('echo $V; echo err >&2; pwd', { envs: { V: 'v' }, cwd: '/tmp', onStdout: (d) => out.push(d) })
  assert.deepEqual([r.stdout, r.stderr, r.exitCode, out.join('')], ['v\n/tmp\n', 'err\n', 0, r.stdout])
  await assert.rejects(s.commands.run('exit 3'), (e) => e instanceof e2b.CommandExitError && e.exitCode === 3)
  await assert.rejects(s.commands.run('true', { cwd: '/nowhere' }), e2b.InvalidArgumentError)
  await assert.rejects(s.commands.run('sleep 20', { timeoutMs: 500 }), e2b.TimeoutError)
  await assert.rejects(s.commands.run('true', { user: 'nobody-at-all' }), e2b.AuthenticationError)
})
await check('commands.run: 1 MiB', async () => assert.equal((await s.commands.run('head -c 1048576 /dev/zero | tr "\\0" x')).stdout.length, 1 << 20))
await check('commands: background, list, connect, stdin, kill', async () => {
  const h = await s.commands.run('cat; echo end', { background: true, stdin: true })
  assert.ok((await s.commands.list()).some((p) => p.pid === h.pid))
  const seen = []
  const second = await s.commands.connect(h.pid, { onStdout: (d) => seen.push(d) })
  await s.commands.sendStdin(h.pid, 'line\n')
  await s.commands.closeStdin(h.pid)
  const r = await h.wait()
  assert.equal(r.stdout, 'line\nend\n')
  await second.wait()
  assert.equal(seen.join(''), 'line\nend\n')
  const long = await s.commands.run('sleep 100', { background: true })
  await long.disconnect()
  assert.ok((await s.commands.list()).some((p) => p.pid === long.pid))
  assert.equal(await s.commands.kill(long.pid), true)
  assert.equal(await s.commands.kill(4711), false)
  await assert.rejects((await s.commands.connect(long.pid)).wait(), /killed/)
})
await check('pty', async () => {
  let text = ''
  const h = await s.pty.create({ cols: 80, rows: 24, onData: (d) => (text += Buffer.from(d)) })
  await s.pty.resize(h.pid, { cols: 100, rows: 30 })
  await s.pty.sendInput(h.pid, Buffer.from('stty size; exit\n'))
  await h.wait()
  assert.match(text, /30 100/)
  const k = await s.pty.create({ cols: 80, rows: 24, onData: () => {} })
  assert.equal(await s.pty.kill(k.pid), true)
})

await check('files.write, read', async () => {
  assert.deepEqual({ metadata: undefined, ...(await s.files.write('a/b/hello.txt', 'hello')) }, { metadata: undefined, name: 'hello.txt', path: '/root/a/b/hello.txt', type: 'file' })
  assert.equal(await s.files.read('/root/a/b/hello.txt'), 'hello')
  assert.equal((await s.files.write([{ path: '/tmp/1', data: 'one' }, { path: '/tmp/2', data: 'two' }])).length, 2)
  assert.equal(Buffer.from(await s.files.read('/tmp/2', { format: 'bytes' })).toString(), 'two')
  await s.files.write('/tmp/3', 'three', { gzip: true })
  assert.equal(await s.files.read('/tmp/3', { gzip: true }), 'three')
  await s.files.write('/tmp/4', 'four', { useOctetStream: true })
  assert.equal(await s.files.read('/tmp/4'), 'four')
  await assert.rejects(s.files.read('/nothing'), e2b.NotFoundError)
  await assert.rejects(s.files.read('/tmp'), e2b.InvalidArgumentError)
})
await check('files.list, getInfo, exists', async () => {
  await s.commands.run('ln -s hello.txt a/b/link')
  assert.deepEqual((await s.files.list('a', { depth: 2 })).map((e) => [e.path, e.type]),
    [['/root/a/b', 'dir'], ['/root/a/b/hello.txt', 'file'], ['/root/a/b/link', 'file']])
  const i = await s.files.getInfo('a/b/link')
  assert.deepEqual([i.symlinkTarget, i.owner, i.group], ['/root/a/b/hello.txt', 'root', 'root'])
  assert.equal(await s.files.exists('a/b'), true)
  assert.equal(await s.files.exists('a/c'), false)
  await assert.rejects(s.files.list('a/b/hello.txt'), e2b.InvalidArgumentError)
})
await check('files.makeDir, rename, remove', async () => {
  assert.equal(await s.files.makeDir('d/e'), true)
  assert.equal(await s.files.makeDir('d/e'), false)
  assert.equal((await s.files.rename('a/b/hello.txt', 'd/f/moved')).path, '/root/d/f/moved')
  await s.files.remove('d')
  await s.files.remove('d')
  assert.equal(await s.files.exists('d/f/moved'), false)
})
await check('uploadUrl, downloadUrl', async () => {
  const up = await s.uploadUrl('/tmp/signed', { useSignatureExpiration: 10_000 })
  const form = new FormData()
  form.append('file', new Blob(['signed']), 'signed')
  assert.equal((await fetch(up, { method: 'POST', body: form })).status, 200)
  const down = await s.downloadUrl('/tmp/signed')
  assert.equal(await (await fetch(down)).text(), 'signed')
  assert.equal((await fetch(down.replace('signed&', 'other&'))).status, 401)
  assert.equal((await fetch(up)).status, 401) // a signature for writing does not read
})
await check('files.watchDir', async () => {
  await s.files.makeDir('/tmp/watched')
  const seen = []
  const handle = await s.files.watchDir('/tmp/watched', (e) => seen.push(e), { recursive: true, includeEntry: true })
  await s.files.write('/tmp/watched/below/file', 'text')
  for (let i = 0; i < 100 && !seen.some((e) => e.name === 'below/file' && e.type === 'write'); i++) await new Promise((ok) => setTimeout(ok, 100))
  assert.deepEqual(seen.filter((e) => e.name === 'below/file').map((e) => [e.type, e.entry?.path]), [['create', '/tmp/watched/below/file'], ['write', '/tmp/watched/below/file']])
  await handle.stop()
  await assert.rejects(s.files.watchDir('/nowhere', () => {}), e2b.FileNotFoundError)
})
await check('getHost', async () => {
  const h = await s.commands.run('mkdir -p /www && echo page > /www/index.html && (httpd -f -p 8000 -h /www || busybox httpd -f -p 8000 -h /www)', { background: true })
  const { hostname, port } = new URL(process.env.E2B_API_URL) // what a name server would say of its name
  const get = () => new Promise((ok, no) => http.get({ host: hostname, port, headers: { Host: s.getHost(8000) }, path: '/' }, (r) => {
    let t = ''
    r.on('data', (d) => (t += d)).on('end', () => ok([r.statusCode, t]))
  }).on('error', no))
  let got
  for (let i = 0; i < 50 && got?.[0] !== 200; i++) {
    got = await get()
    await new Promise((ok) => setTimeout(ok, 100))
  }
  assert.deepEqual(got, [200, 'page\n'])
  await h.kill()
})
await check('updateNetwork', async () => {
  await s.updateNetwork({ denyOut: ['0.0.0.0/0'] })
  assert.equal((await s.getInfo()).allowInternetAccess, false)
  await s.updateNetwork({ denyOut: ['0.0.0.0/0'], allowOut: ['8.8.8.8', 'pypi.org'] })
})
await check('fork', async () => {
  await s.files.write('/tmp/before', 'before')
  const [f] = await s.fork({ timeoutMs: 60_000 })
  const fork = f.sandbox ?? f
  assert.equal(await fork.files.read('/tmp/before'), 'before')
  await fork.files.write('/tmp/before', 'after')
  assert.equal(await s.files.read('/tmp/before'), 'before')
  assert.equal(await fork.kill(), true)
})
await check('pause, connect', async () => {
  const h = await s.commands.run('n=0; while read a; do n=$((n+1)); echo $n $a; done; echo end', { background: true, stdin: true, timeoutMs: 0 })
  h.wait().catch(() => {})
  await s.commands.sendStdin(h.pid, 'before\n')
  const shell = await s.pty.create({ cols: 80, rows: 24, onData: () => {}, timeoutMs: 0 })
  shell.wait().catch(() => {})
  assert.equal(await s.pause(), true)
  assert.equal(await s.pause(), false)
  assert.equal(await s.isRunning(), false)
  assert.equal((await s.getInfo()).state, 'paused')
  await s.connect()
  assert.equal(await s.isRunning(), true)
  // The same programs, in another pod too.
  const pids = (await s.commands.list()).map((p) => p.pid)
  assert.ok(pids.includes(h.pid) && pids.includes(shell.pid))
  const again = await s.commands.connect(h.pid)
  await s.commands.sendStdin(h.pid, 'after\n')
  await s.commands.closeStdin(h.pid)
  assert.equal((await again.wait()).stdout, '2 after\nend\n')
  let screen = ''
  const terminal = await s.pty.connect(shell.pid, { onData: (d) => (screen += Buffer.from(d)) })
  await s.pty.sendInput(shell.pid, Buffer.from('echo $((40+2)); exit\n'))
  await terminal.wait()
  assert.match(screen, /42/)
})
await check('createSnapshot, create, listSnapshots, deleteSnapshot', async () => {
  await s.files.write('/tmp/kept', 'kept')
  const one = await s.createSnapshot({ name: 'one' }), two = await s.createSnapshot()
  await s.files.write('/tmp/kept', 'changed')
  await assert.rejects(s.createSnapshot({ name: 'one' }))
  await assert.rejects(s.createSnapshot({ name: '../x' }))
  const list = s.listSnapshots({ limit: 1 })
  assert.deepEqual([(await list.nextItems()).map((i) => i.snapshotId), (await list.nextItems()).map((i) => i.snapshotId), list.hasNext], [[two.snapshotId], ['one'], false])
  const c = await Sandbox.create(one.snapshotId, { timeoutMs: 60_000, envs: { OF: 'the copy' } })
  assert.equal(await c.files.read('/tmp/kept'), 'kept')
  assert.equal((await c.commands.run('echo $OF')).stdout, 'the copy\n')
  assert.deepEqual(await c.listSnapshots().nextItems(), [])
  assert.equal(await c.kill(), true)
  for (const i of [one, two]) assert.equal(await Sandbox.deleteSnapshot(i.snapshotId), true)
  assert.equal(await Sandbox.deleteSnapshot('one'), false)
  await assert.rejects(Sandbox.create('one'), e2b.SandboxError)
})
for (const [name, call] of Object.entries({
  'pause with memory false': () => s.pause({ keepMemory: false }),
})) {
  await check(name + ' is refused', () => refused(call()))
}
if (process.env.E2B_MEASURE) {
  const runs = [], first = []
  for (let i = 0; i < 30; i++) {
    const t = performance.now()
    await s.commands.run('true')
    runs.push(performance.now() - t)
  }
  for (let i = 0; i < 5; i++) {
    const t = performance.now()
    const m = await Sandbox.create()
    await m.commands.run('true')
    first.push(performance.now() - t)
    await m.kill()
  }
  console.log(`median of commands.run("true"): ${median(runs).toFixed(1)} ms; of create to the first result: ${median(first).toFixed(0)} ms`)
}
await check('kill while a command runs', async () => {
  const h = await other.commands.run('sleep 100', { background: true })
  const end = assert.rejects(h.wait(), e2b.TimeoutError)
  assert.equal(await other.kill(), true)
  await end
  assert.equal(await other.kill(), false)
  assert.equal(await other.isRunning(), false)
  await assert.rejects(Sandbox.connect(other.sandboxId), e2b.NotFoundError)
})
await check('docs/guide/e2b.md names every method', async () => {
  const page = fs.readFileSync(process.env.E2B_GUIDE, 'utf8')
  const missing = [], known = new Set()
  const names = (prefix, o) => Object.getOwnPropertyNames(o).filter((n) => typeof Object.getOwnPropertyDescriptor(o, n).value === 'function' && !['constructor', 'resolveApiOpts', 'createSandbox', 'forkSandbox', 'connectSandbox'].includes(n))
    .forEach((n) => known.add(prefix + n) && page.includes('`' + prefix + n + '`') || missing.push(prefix + n))
  names('', Object.getPrototypeOf(s))
  names('', Sandbox)
  names('', Object.getPrototypeOf(Sandbox))
  names('commands.', Object.getPrototypeOf(s.commands))
  names('files.', Object.getPrototypeOf(s.files))
  names('pty.', Object.getPrototypeOf(s.pty))
  assert.deepEqual(missing, [])
  const rows = [...page.matchAll(/^\| (`.*?) \|/gm)].flatMap((m) => [...m[1].matchAll(/`([a-zA-Z.]+)`/g)].map((n) => n[1]))
  assert.deepEqual(rows.filter((n) => !known.has(n)), [])
})
await check('kill', async () => assert.equal(await Sandbox.kill(s.sandboxId), true))
process.exit(failed ? 1 : 0)
