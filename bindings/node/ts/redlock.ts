/** Acquires locks on one set of masters. */

import { acquireGuard, acquireWith } from './acquire.js'
import { type Body, runUnder } from './body.js'
import { ask, bridge } from './bridge.js'
import { Election } from './election.js'
import { InvalidSettingsError } from './errors.js'
import type { Guard } from './guard.js'
import { Memory, nativeMemory, refusing } from './memory.js'
import { native, type NativeRedlock } from './native.js'
import { Once, type Period } from './once.js'
import {
  checkName,
  checkWhole,
  type LockOptions,
  nativeLockOptions,
  nativeSettings,
  type RedlockOptions,
} from './options.js'
import { Owner } from './owner.js'
import { Quota } from './quota.js'
import {
  type Inspection,
  type Listing,
  reviveListing,
  reviveSemaphore,
  reviveStatus,
  type SemaphoreStatus,
  type Status,
} from './status.js'

const FROM_ENV = Symbol('quorate.fromEnv')

function checkMasters(masters: unknown): string[] {
  if (Array.isArray(masters) && masters.every((url) => typeof url === 'string')) return masters
  throw new InvalidSettingsError(
    'masters must be a list of URLs, for example redis://10.0.0.1:6379, or a Memory: ' +
      'client objects of other packages cannot be used, because a native thread connects to the masters',
  )
}

/**
 * Acquires locks on one set of masters. Share one `Redlock` per process: all its locks share the connections and a
 * native thread, which renews them.
 */
export class Redlock {
  readonly #native: NativeRedlock

  /**
   * `masters` are URLs of independent Redis or Valkey servers (`redis://[user[:password]@]host[:port][/db]`,
   * `rediss://` for TLS, `unix:///path`), or masters in memory. Use an odd number, usually 3 or 5. Connects in the
   * background, at the first call. Throws an `InvalidSettingsError`.
   */
  constructor(masters: string[] | Memory, options?: RedlockOptions)
  constructor(masters: string[] | Memory, options: RedlockOptions = {}, source?: symbol) {
    const settings = nativeSettings(options)
    const fromEnv = source === FROM_ENV
    if (masters instanceof Memory) {
      const memory = nativeMemory(masters)
      this.#native = refusing(() => new native.NativeRedlock(bridge, settings, memory, fromEnv))
    } else {
      const urls = checkMasters(masters)
      const given = urls.length > 0 || !fromEnv ? { masters: urls } : {}
      this.#native = refusing(() => new native.NativeRedlock(bridge, { ...settings, ...given }, undefined, fromEnv))
    }
  }

  /**
   * Reads the settings from the variables of the command `quorate`: `QUORATE_MASTERS` (URLs, separated by commas),
   * `QUORATE_TTL` (`10s`), `QUORATE_WAIT` (a time, `forever` or `none`) and others. `options` have precedence. Throws
   * an `InvalidSettingsError` that names the variable.
   */
  static fromEnv(options: RedlockOptions = {}): Redlock {
    const construct = Redlock as unknown as new (masters: string[], options: RedlockOptions, source: symbol) => Redlock
    return new construct([], options, FROM_ENV)
  }

  /** The names of the masters, without credentials. */
  get masters(): string[] {
    return this.#native.masters
  }

