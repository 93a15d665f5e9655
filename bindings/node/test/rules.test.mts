// The rules of this package: the event loop may be blocked, a wait can be ended, nothing is lost silently, and nothing
// keeps the process alive.

import assert from 'node:assert/strict'
import { type ChildProcess, fork } from 'node:child_process'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { Worker } from 'node:worker_threads'
import {
  type AtRisk,
  InvalidSettingsError,
  LockLostError,
  type LogMessage,
  type LostMessage,
  NoQuorumError,
  publishLogs,
  Redlock,
} from '../dist/index.mjs'
import { INDEX, start } from './programs.mjs'
import { Servers, sleep } from './servers.mjs'

const servers = new Servers()
const options = { restartGuard: 'off', ttl: 2000 } as const
let redlock: Redlock

before(async () => {
  await servers.start()
  redlock = new Redlock(servers.urls, options)
})
after(() => servers.close())

function blockEventLoop(milliseconds: number): void {
  const end = Date.now() + milliseconds
  while (Date.now() < end);
}

const aborted = (signal: AbortSignal): Promise<unknown> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve(signal.reason)
    else signal.addEventListener('abort', () => resolve(signal.reason), { once: true })
  })

/**
 * Asks each master again and again on another thread, until the end of the test. Returns a function for the longest
 * time, in milliseconds, that a master was silent: it grows if the machine gives the masters or a thread no time.
 */
function watchMasters(): () => number {
  // For each master, the time of its last answer, and its longest silence.
  const times = new Float64Array(new SharedArrayBuffer(servers.ports.length * 16))
  const script = `const { workerData } = require('node:worker_threads')
    const { connect } = require('node:net')
    const times = workerData.times
    workerData.ports.forEach((port, n) => {
      const socket = connect(port, '127.0.0.1', () => socket.write('PING\\r\\n'))
      socket.on('data', () => {
        if (times[2 * n] !== 0) times[2 * n + 1] = Math.max(times[2 * n + 1], Date.now() - times[2 * n])
        times[2 * n] = Date.now()
        setTimeout(() => socket.write('PING\\r\\n'), 5)
      })
    })`
  const worker = new Worker(script, { eval: true, workerData: { times, ports: servers.ports } })
  after(() => worker.terminate())
  return () => Math.max(...servers.ports.map((_, n) => Math.max(times[2 * n + 1]!, Date.now() - times[2 * n]!)))
}

// A lock with a short ttl is lost if the machine is too busy to run the native thread or the masters in time. The test
// then proves nothing, and a longer ttl is tried. If the renewal needed the event loop, each ttl would lose the lock.
test('an event loop that is blocked for four ttls loses no lock', async () => {
  const ttls = [500, 2000, 8000]
  const longestSilence = watchMasters()
  await sleep(500)
  for (const ttl of ttls) {
    // A renewal fails only if a majority of the masters is silent for longer than this.
    const nodeTimeout = ttl / 4
    const holder = new Redlock(servers.urls, { ...options, nodeTimeout, ttl })
    const other = new Redlock(servers.urls, options)
    await using guard = await holder.acquire('blocked')
    blockEventLoop(4 * ttl)
    const [isValid, silence] = [guard.isValid(), longestSilence()]
    if (!isValid && silence > nodeTimeout / 2 && ttl !== ttls.at(-1)) continue
    assert.ok(isValid, `ttl ${ttl} ms: the masters and another thread were silent for ${silence} ms at most`)
    assert.equal(guard.lost, null)
    assert.equal(await other.tryAcquire('blocked'), null)
    assert.equal(guard.signal.aborted, false)
    return
  }
})

