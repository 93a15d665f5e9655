/**
 * The connection to the native threads. Each copy of this module has its own: the main thread, each worker, and each
 * copy that a test runner loads.
 */

import { MessageChannel } from 'node:worker_threads'
import { onExit } from './exit.js'
import { errorOf, type Failure, type LossCause } from './errors.js'
import { logChannel } from './channels.js'
import { type Message, native, type NativeBridge } from './native.js'

interface PendingCall {
  resolve(message: Message): void
  reject(error: unknown): void
  /** Whether the process must not end before the reply. */
  keepsAlive: boolean
}

const pendingCalls = new Map<number, PendingCall>()
const lossListeners = new Map<number, (cause: LossCause) => void>()

// Keeps the process alive while a call is pending, and only then. Unlike a timer, no test runner replaces it.
const { port1: keepAlive, port2: otherEnd } = new MessageChannel()
otherEnd.unref()
keepAlive.unref()
let keeping = 0

export const bridge: NativeBridge = new native.Bridge(ring)
onExit(bridge)

function ring(): void {
  const messages = bridge.take()
  // The record of a loss was written before the message about it.
  for (const record of bridge.takeLogs()) logChannel.publish(JSON.parse(record))
  for (const message of messages) receive(message)
}

function receive(message: Message): void {
  const { call, guard, value, failure } = message
  const pendingCall = remove(call)
  if (pendingCall !== undefined) {
    if (failure !== undefined) pendingCall.reject(errorOf(JSON.parse(failure) as Failure))
    else pendingCall.resolve(message)
  } else if (guard !== undefined) {
    // The call was cancelled. Release the lock now: the garbage collector may come much later.
    guard.release(bridge)
  } else if (value !== undefined) {
    lossListeners.get(call)?.((JSON.parse(value) as { lost: LossCause }).lost)
  }
}

function add(call: number, pendingCall: PendingCall): void {
  if (pendingCall.keepsAlive) beginKeeping()
  pendingCalls.set(call, pendingCall)
}

function remove(call: number): PendingCall | undefined {
  const pendingCall = pendingCalls.get(call)
  pendingCalls.delete(call)
  if (pendingCall?.keepsAlive === true) endKeeping()
  return pendingCall
}

function beginKeeping(): void {
  if (keeping++ === 0) keepAlive.ref()
}

function endKeeping(): void {
  if (--keeping === 0) keepAlive.unref()
}

/** Keeps the process alive until the work ends. */
export async function keepingAlive<T>(work: () => Promise<T>): Promise<T> {
  beginKeeping()
  return work().finally(endKeeping)
}

/** How to wait for a reply. */
interface Waiting {
  /** Ends the wait: the call is cancelled, and everything that it got is released. */
  signal?: AbortSignal | undefined
  /** Whether the process may end before the reply. */
  inBackground?: boolean
}

/**
 * Starts a native call and waits for its reply. `convert` runs before any other message is received, so it can
 * register a listener without missing a loss. If the signal aborts first, the promise rejects with its reason.
 */
export async function run<T>(
  start: (bridge: NativeBridge) => number,
  convert: (message: Message) => T,
  { signal, inBackground = false }: Waiting = {},
): Promise<T> {
  signal?.throwIfAborted()
  const call = start(bridge)
  return new Promise<T>((resolve, reject) => {
    const abort = () => {
      if (remove(call) === undefined) return
      bridge.abort(call)
      reject(signal?.reason)
    }
    const finish = () => signal?.removeEventListener('abort', abort)
    signal?.addEventListener('abort', abort, { once: true })
    add(call, {
      resolve(message) {
        finish()
        try {
          resolve(convert(message))
        } catch (error) {
          reject(error)
        }
      },
      reject(error) {
        finish()
        reject(error)
      },
      keepsAlive: !inBackground,
    })
  })
}

/** Starts a native call whose reply is a value. */
export async function ask<T>(
  start: (bridge: NativeBridge) => number,
  revive: (value: any) => T,
  waiting?: Waiting,
): Promise<T> {
  return run(start, (message) => revive(JSON.parse(message.value ?? 'null')), waiting)
}

/** Calls `listener` if the lock that this call has acquired is lost. A release is no loss. */
export function onLoss(call: number, listener: (cause: LossCause) => void): void {
  lossListeners.set(call, listener)
}

export function stopListening(call: number): void {
  lossListeners.delete(call)
}
