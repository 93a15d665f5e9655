/** The native half of the package, and how it is loaded. */

import { arch, platform } from 'node:process'
import type { LossCause } from './errors.js'
import type { NativeLockOptions, NativeSettings } from './options.js'

/** One message from the native threads. */
export interface Message {
  call: number
  guard?: NativeGuard
  value?: string
  failure?: string
}

export interface NativeBridge {
  take(): Message[]
  takeLogs(): string[]
  abort(call: number): void
  openCalls(): number
  log(level: string): void
  releaseAll(isProcess: boolean): number
}

export interface NativeGuard {
  readonly fencingToken: bigint | null
  readonly slot: number | null
  readonly resources: string[]
  readonly remaining: number
  readonly lost: LossCause | null
  isValid(): boolean
  release(bridge: NativeBridge): number
  extend(bridge: NativeBridge, ttl: number): number
  watchRisk(margin: number): NativeRiskWatcher
  record(bridge: NativeBridge): number
  stopped(recorded: boolean): string | null
}

export interface NativeRiskWatcher {
  next(bridge: NativeBridge): number
}

export interface NativeRedlock {
  readonly masters: string[]
  acquire(bridge: NativeBridge, options: NativeLockOptions): number
  status(bridge: NativeBridge, name: string): number
  semaphoreStatus(bridge: NativeBridge, name: string): number
  list(bridge: NativeBridge, prefix: string): number
  inspect(bridge: NativeBridge): number
  breakLock(bridge: NativeBridge, name: string, slot?: number): number
}

export interface NativeMemory {
  set(master: number, condition: string): void
  forget(master: number): void
}

export interface NativeQuota {
  create(bridge: NativeBridge, units: number): number
  take(bridge: NativeBridge, units: number): number
  left(bridge: NativeBridge): number
  dropQuota(bridge: NativeBridge): number
}

export interface NativeOnce {
  create(bridge: NativeBridge): number
  dropRecord(bridge: NativeBridge): number
  record(bridge: NativeBridge): number
  atMostOnce(bridge: NativeBridge): number
  atLeastOnce(bridge: NativeBridge): number
}

export interface NativeElection {
  campaign(bridge: NativeBridge, note?: string): number
  observe(): NativeObservation
}

export interface NativeObservation {
  next(bridge: NativeBridge): number
  close(): void
}

interface Native {
  version(): string
  Bridge: new (ring: () => void) => NativeBridge
  NativeRedlock: new (
    bridge: NativeBridge,
    settings: NativeSettings,
    memory: NativeMemory | undefined,
    fromEnv: boolean,
  ) => NativeRedlock
  NativeMemory: new (masters: number) => NativeMemory
  NativeQuota: new (redlock: NativeRedlock, name: string, wait?: number) => NativeQuota
  NativeOnce: new (
    redlock: NativeRedlock,
    name: string,
    period?: number,
    start?: number,
    end?: number,
    wait?: number,
  ) => NativeOnce
  NativeElection: new (redlock: NativeRedlock, name: string, ttl?: number, wait?: number) => NativeElection
}

/** The platforms to try. npm installs only the package that fits, so the first one that loads is right. */
function platforms(): string[] {
  if (platform === 'linux') return [`linux-${arch}-gnu`, `linux-${arch}-musl`]
  return [`${platform}-${arch}`]
}

function load(): Native {
  const expected = (require('../package.json') as { version: string }).version
  const problems: string[] = []
  for (const name of platforms()) {
    // A build in this folder, for development, and then the installed package.
    for (const path of [`../quorate.${name}.node`, `quorate-${name}`]) {
      try {
        const native = require(path) as Native
        const found = native.version()
        if (found === expected) return native
        problems.push(`${path} has version ${found}, but ${expected} is needed`)
      } catch (error) {
        problems.push(`${path}: ${(error as Error).message.split('\n')[0]}`)
      }
    }
  }
  throw new Error(
    `quorate has no usable native half for ${platform} ${arch} (supported: Linux and macOS on x64 and arm64). ` +
      'Install with optional dependencies: --omit=optional, or a lock file of another platform, leaves them out. ' +
      `Tried: ${problems.join('; ')}`,
  )
}

export const native: Native = load()
