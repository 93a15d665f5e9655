/** Acquires locks with the native half. */

import { run } from './bridge.js'
import { Guard } from './guard.js'
import type { NativeRedlock } from './native.js'
import type { NativeLockOptions } from './options.js'

/** Acquires a lock. Resolves to `null` if `isTry` is set and another client holds the lock. */
export async function acquireWith(
  redlock: NativeRedlock,
  options: NativeLockOptions,
  signal: AbortSignal | undefined,
): Promise<Guard | null> {
  return run(
    (bridge) => redlock.acquire(bridge, options),
    ({ guard, call }) => (guard === undefined ? null : new Guard(guard, call)),
    { signal },
  )
}

/** Acquires a lock, and waits for it. */
export async function acquireGuard(
  redlock: NativeRedlock,
  options: NativeLockOptions,
  signal: AbortSignal | undefined,
): Promise<Guard> {
  return (await acquireWith(redlock, options, signal)) as Guard
}
