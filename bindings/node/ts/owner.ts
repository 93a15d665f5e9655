/** Re-entrant locks. */

import { acquireGuard, acquireWith } from './acquire.js'
import { type Body, runUnder } from './body.js'
import type { Guard } from './guard.js'
import type { NativeRedlock } from './native.js'
import { type LockOptions, nativeLockOptions } from './options.js'

/** Options of an acquire by an owner: a lock with an owner cannot be shared by readers. */
export type OwnerLockOptions = Omit<LockOptions, 'shared'>

/**
 * An owner can hold the same lock several times, in several tasks, processes and machines. All its holds have the same
 * fencing token, and exclude all other clients. Each hold has its own guard; the lock ends with its last hold. Made by
 * `Redlock.owner`.
 */
export class Owner {
  readonly #native: NativeRedlock
  /** The id of the owner. */
  readonly id: string

  /** @internal */
  constructor(redlock: NativeRedlock, id: string) {
    this.#native = redlock
    this.id = id
  }

  /** Acquires a hold of this owner. It does not wait for other holds of the same owner. */
  async acquire(name: string, options?: OwnerLockOptions): Promise<Guard> {
    const { native, signal } = nativeLockOptions(name, options)
    return acquireGuard(this.#native, { ...native, owner: this.id }, signal)
  }

  /** Makes one attempt. Resolves to `null` if another owner or client holds the lock. */
  async tryAcquire(name: string, options?: OwnerLockOptions): Promise<Guard | null> {
    const { native, signal } = nativeLockOptions(name, options)
    return acquireWith(this.#native, { ...native, owner: this.id, isTry: true }, signal)
  }

  /** Runs `body` under a hold of this owner, as `Redlock.using` does. */
  async using<T>(name: string, body: Body<T>, options?: OwnerLockOptions): Promise<T> {
    return runUnder(await this.acquire(name, options), body, options?.signal)
  }
}