test('a cancelled wait leaves nothing on the masters', async () => {
  const other = new Redlock(servers.urls, options)
  const held = await redlock.acquire('cancelled')
  const keysOfWaiters = () => servers.keysAfter('cancelled', 0, ['cancelled'])
  const controller = new AbortController()
  const waiting = other.acquire('cancelled', { wait: Infinity, signal: controller.signal })
  waiting.catch(() => undefined)
  await sleep(300)
  assert.notDeepEqual(await keysOfWaiters(), [], 'the waiter must be in the queue')
  controller.abort(new Error('enough'))
  await assert.rejects(waiting, /enough/)
  await sleep(100)
  assert.deepEqual(await keysOfWaiters(), [])
  await assert.rejects(other.acquire('cancelled', { signal: AbortSignal.timeout(100) }), { name: 'TimeoutError' })
  await assert.rejects(other.acquire('free', { signal: AbortSignal.abort(new Error('before')) }), /before/)
  await held.release()
})

test('10,000 cancelled acquires leave no key', async () => {
  const other = new Redlock(servers.urls, options)
  let acquired = 0
  for (let round = 0; round < 200; round++) {
    const attempts = Array.from({ length: 50 }, async (_, n) => {
      const controller = new AbortController()
      const acquiring = other.acquire(`many-${n % 10}`, { signal: controller.signal })
      setTimeout(() => controller.abort(), (n % 4) * 0.7)
      const guard = await acquiring.catch(() => null)
      if (guard !== null) acquired += 1
      await guard?.release()
    })
    await Promise.all(attempts)
  }
  assert.deepEqual(await servers.keysAfter('many-', 1000), [])
  assert.ok(acquired < 10_000, `${acquired} of 10,000 acquires were not cancelled`)
})

test('10,000 cancelled waits leave no key', async () => {
  const names = Array.from({ length: 10 }, (_, n) => `waits-${n}`)
  const held = await Promise.all(names.map((name) => redlock.acquire(name)))
  const keysOfWaiters = (within: number) => servers.keysAfter('waits-', within, names)
  assert.deepEqual(await keysOfWaiters(0), [])
  const other = new Redlock(servers.urls, options)
  let cancelled = 0
  for (let round = 0; round < 200; round++) {
    const controllers = Array.from({ length: 50 }, () => new AbortController())
    const waits = controllers.map(async ({ signal }, n) => {
      await assert.rejects(other.acquire(names[n % names.length]!, { wait: Infinity, signal }), { name: 'AbortError' })
      cancelled += 1
    })
    if (round % 20 === 0) {
      const end = Date.now() + 20_000
      while ((await keysOfWaiters(0)).length === 0) {
        assert.ok(Date.now() < end, 'the waiters must be in the queue')
      }
    }
    controllers.forEach((controller, n) => setTimeout(() => controller.abort(), (n % 8) * 0.7 + (round % 7)))
    await Promise.all(waits)
  }
  assert.equal(cancelled, 10_000)
  // While the locks are still held, only the keys of their holder are left.
  assert.deepEqual(await keysOfWaiters(1000), [])
  assert.ok(held.every((guard) => guard.isValid()))
  await Promise.all(held.map((guard) => guard.release()))
  assert.deepEqual(await servers.keysAfter('waits-', 1000), [])
})

test('a loss aborts the signal of the guard and of using', async () => {
  const guard = await redlock.acquire('lost', { ttl: 1000 })
  await redlock.breakLock('lost')
  const reason = await aborted(guard.signal)
  assert.ok(reason instanceof LockLostError && reason.cause === 'taken_away' && reason.code === 'ERR_QUORATE_LOST')
  assert.ok(!guard.isValid() && guard.lost === 'taken_away')
  assert.equal(await guard.release(), false)
  assert.equal(guard.lost, 'taken_away')
  const broken = redlock.using(
    'lost',
    async (signal) => {
      await redlock.breakLock('lost')
      throw await aborted(signal)
    },
    { ttl: 1000 },
  )
  await assert.rejects(broken, LockLostError)
  const ignored = redlock.using('lost', async (_, guard) => {
    await redlock.breakLock('lost')
    await aborted(guard.signal)
    return 'a value that nobody may trust'
  }, { ttl: 1000 })
  await assert.rejects(ignored, LockLostError)
  assert.equal(await redlock.using('lost', () => 42), 42)
})

