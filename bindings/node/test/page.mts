/** The code blocks of docs/node.md. */

import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

/** The path of the page. */
export const PAGE = fileURLToPath(new URL('../../../docs/node.md', import.meta.url))

export interface Block {
  language: string
  /** The file name in the first line of the block; empty if there is none. */
  file: string
  code: string
  /** The `text` block that follows; `null` if the output is not on the page. */
  output: string | null
  /** Whether the page shows only the end of the output. */
  isEnd: boolean
}

/** The code blocks of the page, with these ports in place of 7001, 7002 and 7003. */
export function blocks(ports: number[]): Block[] {
  const text = readFileSync(PAGE, 'utf8').replace(/\b700([123])\b/g, (_, n: string) => `${ports[Number(n) - 1]}`)
  const found: Block[] = []
  for (const [, before, language, code] of text.matchAll(/([^`]*)```(\w+)\n(.*?)```/gs)) {
    const last = found.at(-1)
    if (language === 'text' && last !== undefined && (before ?? '').trim().split('\n').length <= 1) {
      last.output = code!
      last.isEnd = /ends with:/.test(before!)
      continue
    }
    const file = /^\/\/ (\S+)\n/.exec(code!)?.[1] ?? ''
    found.push({ language: language!, file, code: code!, output: null, isEnd: false })
  }
  return found
}
