;; Has the memory of a WASI command and no _start.
(module
  (memory (export "memory") 1))
