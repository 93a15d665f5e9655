/** A number of units that clients take until none is left. */

import { ask } from './bridge.js'
import { native, type NativeQuota, type NativeRedlock } from './native.js'
import { checkName, checkWhole, nativeWait } from './options.js'

/**
 * A quota: units that are handed out once, for example 100 vouchers. The masters store the number under the lock with
 * the same name. Made by `Redlock.quota`. Methods reject with `ValueError` or `AcquireError`.
 */
export class Quota {
  readonly #native: NativeQuota

  /** @internal */
  constructor(redlock: NativeRedlock, name: string, wait: number | undefined) {
    this.#native = new native.NativeQuota(redlock, checkName(name), nativeWait(wait).wait)
  }

  /** Creates the quota with this number of units. An operator calls it once. Every master must answer. */
  async create(units: number): Promise<void> {
    checkWhole('units', units)
    await ask((bridge) => this.#native.create(bridge, units), () => undefined)
  }

  /**
   * Takes units, or none if too few are left. After a `ValueUnknownError` the units may be taken: do not use them.
   * Default: 1 unit.
   */
  async take(units = 1): Promise<{ taken: boolean; left: number }> {
    checkWhole('units', units)
    return ask((bridge) => this.#native.take(bridge, units), ({ taken, left }) => ({ taken, left }))
  }

  /** How many units are left. */
  async left(): Promise<number> {
    return ask((bridge) => this.#native.left(bridge), Number)
  }

  /** Removes the quota from every master. Only an operator should do this. Resolves to whether it existed. */
  async drop(): Promise<boolean> {
    return ask((bridge) => this.#native.dropQuota(bridge), Boolean)
  }
}