test('using rejects with the error of its body, and releases', async () => {
  await assert.rejects(redlock.using('body', () => { throw new TypeError('mine') }), TypeError)
  const controller = new AbortController()
  const stopped = redlock.using('body', async (signal) => {
    controller.abort(new Error('stop'))
    throw await aborted(signal)
  }, { signal: controller.signal })
  await assert.rejects(stopped, /stop/)
  assert.deepEqual(await servers.keysAfter('body', 500), [])
})

test('max_hold ends a lock, and the channel quorate:lost says so', async () => {
  const messages: LostMessage[] = []
  const listener = (message: unknown) => messages.push(message as LostMessage)
  subscribe('quorate:lost', listener)
  const guard = await redlock.acquire('bounded', { ttl: 1000, maxHold: 300 })
  const reason = await aborted(guard.signal)
  assert.ok(reason instanceof LockLostError && reason.cause === 'max_hold')
  assert.deepEqual(messages, [{ resources: ['bounded'], fencingToken: guard.fencingToken, cause: 'max_hold' }])
  await guard.release()
  unsubscribe('quorate:lost', listener)
})

test('a lock that is not renewed gives a notice before it is lost', async () => {
  const risks: AtRisk[] = []
  const guard = await redlock.acquire('risky', { ttl: 1000, renewal: false })
  guard.onAtRisk(500, (risk) => risks.push(risk))
  await sleep(300)
  assert.equal(risks.length, 0)
  assert.ok((await aborted(guard.signal)) instanceof LockLostError)
  assert.equal(risks.length, 1)
  assert.equal(risks[0]!.reason, 'not_renewed')
  assert.ok(risks[0]!.remaining > 0 && risks[0]!.remaining <= 500, `${risks[0]!.remaining}`)
  await guard.release()
  assert.throws(() => guard.onAtRisk(NaN, () => undefined), InvalidSettingsError)
  await using renewed = await redlock.acquire('safe', { ttl: 1000 })
  renewed.onAtRisk(200, (risk) => risks.push(risk))
  await sleep(1500)
  assert.equal(risks.length, 1)
})

test('an error of a listener is an uncaught error, and every other call is answered', async () => {
  const body = `const masters = new quorate.Memory(3)
    const [holder, other] = [new Redlock(masters), new Redlock(masters)]
    process.on('uncaughtException', (error) => console.log(error.message))
    // Ends the test if a call is never answered.
    setTimeout(() => process.exit(9), 20_000).unref()
    const guard = await holder.acquire('listener', { ttl: 1000, renewal: false })
    guard.onAtRisk(500, () => { throw new Error('mine') })
    const waiting = other.acquire('listener', { wait: 700 }).catch(({ code }) => code)
    await sleep(50)
    // The notice and the reply arrive together, the notice first.
    const end = Date.now() + 850
    while (Date.now() < end);
    console.log(await waiting)`
  const { out, err, code } = await start(servers.urls, body).done
  assert.equal(code, 0, err)
  assert.deepEqual(out.trim().split('\n').sort(), ['ERR_QUORATE_HELD', 'mine'])
})

test('logs of the native half reach the channel quorate:log', async () => {
  const messages: LogMessage[] = []
  const listener = (message: unknown) => messages.push(message as LogMessage)
  subscribe('quorate:log', listener)
  publishLogs('debug')
  await (await redlock.acquire('logged')).release()
  await sleep(100)
  publishLogs('off')
  const count = messages.length
  const record = messages.find(({ message }) => message === 'lock acquired')
  assert.ok(record !== undefined && record.level === 'debug')
  assert.ok(record.target.startsWith('quorate') && record.dropped === 0)
  await (await redlock.acquire('logged')).release()
  await sleep(100)
  assert.equal(messages.length, count)
  unsubscribe('quorate:log', listener)
})

