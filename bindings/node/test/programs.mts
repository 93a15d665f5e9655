/** Child programs that use the package. */

import { type ChildProcess, spawn } from 'node:child_process'
import { createRequire } from 'node:module'

export const INDEX = createRequire(import.meta.url).resolve('../dist/index.js')

export interface Finished {
  out: string
  err: string
  code: number | null
  signal: string | null
  milliseconds: number
}

/** Starts a program in which `redlock` is a `Redlock` on these masters, and `sleep` waits. */
export function start(
  urls: string[],
  body: string,
  flags: string[] = [],
): { child: ChildProcess; done: Promise<Finished> } {
  const script = `const quorate = require(${JSON.stringify(INDEX)})
    const { Redlock } = quorate
    const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
    const redlock = new Redlock(${JSON.stringify(urls)}, { restartGuard: 'off', ttl: 20000 })
    ;(async () => { ${body} })()`
  const began = Date.now()
  const child = spawn(process.execPath, [...flags, '-e', script])
  let out = ''
  let err = ''
  child.stdout.on('data', (data) => (out += data))
  child.stderr.on('data', (data) => (err += data))
  const done = new Promise<Finished>((resolve) => {
    child.on('close', (code, signal) => resolve({ out, err, code, signal, milliseconds: Date.now() - began }))
  })
  return { child, done }
}
