import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { test } from 'node:test'
import {
  InvalidSettingsError,
  type Leader,
  Memory,
  type OnceResult,
  Redlock,
  StoppedError,
  ValueError,
} from '../dist/index.mjs'
import { start } from './programs.mjs'
import { sleep } from './servers.mjs'

const HOUR = 3_600_000

test('a quota hands out its units once', async () => {
  const masters = new Memory(3)
  const quota = new Redlock(masters).quota('prizes')
  await assert.rejects(quota.take(), (error: unknown) => {
    return error instanceof ValueError && error.code === 'ERR_QUORATE_VALUE_MISSING' && error.reports.length === 3
  })
  await quota.create(3)
  await assert.rejects(quota.create(3), { code: 'ERR_QUORATE_VALUE_EXISTS' })
  assert.deepEqual(await quota.take(2), { taken: true, left: 1 })
  assert.deepEqual(await new Redlock(masters).quota('prizes', { wait: 1000 }).take(2), { taken: false, left: 1 })
  assert.equal(await quota.left(), 1)
  assert.equal(await quota.drop(), true)
  assert.equal(await quota.drop(), false)
})

test('a job runs once per period, on one of several machines', async () => {
  const masters = new Memory(5)
  const machines = Array.from({ length: 4 }, () => new Redlock(masters))
  const job = (redlock: Redlock) => redlock.once('nightly', HOUR)
  await assert.rejects(job(machines[0]!).atMostOnce(() => 1), { code: 'ERR_QUORATE_VALUE_MISSING' })
  await job(machines[0]!).create()
  assert.deepEqual(await job(machines[0]!).record(), { last: null, note: '' })
  let runs = 0
  const results = await Promise.all(
    machines.map((machine) =>
      job(machine).atMostOnce(async (signal, fencingToken) => {
        assert.ok(typeof fencingToken === 'bigint' && !signal.aborted)
        await sleep(20)
        return ++runs
      }),
    ),
  )
  assert.equal(runs, 1)
  const outcomes = results.map(({ outcome }) => outcome).sort()
  assert.deepEqual(outcomes, ['alreadyDone', 'alreadyDone', 'alreadyDone', 'done'])
  const skipped = results.find(({ outcome }) => outcome === 'alreadyDone') as { next: number }
  assert.ok(skipped.next > 0 && skipped.next <= HOUR)
  const { last } = await job(machines[1]!).record()
  assert.equal(last!.getTime() % HOUR, 0)
  assert.equal(await job(machines[1]!).dropRecord(), true)
})

test('atLeastOnce runs again after an error of the body, and atMostOnce does not', async () => {
  const redlock = new Redlock(new Memory(3))
  const again = redlock.once('again', HOUR)
  await again.create()
  await assert.rejects(again.atLeastOnce(() => { throw new RangeError('first') }), RangeError)
  assert.deepEqual(await again.atLeastOnce(() => 'second'), { outcome: 'done', value: 'second' })
  assert.equal((await again.atLeastOnce(() => 'third')).outcome, 'alreadyDone')
  const never = redlock.once('never', HOUR)
  await never.create()
  await assert.rejects(never.atMostOnce(() => { throw new RangeError('first') }), RangeError)
  assert.equal((await never.atMostOnce(() => 'second')).outcome, 'alreadyDone')
})

test('a job whose body does not run leaves nothing behind', async () => {
  const { bridge } = createRequire(import.meta.url)('../dist/bridge.js') as typeof import('../dist/bridge.js')
  const redlock = new Redlock(new Memory(3))
  const job = redlock.once('left', HOUR)
  const before = bridge.openCalls()
  await assert.rejects(job.atLeastOnce(() => 1), { code: 'ERR_QUORATE_VALUE_MISSING' })
  await job.create()
  assert.equal((await job.atMostOnce(() => 1)).outcome, 'done')
  for (let n = 0; n < 5; n++) assert.equal((await job.atMostOnce(() => 1)).outcome, 'alreadyDone')
  assert.equal(bridge.openCalls(), before)
})

test('a period of a calendar is done once', async () => {
  const redlock = new Redlock(new Memory(3))
  const january = { start: new Date('2026-01-01T00:00:00Z'), end: new Date('2026-02-01T00:00:00Z') }
  const february = { start: new Date('2026-02-01T00:00:00Z'), end: new Date('2026-03-01T00:00:00Z') }
  await redlock.once('invoices', january).create()
  assert.equal((await redlock.once('invoices', january).atMostOnce(() => 1)).outcome, 'done')
  assert.equal((await redlock.once('invoices', january).atMostOnce(() => 1)).outcome, 'alreadyDone')
  assert.equal((await redlock.once('invoices', february).atMostOnce(() => 1)).outcome, 'done')
  assert.deepEqual((await redlock.once('invoices', february).record()).last, february.start)
  const backwards = redlock.once('invoices', { start: february.end, end: february.start })
  await assert.rejects(backwards.atMostOnce(() => 1), InvalidSettingsError)
  assert.throws(() => redlock.once('invoices', NaN), InvalidSettingsError)
})

