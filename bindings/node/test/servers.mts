/** Real Redis servers for the tests. */

import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { createConnection, createServer } from 'node:net'
import { tmpdir } from 'node:os'

export const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

/** Whether `redis-server` or `valkey-server` is installed. The tests fail without it; they are never skipped. */
function program(): string {
  for (const name of ['redis-server', 'valkey-server']) {
    try {
      execFileSync(name, ['--version'], { stdio: 'ignore' })
      return name
    } catch {
      continue
    }
  }
  throw new Error('redis-server or valkey-server must be installed for these tests')
}

export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer()
    server.on('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address() as { port: number }
      server.close(() => resolve(port))
    })
  })
}

function connects(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = createConnection(port, '127.0.0.1', () => {
      socket.destroy()
      resolve(true)
    })
    socket.on('error', () => resolve(false))
  })
}

/** Masters on free ports of this machine. */
export class Servers {
  readonly processes: ChildProcess[] = []
  readonly ports: number[] = []

  get urls(): string[] {
    return this.ports.map((port) => `redis://127.0.0.1:${port}`)
  }

  async start(count = 5): Promise<this> {
    const name = program()
    for (let n = 0; n < count; n++) {
      const port = await freePort()
      const inMemory = ['--save', '', '--appendonly', 'no', '--dir', tmpdir()]
      const options = ['--port', `${port}`, '--bind', '127.0.0.1', ...inMemory]
      this.processes.push(spawn(name, options, { stdio: 'ignore' }))
      this.ports.push(port)
      const end = Date.now() + 20_000
      while (!(await connects(port))) {
        if (Date.now() > end) throw new Error(`${name} does not listen on port ${port}`)
        await sleep(20)
      }
    }
    return this
  }

  close(): void {
    for (const process of this.processes) {
      process.kill('SIGCONT')
      process.kill('SIGKILL')
    }
  }

  /** Sends one command to a server and returns the reply. Empty if the server does not answer within 2 s. */
  command(port: number, line: string): Promise<string> {
    return new Promise((resolve) => {
      const socket = createConnection(port, '127.0.0.1', () => socket.write(`${line}\r\nPING\r\n`))
      const timer = setTimeout(() => finish(), 2000)
      let reply = ''
      const finish = () => {
        clearTimeout(timer)
        socket.destroy()
        resolve(reply)
      }
      socket.on('data', (data) => {
        reply += data.toString()
        if (reply.endsWith('+PONG\r\n')) finish()
      })
      socket.on('error', finish)
    })
  }

  /**
   * The lock keys and queue keys whose names contain `name`, without fencing counters, notes, tickets, and the marker
   * that a force-release leaves.
   */
  async keys(name: string): Promise<string[]> {
    const replies = await Promise.all(this.ports.map((port) => this.command(port, 'KEYS *')))
    const isLeft = (key: string) => key.includes(name) && !/^quorate:(ticket|note|fence|broken):/.test(key)
    return replies.flatMap((reply, n) => reply.split('\r\n').filter(isLeft).map((key) => `${this.ports[n]} ${key}`))
  }

  /** The keys that are left when there are none or after `within` milliseconds, without those in `kept`. */
  async keysAfter(name: string, within: number, kept: string[] = []): Promise<string[]> {
    const end = Date.now() + within
    for (;;) {
      const keys = await this.keys(name)
      const left = keys.filter((key) => !kept.includes(key.slice(key.indexOf(' ') + 1)))
      if (left.length === 0 || Date.now() > end) return left
      await sleep(10)
    }
  }
}
