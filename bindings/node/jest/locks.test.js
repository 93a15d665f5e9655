// A users' test file with real masters, whose URLs are in MASTERS. Leaves a lock to the end of Jest.
const { LockHeldError, LockLostError, Redlock } = require('quorate')

const masters = process.env.MASTERS.split(',')
const options = { restartGuard: 'off', ttl: 20_000 }
const redlock = new Redlock(masters, options)

test('a lock is held once', async () => {
  const guard = await redlock.acquire('jest:held')
  expect(await new Redlock(masters, options).tryAcquire('jest:held')).toBeNull()
  await expect(redlock.acquire('jest:held', { wait: 50 })).rejects.toThrow(LockHeldError)
  await guard.release()
})

test('a wait is cancelled', async () => {
  await redlock.using('jest:cancelled', async () => {
    const waiting = redlock.acquire('jest:cancelled', { wait: Infinity, signal: AbortSignal.timeout(100) })
    await expect(waiting).rejects.toMatchObject({ name: 'TimeoutError' })
  })
})

test('a loss aborts the signal', async () => {
  const losing = redlock.using('jest:lost', async (signal) => {
    await redlock.breakLock('jest:lost')
    await new Promise((resolve) => signal.addEventListener('abort', resolve))
  }, { ttl: 1_000 })
  await expect(losing).rejects.toThrow(LockLostError)
})

test('a lock is left to the end', async () => {
  globalThis.left = await redlock.acquire('jest:left')
  expect(left.isValid()).toBe(true)
})
