// A users' program in CommonJS: type-checked with `tsc --strict`, and run, where the packed packages are installed.
import quorate = require('quorate')

async function main(): Promise<void> {
  const redlock: quorate.Redlock = new quorate.Redlock(new quorate.Memory(3))
  const guard: quorate.Guard = await redlock.acquire('script')
  const status: quorate.Status = await redlock.status('script')
  const wasValid: boolean = await guard.release()
  console.log('CommonJS', status.verdict, wasValid, status.masters.length)
}

void main()
