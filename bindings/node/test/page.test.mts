// Runs each code block of docs/node.md as it is on the page, in the order of the page.

import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import * as quorate from '../dist/index.mjs'
import { type Block, blocks, PAGE } from './page.mjs'
import { freePort, sleep } from './servers.mjs'

// Below bindings/node, so that `quorate` is this package.
const folder = fileURLToPath(new URL('./page', import.meta.url))
const ports = [await freePort(), await freePort(), await freePort()]
const all = blocks(ports)
const named = all.filter(({ file }) => file !== '')

/** The blocks that the tests below run in their own way. */
const RUN_APART = ['locks.mjs', 'cron.mjs', 'worker.mjs', 'schedule.mjs']

interface Output {
  out: string
  err: string
  code: number | null
}

function run(file: string, environment: Record<string, string> = {}): Promise<Output> {
  const child = spawn(process.execPath, [file], { cwd: folder, env: { ...process.env, ...environment } })
  let [out, err] = ['', '']
  child.stdout.on('data', (data) => (out += data))
  child.stderr.on('data', (data) => (err += data))
  return new Promise((resolve) => child.on('close', (code) => resolve({ out, err, code })))
}

before(() => {
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  for (const { file, code } of named) writeFileSync(join(folder, file), code)
  const start = all.find(({ language, code }) => language === 'sh' && code.includes('redis-server'))
  execFileSync('bash', ['-euc', start!.code], { cwd: folder, stdio: 'ignore' })
})

after(() => {
  for (const port of ports) execFileSync('redis-cli', ['-p', `${port}`, 'shutdown', 'nosave'], { stdio: 'ignore' })
})

/** Compiles a TypeScript block with `tsc --strict`. Returns the path of the program. */
function compile(file: string): string {
  const tsc = fileURLToPath(new URL('../node_modules/typescript/bin/tsc', import.meta.url))
  const lib = ['--lib', 'es2022,esnext.disposable']
  const options = ['--strict', '--target', 'es2022', '--module', 'nodenext', '--allowJs', '--types', 'node', ...lib]
  // `--ignoreConfig`: the compiler otherwise refuses files where it finds a tsconfig.json.
  const args = [tsc, file, ...options, '--ignoreConfig', '--rootDir', '.', '--outDir', 'out']
  execFileSync(process.execPath, args, { cwd: folder, stdio: 'inherit' })
  return join('out', file.replace(/\.mts$/, '.mjs'))
}

async function check({ language, file, output, isEnd }: Block): Promise<void> {
  const { out, err, code } = await run(language === 'ts' ? compile(file) : file)
  assert.equal(code, 0, err)
  assert.equal(err.replace(/^\(quorate\) QuorateWarning: .*\n/gm, ''), '')
  assert.notEqual(output, null, `the page must show the output of ${file}`)
  if (isEnd) assert.ok(out.endsWith(output!), out)
  else assert.equal(out, output)
}

test('each block of the page is a file that runs, or a command that is checked', () => {
  const firstLine = ({ language, code }: Block) => `${language}: ${code.split('\n')[0]}`
  const unnamed = all.filter(({ file }) => file === '').map(firstLine)
  // `scripts/node pack` installs the packed packages with npm.
  assert.deepEqual(unnamed, ['sh: npm install quorate', `sh: for port in ${ports.join(' ')}; do`])
  assert.ok(named.length >= 13)
})

for (const block of named.filter(({ file }) => !RUN_APART.includes(file))) {
  test(`${block.file} prints the output that the page shows`, () => check(block))
}

/** Checks that two replicas have done each planned report once. */
function assertOnce(outputs: Output[], least: number): void {
  for (const { code, err } of outputs) assert.equal(code, 0, err)
  const reports = outputs.flatMap(({ out }) => out.split('\n').filter((line) => line.startsWith('report of')))
  assert.ok(reports.length >= least, `${reports.length} reports: ${JSON.stringify(outputs)}`)
  assert.equal(new Set(reports).size, reports.length, `a report was done twice: ${JSON.stringify(outputs)}`)
}

test('cron.mjs on two replicas does each report once', async () => {
  const outputs = await Promise.all([1, 2].map(() => run('cron.mjs', { RUN_FOR: '7500' })))
  assertOnce(outputs, 2)
  const skipped = outputs.flatMap(({ out }) => out.split('\n').filter((line) => line.startsWith('skipped')))
  assert.ok(skipped.length >= 1, JSON.stringify(outputs))
})

test('worker.mjs on two replicas does each report of schedule.mjs once', async () => {
  const workers = [1, 2].map(() => run('worker.mjs', { RUN_FOR: '8000' }))
  await check(named.find(({ file }) => file === 'schedule.mjs')!)
  assertOnce(await Promise.all(workers), 1)
})

test('a job that BullMQ starts again while its first worker is busy is done once', async () => {
  const stalled = `
    import { Queue, Worker } from 'bullmq'
    import { redlock } from './locks.mjs'
    const connection = { host: '127.0.0.1', port: ${ports[0]}, maxRetriesPerRequest: null }
    const once = redlock.once('stalled', 3_600_000)
    const isFirst = process.env.REPLICA === '1'
    if (isFirst) await once.create()
    const worker = new Worker('stalled', async () => {
      console.log('started')
      const result = await once.atLeastOnce(() => {
        console.log('worked')
        const end = Date.now() + 4000
        while (Date.now() < end);
      })
      console.log(result.outcome)
    }, { connection, lockDuration: 800, stalledInterval: 400, maxStalledCount: 5 })
    worker.on('error', () => {})
    if (isFirst) {
      const queue = new Queue('stalled', { connection })
      await queue.add('job', {})
      await queue.close()
    }
    setTimeout(() => process.exit(0), isFirst ? 7000 : 9000)`
  writeFileSync(join(folder, 'stalled.mjs'), stalled)
  const first = run('stalled.mjs', { REPLICA: '1' })
  await sleep(1500)
  const outputs = await Promise.all([first, run('stalled.mjs', { REPLICA: '2' })])
  const lines = outputs.flatMap(({ out }) => out.split('\n'))
  const count = (line: string) => lines.filter((other) => other === line).length
  assert.ok(count('started') >= 2, `BullMQ must start the job again: ${JSON.stringify(outputs)}`)
  assert.equal(count('worked'), 1, JSON.stringify(outputs))
  assert.ok(count('alreadyDone') >= 1, JSON.stringify(outputs))
})

test('each name of this package in the tables of the page exists', () => {
  const page = readFileSync(PAGE, 'utf8')
  const classes = [...page.matchAll(/^\| `(\w+Error)` \| `(ERR_QUORATE_\w*)/gm)].map(([, name]) => name!)
  assert.equal(classes.length, 8)
  for (const name of classes) assert.ok(name in quorate, name)
  const redlock = new quorate.Redlock(new quorate.Memory(1))
  for (const [, method] of page.matchAll(/redlock\.(\w+)\(/g)) {
    // Methods of npm redlock, in the table about moving.
    if (method === 'on' || method === 'quit') continue
    assert.ok(method! in redlock, method)
  }
})
