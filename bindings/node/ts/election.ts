/** Leader election. */

import { ask, run } from './bridge.js'
import { Guard } from './guard.js'
import { native, type NativeElection, type NativeRedlock } from './native.js'
import { refusing } from './memory.js'
import { checkName, checkTime, nativeWait, signalOf } from './options.js'
import { type Note, reviveNote } from './status.js'

/** The leader of an election. */
export interface Leader {
  /** The term of the leader: its fencing token. Terms never decrease. */
  term: bigint
  /** The note of the leader; `null` if the leader has written none. */
  note: Note | null
}

/** The leadership that this client has won. It is the guard of the lock with the name of the election. */
export class Leadership extends Guard {
  /** The term: the fencing token of this leader, larger than that of every earlier leader. */
  get term(): bigint {
    return this.fencingToken ?? 0n
  }

  /** Gives up the leadership: the next candidate leads. The same as `release()`. */
  resign(): Promise<boolean> {
    return this.release()
  }
}

/** An election: at most one client leads at a time. Made by `Redlock.election`. */
export class Election {
  readonly #native: NativeElection

  /** @internal */
  constructor(redlock: NativeRedlock, name: string, options: { ttl?: number; wait?: number }) {
    const { ttl, wait } = options
    this.#native = new native.NativeElection(redlock, checkName(name), checkTime('ttl', ttl), nativeWait(wait).wait)
  }

  /**
   * Waits until this client leads. Candidates lead in the order of their calls. Observers see `note`, a text of at most
   * 1 KiB, for example the address of this client. Rejects with the errors of `Redlock.acquire`.
   */
  async campaign(note?: string | null, options?: { signal?: AbortSignal }): Promise<Leadership> {
    return run(
      (bridge) => this.#native.campaign(bridge, note ?? undefined),
      ({ guard, call }) => new Leadership(guard!, call),
      { signal: signalOf(options) },
    )
  }

  /**
   * The leaders, one after the other: first the current one, then each change. `null` means that no leader is known.
   * The iteration never ends: leave it with `break`, or let `signal` abort it. A leader can be outdated when it
   * arrives, so compare terms.
   */
  async *observe(options?: { signal?: AbortSignal }): AsyncGenerator<Leader | null, void, undefined> {
    const signal = signalOf(options)
    const observation = refusing(() => this.#native.observe())
    const revive = (leader: any): Leader | null =>
      leader === null ? null : { term: BigInt(leader.term), note: reviveNote(leader.note) }
    try {
      for (;;) yield await ask((bridge) => observation.next(bridge), revive, { signal })
    } finally {
      observation.close()
    }
  }
}