test('a body that loses its lock is stopped', async () => {
  const masters = new Memory(3)
  const redlock = new Redlock(masters, { ttl: 300 })
  const job = redlock.once('stopped', HOUR)
  await job.create()
  let reason: unknown
  const stopped = job.atMostOnce(async (signal) => {
    await redlock.breakLock('stopped')
    await new Promise((resolve) => signal.addEventListener('abort', resolve))
    reason = signal.reason
  })
  await assert.rejects(stopped, (error: unknown) => {
    return error instanceof StoppedError && error.recorded && error.cause === 'taken_away'
  })
  assert.equal((reason as { code: string }).code, 'ERR_QUORATE_LOST')
})

test('a body that ends before the event loop learns of the loss has outlived its lock', async () => {
  const redlock = new Redlock(new Memory(3), { ttl: 300 })
  const outlive = async (name: string): Promise<string> => {
    await redlock.breakLock(name)
    // The native thread notices the loss at its next renewal, after 100 ms.
    const end = Date.now() + 1000
    while (Date.now() < end);
    return 'ended'
  }
  const once = redlock.once('outlived', HOUR)
  await once.create()
  const result = await once.atMostOnce(() => outlive('outlived'))
  assert.deepEqual(result, { outcome: 'outlived', value: 'ended', cause: 'taken_away' })
  assert.equal((await once.atMostOnce(() => 1)).outcome, 'alreadyDone')
  const again = redlock.once('unrecorded', HOUR)
  await again.create()
  const unrecorded = await again.atLeastOnce(() => outlive('unrecorded'))
  assert.ok(unrecorded.outcome === 'notRecorded' && unrecorded.value === 'ended')
  assert.equal(unrecorded.error.code, 'ERR_QUORATE_VALUE_LOCK_LOST')
  assert.equal((await again.atLeastOnce(() => 1)).outcome, 'done')
})

test('the process does not end while the body of a job runs', async () => {
  const body = `const jobs = new Redlock(new quorate.Memory(3), { ttl: 300 })
    await jobs.once('alive', 3_600_000).create()
    const result = jobs.once('alive', 3_600_000).atMostOnce(async (signal) => {
      await jobs.breakLock('alive')
      // Nothing of the user keeps the process alive now.
      await new Promise((resolve) => signal.addEventListener('abort', resolve))
    })
    await result.catch(({ code }) => console.log(code))`
  const { out, err } = await start(['redis://127.0.0.1:1'], body).done
  assert.equal(err, '')
  assert.equal(out, 'ERR_QUORATE_VALUE_STOPPED\n')
})

test('the record of a job waits for the lock as long as its option says', async () => {
  const redlock = new Redlock(new Memory(3), { wait: 60_000 })
  await redlock.once('waiting', HOUR).create()
  await using held = await redlock.acquire('waiting')
  await assert.rejects(redlock.once('waiting', HOUR, { wait: 50 }).record(), { code: 'ERR_QUORATE_HELD' })
  assert.ok(held.isValid())
})

test('a signal ends the wait of a job, and afterwards aborts its body', async () => {
  const redlock = new Redlock(new Memory(3))
  const job = redlock.once('signal', HOUR)
  await job.create()
  const held = await redlock.acquire('signal')
  await assert.rejects(job.atMostOnce(() => 1, { signal: AbortSignal.timeout(50) }), { name: 'TimeoutError' })
  await held.release()
  const controller = new AbortController()
  const result: OnceResult<string> = await job.atMostOnce(async (signal) => {
    controller.abort(new Error('stop'))
    return signal.aborted ? 'stopped early' : 'ran on'
  }, { signal: controller.signal })
  assert.deepEqual(result, { outcome: 'done', value: 'stopped early' })
  const late = job.atMostOnce(() => 1, { signal: AbortSignal.abort(new Error('late')) })
  await assert.rejects(late, /late/)
})

test('candidates lead one after the other, and observers see each leader', async () => {
  const masters = new Memory(5)
  const [one, two, three] = [new Redlock(masters), new Redlock(masters), new Redlock(masters)]
  const seen: (Leader | null)[] = []
  const controller = new AbortController()
  const observing = (async () => {
    for await (const leader of three.election('scheduler').observe({ signal: controller.signal })) seen.push(leader)
  })()
  observing.catch(() => undefined)
  await sleep(50)
  const first = await one.election('scheduler').campaign('10.0.0.1:9000')
  assert.ok(first.isValid() && first.term === first.fencingToken)
  const campaign = two.election('scheduler').campaign('10.0.0.2:9000')
  await sleep(150)
  await first.resign()
  const second = await campaign
  assert.ok(second.term > first.term)
  await sleep(300)
  controller.abort(new Error('enough'))
  await assert.rejects(observing, /enough/)
  const leaders = seen.filter((leader) => leader?.note != null).map((leader) => [leader!.term, leader!.note!.text])
  assert.deepEqual(leaders, [[first.term, '10.0.0.1:9000'], [second.term, '10.0.0.2:9000']])
  assert.equal(seen[0], null)
  const waiting = one.election('scheduler').campaign(null, { signal: AbortSignal.timeout(50) })
  await assert.rejects(waiting, { name: 'TimeoutError' })
  for await (const leader of three.election('scheduler').observe()) {
    assert.equal(leader?.term, second.term)
    break
  }
  await second[Symbol.asyncDispose]()
  await assert.rejects(one.election('').campaign(), InvalidSettingsError)
})
