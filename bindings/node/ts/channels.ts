/** The diagnostics channels of this package. */

import { channel } from 'node:diagnostics_channel'
import type { LossCause } from './errors.js'

/** A message of the channel `quorate:lost`. */
export interface LostMessage {
  /** The names of the locked resources. */
  resources: string[]
  fencingToken: bigint | null
  cause: LossCause
}

/** A message of the channel `quorate:log`: a log record of the native half. */
export interface LogMessage {
  level: 'error' | 'warn' | 'info' | 'debug' | 'trace'
  /** The module that wrote the record. */
  target: string
  message: string
  fields: Record<string, unknown>
  /** How many records were dropped before this one, because 1,024 records were waiting. */
  dropped: number
}

export const lostChannel = channel('quorate:lost')
export const logChannel = channel('quorate:log')
