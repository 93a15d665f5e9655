/** A distributed lock over a majority of independent Redis or Valkey masters. Start with `Redlock`. */

import { bridge } from './bridge.js'

export type { Body } from './body.js'
export type { LogMessage, LostMessage } from './channels.js'
export { Election, type Leader, Leadership } from './election.js'
export {
  AcquireError,
  type AtRisk,
  ExtendError,
  InvalidSettingsError,
  LockHeldError,
  LockLostError,
  type LossCause,
  type MasterReport,
  NoQuorumError,
  NotJoinableError,
  OtherMastersError,
  QuorateError,
  StoppedError,
  TooLateError,
  ValueError,
  ValueUnknownError,
} from './errors.js'
export { Guard } from './guard.js'
export { Memory } from './memory.js'
export { Once, type OnceBody, type OnceResult, type Period } from './once.js'
export type { LockOptions, RedlockOptions } from './options.js'
export { Owner, type OwnerLockOptions } from './owner.js'
export { Quota } from './quota.js'
export { Redlock } from './redlock.js'
export type {
  Fault,
  Inspection,
  ListedLock,
  Listing,
  MasterStatus,
  Note,
  SemaphoreStatus,
  Status,
  Waiter,
} from './status.js'

/**
 * Publishes the log records of this level and more important levels on the diagnostics channel `quorate:log`. `off`
 * ends that. The native threads never wait for JavaScript: if 1,024 records wait, further records are dropped and
 * counted.
 */
export function publishLogs(level: 'error' | 'warn' | 'info' | 'debug' | 'trace' | 'off'): void {
  bridge.log(level)
}
