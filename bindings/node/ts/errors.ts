/** The errors of this package. Each has a `code` that begins with `ERR_QUORATE_`. */

import type { Note } from './status.js'
import { reviveNote } from './status.js'

/**
 * Why a lock ended.
 *
 * - `expired`: the validity ended before a majority of the masters had renewed the lock.
 * - `taken_away`: a majority of the masters reports that this client does not hold the lock.
 * - `max_hold`: the lock was held for `maxHold`.
 * - `released`: the guard was released.
 * - `forked`: the lock belongs to another process.
 */
export type LossCause = 'expired' | 'taken_away' | 'max_hold' | 'released' | 'forked'

/** The reply of one master to one request. */
export interface MasterReport {
  /** The address of the master, without credentials. */
  master: string
  /** The kind of the request: for example `acquire`, `extend` or `release`. */
  phase: string
  /** The reply as one word: `yes`, `no`, `silent`, or the kind of a fault. Stable across versions. */
  outcome: string
  /** The reply as text for operators. */
  text: string
  /** Milliseconds from the first request of the round to this reply; `null` if the master has not replied. */
  latency: number | null
  /** Whether the reply came after the replies of other masters had decided the result. */
  late: boolean
}

/** The notice that a held lock may be lost soon. */
export interface AtRisk {
  /**
   * Why the validity was not extended in time.
   *
   * - `renewal_failed`: the last renewal got no majority. The library tries again until the validity ends.
   * - `renewal_late`: the masters have not answered a renewal yet, or this process was too busy to send it.
   * - `not_renewed`: the lock was acquired with `renewal: false`.
   * - `max_hold`: the lock ends at `maxHold`.
   */
  reason: 'renewal_failed' | 'renewal_late' | 'not_renewed' | 'max_hold'
  message: string
  /** The full text for operators, with the reply of each master. */
  details: string
  /** The time until the loss, in milliseconds, if nothing extends the lock before. */
  remaining: number
  /** The replies to the last renewal that failed. */
  reports: MasterReport[]
}

/** A failure as the native half describes it. */
export interface Failure {
  code: string
  message: string
  details?: string
  reports?: MasterReport[]
  cause?: LossCause
  recorded?: boolean
  resource?: string
  waited?: number
  attempts?: number
  heldHere?: boolean
  foreign?: boolean
  passesByItself?: boolean
  holder?: object | null
}

/** Every error of this package. `message` names no master and no holder, so a service may show it to its users. */
export class QuorateError extends Error {
  /** The kind of the error, for example `ERR_QUORATE_HELD`. Stable across versions. */
  readonly code: string
  /** The full text for operators: the message, the holder, and the reply of each master with its address. */
  readonly details: string
  /** The reply of each master in the round of requests that failed. Empty if nothing was sent. */
  readonly reports: MasterReport[]

  /** @internal */
  constructor(failure: Failure) {
    super(failure.message)
    this.name = new.target.name
    this.code = `ERR_QUORATE_${failure.code}`
    this.details = failure.details ?? failure.message
    this.reports = failure.reports ?? []
  }
}

/** A setting, an option or a name cannot be used. Nothing was sent. Code: `ERR_QUORATE_INVALID`. */
export class InvalidSettingsError extends QuorateError {
  /** @internal */
  constructor(message: string) {
    super({ code: 'INVALID', message })
  }
}

/** The lock was not acquired, and nothing is held. */
export class AcquireError extends QuorateError {
  /** The name of the requested resource. */
  readonly resource: string
  /** How long the acquire took, in milliseconds. */
  readonly waited: number
  /** How many attempts the acquire made. */
  readonly attempts: number
  /** Whether the same `Redlock` holds the lock. Locks are not re-entrant: see `Redlock.owner`. */
  readonly heldHere: boolean
  /** Whether the lock key has a value that quorate did not write, for example of another Redlock library. */
  readonly foreign: boolean
  /** Whether waiting longer could have helped. False if an operator must correct the masters first. */
  readonly passesByItself: boolean
  /** The note of the holder; `null` if the holder is unknown or has written none. */
  readonly holder: Note | null

