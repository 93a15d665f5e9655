import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import {
  InvalidSettingsError,
  LockHeldError,
  LockLostError,
  Memory,
  NoQuorumError,
  Redlock,
  type RedlockOptions,
} from '../dist/index.mjs'
import { Servers, sleep } from './servers.mjs'

const servers = new Servers()
const options: RedlockOptions = { restartGuard: 'off', ttl: 2000 }
let redlock: Redlock

before(async () => {
  await servers.start()
  redlock = new Redlock(servers.urls, options)
})
after(() => servers.close())

test('a lock is held in an await using block and free afterwards', async () => {
  let token = 0n
  {
    await using guard = await redlock.acquire('cycle', { wait: 5000 })
    assert.ok(guard.isValid() && guard.remaining > 1000 && guard.lost === null)
    assert.deepEqual(guard.resources, ['cycle'])
    assert.equal(guard.slot, null)
    token = guard.fencingToken!
    assert.equal(await redlock.tryAcquire('cycle'), null)
    assert.equal((await redlock.status('cycle')).verdict, 'held')
  }
  assert.equal((await redlock.status('cycle')).verdict, 'free')
  const guard = await redlock.acquire('cycle')
  assert.ok(guard.fencingToken! > token)
  assert.equal(await guard.release(), true)
  assert.equal(await guard.release(), true)
  assert.equal(guard.lost, 'released')
  assert.throws(() => guard.check(), LockLostError)
  await assert.rejects(guard.extend(1000), LockLostError)
})

test('a lock that another client holds rejects with its holder and the reply of each master', async () => {
  const other = new Redlock(servers.urls, { ...options, note: 'nightly report' })
  await using guard = await other.acquire('held')
  await sleep(300)
  await assert.rejects(redlock.acquire('held', { wait: 200 }), (error: unknown) => {
    assert.ok(error instanceof LockHeldError)
    assert.equal(error.code, 'ERR_QUORATE_HELD')
    assert.equal(error.name, 'LockHeldError')
    assert.equal(error.resource, 'held')
    assert.equal(error.heldHere, false)
    assert.equal(error.foreign, false)
    assert.equal(error.holder?.text, 'nightly report')
    assert.equal(error.holder?.pid, process.pid)
    assert.ok(error.holder!.since instanceof Date)
    assert.ok(error.waited >= 190 && error.attempts >= 1)
    assert.equal(error.reports.length, 5)
    assert.ok(error.reports.some((report) => report.outcome === 'no' && report.phase === 'acquire'))
    assert.ok(!error.message.includes('127.0.0.1') && error.details.includes('127.0.0.1'))
    return true
  })
  await assert.rejects(other.acquire('held', { wait: 50 }), (error: unknown) => (error as LockHeldError).heldHere)
  assert.ok(guard.isValid())
})

test('several locks, permits and readers', async () => {
  const both = await redlock.acquire(['account:1', 'account:2'])
  assert.deepEqual(both.resources.sort(), ['account:1', 'account:2'])
  assert.equal(await redlock.tryAcquire('account:2'), null)
  await both.release()
  const [one, two] = [await redlock.permit('api', 2), await redlock.permit('api', 2)]
  assert.deepEqual([one.slot, two.slot].sort(), [0, 1])
  assert.equal(await redlock.tryPermit('api', 2), null)
  const { permits } = await redlock.semaphoreStatus('api')
  assert.deepEqual(permits.map((permit) => permit.slot).sort(), [0, 1])
  await Promise.all([one.release(), two.release()])
  const readers = [await redlock.acquire('page', { shared: true }), await redlock.acquire('page', { shared: true })]
  assert.equal(await redlock.tryAcquire('page'), null)
  assert.equal((await redlock.status('page')).holds.length, 2)
  await Promise.all(readers.map((reader) => reader.release()))
  await (await redlock.acquire('page', { wait: 1000 })).release()
})

test('an owner holds its lock several times and excludes others', async () => {
  const owner = redlock.owner('order-4711')
  const outer = await owner.acquire('stock')
  const elsewhere = new Redlock(servers.urls, options).owner('order-4711')
  const inner = await elsewhere.acquire('stock')
  assert.equal(inner.fencingToken, outer.fencingToken)
  assert.equal(await redlock.owner('order-1').tryAcquire('stock'), null)
  assert.equal(await owner.using('stock', async (_, guard) => guard.fencingToken), outer.fencingToken)
  await outer.release()
  assert.equal((await redlock.status('stock')).verdict, 'held')
  await inner.release()
  await assert.rejects(redlock.owner('').acquire('stock'), InvalidSettingsError)
})

test('a lock is extended and its validity grows', async () => {
  await using guard = await redlock.acquire('extended', { ttl: 2000, renewal: false })
  await guard.extend(20_000)
  assert.ok(guard.remaining > 15_000, `${guard.remaining}`)
  await assert.rejects(guard.extend(3_600_000), InvalidSettingsError)
  await assert.rejects(guard.extend(-1), InvalidSettingsError)
  // Either the extension or the release comes first.
  const extending = guard.extend(25_000).catch((error: unknown) => assert.ok(error instanceof LockLostError))
  assert.equal(await guard.release(), true)
  await extending
  assert.deepEqual(await servers.keysAfter('extended', 1000), [])
})

test('tasks that share a lock run one at a time', async () => {
  let count = 0
  const task = async () => {
    for (let n = 0; n < 5; n++) {
      await using guard = await redlock.acquire('count')
      const seen = count
      await null
      count = seen + 1
      assert.ok(guard.isValid())
    }
  }
  await Promise.all(Array.from({ length: 64 }, task))
  assert.equal(count, 320)
})

