/** Work that runs once per period, on one of many machines. */

import { ask, bridge, listen, run, stopListening } from './bridge.js'
import { linkedController } from './body.js'
import { errorOf, lossError, type LossCause, StoppedError, type ValueError } from './errors.js'
import { native, type NativeOnce, type NativeRedlock } from './native.js'
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
    return this.#run(true, body, signalOf(options))
  }

  /**
   * Runs `body` unless this period is done. The period is recorded after the body has succeeded: after a crash or an
   * error, a later call runs the body again. So the body must be idempotent.
   */
  async atLeastOnce<T>(body: OnceBody<T>, options?: { signal?: AbortSignal }): Promise<OnceResult<T>> {
    return this.#run(false, body, signalOf(options))
  }

  async #run<T>(atMostOnce: boolean, body: OnceBody<T>, outer: AbortSignal | undefined): Promise<OnceResult<T>> {
    outer?.throwIfAborted()
    // Aborts the call while it waits for the lock, and the signal of the body afterwards.
    const waiting = linkedController(outer)
    const { controller, detach } = linkedController(outer)
    let running: Promise<T> | undefined
    const start = () => this.#native.run(bridge, atMostOnce)
    const { call, reply } = run(start, ({ value }) => JSON.parse(value ?? 'null'), waiting.controller.signal)
    listen(call, ({ turn }) => {
      if (turn === undefined) return
      waiting.detach()
      const token = turn.fencingToken === null ? null : BigInt(turn.fencingToken)
      running = Promise.resolve().then(() => body(controller.signal, token))
      running.then(
        () => bridge.endBody(call, true),
        () => bridge.endBody(call, false),
      )
    })
    try {
      return await resultOf(await reply, running)
    } catch (error) {
      if (error instanceof StoppedError) controller.abort(lossError(error.cause))
      await running?.catch(() => undefined)
      throw error
    } finally {
      stopListening(call)
      waiting.detach()
      detach()
    }
  }
}

/** The result of a call whose body has ended, with the value of the body. Throws the error of the body. */
async function resultOf<T>(outcome: any, running: Promise<T> | undefined): Promise<OnceResult<T>> {
  if (outcome.outcome === 'alreadyDone') return outcome
  const value = (await running) as T
  if (outcome.outcome === 'notRecorded') {
    return { outcome: 'notRecorded', value, error: errorOf(outcome.failure) as ValueError }
  }
  return { ...outcome, value }
}
