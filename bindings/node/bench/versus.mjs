/**
 * Compares this package with npm `redlock` 5, on five masters of this machine: `scripts/node bench`. Prints each goal
 * of the package, with the median of the rounds. In each round, both packages take turns. ROUNDS=3 SECONDS=3 change the
 * number of rounds and the time of one measurement.
 */

import { execFile } from 'node:child_process'
import { createRequire } from 'node:module'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { Redis } from 'ioredis'
import { Redlock } from '../dist/index.mjs'
import { Servers } from '../test-dist/servers.mjs'

const { default: OtherRedlock } = createRequire(import.meta.url)('redlock')
const ROUNDS = Number(process.env.ROUNDS ?? 3)
const SECONDS = Number(process.env.SECONDS ?? 3)
const TASKS = 64

const servers = new Servers()
process.on('exit', () => servers.close())
await servers.start()
const quorate = new Redlock(servers.urls, { restartGuard: 'off' })
const clients = servers.ports.map((port) => new Redis(port, '127.0.0.1'))
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
  return { rate: locks / ((performance.now() - start) / 1000), processor: (user + system) / locks }
}

/** Median times of a cycle while all masters run, and while one of them does not answer. */
async function oneMasterStopped(cycle) {
  const up = await oneClient(cycle)
  const master = servers.processes[0]
  master.kill('SIGSTOP')
  // After its first missed answers, the client no longer waits for this master.
  await sleep(500)
  const stopped = await oneClient(cycle)
  master.kill('SIGCONT')
  await sleep(500)
  return { up, stopped }
}

/** How much the memory of another process grows over 100,000 locks, in MiB. */
async function memory() {
  const program = fileURLToPath(new URL('memory.mjs', import.meta.url))
  const { stdout } = await promisify(execFile)(process.execPath, ['--expose-gc', program, ...servers.urls])
  const { before, after } = JSON.parse(stdout)
  return after - before
}

async function round(names) {
  const results = {}
  for (const name of names) results[name] = { p50: await oneClient(cycles[name]) }
  for (const name of names) Object.assign(results[name], await manyTasks(cycles[name]))
  Object.assign(results, await oneMasterStopped(cycles.quorate))
  results.growth = await memory()
  return results
}

for (const cycle of Object.values(cycles)) for (let n = 0; n < 200; n++) await cycle('warm')
const rounds = []
for (let n = 0; n < ROUNDS; n++) {
  rounds.push(await round(n % 2 === 0 ? ['quorate', 'redlock'] : ['redlock', 'quorate']))
}

const of = (measure) => median(rounds.map(measure))

/** Prints one goal. `isLeast`: whether the goal is the smallest good value, instead of the largest one. */
function print(text, value, goal, isLeast, figures) {
  const isMet = isLeast ? value >= goal : value <= goal
  const limit = `${isLeast ? 'at least' : 'at most'} ${goal}`
  console.log(`${text}: ${value.toFixed(2)} (goal: ${limit}, ${isMet ? 'met' : 'MISSED'}; ${figures})`)
}

function compare(text, field, goal, isLeast) {
  const [own, other] = ['quorate', 'redlock'].map((name) => of((result) => result[name][field]).toFixed(0))
  const ratio = of(({ quorate, redlock }) => quorate[field] / redlock[field])
  print(text, ratio, goal, isLeast, `quorate ${own}, redlock ${other}`)
}

console.log(`medians of ${ROUNDS} rounds; ratios to npm redlock 5 where nothing else is said`)
compare('one client, time of a cycle (us)', 'p50', 1.75, false)
compare('64 tasks, locks a second', 'rate', 1.25, true)
compare('64 tasks, processor time of a lock (us)', 'processor', 0.7, false)
const [up, stopped] = ['up', 'stopped'].map((field) => of((result) => result[field]).toFixed(0))
const slower = of((result) => result.stopped / result.up)
print('one of five masters stopped, time of a cycle, of that before', slower, 1.2, false, `${stopped} us, ${up} us`)
const growths = rounds.map(({ growth }) => growth.toFixed(1)).join(', ')
print('memory over 100,000 cycles, growth (MiB)', of(({ growth }) => growth), 4, false, `each round: ${growths}`)
process.exit(0)
