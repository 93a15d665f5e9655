// Moving from npm redlock: locks of both packages exclude each other.

import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { after, before, test } from 'node:test'
import { LockHeldError, Redlock } from '../dist/index.mjs'
import { Servers } from './servers.mjs'

// The types of redlock 5 cannot be resolved from ESM.
const require = createRequire(import.meta.url)
const { default: OtherRedlock } = require('redlock')
const { Redis } = require('ioredis')

const servers = new Servers()
before(() => servers.start(3))
after(() => servers.close())

test('locks of npm redlock and of quorate exclude each other', async (context) => {
  const clients = servers.ports.map((port) => new Redis(port, '127.0.0.1'))
  context.after(() => clients.forEach((client) => client.disconnect()))
  const other = new OtherRedlock(clients, { retryCount: 0 })
  const redlock = new Redlock(servers.urls, { restartGuard: 'off' })

  const lock = await other.acquire(['moving'], 5_000)
  assert.equal(await redlock.tryAcquire('moving'), null)
  await assert.rejects(redlock.acquire('moving', { wait: 100 }), LockHeldError)
  await lock.release()

  const guard = await redlock.acquire('moving', { wait: 5_000 })
  await assert.rejects(other.acquire(['moving'], 5_000), /quorum/)
  await guard.release()
  await (await other.acquire(['moving'], 5_000)).release()
})
