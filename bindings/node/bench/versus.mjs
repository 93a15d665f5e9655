/**
 * Compares this package with npm `redlock` 5, on five masters of this machine, in interleaved rounds: `scripts/node bench`.
 * Prints the median of the rounds. ROUNDS=3 SECONDS=3 change the number and the length of the rounds.
 */

import { spawn } from 'node:child_process'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { createRequire } from 'node:module'
import { Redlock } from '../dist/index.mjs'

const { default: OtherRedlock } = createRequire(import.meta.url)('redlock')
const ROUNDS = Number(process.env.ROUNDS ?? 3)
const SECONDS = Number(process.env.SECONDS ?? 3)
const TASKS = 64

function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address()
      server.close(() => resolve(port))
    })
  })
}

const ports = []
const servers = []
for (let n = 0; n < 5; n++) {
  const port = await freePort()
  const options = ['--port', `${port}`, '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', '--dir', tmpdir()]
  servers.push(spawn('redis-server', options, { stdio: 'ignore' }))
  ports.push(port)
}
process.on('exit', () => servers.forEach((server) => server.kill('SIGKILL')))
await sleep(1000)

const quorate = new Redlock(ports.map((port) => `redis://127.0.0.1:${port}`), { restartGuard: 'off' })
const clients = ports.map((port) => new Redis(port, '127.0.0.1'))
const redlock = new OtherRedlock(clients, { retryCount: 100, retryDelay: 10, retryJitter: 10 })

const cycles = {
  quorate: async (name) => (await quorate.acquire(name)).release(),
  redlock: async (name) => (await redlock.acquire([name], 10_000)).release(),
}

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)]

/** Median time of a cycle of one client, in microseconds. */
async function oneClient(cycle) {
  const times = []
  const end = performance.now() + SECONDS * 1000
  while (performance.now() < end) {
    const start = performance.now()
    await cycle('one')
    times.push((performance.now() - start) * 1000)
  }
  return median(times)
}

/** Locks a second of 64 tasks with a name each, and processor time of this process for a lock, in microseconds. */
async function manyTasks(cycle) {
  let locks = 0
  const used = process.cpuUsage()
  const start = performance.now()
  const task = async (_, n) => {
    while (performance.now() - start < SECONDS * 1000) {
      await cycle(`task-${n}`)
      locks += 1
    }
  }
  await Promise.all(Array.from({ length: TASKS }, task))
  const { user, system } = process.cpuUsage(used)
  return { rate: locks / ((performance.now() - start) / 1000), cpu: (user + system) / locks }
}

const results = { quorate: [], redlock: [] }
for (const cycle of Object.values(cycles)) for (let n = 0; n < 200; n++) await cycle('warm')
for (let round = 0; round < ROUNDS; round++) {
  for (const [name, cycle] of Object.entries(cycles)) {
    results[name].push({ p50: await oneClient(cycle), ...(await manyTasks(cycle)) })
  }
}
const column = (name, field) => median(results[name].map((result) => result[field]))
for (const [field, text] of [
  ['p50', 'one client, p50 of a cycle, us'],
  ['rate', '64 tasks, locks a second'],
  ['cpu', '64 tasks, processor time a lock, us'],
]) {
  const [own, other] = [column('quorate', field), column('redlock', field)]
  console.log(`${text}: quorate ${own.toFixed(0)}, redlock ${other.toFixed(0)}, ratio ${(own / other).toFixed(2)}`)
}
process.exit(0)