test('logs that do not fit are counted, and nothing waits for the event loop', async () => {
  const messages: LogMessage[] = []
  const listener = (message: unknown) => messages.push(message as LogMessage)
  subscribe('quorate:log', listener)
  publishLogs('trace')
  const acquiring = Array.from({ length: 1200 }, (_, n) => redlock.acquire(`log-${n}`))
  // Each acquire writes records while nobody reads them.
  blockEventLoop(3000)
  await Promise.race(acquiring)
  assert.equal(messages.length, 1024, 'the first batch of messages')
  const guards = await Promise.all(acquiring)
  await Promise.all(guards.map((guard) => guard.release()))
  await sleep(100)
  publishLogs('off')
  unsubscribe('quorate:log', listener)
  const dropped = messages.reduce((sum, message) => sum + message.dropped, 0)
  assert.ok(dropped > 0, `${dropped} records were counted as dropped`)
})

test('a held lock does not keep the process alive, and every end of the process releases it', async () => {
  for (const [end, code] of [['', 0], ['process.exit(3)', 3], ['throw new Error("x")', 1]] as const) {
    const body = `globalThis.guard = await redlock.acquire('at-exit'); console.log(Date.now()); ${end}`
    const { out, err, code: found, milliseconds } = await start(servers.urls, body).done
    assert.equal(found, code, err)
    assert.ok(milliseconds < 10_000, `${milliseconds} ms`)
    assert.ok(Date.now() - Number(out) < 2000, `it took ${Date.now() - Number(out)} ms from the acquire to the end`)
    assert.match(err, /QuorateWarning: 1 lock was still held/)
    assert.deepEqual(await servers.keysAfter('at-exit', 300), [])
  }
})

test('the end of the process releases locks and waits of a Redlock that is no longer referenced', async () => {
  const body = `const urls = ${JSON.stringify(servers.urls)}
    const take = async (name) => (await new Redlock(urls, { restartGuard: 'off' }).acquire(name))
    globalThis.guards = [await take('orphan-1'), await take('orphan-2')]; gc(); await sleep(10)
    redlock.acquire('orphan-1', { wait: Infinity }); await sleep(200)
    process.exit(0)`
  const { err } = await start(servers.urls, body, ['--expose-gc']).done
  assert.match(err, /2 locks were still held/)
  assert.deepEqual(await servers.keysAfter('orphan', 300), [])
})

test('an end with masters that do not answer takes at most 400 ms', async () => {
  const stopped = servers.processes.slice(0, 3)
  const body = `globalThis.guard = await redlock.acquire('slow-exit')
    console.log('held'); await new Promise((resolve) => process.stdin.once('data', resolve))
    process.prependListener('exit', () => { globalThis.began = process.hrtime.bigint() })
    process.on('exit', () => console.error('took', Number(process.hrtime.bigint() - globalThis.began) / 1e6))
    process.exit(0)`
  const { child, done } = start(servers.urls, body)
  await firstOutput(child)
  for (const process of stopped) process.kill('SIGSTOP')
  child.stdin!.write('go\n')
  const { err } = await done
  for (const process of stopped) process.kill('SIGCONT')
  const took = Number(/took (\S+)/.exec(err)?.[1])
  // The limit, and time for this test on a busy machine.
  assert.ok(took < 500, `${took} ms: ${err}`)
})

const firstOutput = (child: ChildProcess): Promise<unknown> =>
  new Promise((resolve) => child.stdout!.once('data', resolve))

test('a suspended process loses its lock, and its signal aborts as soon as it continues', async () => {
  const body = `const guard = await redlock.acquire('suspended', { ttl: 1000 })
    guard.signal.addEventListener('abort', () => { console.log('lost', guard.lost); process.exit(0) })
    console.log('held'); setInterval(() => {}, 1000)`
  const { child, done } = start(servers.urls, body)
  await firstOutput(child)
  child.kill('SIGSTOP')
  const next = await redlock.acquire('suspended', { wait: 10_000 })
  await sleep(500)
  const continued = Date.now()
  child.kill('SIGCONT')
  const { out } = await done
  assert.match(out, /lost (expired|taken_away)/)
  assert.ok(Date.now() - continued < 1500, `${Date.now() - continued} ms`)
  await next.release()
})

