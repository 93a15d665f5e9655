/** The options of this package, and their check. Times are in milliseconds. */

import { InvalidSettingsError } from './errors.js'

/** Options of one acquire. An option that is not given has the value of the `Redlock`. */
export interface LockOptions {
  /** How long the masters keep the lock without renewal. Default: 10,000 ms. The lock is renewed after each third. */
  ttl?: number
  /** How long to wait for the lock: `0` makes one attempt, `Infinity` waits without a limit. Default: 30,000 ms. */
  wait?: number
  /** The longest time to hold the lock, renewals included. After it, the lock is lost. Default: no limit. */
  maxHold?: number
  /** Whether the lock is renewed in the background. Default: `true`. */
  renewal?: boolean
  /** Whether to acquire the lock as one of several readers, which exclude writers. Default: `false`. */
  shared?: boolean
  /** A text for operators that describes the holder, at most 1 KiB. `null` publishes neither text, host nor process. */
  note?: string | null
  /** Ends the wait. The call then rejects with the reason of the signal, and leaves nothing on the masters. */
  signal?: AbortSignal
}

/** Settings of a `Redlock`. */
export interface RedlockOptions {
  /** How long the masters keep a lock without renewal. Default: 10,000 ms. */
  ttl?: number
  /** The longest `ttl` that any client of these masters uses; the same for all clients. Default: 30,000 ms. */
  maxTtl?: number
  /** How long an acquire waits for a lock: `0` makes one attempt, `Infinity` has no limit. Default: 30,000 ms. */
  wait?: number
  /** How long one master may take to answer. Default: 50 ms, or a tenth of the `ttl` if that is shorter. */
  nodeTimeout?: number
  /** The time limit for connecting to one master. Default: 500 ms. */
  connectTimeout?: number
  /** How long a crashed waiter can delay the waiters behind it. Default: half the `ttl`, or the `wait` if shorter. */
  heartbeat?: number
  /** The longest time to hold a lock, renewals included. Default: no limit. */
  maxHold?: number
  /** The prefix of all lock keys. Default: none. */
  prefix?: string
  /** Whether each acquire gets a fencing token. `false` is the classic Redlock algorithm. Default: `true`. */
  fencing?: boolean
  /** Whether waiters get the lock first come, first served. Default: `true`. */
  fair?: boolean
  /**
   * Whether the votes of a restarted master are ignored for `maxTtl`, because the master may have forgotten locks.
   * `afterFirstContact` counts the votes of masters that have just started, for tests. Default: `on`.
   */
  restartGuard?: 'on' | 'afterFirstContact' | 'off'
  /**
   * A text for operators that describes this process, at most 1 KiB. `null` publishes neither text, host nor process.
   */
  note?: string | null
  /** While masters are being replaced: the complete new set. */
  nextMasters?: string[]
  /** How many times the masters were replaced. Default: 0. */
  mastersGeneration?: number
  /** The name that the generation marker of each master must bear. Default: none. */
  mastersName?: string
  /** For `rediss://`: a PEM file of certificates to trust instead of those of the system. */
  caFile?: string
  /** For `rediss://`: a PEM file with the certificate of this client. */
  clientCert?: string
  /** For `rediss://`: a PEM file with the private key of this client. */
  clientKey?: string
}

/** A note and a wait for the native half: `isAnonymous` for the note `null`, a negative `wait` for no limit. */
interface NativeNoteAndWait {
  wait?: number
  note?: string
  isAnonymous?: boolean
}

/** The names and options of one acquire for the native half. */
export interface NativeLockOptions extends Omit<LockOptions, 'note' | 'signal'>, NativeNoteAndWait {
  resources: string[]
  /** Whether `resources` is a list, even with one name. */
  isList?: boolean
  permits?: number
  owner?: string
  /** Whether to make only one attempt. */
  isTry?: boolean
}

/** The settings of a `Redlock` for the native half. */
export interface NativeSettings extends Omit<RedlockOptions, 'note' | 'fair'>, NativeNoteAndWait {
  masters?: string[]
  isFair?: boolean
}

type Check = (name: string, value: unknown) => void

const fail = (name: string, value: unknown, expected: string): never => {
  throw new InvalidSettingsError(`${name} is ${describe(value)}: it must be ${expected}`)
}

function describe(value: unknown): string {
  return typeof value === 'number' || typeof value === 'boolean' ? String(value) : `of type ${typeof value}`
}

