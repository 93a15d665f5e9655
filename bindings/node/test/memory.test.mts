import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { start } from './programs.mjs'
import { Servers } from './servers.mjs'

const servers = new Servers()
before(() => servers.start(3))
after(() => servers.close())

test('100,000 cycles leave no memory behind', async () => {
  const body = `
    const cycles = async (count) => {
      const task = async (_, n) => {
        for (let k = 0; k < count / 64; k++) await (await redlock.acquire('m-' + n)).release()
      }
      await Promise.all(Array.from({ length: 64 }, task))
    }
    const measure = async () => {
      for (let n = 0; n < 5; n++) { gc(); await sleep(50) }
      return process.memoryUsage().rss / 2 ** 20
    }
    // Until then, the heap of the engine grows to its working size.
    await cycles(60_000)
    const before = await measure()
    await cycles(100_000)
    console.log(JSON.stringify({ before, after: await measure() }))`
  const { out, err } = await start(servers.urls, body, ['--expose-gc']).done
  assert.equal(err, '')
  const { before, after } = JSON.parse(out) as { before: number; after: number }
  assert.ok(after - before < 12, `${before.toFixed(1)} MiB before, ${after.toFixed(1)} MiB after`)
  console.log(`memory: ${before.toFixed(1)} MiB before, ${after.toFixed(1)} MiB after`)
})
