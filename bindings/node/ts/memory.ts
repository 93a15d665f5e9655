/** Masters in memory, for tests of your own code. */

import { InvalidSettingsError } from './errors.js'
import { native, type NativeMemory } from './native.js'
import { checkWhole } from './options.js'

const natives = new WeakMap<Memory, NativeMemory>()

/** Calls a function of the native half that refuses bad arguments. */
export function refusing<T>(call: () => T): T {
  try {
    return call()
  } catch (error) {
    throw new InvalidSettingsError((error as Error).message)
  }
}

/**
 * Masters in memory, for tests without a server. Several `Redlock`s of one process can share them, and each acts as a
 * separate process.
 */
export class Memory {
  /** Creates this number of masters, 1 to 64. */
  constructor(masters: number) {
    checkWhole('masters', masters, 0xffffffff)
    natives.set(this, refusing(() => new native.NativeMemory(masters)))
  }

  /**
   * Changes the condition of a master, numbered from 0. A master that is `down` refuses connections. A master that is
   * `mute` executes requests, but its answers never arrive.
   */
  set(master: number, condition: 'up' | 'down' | 'mute'): void {
    checkWhole('master', master, 0xffffffff)
    refusing(() => nativeMemory(this).set(master, condition))
  }

  /** Deletes all data of a master, as a restart without persistence does. */
  forget(master: number): void {
    checkWhole('master', master, 0xffffffff)
    refusing(() => nativeMemory(this).forget(master))
  }
}

export function nativeMemory(memory: Memory): NativeMemory {
  return natives.get(memory) as NativeMemory
}
