/**
 * Writes the npm packages into `packages/`: `quorate`, and one package for each platform whose native half was built
 * (`quorate.PLATFORM.node`). Prints the paths of the packed files.
 */

import { execFileSync } from 'node:child_process'
import { copyFileSync, cpSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { TARGETS } from './targets.mjs'

const folder = dirname(dirname(fileURLToPath(import.meta.url)))
const root = join(folder, '../..')
const packages = join(folder, 'packages')
const { devDependencies, scripts, ...main } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'))

/** The version of the crate whose `Cargo.toml` is in this folder of the repository. */
function crateVersion(path, section) {
  const text = readFileSync(join(root, path, 'Cargo.toml'), 'utf8')
  const body = text.split(`[${section}]`)[1] ?? ''
  return /^version = "(.*)"$/m.exec(body.split('\n[')[0])?.[1]
}

const core = crateVersion('.', 'workspace.package')
if (main.version !== core) throw new Error(`package.json has version ${main.version}, but the library has ${core}`)

/** Writes one package and packs it. Returns the path of the packed file. */
function pack(manifest, copy) {
  const into = join(packages, manifest.name)
  mkdirSync(into, { recursive: true })
  writeFileSync(join(into, 'package.json'), `${JSON.stringify(manifest, null, 2)}\n`)
  for (const license of ['LICENSE-MIT', 'LICENSE-APACHE']) copyFileSync(join(root, license), join(into, license))
  copy(into)
  const options = ['pack', '--json', '--pack-destination', packages]
  const [{ filename }] = JSON.parse(execFileSync('npm', options, { cwd: into }))
  return join(packages, filename)
}

rmSync(packages, { recursive: true, force: true })
const files = []
const optionalDependencies = {}
for (const [platform, { os, cpu, libc }] of Object.entries(TARGETS)) {
  const name = `quorate-${platform}`
  optionalDependencies[name] = main.version
  const binary = `quorate.${platform}.node`
  if (!existsSync(join(folder, binary))) continue
  const { version, license, repository, engines } = main
  const description = `The native half of the package quorate for ${platform}`
  const fits = { os: [os], cpu: [cpu], ...(libc === undefined ? {} : { libc: [libc] }) }
  const manifest = { name, version, description, license, repository, engines, ...fits, main: binary, files: [binary] }
  files.push(pack(manifest, (into) => copyFileSync(join(folder, binary), join(into, binary))))
}
// The links of the page lead to the other pages in the repository.
const pages = main.repository.url.replace(/^git\+(.*)\.git$/, '$1/blob/main/docs/')
const readme = readFileSync(join(root, 'docs/node.md'), 'utf8').replace(/\]\((\w[\w-]*\.md)/g, `](${pages}$1`)
const mainFile = pack({ ...main, optionalDependencies }, (into) => {
  cpSync(join(folder, 'dist'), join(into, 'dist'), { recursive: true })
  writeFileSync(join(into, 'README.md'), readme)
})
for (const file of [mainFile, ...files]) console.log(file)
