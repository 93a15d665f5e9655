/** A held lock. */

import { ask, bridge, onLoss, stopListening } from './bridge.js'
import { lostChannel } from './channels.js'
import { type AtRisk, lossError, type LossCause } from './errors.js'
import type { NativeBridge, NativeGuard, NativeRiskWatcher } from './native.js'
import { checkTime } from './options.js'

const GUARD = Symbol('quorate.guard')

const collected = new FinalizationRegistry<{ call: number; names: string }>(({ call, names }) => {
  stopListening(call)
  const message = `the guard of the lock ${names} was garbage-collected without a release; the lock was released`
  process.emitWarning(message, 'QuorateWarning')
})

/**
 * A held lock. A native thread renews it until it is released, also while the event loop is blocked. Keep the guard: if
 * it is garbage-collected, its lock is released, with a warning.
 *
 * Release it with `await using`, with `Redlock.using`, or with `release()` in a `finally` block.
 */
export class Guard {
  readonly #native: NativeGuard
  readonly #call: number
  #cause: LossCause | null = null
  #controller: AbortController | undefined
  #released: Promise<boolean> | undefined
  /** The listeners of this guard, which must not keep it from being garbage-collected. */
  readonly #riskListeners = new Set<(risk: AtRisk) => void>()

  /** @internal */
  constructor(native: NativeGuard, call: number) {
    this.#native = native
    this.#call = call
    // The listener must not keep the guard alive.
    const reference = new WeakRef(this)
    onLoss(call, (cause) => {
      const guard = reference.deref()
      if (guard !== undefined) guard.#lose(cause)
    })
    collected.register(this, { call, names: JSON.stringify(native.resources.join(', ')) }, this)
  }

  /**
   * A number that is larger than that of every earlier holder. Pass it to every system that you write to, and let that
   * system refuse smaller numbers. `null` with `fencing: false`.
   */
  get fencingToken(): bigint | null {
    return this.#native.fencingToken ?? null
  }

  /** The names of the locked resources. */
  get resources(): string[] {
    return this.#native.resources
  }

  /** The number of the permit, from 0; `null` if the lock is no permit of a semaphore. */
  get slot(): number | null {
    return this.#native.slot ?? null
  }

  /** How long the lock is valid without a further renewal, in milliseconds; 0 after its end. */
  get remaining(): number {
    return this.#native.remaining
  }

  /** Why the lock ended; `null` while it is held. */
  get lost(): LossCause | null {
    if (this.#cause !== null) return this.#cause
    return this.isValid() ? null : (this.#native.lost ?? 'expired')
  }

  /**
   * Aborts with a `LockLostError` when the lock is lost. A release does not abort it. The signal keeps the guard from
   * being garbage-collected.
   */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController()
      Object.defineProperty(this.#controller.signal, GUARD, { value: this, enumerable: false })
      if (this.#cause !== null && this.#cause !== 'released') this.#controller.abort(lossError(this.#cause))
    }
    return this.#controller.signal
  }

  /** Whether the lock is held now. Check it right before each step that needs the lock. */
  isValid(): boolean {
    return this.#native.isValid()
  }

  /** Throws a `LockLostError` if the lock is not held now. */
  check(): void {
    const cause = this.lost
    if (cause !== null) throw lossError(cause)
  }

  /**
   * Calls `listener` when no more than `margin` milliseconds of the validity are left, because renewals fail or are
   * late: once per episode, until the lock ends. Use it to save work before a loss. No notice comes while renewals are
   * answered in time: a larger margin is limited. A lock that is taken away is lost without a notice before.
   */
  onAtRisk(margin: number, listener: (risk: AtRisk) => void): void {
    checkTime('margin', margin)
    this.#riskListeners.add(listener)
    const watcher = this.#native.watchRisk(margin as number)
    void watchRisk(watcher, new WeakRef(this), new WeakRef(listener))
  }

  /**
   * Extends the lock once, to `ttl` milliseconds from now; never shortens it. The background renewal continues.
   *
   * Rejects with `LockLostError` if the lock has ended, with `ExtendError` if too few masters answered (the lock is
   * then still held), and with `InvalidSettingsError` if the `ttl` is above `maxTtl`.
   */
  async extend(ttl: number): Promise<void> {
    checkTime('ttl', ttl)
    await ask((bridge) => this.#native.extend(bridge, ttl), () => undefined)
  }

  /**
   * Releases the lock, and waits until a majority of the masters has released it. Resolves to whether the lock was
   * valid until then. Never rejects: if masters cannot be reached, the lock is released when they can be, or expires.
   * The release also completes if nobody awaits it. A second call has the result of the first one.
   */
  release(): Promise<boolean> {
    this.#released ??= this.#release()
    return this.#released
  }

  #release(): Promise<boolean> {
    stopListening(this.#call)
    collected.unregister(this)
    const wasLost = this.lost
    this.#cause = wasLost ?? 'released'
    const start = () => this.#native.release(bridge)
    return ask(start, Boolean).catch(() => wasLost === null)
  }

  /** Releases the lock at the end of an `await using` block. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release()
  }

  #lose(cause: LossCause): void {
    if (this.#cause !== null) return
    this.#cause = cause
    const { resources, fencingToken } = this
    if (lostChannel.hasSubscribers) lostChannel.publish({ resources, fencingToken, cause })
    this.#controller?.abort(lossError(cause))
  }
}

/** Calls the listener for each notice, until the lock ends. Keeps neither the guard nor the listener. */
async function watchRisk(
  watcher: NativeRiskWatcher,
  guard: WeakRef<Guard>,
  listener: WeakRef<(risk: AtRisk) => void>,
): Promise<void> {
  for (;;) {
    const start = (bridge: NativeBridge) => watcher.next(bridge)
    const { atRisk } = await ask<{ atRisk?: AtRisk }>(start, (reply) => reply, { inBackground: true })
    if (atRisk === undefined) return
    // An error of the listener ends neither this loop nor the delivery of other messages.
    queueMicrotask(() => {
      if (guard.deref()?.lost === null) listener.deref()?.(atRisk)
    })
  }
}