test('the list shows held locks with their state', async () => {
  await using first = await redlock.acquire('listed:a')
  await using second = await redlock.permit('listed:b', 3)
  const { locks, complete, majorityAnswered, faults } = await redlock.list('listed:')
  assert.deepEqual(locks.map(({ name, slot, verdict }) => ({ name, slot, verdict })), [
    { name: 'listed:a', slot: null, verdict: 'held' },
    { name: 'listed:b', slot: second.slot, verdict: 'held' },
  ])
  assert.ok(complete && majorityAnswered && faults.length === 0)
  assert.equal(locks[0]!.masters[0]!.fencingToken, first.fencingToken)
})

test('inspect reports each master', async () => {
  const inspections = await redlock.inspect()
  assert.deepEqual(inspections.map(({ master }) => master), redlock.masters)
  for (const inspection of inspections) {
    assert.equal(inspection.fault, null)
    assert.match(inspection.server!, /redis|valkey/)
    assert.deepEqual(inspection.missingRights, [])
    assert.ok(inspection.roundTrip! < 1000 && Math.abs(inspection.clockOffset!) < 1000)
  }
})

const isInvalid = (message: RegExp) => (error: Error) =>
  error instanceof InvalidSettingsError && message.test(error.message)

test('options with wrong names or values are refused', async () => {
  const refused: [() => unknown, RegExp][] = [
    [() => new Redlock([]), /no master/],
    [() => new Redlock(['http://a']), /master/],
    [() => new Redlock('redis://a' as never), /list of URLs/],
    [() => new Redlock([{} as never]), /client objects/],
    [() => new Redlock(['redis://a'], { ttl: -1 }), /ttl is -1/],
    [() => new Redlock(['redis://a'], { duration: 1 } as never), /no option "duration": use ttl/],
    [() => new Redlock(['redis://a'], { restartGuard: 'never' as never }), /restartGuard/],
    [() => new Redlock(['redis://a'], { caFile: '/missing.pem' }), /cannot read/],
    [() => new Memory(0), /masters/],
    [() => new Memory(65), /64/],
    [() => new Memory(3).set(3, 'down'), /no master 3/],
    [() => new Memory(3).set(0, 'asleep' as never), /condition/],
  ]
  for (const [call, message] of refused) {
    assert.throws(call, isInvalid(message), `${message}`)
  }
  const rejected: [() => Promise<unknown>, RegExp][] = [
    [() => redlock.acquire(''), /./],
    [() => redlock.acquire(5 as never), /the name is 5/],
    [() => redlock.acquire([]), /./],
    [() => redlock.acquire('a', { wait: NaN }), /wait is NaN/],
    [() => redlock.acquire('a', { ttl: 3_600_000 }), /ttl/],
    [() => redlock.acquire('a', { ttl: Infinity }), /ttl is Infinity/],
    [() => redlock.acquire('a', { toString: 1 } as never), /no option/],
    [() => redlock.acquire('a', { note: 'x'.repeat(2000) }), /note/],
    [() => redlock.permit('a', 0), /permits?/],
    [() => redlock.permit('a', 65), /permits?/],
    [() => redlock.permit('a', 2, { shared: true } as never), /shared/],
    [() => redlock.status('x'.repeat(5000)), /./],
    [() => redlock.quota('q').take(0.5), /units is 0.5/],
  ]
  for (const [call, message] of rejected) {
    await assert.rejects(call, isInvalid(message), `${message}`)
  }
})

test('passwords are in no error text', () => {
  const fails = () => new Redlock(['redis://user:secret@host:port/x'])
  assert.throws(fails, (error: Error) => !`${error.stack}${JSON.stringify(error)}`.includes('secret'))
})

test('settings are read from the environment', async () => {
  process.env['QUORATE_MASTERS'] = servers.urls.join(',')
  process.env['QUORATE_RESTART_GUARD'] = 'off'
  process.env['QUORATE_TTL'] = '3s'
  const fromEnv = Redlock.fromEnv({ prefix: 'env:' })
  await using guard = await fromEnv.acquire('settings')
  assert.ok(guard.remaining > 2000 && guard.remaining <= 3000)
  assert.ok((await servers.keys('env:settings')).length >= 3)
  process.env['QUORATE_TTL'] = '3 parsecs'
  assert.throws(() => Redlock.fromEnv(), /QUORATE_TTL/)
  delete process.env['QUORATE_TTL']
  delete process.env['QUORATE_MASTERS']
  assert.throws(() => Redlock.fromEnv(), /QUORATE_MASTERS/)
})

test('masters in memory act as servers', async () => {
  const masters = new Memory(3)
  const [here, there] = [new Redlock(masters), new Redlock(masters)]
  const guard = await here.acquire('stock')
  assert.equal(await there.tryAcquire('stock'), null)
  masters.set(0, 'down')
  await guard.release()
  await (await there.acquire('stock')).release()
  masters.set(1, 'mute')
  await assert.rejects(here.acquire('stock', { wait: 100 }), (error: unknown) => {
    return error instanceof NoQuorumError && error.code === 'ERR_QUORATE_NO_QUORUM' && error.passesByItself
  })
  masters.set(1, 'up')
  masters.forget(1)
  await (await here.acquire('stock', { wait: 1000 })).release()
})

test('a note is published, and null publishes nothing', async () => {
  await using open = await redlock.acquire('note:open', { note: 'invoice 42' })
  await using closed = await redlock.acquire('note:closed', { note: null })
  await sleep(400)
  const holder = (await redlock.status('note:open')).holder
  assert.equal(holder?.text, 'invoice 42')
  assert.ok(Math.abs(Date.now() - holder.since.getTime()) < 5000)
  assert.equal((await redlock.status('note:closed')).holder, null)
  assert.ok(open.isValid() && closed.isValid())
})