test('a handled signal releases locks at once, and SIGKILL leaves them to their ttl', async () => {
  const handled = start(servers.urls, `process.once('SIGTERM', () => process.exit(143))
    globalThis.guard = await redlock.acquire('signal'); console.log('held'); setInterval(() => {}, 1000)`)
  await firstOutput(handled.child)
  handled.child.kill('SIGTERM')
  assert.equal((await handled.done).code, 143)
  assert.deepEqual(await servers.keysAfter('signal', 300), [])
  const killed = start(servers.urls, `globalThis.guard = await redlock.acquire('killed', { ttl: 1000 })
    console.log('held'); setInterval(() => {}, 1000)`)
  await firstOutput(killed.child)
  killed.child.kill('SIGKILL')
  await killed.done
  assert.ok((await servers.keys('killed')).length >= 3)
  assert.deepEqual(await servers.keysAfter('killed', 3000), [])
})

test('a pending call keeps the process alive until its reply', async () => {
  const held = await redlock.acquire('alive')
  const body = `const guard = await redlock.acquire('alive'); console.log('mine'); await guard.release()`
  const { done } = start(servers.urls, body)
  await sleep(700)
  await held.release()
  const { out, err } = await done
  assert.equal(out, 'mine\n')
  assert.equal(err, '')
})

test('a release that nobody awaits completes', async () => {
  const body = `const guard = await redlock.acquire('unawaited'); guard.release()`
  const { err } = await start(servers.urls, body).done
  assert.equal(err, '')
  assert.deepEqual(await servers.keysAfter('unawaited', 0), [])
})

test('a garbage-collected guard is released with a warning', async () => {
  const body = `await redlock.acquire('collected'); await sleep(50); gc(); await sleep(300)
    console.log((await redlock.status('collected')).verdict)`
  const { out, err } = await start(servers.urls, body, ['--expose-gc']).done
  assert.equal(out, 'free\n')
  assert.match(err, /QuorateWarning: the guard of the lock "collected" was garbage-collected/)
})

test('a call is answered even after its objects were garbage-collected', async () => {
  const body = `const masters = new quorate.Memory(3)
    const owner = new Redlock(masters)
    await owner.quota('collected').create(5)
    const held = await owner.acquire('collected')
    const calls = [
      new Redlock(masters).quota('collected', { wait: 60000 }).take(),
      new Redlock(masters).once('collected', 1000, { wait: 60000 }).record().catch(({ code }) => code),
      new Redlock(masters).quota('collected', { wait: 60000 }).left(),
    ]
    for (let n = 0; n < 5; n++) { await sleep(50); gc() }
    await held.release()
    console.log(JSON.stringify(await Promise.all(calls)))`
  const { out, err } = await start(servers.urls, body, ['--expose-gc']).done
  assert.equal(err, '')
  const [taken, record, left] = JSON.parse(out) as [unknown, string, number]
  assert.deepEqual(taken, { taken: true, left: 4 })
  assert.equal(record, 'ERR_QUORATE_VALUE_OTHER_KIND')
  assert.ok(left === 4 || left === 5)
})

test('the signal of a guard keeps its lock', async () => {
  const body = `globalThis.signal = (await redlock.acquire('by-signal')).signal; await sleep(50); gc(); await sleep(300)
    console.log((await redlock.status('by-signal')).verdict)`
  const { out } = await start(servers.urls, body, ['--expose-gc']).done
  assert.equal(out, 'held\n')
})

function startWorkers(count: number, body: string): Worker[] {
  const script = `const { parentPort, threadId } = require('node:worker_threads')
    const { Redlock } = require(${JSON.stringify(INDEX)})
    const redlock = new Redlock(${JSON.stringify(servers.urls)}, { restartGuard: 'off', ttl: 20000 })
    ;(async () => { ${body} })()`
  return Array.from({ length: count }, () => new Worker(script, { eval: true }))
}

