/** The state of locks and masters, as plain objects. Times are in milliseconds. */

/** A description of a holder, which the holder has written. For information only. */
export interface Note {
  host: string
  pid: number
  /** The name of the program, without its arguments. */
  process: string
  /** The beginning of the hold, by the clock of the holder. */
  since: Date
  /** The text of the option `note`; `null` if the holder added none. */
  text: string | null
}

/** A fault of one master. */
export interface Fault {
  /** The kind as one word, for example `down` or `timeout`. Stable across versions. */
  kind: string
  message: string
}

/** A client that waits for the lock. */
export interface Waiter {
  id: string
  host: string | null
  pid: number | null
  since: Date | null
  /** How long the master keeps the place in the queue without a heartbeat. */
  ttlLeft: number
}

/** The state of a lock on one master. */
export interface MasterStatus {
  /** The address of the master, without credentials. */
  master: string
  /** Why the master gave no answer; `null` if it answered. */
  fault: Fault | null
  /** The time until the answer. */
  latency: number
  /** `null` if the master gave no answer. */
  isHeld: boolean | null
  /** Whether another program wrote the lock key. */
  isForeign: boolean | null
  ttlLeft: number | null
  /** The fencing counter: the token of the latest holder. */
  fencingToken: bigint | null
  holder: Note | null
  /** The queue in order, at most 100 waiters. The first can be the holder. */
  waiters: Waiter[]
}

/** The state of a lock on all masters. */
export interface Status {
  /**
   * - `held`: a majority of the masters shows the same holder.
   * - `free`: the lock is free on a majority of the masters.
   * - `split`: no holder has a majority, and the lock is free on too few masters.
   * - `unknown`: fewer masters than a majority answered.
   */
  verdict: 'held' | 'free' | 'split' | 'unknown'
  /** The note of the holder. A lock that was acquired less than about 100 ms ago has none. */
  holder: Note | null
  /** The holds of a shared lock: its readers, or the holds of its owner. */
  holds: { ttlLeft: number; holder: Note | null }[]
  /** The number of masters that are a majority. */
  quorum: number
  /** For `breakLock`: whether the deletion was sent. If the verdict is `unknown` nevertheless, repeat the call. */
  deletionWasSent: boolean
  masters: MasterStatus[]
}

/** One lock of a list. */
export interface ListedLock extends Status {
  name: string
  /** The number of the permit; `null` if the lock is no permit of a semaphore. */
  slot: number | null
}

/** The locks that are held now. */
export interface Listing {
  /** Sorted by name. */
  locks: ListedLock[]
  /** Whether the list contains every held lock. */
  complete: boolean
  majorityAnswered: boolean
  /** The masters that could not be asked for names. */
  faults: { master: string; fault: Fault }[]
}

/** The state of a semaphore. */
export interface SemaphoreStatus {
  /** The held permits. */
  permits: ListedLock[]
  /** The queue on each master, in `waiters`. */
  queue: MasterStatus[]
}

/** The report on one master. A field is `null` if the server does not report it. */
export interface Inspection {
  master: string
  /** Why this master cannot be used for locks; `null` if no fault was found. */
  fault: Fault | null
  /** How long connecting took. */
  connecting: number | null
  roundTrip: number | null
  /** The server software: for example `redis` or `valkey`. */
  server: string | null
  version: string | null
  role: string | null
  /** Whether the server is a node of a cluster, which cannot be a master. */
  cluster: boolean | null
  uptime: number | null
  maxmemoryPolicy: string | null
  appendOnly: boolean | null
  appendFsync: string | null
  /** The clock of the server minus the clock of this machine. */
  clockOffset: number | null
  /** The rights that locks need and that the user lacks; `rule` grants the right. */
  missingRights: { right: string; rule: string }[]
  /** Whether the server notifies waiting clients. Without notifications, waiting clients poll. */
  wakeUps: boolean
  /** How long the restart guard still ignores the votes of this master; `null` if the votes count. */
  quarantined: number | null
  /** Whether the server has a generation marker. */
  isMarked: boolean | null
}

const date = (milliseconds: number | null): Date | null => (milliseconds === null ? null : new Date(milliseconds))

type Json = Record<string, any>

/** A note from the native half, with its time as `Date`. */
export function reviveNote(note: object | null | undefined): Note | null {
  if (note === null || note === undefined) return null
  const { since, ...rest } = note as Json
  return { ...rest, since: new Date(since as number) } as Note
}

function reviveMaster(master: Json): MasterStatus {
  const { fencingToken, holder, waiters } = master
  return {
    ...master,
    fencingToken: fencingToken === null ? null : BigInt(fencingToken as string),
    holder: reviveNote(holder),
    waiters: (waiters as Json[]).map((waiter) => ({ ...waiter, since: date(waiter.since) })),
  } as MasterStatus
}

export function reviveStatus(status: Json): Status {
  return {
    ...status,
    holder: reviveNote(status.holder),
    holds: (status.holds as Json[]).map((hold) => ({ ...hold, holder: reviveNote(hold.holder) })),
    masters: (status.masters as Json[]).map(reviveMaster),
  } as Status
}

export function reviveListing(listing: Json): Listing {
  return { ...listing, locks: (listing.locks as Json[]).map(reviveStatus) } as Listing
}

export function reviveSemaphore(status: Json): SemaphoreStatus {
  return {
    permits: (status.permits as Json[]).map(reviveStatus) as ListedLock[],
    queue: (status.queue as Json[]).map(reviveMaster),
  }
}
