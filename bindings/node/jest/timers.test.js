// A users' test file with masters in memory, fake timers, and a fresh copy of each module for each test.
beforeEach(() => jest.resetModules())
afterEach(() => jest.useRealTimers())

for (const name of ['first copy', 'second copy']) {
  test(`fake timers stop no call: ${name}`, async () => {
    jest.useFakeTimers()
    const { Memory, Redlock } = require('quorate')
    const redlock = new Redlock(new Memory(3))
    const guard = await redlock.acquire('timers')
    await expect(redlock.acquire('timers', { wait: 50 })).rejects.toMatchObject({ code: 'ERR_QUORATE_HELD' })
    expect(await guard.release()).toBe(true)
  })
}
