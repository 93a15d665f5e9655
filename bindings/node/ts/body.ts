/** Runs a function of the user under a lock. */

import type { Guard } from './guard.js'

/** A function that runs under a lock. The signal aborts when the lock is lost, or when the caller's signal aborts. */
export type Body<T> = (signal: AbortSignal, guard: Guard) => T | Promise<T>

/** A signal that aborts when any of these signals aborts. `detach` removes the listeners. */
export function linkedSignal(sources: (AbortSignal | undefined)[]): { signal: AbortSignal; detach(): void } {
  const controller = new AbortController()
  const abort = (event: Event) => controller.abort((event.target as AbortSignal).reason)
  for (const source of sources) {
    source?.addEventListener('abort', abort, { once: true })
    if (source?.aborted === true) controller.abort(source.reason)
  }
  const detach = () => sources.forEach((source) => source?.removeEventListener('abort', abort))
  return { signal: controller.signal, detach }
}

/**
 * Runs `body` with the guard, and releases the lock. Rejects with the error of the body; otherwise with a
 * `LockLostError` if the lock was lost.
 */
export async function runUnder<T>(guard: Guard, body: Body<T>, outer: AbortSignal | undefined): Promise<T> {
  const { signal, detach } = linkedSignal([guard.signal, outer])
  try {
    const value = await body(signal, guard)
    guard.check()
    return value
  } finally {
    detach()
    await guard.release()
  }
}
