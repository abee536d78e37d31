;; Has a memory and no __guest_call.
(module
  (memory (export "memory") 1))
