/**
 * The connection to the native threads. Each copy of this module has its own: the main thread, each worker, and each
 * copy that a test runner loads.
 */

import { MessageChannel } from 'node:worker_threads'
import { onExit } from './exit.js'
import { type AtRisk, errorOf, type Failure, type LossCause } from './errors.js'
import { logChannel } from './channels.js'
import { type Message, native, type NativeBridge } from './native.js'

/** An event that is not the reply to a call. */
export interface Notice {
  /** The lock was lost for this reason. */
  lost?: LossCause
  /** The lock may be lost soon. */
  atRisk?: AtRisk
  /** The body of a once-per-period job must run. */
  turn?: { fencingToken: string | null }
}

interface PendingCall {
  resolve(message: Message): void
  reject(error: unknown): void
}

const pendingCalls = new Map<number, PendingCall>()
const listeners = new Map<number, (notice: Notice) => void>()

// Keeps the process alive while a call is pending, and only then. Unlike a timer, no test runner replaces it.
const { port1: keepAlive, port2: otherEnd } = new MessageChannel()
otherEnd.unref()
keepAlive.unref()

export const bridge: NativeBridge = new native.Bridge(ring)
onExit(bridge)

function ring(): void {
  for (const message of bridge.take()) {
    if (message.notice !== undefined) deliver(message.call, message.notice)
    else settle(message)
  }
}

function deliver(call: number, notice: string): void {
  if (call === 0) logChannel.publish(JSON.parse(notice))
  else listeners.get(call)?.(JSON.parse(notice) as Notice)
}

function settle(message: Message): void {
  const pendingCall = pendingCalls.get(message.call)
  if (pendingCall === undefined) {
    // The call was cancelled, or nobody waits for it. Release the lock now: the garbage collector may come much later.
    message.guard?.release(bridge)
    listeners.delete(message.call)
    return
  }
  remove(message.call)
  if (message.failure !== undefined) pendingCall.reject(errorOf(JSON.parse(message.failure) as Failure))
  else pendingCall.resolve(message)
}

function add(call: number, pendingCall: PendingCall): void {
  if (pendingCalls.size === 0) keepAlive.ref()
  pendingCalls.set(call, pendingCall)
}

function remove(call: number): boolean {
  if (!pendingCalls.delete(call)) return false
  if (pendingCalls.size === 0) keepAlive.unref()
  return true
}

/**
 * Starts a native call and waits for its reply. `convert` runs before any other message is delivered, so it can
 * register a listener without missing a notice. If `signal` aborts first, the call is cancelled, everything that it got
 * is released, and the promise rejects with the reason of the signal.
 */
export function run<T>(
  start: (bridge: NativeBridge) => number,
  convert: (message: Message) => T,
  signal?: AbortSignal,
): { call: number; reply: Promise<T> } {
  signal?.throwIfAborted()
  const call = start(bridge)
  const reply = new Promise<T>((resolve, reject) => {
    const abort = () => {
      if (!remove(call)) return
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
    })
  })
  return { call, reply }
}

/** Starts a native call whose reply is a value. */
export async function ask<T>(
  start: (bridge: NativeBridge) => number,
  revive: (value: any) => T,
  signal?: AbortSignal,
): Promise<T> {
  return run(start, (message) => revive(JSON.parse(message.value ?? 'null')), signal).reply
}

/** Calls `listener` for each notice of this call. */
export function listen(call: number, listener: (notice: Notice) => void): void {
  listeners.set(call, listener)
}

export function stopListening(call: number): void {
  listeners.delete(call)
}
