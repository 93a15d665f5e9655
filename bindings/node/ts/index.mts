// The same module for `import` and `require`: the native threads know only one copy.
export * from './index.js'