const firstMessages = (workers: Worker[]): Promise<unknown> =>
  Promise.all(
    workers.map(
      (worker) =>
        new Promise((resolve, reject) => {
          worker.once('message', resolve)
          worker.once('error', reject)
        }),
    ),
  )

test('workers that are terminated while they hold locks release them', async () => {
  const workers = startWorkers(4, `for (let n = 0; n < 20; n++) await (await redlock.acquire('workers')).release()
    globalThis.guard = await redlock.acquire('worker-' + threadId); parentPort.postMessage('held')
    setInterval(() => {}, 1000)`)
  await firstMessages(workers)
  assert.ok((await servers.keys('worker-')).length >= 12)
  await Promise.all(workers.map((worker) => worker.terminate()))
  assert.deepEqual(await servers.keysAfter('worker-', 1500), [])
  await (await redlock.acquire('workers')).release()
})

test('workers that are terminated in mid-flight leave no key', async () => {
  for (let round = 0; round < 5; round++) {
    const workers = startWorkers(4, `parentPort.postMessage('started')
      for (let n = 0; ; n++) {
        const guards = await Promise.all([0, 1, 2, 3].map((k) => redlock.acquire('flight-' + ((n + k) % 6))))
        await Promise.all(guards.map((guard) => guard.release()))
      }`)
    await firstMessages(workers)
    await sleep(20 + 15 * round)
    await Promise.all(workers.map((worker) => worker.terminate()))
  }
  assert.deepEqual(await servers.keysAfter('flight-', 2000), [])
})

test('workers that are terminated in any kind of call leave no key', async () => {
  await using held = await redlock.acquire('calls-held')
  await redlock.once('calls-once', 10).create()
  await redlock.quota('calls-quota').create(1_000_000)
  const kept = ['calls-held', 'quorate:value:calls-once', 'quorate:value:calls-quota']
  const body = `const { subscribe } = require('node:diagnostics_channel')
    const ignore = () => undefined
    // On a busy machine, calls may fail.
    const pass = (error) => { if (!error.code?.startsWith('ERR_QUORATE_')) throw error }
    const forever = async (work) => { for (;;) await work().catch(pass) }
    subscribe('quorate:log', ignore)
    require(${JSON.stringify(INDEX)}).publishLogs('trace')
    const wait = 20000
    redlock.acquire('calls-held', { wait: Infinity }).catch(pass)
    forever(() => redlock.election('calls-election').campaign('note').then((leadership) => leadership.resign()))
    forever(() => redlock.once('calls-once', 10, { wait }).atMostOnce(() => 1))
    forever(() => redlock.once('calls-once', 10, { wait }).atLeastOnce(() => 1))
    forever(() => redlock.quota('calls-quota', { wait }).take())
    forever(() => redlock.permit('calls-permit', 2).then((guard) => guard.release()))
    forever(() => redlock.list('calls-'))
    forever(() => redlock.using('calls-using', async (signal, guard) => {
      guard.onAtRisk(1000, ignore)
      await guard.extend(20000)
    }))
    ;(async () => { for await (const leader of redlock.election('calls-election').observe()) ignore(leader) })()
    redlock.list('calls-').then(() => parentPort.postMessage('started'))`
  for (let round = 0; round < 10; round++) {
    const workers = startWorkers(4, body)
    await firstMessages(workers)
    await sleep(13 * round)
    await Promise.all(workers.map((worker) => worker.terminate()))
  }
  assert.deepEqual(await servers.keysAfter('calls-', 2000, kept), [])
  assert.ok(held.isValid())
  for (const name of ['calls-election', 'calls-permit', 'calls-using', 'calls-once', 'calls-quota']) {
    await (await redlock.acquire(name, { wait: 5000 })).release()
  }
})