const time: Check = (name, value) => {
  if (typeof value !== 'number' || !Number.isFinite(value) || value < 0) {
    fail(name, value, 'a number of milliseconds, not negative')
  }
}
const waitTime: Check = (name, value) => {
  if (value !== Infinity) time(name, value)
}
const text: Check = (name, value) => {
  if (typeof value !== 'string') fail(name, value, 'a text')
}
const nullableText: Check = (name, value) => {
  if (value !== null) text(name, value)
}
const flag: Check = (name, value) => {
  if (typeof value !== 'boolean') fail(name, value, 'true or false')
}
const count: Check = (name, value) => {
  if (!Number.isInteger(value) || (value as number) < 0 || (value as number) > 0xffffffff) {
    fail(name, value, 'a whole number, not negative')
  }
}
const texts: Check = (name, value) => {
  if (!Array.isArray(value) || value.some((item) => typeof item !== 'string')) fail(name, value, 'a list of texts')
}
const guardMode: Check = (name, value) => {
  const modes = ['on', 'afterFirstContact', 'off']
  if (!modes.includes(value as string)) fail(name, value, `one of ${modes.join(', ')}`)
}
const abortSignal: Check = (name, value) => {
  if (typeof (value as AbortSignal | null)?.addEventListener !== 'function') fail(name, value, 'an AbortSignal')
}

const LOCK_CHECKS: Record<keyof LockOptions, Check> = {
  ttl: time,
  wait: waitTime,
  maxHold: time,
  renewal: flag,
  shared: flag,
  note: nullableText,
  signal: abortSignal,
}

const REDLOCK_CHECKS: Record<keyof RedlockOptions, Check> = {
  ttl: time,
  maxTtl: time,
  wait: waitTime,
  nodeTimeout: time,
  connectTimeout: time,
  heartbeat: time,
  maxHold: time,
  prefix: text,
  fencing: flag,
  fair: flag,
  restartGuard: guardMode,
  note: nullableText,
  nextMasters: texts,
  mastersGeneration: count,
  mastersName: text,
  caFile: text,
  clientCert: text,
  clientKey: text,
}

/** Names in other libraries, with the name here. */
const OTHER_NAMES: Record<string, string> = {
  duration: 'ttl',
  timeout: 'wait',
  retryCount: 'wait',
  retryDelay: 'wait',
  automaticExtensionThreshold: 'renewal (always on)',
}

/** Refuses unknown options and values of a wrong type. Returns the options that are given. */
function checked<T extends object>(options: T, checks: Record<string, Check>): T {
  if (typeof options !== 'object' || options === null) return fail('options', options, 'an object')
  const given = Object.entries(options).filter(([, value]) => value !== undefined)
  for (const [name, value] of given) {
    const check = Object.hasOwn(checks, name) ? checks[name] : undefined
    if (check === undefined) {
      const other = Object.hasOwn(OTHER_NAMES, name) ? `: use ${OTHER_NAMES[name]}` : ''
      throw new InvalidSettingsError(`there is no option ${JSON.stringify(name)}${other}`)
    }
    check(name, value)
  }
  return Object.fromEntries(given) as T
}

/** The native half takes a negative number for a wait without a limit. */
export function nativeWait(wait: number | undefined): { wait?: number } {
  if (wait === undefined) return {}
  waitTime('wait', wait)
  return { wait: wait === Infinity ? -1 : wait }
}

function nativeNote(note: string | null | undefined): { note?: string; isAnonymous?: boolean } {
  if (note === undefined) return {}
  return note === null ? { isAnonymous: true } : { note }
}

/** Checks a name of a lock. The library checks its length and its characters. */
export function checkName(name: unknown): string {
  if (typeof name !== 'string') return fail('the name', name, 'a text')
  return name
}

export function checkTime(name: string, value: number | undefined): number | undefined {
  if (value !== undefined) time(name, value)
  return value
}

/** Checks a number that must be whole and not negative, such as a number of units. */
export function checkWhole(name: string, value: number, largest = Number.MAX_SAFE_INTEGER): number {
  if (!Number.isSafeInteger(value) || value < 0 || value > largest) {
    fail(name, value, `a whole number from 0 to ${largest}`)
  }
  return value
}

/** The options of one acquire for the native half, and the signal. */
export function nativeLockOptions(
  names: string | string[],
  options: LockOptions = {},
): { native: NativeLockOptions; signal: AbortSignal | undefined } {
  const { signal, wait, note, ...others } = checked(options, LOCK_CHECKS)
  const isList = Array.isArray(names)
  const resources = isList ? names.map(checkName) : [checkName(names)]
  const native = { resources, isList, ...others, ...nativeWait(wait), ...nativeNote(note) }
  return { native, signal }
}

/** The settings of a `Redlock` for the native half. */
export function nativeSettings(options: RedlockOptions): NativeSettings {
  const { wait, note, fair, ...others } = checked(options, REDLOCK_CHECKS)
  const isFair = fair === undefined ? {} : { isFair: fair }
  return { ...others, ...isFair, ...nativeWait(wait), ...nativeNote(note) }
}

/** The signal of options that have nothing else. */
export function signalOf(options: { signal?: AbortSignal } | undefined): AbortSignal | undefined {
  return checked(options ?? {}, { signal: abortSignal }).signal
}
