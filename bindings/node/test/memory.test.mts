import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { after, before, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { Servers } from './servers.mjs'

const servers = new Servers()
before(() => servers.start(3))
after(() => servers.close())

test('100,000 cycles leave no memory behind', async () => {
  const program = fileURLToPath(new URL('../bench/memory.mjs', import.meta.url))
  const run = promisify(execFile)
  const { stdout, stderr } = await run(process.execPath, ['--expose-gc', program, ...servers.urls])
  assert.equal(stderr, '')
  const { before, after } = JSON.parse(stdout) as { before: number; after: number }
  assert.ok(after - before < 12, `${before.toFixed(1)} MiB before, ${after.toFixed(1)} MiB after`)
  console.log(`memory: ${before.toFixed(1)} MiB before, ${after.toFixed(1)} MiB after`)
})
