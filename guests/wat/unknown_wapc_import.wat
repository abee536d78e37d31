;; Imports a function of module `wapc` that is not in the protocol.
(module
  (import "wapc" "__no_such_function" (func (param i32)))
  (memory (export "memory") 1)
  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    (i32.const 0)))