  /** @internal */
  constructor(failure: Failure) {
    super(failure)
    this.resource = failure.resource ?? ''
    this.waited = failure.waited ?? 0
    this.attempts = failure.attempts ?? 0
    this.heldHere = failure.heldHere ?? false
    this.foreign = failure.foreign ?? false
    this.passesByItself = failure.passesByItself ?? true
    this.holder = reviveNote(failure.holder)
  }
}

/** Another client held the lock until the wait ended. Code: `ERR_QUORATE_HELD`. */
export class LockHeldError extends AcquireError {}

/** The owner holds the lock, but cannot get one more hold now; try again later. Code: `ERR_QUORATE_NOT_JOINABLE`. */
export class NotJoinableError extends LockHeldError {}

/** Fewer masters than a majority could vote. Code: `ERR_QUORATE_NO_QUORUM`. */
export class NoQuorumError extends AcquireError {}

/**
 * The masters refuse this list of masters: build the `Redlock` with the current one. Code:
 * `ERR_QUORATE_OTHER_MASTERS`.
 */
export class OtherMastersError extends NoQuorumError {}

/** A majority granted the lock, but too slowly: no validity was left. Code: `ERR_QUORATE_TOO_LATE`. */
export class TooLateError extends NoQuorumError {}

/** The lock ended before the work did. Acquire it again for a new fencing token. Code: `ERR_QUORATE_LOST`. */
export class LockLostError extends QuorateError {
  /** Why the lock ended. */
  override readonly cause: LossCause

  /** @internal */
  constructor(failure: Failure) {
    super(failure)
    this.cause = failure.cause ?? 'expired'
  }
}

/**
 * Too few masters answered an extension. The lock stays held until its validity ends. Code:
 * `ERR_QUORATE_NOT_EXTENDED`.
 */
export class ExtendError extends QuorateError {}

/**
 * A quota or a once-per-period record was not read or written. The value has not changed, except for
 * `ERR_QUORATE_VALUE_UNKNOWN` and `ERR_QUORATE_VALUE_INCOMPLETE`. Code: `ERR_QUORATE_VALUE_` and the reason.
 */
export class ValueError extends QuorateError {}

/** The value may have been written: treat the call as failed. Code: `ERR_QUORATE_VALUE_UNKNOWN`. */
export class ValueUnknownError extends ValueError {}

/** The lock was lost while the body of a once-per-period job ran. Code: `ERR_QUORATE_VALUE_STOPPED`. */
export class StoppedError extends ValueError {
  /** Why the lock was lost. */
  override readonly cause: LossCause
  /** Whether the period is recorded as done, although its work was not finished. */
  readonly recorded: boolean

  /** @internal */
  constructor(failure: Failure) {
    super(failure)
    this.cause = failure.cause ?? 'expired'
    this.recorded = failure.recorded ?? false
  }
}

const CLASSES: Record<string, new (failure: Failure) => QuorateError> = {
  HELD: LockHeldError,
  NOT_JOINABLE: NotJoinableError,
  NO_QUORUM: NoQuorumError,
  OTHER_MASTERS: OtherMastersError,
  TOO_LATE: TooLateError,
  LOST: LockLostError,
  NOT_EXTENDED: ExtendError,
  VALUE_UNKNOWN: ValueUnknownError,
  VALUE_STOPPED: StoppedError,
}

/** The error object of a failure. */
export function errorOf(failure: Failure): QuorateError {
  if (failure.code === 'INVALID') return new InvalidSettingsError(failure.message)
  const known = CLASSES[failure.code]
  if (known !== undefined) return new known(failure)
  return failure.code.startsWith('VALUE_') ? new ValueError(failure) : new QuorateError(failure)
}

/** The error for a lock that was lost for this reason. */
export function lossError(cause: LossCause): LockLostError {
  return new LockLostError({ code: 'LOST', message: `the lock is lost: ${LOSSES[cause] ?? cause}`, cause })
}

const LOSSES: Record<LossCause, string> = {
  expired: 'its validity ended before a majority of masters extended it',
  taken_away: 'a majority of masters reports that this client no longer holds it',
  max_hold: 'it was held for maxHold, the longest allowed time',
  released: 'it was released',
  forked: 'it belongs to another process',
}
