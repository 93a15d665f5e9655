/** Runs a function of the user under a lock. */

import type { Guard } from './guard.js'

/** A function that runs under a lock. The signal aborts when the lock is lost, or when the caller's signal aborts. */
export type Body<T> = (signal: AbortSignal, guard: Guard) => T | Promise<T>

/** A controller that also aborts when `outer` aborts. `detach` removes the listener. */
export function linkedController(outer: AbortSignal | undefined): { controller: AbortController; detach(): void } {
  const controller = new AbortController()
  const abort = () => controller.abort(outer?.reason)
  outer?.addEventListener('abort', abort, { once: true })
  if (outer?.aborted === true) abort()
  return { controller, detach: () => outer?.removeEventListener('abort', abort) }
}

/**
 * Runs `body` with the guard, and releases the lock. Rejects with the error of the body; otherwise with a
 * `LockLostError` if the lock was lost.
 */
export async function runUnder<T>(guard: Guard, body: Body<T>, outer: AbortSignal | undefined): Promise<T> {
  const lost = guard.signal
  const { controller, detach } = linkedController(outer)
  const abort = () => controller.abort(lost.reason)
  lost.addEventListener('abort', abort, { once: true })
  if (lost.aborted) abort()
  try {
    const value = await body(controller.signal, guard)
    guard.check()
    return value
  } finally {
    detach()
    lost.removeEventListener('abort', abort)
    await guard.release()
  }
}
