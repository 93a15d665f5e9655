/** Work that runs once per period, on one of many machines. */

import { ask, keepingAlive, run } from './bridge.js'
import { linkedSignal } from './body.js'
import { errorOf, type Failure, type LossCause, type ValueError } from './errors.js'
import { Guard } from './guard.js'
import {
  type Message,
  native,
  type NativeBridge,
  type NativeGuard,
  type NativeOnce,
  type NativeRedlock,
} from './native.js'
import { checkName, checkTime, nativeWait, signalOf } from './options.js'

/** One period, for example a month of a calendar. All machines must compute the same start. */
export interface Period {
  start: Date
  end: Date
}

/**
 * The body of a once-per-period job. The signal aborts when the lock is lost, or when the caller's signal aborts. Pass
 * the fencing token to every system that you write to.
 */
export type OnceBody<T> = (signal: AbortSignal, fencingToken: bigint | null) => T | Promise<T>

/**
 * The result of `atMostOnce` and `atLeastOnce`.
 *
 * - `done`: the body ran.
 * - `alreadyDone`: the work of this period was done before, so the body did not run. `next` is the time in milliseconds
 *   until the next period that is not done yet.
 * - `outlived` (`atMostOnce`): the body ran to its end, but the lock was lost while it ran.
 * - `notRecorded` (`atLeastOnce`): the body ran, but the period could not be recorded: its work may be done again.
 */
export type OnceResult<T> =
  | { outcome: 'done'; value: T }
  | { outcome: 'alreadyDone'; next: number }
  | { outcome: 'outlived'; value: T; cause: LossCause }
  | { outcome: 'notRecorded'; value: T; error: ValueError }

/** A job that runs once per period. Made by `Redlock.once`. Methods reject with `ValueError` or `AcquireError`. */
export class Once {
  readonly #native: NativeOnce

  /** @internal */
  constructor(redlock: NativeRedlock, name: string, period: number | Period, wait: number | undefined) {
    const single = typeof period === 'object'
    const start = single ? checkTime('the start of the period', period.start.getTime()) : undefined
    const end = single ? checkTime('the end of the period', period.end.getTime()) : undefined
    const every = single ? undefined : checkTime('the period', period)
    this.#native = new native.NativeOnce(redlock, checkName(name), every, start, end, nativeWait(wait).wait)
  }

  /**
   * Creates the record, with no period done. An operator calls it once. Every master must answer, and none may have a
   * record.
   */
  async create(): Promise<void> {
    await ask((bridge) => this.#native.create(bridge), () => undefined)
  }

  /** The start of the last recorded period (`null` if none was recorded), and the stored note. Acquires the lock. */
  async record(): Promise<{ last: Date | null; note: string }> {
    return ask((bridge) => this.#native.record(bridge), ({ last, note }) => ({
      last: last === null ? null : new Date(last),
      note,
    }))
  }

  /** Removes the record from every master. Only an operator should do this. Resolves to whether it existed. */
  async dropRecord(): Promise<boolean> {
    return ask((bridge) => this.#native.dropRecord(bridge), Boolean)
  }

  /**
   * Runs `body` unless this period is done. The period is recorded before the body runs: a crash skips the work of this
   * period, and never does it twice. An error of the body rejects the promise; the period stays recorded.
   */
  async atMostOnce<T>(body: OnceBody<T>, options?: { signal?: AbortSignal }): Promise<OnceResult<T>> {
    const signal = signalOf(options)
    const turn = await takeTurn((bridge) => this.#native.atMostOnce(bridge), signal)
    if ('outcome' in turn) return turn
    return underTurn(turn, body, signal, true, async (value) => {
      const cause = turn.guard.lost
      return cause === null ? { outcome: 'done', value } : { outcome: 'outlived', value, cause }
    })
  }

  /**
   * Runs `body` unless this period is done. The period is recorded after the body has succeeded: after a crash or an
   * error, a later call runs the body again. So the body must be idempotent.
   */
  async atLeastOnce<T>(body: OnceBody<T>, options?: { signal?: AbortSignal }): Promise<OnceResult<T>> {
    const signal = signalOf(options)
    const turn = await takeTurn((bridge) => this.#native.atLeastOnce(bridge), signal)
    if ('outcome' in turn) return turn
    return underTurn(turn, body, signal, false, async (value) => {
      try {
        await ask((bridge) => turn.native.record(bridge), () => undefined)
        return { outcome: 'done', value }
      } catch (error) {
        return { outcome: 'notRecorded', value, error: error as ValueError }
      }
    })
  }
}

/** The lock of a job whose work must be done now. */
interface Turn {
  guard: Guard
  native: NativeGuard
}

interface AlreadyDone {
  outcome: 'alreadyDone'
  next: number
}

/** Starts a job. The signal ends the wait for its lock. */
async function takeTurn(
  start: (bridge: NativeBridge) => number,
  signal: AbortSignal | undefined,
): Promise<Turn | AlreadyDone> {
  const convert = ({ guard, value, call }: Message): Turn | AlreadyDone => {
    if (guard !== undefined) return { guard: new Guard(guard, call), native: guard }
    return { outcome: 'alreadyDone', ...(JSON.parse(value!) as { next: number }) }
  }
  return run(start, convert, { signal })
}

/**
 * Runs `body` under the lock of its job, then `end`, and releases the lock. Rejects with a `StoppedError` if the lock
 * was lost before the body ended, and otherwise with the error of the body.
 */
async function underTurn<T>(
  { guard, native }: Turn,
  body: OnceBody<T>,
  outer: AbortSignal | undefined,
  isRecorded: boolean,
  end: (value: T) => Promise<OnceResult<T>>,
): Promise<OnceResult<T>> {
  const lost = guard.signal
  const { signal, detach } = linkedSignal([lost, outer])
  const throwIfStopped = () => {
    const failure = lost.aborted ? native.stopped(isRecorded) : null
    if (failure !== null) throw errorOf(JSON.parse(failure) as Failure)
  }
  try {
    const running = keepingAlive(async () => body(signal, guard.fencingToken))
    return await end(await running.finally(throwIfStopped))
  } finally {
    detach()
    await guard.release()
  }
}