  /**
   * Acquires one lock, or several locks together (all or none, at most 16), and waits for it as long as `wait` allows.
   * Locks are not re-entrant: see `owner`.
   *
   * Rejects with `LockHeldError` if another client holds the lock, with `NoQuorumError` if too few masters can vote,
   * with `InvalidSettingsError`, and with the reason of `signal`. Nothing is held then.
   */
  async acquire(name: string | string[], options?: LockOptions): Promise<Guard> {
    const { native, signal } = nativeLockOptions(name, options)
    return acquireGuard(this.#native, native, signal)
  }

  /** Makes one attempt, and does not wait. Resolves to `null` if another client holds the lock. */
  async tryAcquire(name: string | string[], options?: LockOptions): Promise<Guard | null> {
    const { native, signal } = nativeLockOptions(name, options)
    return acquireWith(this.#native, { ...native, isTry: true }, signal)
  }

  /**
   * Acquires the lock, runs `body`, and releases the lock. `body` gets a signal that aborts when the lock is lost.
   * Resolves to the value of `body`.
   *
   * Rejects with the errors of `acquire` (`body` did not run), with the error of `body`, and with `LockLostError` if
   * the lock was lost before `body` ended. A release that fails is no error.
   */
  async using<T>(name: string | string[], body: Body<T>, options?: LockOptions): Promise<T> {
    return runUnder(await this.acquire(name, options), body, options?.signal)
  }

  /** Acquires one of `permits` permits (1 to 64) of a semaphore. `slot` of the guard is the number of the permit. */
  async permit(name: string, permits: number, options?: Omit<LockOptions, 'shared'>): Promise<Guard> {
    checkWhole('permits', permits, 0xffffffff)
    const { native, signal } = nativeLockOptions(name, options)
    return acquireGuard(this.#native, { ...native, permits }, signal)
  }

  /** Makes one attempt to acquire a permit. Resolves to `null` if all permits are held. */
  async tryPermit(name: string, permits: number, options?: Omit<LockOptions, 'shared'>): Promise<Guard | null> {
    checkWhole('permits', permits, 0xffffffff)
    const { native, signal } = nativeLockOptions(name, options)
    return acquireWith(this.#native, { ...native, permits, isTry: true }, signal)
  }

  /** The owner with this id (1 to 64 bytes), which can hold the same lock several times. */
  owner(id: string): Owner {
    return new Owner(this.#native, checkName(id))
  }

  /** The quota with this name. `wait`: how long each call waits for its lock. */
  quota(name: string, options: { wait?: number } = {}): Quota {
    return new Quota(this.#native, name, options.wait)
  }

  /**
   * A job that runs once per period, on one of many machines. `period` is a time in milliseconds (periods are counted
   * from 1970, UTC: a period of 24 h begins at midnight UTC), or one period of a calendar. `wait`: how long each call
   * waits for its lock.
   */
  once(name: string, period: number | Period, options: { wait?: number } = {}): Once {
    return new Once(this.#native, name, period, options.wait)
  }

  /** The election with this name. `wait` limits the time of `campaign`; default: no limit. */
  election(name: string, options: { ttl?: number; wait?: number } = {}): Election {
    return new Election(this.#native, name, options)
  }

  /** The state of the lock on each master. Changes nothing. */
  async status(name: string): Promise<Status> {
    checkName(name)
    return ask((bridge) => this.#native.status(bridge, name), reviveStatus)
  }

  /** The held permits and the queue of a semaphore. Changes nothing. */
  async semaphoreStatus(name: string): Promise<SemaphoreStatus> {
    checkName(name)
    return ask((bridge) => this.#native.semaphoreStatus(bridge, name), reviveSemaphore)
  }

  /** The held locks whose names begin with `prefix`, at most 1,000. Scans all keys of each master. */
  async list(prefix = ''): Promise<Listing> {
    checkName(prefix)
    return ask((bridge) => this.#native.list(bridge, prefix), reviveListing)
  }

  /** Examines each master over a new connection: faults, version, rights, clock. Changes nothing. */
  async inspect(): Promise<Inspection[]> {
    return ask((bridge) => this.#native.inspect(bridge), (inspections) => inspections)
  }

  /**
   * Force-releases a lock, or the permit `slot` of a semaphore, whoever holds it. Use it only as the last resort of an
   * operator: the holder notices only at its next renewal. Resolves to the state before the release.
   */
  async breakLock(name: string, options: { slot?: number } = {}): Promise<Status> {
    checkName(name)
    if (options.slot !== undefined) checkWhole('slot', options.slot, 0xffffffff)
    return ask((bridge) => this.#native.breakLock(bridge, name, options.slot), reviveStatus)
  }
}
