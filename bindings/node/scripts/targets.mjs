/** The platforms for which a package with the native half is published. */

/** For each platform: the Rust target, and the fields `os`, `cpu` and `libc` of its package. */
export const TARGETS = {
  'linux-x64-gnu': { rust: 'x86_64-unknown-linux-gnu', os: 'linux', cpu: 'x64', libc: 'glibc' },
  'linux-arm64-gnu': { rust: 'aarch64-unknown-linux-gnu', os: 'linux', cpu: 'arm64', libc: 'glibc' },
  'linux-x64-musl': { rust: 'x86_64-unknown-linux-musl', os: 'linux', cpu: 'x64', libc: 'musl' },
  'linux-arm64-musl': { rust: 'aarch64-unknown-linux-musl', os: 'linux', cpu: 'arm64', libc: 'musl' },
  'darwin-x64': { rust: 'x86_64-apple-darwin', os: 'darwin', cpu: 'x64' },
  'darwin-arm64': { rust: 'aarch64-apple-darwin', os: 'darwin', cpu: 'arm64' },
}

/** The platform of this machine. */
export function thisPlatform() {
  if (process.platform !== 'linux') return `${process.platform}-${process.arch}`
  const isGlibc = process.report.getReport().header.glibcVersionRuntime !== undefined
  return `linux-${process.arch}-${isGlibc ? 'gnu' : 'musl'}`
}
