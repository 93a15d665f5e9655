/**
 * Runs users' test files (`jest/`) with Jest: `node run-jest.mjs FOLDER`. The packed packages and Jest are installed in
 * the folder. Fails if Jest does not end by itself, if it prints a warning, or if a lock is left on the masters.
 */

import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { cpSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { Servers } from '../test-dist/servers.mjs'

const folder = process.argv[2]
cpSync(fileURLToPath(new URL('../jest', import.meta.url)), folder, { recursive: true })
const servers = new Servers()
process.on('exit', () => servers.close())
await servers.start(3)

for (const options of [['--maxWorkers=2'], ['--detectOpenHandles']]) {
  const env = { ...process.env, MASTERS: servers.urls.join(',') }
  const command = ['node_modules/jest/bin/jest.js', '--ci', ...options]
  // Far longer than the tests take: reached only if something keeps Jest.
  const run = { cwd: folder, env, encoding: 'utf8', timeout: 180_000 }
  const { status, signal, stdout, stderr } = spawnSync(process.execPath, command, run)
  const output = stdout + stderr
  assert.deepEqual({ status, signal }, { status: 0, signal: null }, output)
  assert.match(output, /^Tests: +6 passed, 6 total$/m, output)
  assert.doesNotMatch(output, /did not exit|failed to exit|warning/i, output)
  // Jest lists each function that native threads may call, also if it keeps nothing.
  const handles = [...output.matchAll(/^ +● +(.*)$/gm)].map(([, handle]) => handle)
  assert.deepEqual(handles.filter((handle) => handle !== 'napi_rs_threadsafe_function'), [], output)
  assert.deepEqual(await servers.keysAfter('jest:', 1000), [], 'keys that Jest left')
  console.log(`Jest ${options}: ${/^Tests: +(.*)$/m.exec(output)[1]}`)
}
process.exit(0)
