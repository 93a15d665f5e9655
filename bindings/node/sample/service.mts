// A users' program in ESM: type-checked with `tsc --strict`, and run, where the packed packages are installed.
import { type Guard, LockHeldError, type LockOptions, LockLostError, Memory, type OnceResult, Redlock } from 'quorate'

const redlock = new Redlock(new Memory(3), { ttl: 5_000 })
const options: LockOptions = { wait: 1_000, signal: AbortSignal.timeout(5_000) }

async function charge(invoice: string): Promise<bigint> {
  await using guard: Guard = await redlock.acquire(`invoice:${invoice}`, options)
  guard.signal.throwIfAborted()
  return guard.fencingToken ?? 0n
}

const token: bigint = await charge('42')
const value: number = await redlock.using(['a', 'b'], async (signal: AbortSignal, guard) => {
  if (signal.aborted || !guard.isValid()) throw new Error('lost')
  return guard.resources.length
})
const none: Guard | null = await redlock.using('held', () => redlock.tryAcquire('held'))
try {
  await redlock.using('held', () => redlock.acquire('held', { wait: 10 }))
} catch (error) {
  if (!(error instanceof LockHeldError) || error instanceof LockLostError) throw error
  const holder: string = error.holder?.host ?? 'unknown'
  if (!error.heldHere) throw new Error(holder)
}
const nightly = redlock.once('nightly', 24 * 3_600_000)
await nightly.create()
const result: OnceResult<string> = await nightly.atMostOnce((signal, fencingToken) => {
  return `${signal.aborted} ${fencingToken! > 0n}`
})
if (result.outcome !== 'done') throw new Error(result.outcome)
const units: { taken: boolean; left: number } = await (async () => {
  const quota = redlock.quota('vouchers')
  await quota.create(10)
  return quota.take(3)
})()
// @ts-expect-error: options have other names here.
const wrong: LockOptions = { duration: 5 }
// @ts-expect-error: a token is a bigint.
const text: string = token
console.log('ESM', token > 0n, value, none, result.value, units.left, typeof wrong, typeof text)
