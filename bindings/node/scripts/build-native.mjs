/**
 * Builds the native half: `node scripts/build-native.mjs [PLATFORM]`. The default is the platform of this machine. For
 * another platform, the Rust target and a linker for it must be installed. With QUORATE_NODE_PROFILE=dev, the build has
 * no optimizations and takes less time.
 */

import { execFileSync } from 'node:child_process'
import { copyFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { TARGETS, thisPlatform } from './targets.mjs'

const folder = dirname(dirname(fileURLToPath(import.meta.url)))
const platform = process.argv[2] ?? thisPlatform()
const target = TARGETS[platform]
if (target === undefined) {
  console.error(`no package exists for ${platform}; there are: ${Object.keys(TARGETS).join(', ')}`)
  process.exit(1)
}
const isOwn = platform === thisPlatform()
const env = { ...process.env }
// A static C library cannot be loaded into Node.js.
if (target.libc === 'musl') env.RUSTFLAGS = `${env.RUSTFLAGS ?? ''} -C target-feature=-crt-static`.trim()
const isQuick = process.env.QUORATE_NODE_PROFILE === 'dev'
const options = ['build', '--locked', '-p', 'quorate-node']
if (!isQuick) options.push('--release')
if (!isOwn) options.push('--target', target.rust)
execFileSync('cargo', options, { cwd: folder, env, stdio: 'inherit' })
const query = ['metadata', '--format-version', '1', '--no-deps', '--offline']
const metadata = execFileSync('cargo', query, { cwd: folder, env })
const built = join(JSON.parse(metadata).target_directory, isOwn ? '' : target.rust, isQuick ? 'debug' : 'release')
const extension = target.os === 'darwin' ? 'dylib' : 'so'
copyFileSync(join(built, `libquorate_node.${extension}`), join(folder, `quorate.${platform}.node`))
