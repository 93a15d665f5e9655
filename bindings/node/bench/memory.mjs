/**
 * Prints the memory of this process before and after 100,000 locks, in MiB: `node --expose-gc memory.mjs URL..`. The
 * arguments are the masters.
 */

import { setTimeout as sleep } from 'node:timers/promises'
import { Redlock } from '../dist/index.mjs'

const redlock = new Redlock(process.argv.slice(2), { restartGuard: 'off', ttl: 20_000 })

async function cycles(count) {
  const task = async (_, n) => {
    for (let k = 0; k < count / 64; k++) await (await redlock.acquire(`m-${n}`)).release()
  }
  await Promise.all(Array.from({ length: 64 }, task))
}

async function measure() {
  for (let n = 0; n < 5; n++) {
    globalThis.gc()
    await sleep(50)
  }
  return process.memoryUsage().rss / 2 ** 20
}

// Until then, the heap of the engine grows to its working size.
await cycles(60_000)
const before = await measure()
await cycles(100_000)
console.log(JSON.stringify({ before, after: await measure() }))