test('the end of the process releases the locks of its workers', async () => {
  const body = `const { Worker } = require('node:worker_threads')
    const worker = new Worker(\`const { Redlock } = require(${JSON.stringify(INDEX)})
      const redlock = new Redlock(${JSON.stringify(servers.urls)}, { restartGuard: 'off', ttl: 20000 })
      redlock.acquire('of-worker').then((guard) => {
        globalThis.guard = guard
        require('node:worker_threads').parentPort.postMessage('held')
        setInterval(() => {}, 1000)
      })\`, { eval: true })
    worker.once('message', () => process.exit(0))`
  const { code, err } = await start(servers.urls, body).done
  assert.equal(code, 0)
  assert.match(err, /1 lock was still held/)
  assert.deepEqual(await servers.keysAfter('of-worker', 300), [])
})

test('a worker that ends by itself releases its locks', async () => {
  const [worker] = startWorkers(1, `globalThis.guard = await redlock.acquire('own-end')`)
  await new Promise((resolve) => worker!.once('exit', resolve))
  assert.deepEqual(await servers.keysAfter('own-end', 500), [])
})

test('copies of the module in one process work next to each other, as with a test runner', async () => {
  const require = createRequire(import.meta.url)
  const held = await redlock.acquire('copies')
  const warnings: Error[] = []
  const listener = (warning: Error) => warnings.push(warning)
  process.on('warning', listener)
  const folder = join(INDEX, '..')
  for (let n = 0; n < 15; n++) {
    for (const path of Object.keys(require.cache)) if (path.startsWith(folder)) delete require.cache[path]
    const copy = require(INDEX) as typeof import('../dist/index.js')
    const own = new copy.Redlock(servers.urls, options)
    assert.equal(await own.tryAcquire('copies'), null)
    await assert.rejects(own.acquire('copies', { wait: 20 }), copy.LockHeldError)
    await using other = await own.acquire(`copy-${n}`)
    assert.ok(other.isValid() && held.isValid())
  }
  await sleep(50)
  process.off('warning', listener)
  assert.deepEqual(warnings, [])
  await held.release()
  assert.deepEqual(await servers.keysAfter('cop', 500), [])
})

test('a child of child_process.fork has locks of its own', async () => {
  const path = join(tmpdir(), `quorate-child-${process.pid}.cjs`)
  writeFileSync(path, `const { Redlock } = require(${JSON.stringify(INDEX)})
    const redlock = new Redlock(${JSON.stringify(servers.urls)}, { restartGuard: 'off' })
    ;(async () => {
      const first = await redlock.tryAcquire('forked')
      const own = await redlock.acquire('forked-child')
      process.send({ isNull: first === null })
      process.once('message', async () => { await own.release(); process.disconnect() })
    })()`)
  await using guard = await redlock.acquire('forked')
  const child = fork(path)
  const message = await new Promise((resolve) => child.once('message', resolve))
  assert.deepEqual(message, { isNull: true })
  assert.equal(await redlock.tryAcquire('forked-child'), null)
  child.send('end')
  assert.equal(await new Promise((resolve) => child.once('exit', resolve)), 0)
  assert.ok(guard.isValid())
  assert.deepEqual(await servers.keysAfter('forked-child', 500), [])
})

test('one master killed and one stopped lose no lock, and a third stopped master does', async () => {
  const guard = await redlock.acquire('faults')
  servers.processes[0]!.kill('SIGKILL')
  servers.processes[1]!.kill('SIGSTOP')
  await sleep(2500)
  assert.ok(guard.isValid())
  await (await redlock.acquire('more', { wait: 5000 })).release()
  servers.processes[2]!.kill('SIGSTOP')
  await assert.rejects(redlock.acquire('none', { wait: 300 }), (error: unknown) => {
    return error instanceof NoQuorumError && /of 5 masters can vote/.test(error.message)
  })
  await aborted(guard.signal)
  assert.equal(guard.lost, 'expired')
  await guard.release()
  servers.processes[1]!.kill('SIGCONT')
  servers.processes[2]!.kill('SIGCONT')
  await (await redlock.acquire('none', { wait: 5000 })).release()
})
