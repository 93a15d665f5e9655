/** Releases held locks at the end of the process, also after `process.exit` and an uncaught error. */

import { writeSync } from 'node:fs'
import { isMainThread } from 'node:worker_threads'

interface Releases {
  releaseAll(isProcess: boolean): number
}

// All copies of this module share one listener, so a test runner that loads many copies adds only one.
const KEY = Symbol.for('quorate.releasesAtExit')
const shared = process as unknown as { [KEY]?: Set<WeakRef<Releases>> }

function releaseAll(): void {
  let held = 0
  for (const reference of shared[KEY] ?? []) held += reference.deref()?.releaseAll(isMainThread) ?? 0
  if (held === 0) return
  // Node.js prints no warning that is emitted now.
  const locks = held === 1 ? '1 lock was' : `${held} locks were`
  try {
    writeSync(2, `(quorate) QuorateWarning: ${locks} still held at the end of the process, and released\n`)
  } catch {
    // Standard error is closed: nobody can read the warning.
  }
}

/** Calls `releases.releaseAll(..)` at the end of the process or of the worker, unless the object was collected. */
export function onExit(releases: Releases): void {
  let all = shared[KEY]
  if (all === undefined) {
    all = new Set()
    Object.defineProperty(process, KEY, { value: all, enumerable: false })
    process.once('exit', releaseAll)
  }
  for (const reference of all) if (reference.deref() === undefined) all.delete(reference)
  all.add(new WeakRef(releases))
}
